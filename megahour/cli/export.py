"""Commands that write episodes for other projects: `export`."""

from __future__ import annotations

import re
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from megahour.cli.find import CommandError, episode_row, open_the_lake, read_settings, require_recipe_name

export_app = typer.Typer(help="Datasets for other projects.", no_args_is_help=True)


class Split(StrEnum):
    """Which of a manifest's episodes."""

    TRAIN = "train"
    VALIDATION = "validation"
    ALL = "all"


@export_app.callback()
def _export() -> None:
    """Keeps `lerobot` a word of the command: a group of one command would swallow it."""


@export_app.command("lerobot")
def export_lerobot(
    out: Annotated[Path, typer.Argument(help="A new folder for the dataset.")],
    recipe: Annotated[str | None, typer.Option(help="The episodes of this recipe's latest manifest.")] = None,
    episodes: Annotated[
        list[str] | None, typer.Option("--episodes", help="Ids or their first digits, with commas or repeated.")
    ] = None,
    split: Annotated[Split, typer.Option(help="Which of the recipe's episodes.")] = Split.ALL,
    camera: Annotated[
        list[str] | None, typer.Option(help="Only this camera, repeated; default the recipe's, else all.")
    ] = None,
    series: Annotated[list[str] | None, typer.Option(help="Only this series, repeated; default all.")] = None,
    fps: Annotated[
        int | None, typer.Option(min=1, max=1000, help="The dataset's one rate; default the cameras' own, rounded.")
    ] = None,
) -> None:
    """Write a LeRobot v3.0 dataset. Pictures are copied as they are coded, none is coded anew."""
    from rich.console import Console
    from rich.progress import Progress, track

    from megahour.display import size
    from megahour.export import choose
    from megahour.export.lerobot import export_lerobot as export
    from megahour.export.model import Wanted
    from megahour.export.survey import agree, examine

    if re.match(r"[a-z0-9]+:/", str(out)):
        raise CommandError("The dataset is written to a folder of this machine; copy it to a bucket from there")
    if (recipe is None) == (not episodes):
        raise CommandError(
            "Say which episodes: either --recipe NAME, or --episodes ID; `megahour episodes ls` lists them"
        )
    if recipe is None and split is not Split.ALL:
        raise CommandError("--split is of a recipe's manifest: single episodes are all exported")
    out = out.expanduser().absolute()
    if out.resolve() == Path.cwd():
        raise CommandError(f"{out} is the folder this command runs in, and would be replaced: name one in it")
    lake = open_the_lake()
    if recipe is not None:
        require_recipe_name(recipe)
        choice = choose.of_recipe(lake, recipe, split.value, read_settings().scratch)
    else:
        ids = [each.strip() for given in episodes or () for each in given.split(",") if each.strip()]
        choice = choose.of_rows([episode_row(each) for each in ids])
    cameras = tuple(camera) if camera else choice.cameras
    wanted = Wanted(cameras, tuple(series) if series else None, fps)
    terminal = Console(stderr=True)
    quiet = not terminal.is_terminal
    candidates = (examine(lake, each, wanted) for each in choice)
    agreed = agree(track(candidates, "Looking", total=len(choice), console=terminal, transient=True, disable=quiet))
    frames = size_bytes = 0
    bars = Progress(console=terminal, transient=True, disable=quiet)
    with bars as progress, closing(export(out, lake, choice, agreed)) as written:
        bar = progress.add_task("Writing", total=len(choice))
        for episode in written:
            frames, size_bytes = frames + episode.frames, size_bytes + episode.size_bytes
            progress.advance(bar)
    shape = agreed.shape
    print(
        f"{len(choice)} episodes, {frames} frames at {shape.fps} fps, {len(shape.cameras)} cameras "
        f"({size(size_bytes)} of pictures) in {out}"
    )
    if agreed.off_grid:
        print(
            f"The times of {agreed.off_grid} episodes are not 1/{shape.fps} s apart: their frames are numbered on that "
            "grid, and the feature megahour.time_s has the true times"
        )
    print(f'Open it with LeRobotDataset("{out.name}", root="{out}")')

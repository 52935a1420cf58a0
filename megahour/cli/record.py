"""Commands that bring recordings in: `record` and `land`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megahour.cli.find import read_settings


def record(
    task: Annotated[str, typer.Option(help="The simulator's name of a task, e.g. button-press-topdown-v3.")],
    episodes: Annotated[int, typer.Option(min=1, help="Demonstrations to record.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise on executed actions.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder; default .megahour/recordings/TASK-SEED.")] = None,
    first_init_state: Annotated[int, typer.Option(min=0, help="Start of the first demonstration.")] = 0,
    size: Annotated[int, typer.Option(min=16, help="Height and width of the pictures.")] = 128,
    simulator: Annotated[str, typer.Option(help="The simulator.")] = "metaworld",
    workers: Annotated[int | None, typer.Option(min=1, help="Simulator processes; default as for rollouts.")] = None,
) -> None:
    """Record demonstrations of a simulator's scripted expert, one HDF5 each. An interrupted recording goes on."""
    from rich.console import Console
    from rich.progress import Progress

    from megahour.recording import record as record_episodes

    settings = read_settings()
    folder = out or Path(".megahour/recordings") / f"{task}-{seed}"
    successes = kept = 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"Recording {task}", total=episodes)
        for episode in record_episodes(
            task,
            episodes,
            seed,
            folder,
            first_init_state=first_init_state,
            simulator=simulator,
            size=(size, size),
            workers=workers or settings.rollout_workers,
            gl=settings.mujoco_gl,
        ):
            successes += episode.success
            kept += not episode.written
            progress.advance(bar)
    before = f", {kept} of them from before" if kept else ""
    print(f"{episodes} demonstrations in {folder}{before}; {successes} succeeded. Next: megahour land {folder}")


def land(
    src: Annotated[Path, typer.Argument(help="A folder of recordings, a dataset, or one file.")],
    source: Annotated[str | None, typer.Option(help="Who or what it comes from; default the folder's name.")] = None,
) -> None:
    """Copy recordings into the landing zone; the pipeline takes it from there. What landed before is left alone."""
    from rich.console import Console
    from rich.progress import Progress

    from megahour.display import size
    from megahour.landing import land as land_files
    from megahour.landing import plan_landing
    from megahour.storage import open_lake

    arrivals = plan_landing(src, source)
    lake = open_lake(read_settings().lake_uri)
    copied: list[int] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"Landing {src.name}", total=sum(arrival.size_bytes for arrival in arrivals))
        for arrival in land_files(lake, arrivals):
            copied += [arrival.size_bytes] if arrival.copied else []
            progress.advance(bar, arrival.size_bytes)
    folder = "/".join(arrivals[0].key.split("/")[:2])
    before = len(arrivals) - len(copied)
    print(f"{len(copied)} files ({size(sum(copied))}) landed in {lake.url(folder)}; {before} were there before")

"""What commands look up: settings, the lake, rows, an episode or a run by its first digits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from megahour.settings import Settings
    from megahour.storage import Lake

Json = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]

EPISODE_SUMMARY = (
    "episode_id, robot, task, source, success, rate_hz, frames, duration_s, cameras, state_dim, action_dim, "
    "size_bytes, sha256, uri, recording_uri, batch, ingested_at, frozen_share, dropped_frames, nan_values, "
    "action_jump, idle_share, warnings"
)


class CommandError(ValueError):
    """A command cannot do what was asked; the message says why and what to do."""


def read_settings() -> Settings:
    """Settings from the environment."""
    from megahour.settings import load_settings

    return load_settings()


def open_the_lake() -> Lake:
    """The lake of the settings, which is there already."""
    from megahour.storage import find_lake

    return find_lake(read_settings().lake_uri)


def rows_of(sql: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """The result of one SELECT over the lake's views."""
    from megahour.warehouse.queries import query

    rows: list[dict[str, Any]] = query(open_the_lake(), sql, params).to_pylist()
    return rows


def require_digits(episode_id: str) -> None:
    """Every id begins with nothing, and one that is alone would be found."""
    if not episode_id:
        raise CommandError("An episode is named by its id, or its first digits: `megahour episodes ls` lists them")


def episode_row(episode_id: str) -> dict[str, Any]:
    """The row of the episode whose id begins with `episode_id`."""
    require_digits(episode_id)
    rows = rows_of(
        f"SELECT {EPISODE_SUMMARY} FROM measured WHERE starts_with(episode_id, ?) ORDER BY episode_id LIMIT 2",
        [episode_id],
    )
    if not rows:
        raise CommandError(f"There is no episode {episode_id}: `megahour episodes ls` lists them")
    if len(rows) > 1:
        raise CommandError(f"Several episodes begin with {episode_id}: give more digits")
    return rows[0]


def require_recipe_name(recipe: str) -> None:
    """A name that no recipe has would look for a manifest in another place of the lake."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", recipe):
        raise CommandError(f"{recipe!r} is no recipe's name: give one of small letters, digits and _, without .yaml")


def known_runs() -> tuple[Path, list[Path]]:
    """The folder of runs, and the directories of those in it, oldest first."""
    from megahour.runs import run_dirs

    # Before the first run there is no folder of them: only the lake says whether the place is right.
    open_the_lake()
    runs_dir = read_settings().runs_dir
    return runs_dir, run_dirs(runs_dir)


def run_dir_of(run: str | None) -> Path:
    """The directory of the run whose key begins with `run`; of the latest run where that is None."""
    if run == "":
        raise CommandError("A run is named by its key, or its first digits: `megahour runs ls` lists them")
    runs_dir, known = known_runs()
    if not known:
        raise CommandError(f"There are no runs in {runs_dir}")
    if run is None:
        return known[-1]
    found = [run_dir for run_dir in known if run_dir.name.startswith(run)]
    if not found:
        latest = ", ".join(run_dir.name for run_dir in known[-5:])
        raise CommandError(f"There is no run that begins with {run}; the latest are: {latest}")
    if len(found) > 1:
        some = ", ".join(run_dir.name for run_dir in found[-5:])
        raise CommandError(f"Several runs begin with {run}: give more digits; the latest of them are: {some}")
    return found[0]

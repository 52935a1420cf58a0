"""The command `episodes view`: an episode in a viewer of other projects."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from megahour.cli.find import CommandError, episode_row, open_the_lake, read_settings

INSTALL = f"{sys.executable} -m pip install 'megahour[view]'"


def episodes_view(
    episode_id: Annotated[str, typer.Argument(help="An episode's id, or its first digits.")],
    out: Annotated[Path | None, typer.Option(help="Write a Rerun recording (*.rrd) here, and open no window.")] = None,
    camera: Annotated[list[str] | None, typer.Option(help="Only this camera, repeated; default all.")] = None,
) -> None:
    """Look at an episode in Rerun, and say how to open it in Foxglove."""
    from megahour.episode.reader import open_episode_file
    from megahour.storage import stage

    row = episode_row(episode_id)
    scratch = read_settings().scratch.absolute()
    path = stage(open_the_lake(), row["uri"], scratch / "view", row["sha256"]).absolute()
    cameras = list(open_episode_file(path).cameras)
    if unknown := [name for name in camera or () if name not in cameras]:
        raise CommandError(f"The episode has no camera {', '.join(unknown)}, only {', '.join(cameras) or 'none'}")
    print(f"Episode {row['episode_id']} is {path}")
    print("Foxglove: open that file in its desktop program, or in the browser at https://app.foxglove.dev")
    rerun = _rerun()
    if rerun is None:
        if out is not None:
            raise CommandError(f"Rerun writes {out}, and it is not installed: {INSTALL}")
        print(f"Rerun: it is not installed; {INSTALL} (500 MB), then this command opens the episode")
        return
    hidden = [name for name in cameras if camera and name not in camera]
    recording = out or scratch / "view" / f"{row['episode_id']}.rrd"
    recording.parent.mkdir(parents=True, exist_ok=True)
    environment = quiet_environment(scratch / "rerun", os.environ)
    _run([rerun, "analytics", "disable"], environment)
    _run([rerun, *convert_arguments(path, recording, hidden)], environment)
    if out is not None:
        print(f"Rerun: {out}")
    elif sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        print(f"Rerun: {recording}")
        _run([rerun, str(recording)], environment)
    else:
        print(f"Rerun: there is no display here; where there is one, `rerun {recording}`")


def convert_arguments(path: Path, recording: Path, hidden: Sequence[str]) -> list[str]:
    """What Rerun is asked to make its recording from an episode without the cameras `hidden`."""
    left_out = [word for name in hidden for word in ("-n", f"^/camera/{re.escape(name)}$")]
    return ["mcap", "convert", str(path), "-o", str(recording), *left_out]


def quiet_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Rerun's settings are in `folder`: there its reports home can be switched off, and what a
    person set for themselves stays."""
    return {**environment, "XDG_CONFIG_HOME": str(folder / "config"), "XDG_DATA_HOME": str(folder / "data")}


def _rerun() -> str | None:
    """The program `rerun` of this environment, or of the PATH."""
    import shutil

    beside = Path(sys.executable).parent / "rerun"
    return str(beside) if beside.exists() else shutil.which("rerun")


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise CommandError(f"`{' '.join(command)}` ended with code {done.returncode}: {done.stdout[-2000:].strip()}")

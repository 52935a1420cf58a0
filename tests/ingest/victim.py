"""An ingest in a process of its own, that kills itself at a chosen step: `python -m tests.ingest.victim --help`.

A step is something the process does to the world: a file opened for writing, linked, renamed or removed, a worker
started, rows appended (before and after).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import megahour.ingest.run
import megahour.warehouse.tables
from megahour.ingest.land import land_batch
from megahour.ingest.measure import measure_batch
from megahour.ingest.plan import read_batch
from megahour.settings import Settings
from megahour.storage import open_lake

EVENTS = ("os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "subprocess.Popen", "shutil.rmtree")


def main() -> None:
    """Land, ingest and measure one batch; print the number of steps it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lake")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("batch")
    parser.add_argument("--die-at", type=int, default=0)
    wanted = parser.parse_args()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == wanted.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes and str(wanted.scratch.parent) in str(arguments[0])) or event in EVENTS:
            step()

    append = megahour.warehouse.tables.append

    def append_in_steps(*args: Any, **kwargs: Any) -> int:
        step()
        written = append(*args, **kwargs)
        step()
        return written

    megahour.warehouse.tables.append = append_in_steps
    megahour.ingest.run.COMMIT_RECORDINGS = 2
    settings = Settings(lake=wanted.lake, scratch=wanted.scratch)
    lake = open_lake(wanted.lake)
    batch = read_batch(lake, wanted.batch)
    sys.addaudithook(watch)
    land_batch(lake, settings, batch)
    megahour.ingest.run.ingest_batch(lake, settings, batch)
    measure_batch(lake, settings, batch)
    print(steps)


if __name__ == "__main__":
    main()

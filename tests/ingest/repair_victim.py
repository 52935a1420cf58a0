"""A repair in a process of its own, that kills itself before or after a chosen append, or while it stores the file."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import megahour.warehouse.tables
from megahour.ingest import repair
from megahour.storage import open_lake
from megahour.warehouse.queries import query


def main() -> None:
    """Repair one episode; print the number of steps it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lake")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("episode_id")
    parser.add_argument("--die-at", type=int, default=0)
    wanted = parser.parse_args()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == wanted.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    append, put_file, link = megahour.warehouse.tables.append, repair.put_file, os.link

    def append_in_steps(*args: Any, **kwargs: Any) -> int:
        step()
        written = append(*args, **kwargs)
        step()
        return written

    def put_in_steps(*args: Any, **kwargs: Any) -> Any:
        step()
        ref = put_file(*args, **kwargs)
        step()
        return ref

    def link_in_steps(*args: Any, **kwargs: Any) -> None:
        step()
        link(*args, **kwargs)

    megahour.warehouse.tables.append = append_in_steps
    repair.put_file = put_in_steps
    os.link = link_in_steps
    lake = open_lake(wanted.lake)
    (row,) = query(lake, "FROM episodes WHERE episode_id = ?", [wanted.episode_id]).to_pylist()
    repair.repair_episode(lake, row, wanted.scratch)
    print(steps)


if __name__ == "__main__":
    main()

"""Functions for worker processes to run: they must be importable there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def double(task: int) -> int:
    """Twice the task; tasks from 100 on die, 200 and up raise, 300 and up never come back."""
    if task >= 300:
        signal.pause()
    if task >= 200:
        raise OSError(28, "No space left on device")
    if task >= 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return task * 2


def die_beside_others(folder: str) -> str:
    """Dies while another task runs, as the one the kernel chooses when memory is short, and lives when alone."""
    mark = Path(folder) / str(os.getpid())
    mark.touch()
    try:
        for _ in range(200):
            if len(list(Path(folder).iterdir())) > 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
        return "alone"
    finally:
        mark.unlink()


def never(task: object) -> None:
    """Does not come back."""
    signal.pause()


def allocate(task: int) -> int:
    """Runs out of memory."""
    raise MemoryError


def report_and_wait(path: str) -> None:
    """Leaves its process id and waits."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)

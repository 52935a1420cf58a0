"""A folder for one run's intermediate files, gone afterwards; what killed runs left behind goes with the next one."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new empty folder below `parent`, removed at the end.

    A folder lives as long as the lock file beside it is locked, and the kernel drops that lock when its process dies,
    however it dies.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent)
    path, lock = _new(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
        lock.close()


def _new(parent: Path) -> tuple[Path, IO[str]]:
    while True:
        path = parent / f"run-{secrets.token_hex(6)}"
        lock = _locked(path.with_suffix(".lock"))
        if lock is not None:
            path.mkdir()
            return path, lock


def _sweep(parent: Path) -> None:
    for lock_path in parent.glob("run-*.lock"):
        lock = _locked(lock_path)
        if lock is not None:
            shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
            lock_path.unlink(missing_ok=True)
            lock.close()


def _locked(path: Path) -> IO[str] | None:
    """The lock file, locked, or None when another process holds it or has just removed it."""
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    lock.close()
    return None

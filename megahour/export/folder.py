"""A folder that appears whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megahour.export.model import ExportError
from megahour.files import sync_directory, sync_file

FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def appearing_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` to write to, which becomes `out` at the end and is removed after an error.

    What a killed process left in it is removed first.

    Raises:
        ExportError: `exists` when there is something at `out`, `busy` when another process writes there.
        OSError: nothing can be written there; the text says why.
    """
    # Absolute, for FFmpeg takes what stands before a colon for a protocol.
    out = out.expanduser().absolute()
    _refuse_existing(out)
    partial = out.with_name(f".{out.name}.tmp")
    try:
        partial.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{out} cannot be made: {error.strerror}. Choose a folder you may write to") from error
    handle = os.open(partial, os.O_RDONLY)
    try:
        _lock(handle, partial, out)
        _empty(partial)
        try:
            yield partial
            for path in partial.rglob("*"):
                if path.is_file():
                    sync_file(path)
                else:
                    sync_directory(path)
            sync_directory(partial)
            _refuse_existing(out)
            partial.rename(out)
            sync_directory(out.parent)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in FULL_ERRNOS:
                raise OSError(
                    f"{out} was not written: {error.strerror}. Nothing of it is left: make room, or choose another disk"
                ) from error
            raise
    finally:
        os.close(handle)


def _refuse_existing(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise ExportError("exists", f"{out} exists and is not an empty folder: choose another, or remove it")


def _lock(handle: int, partial: Path, out: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have renamed the folder between opening and locking it.
        if partial.exists() and os.path.samestat(partial.stat(), os.fstat(handle)):
            return
    except BlockingIOError:
        pass
    raise ExportError("busy", f"Another export writes to {out}: wait for it, or choose another folder")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

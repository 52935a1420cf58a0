"""Files of this machine's disks that appear whole or not at all, and last through a power cut."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A hidden path beside `target` to write a file to; what is still there at the end is removed."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """As `unfinished`, and the file becomes `target` at the end: a reader sees the old content or the new."""
    with unfinished(target) as partial:
        yield partial
        sync_file(partial)
        partial.replace(target)
    sync_directory(target.parent)


def write_atomically(target: Path, data: bytes) -> None:
    """Put `data` at `target` so that a reader sees the old content or the new, after a crash too."""
    with appearing(target) as partial:
        partial.write_bytes(data)


def make_folders(path: Path) -> None:
    """Make a directory and those above it that are missing, so that each lasts through a power cut."""
    if not path.is_dir():
        make_folders(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def append_line(path: Path, line: str) -> None:
    """Append a line to a log, for good. A last line that a dead writer left unfinished is ended first."""
    with path.open("ab+") as log:
        log.seek(0, os.SEEK_END)
        if log.tell() > 0:
            log.seek(-1, os.SEEK_END)
            if log.read(1) != b"\n":
                line = "\n" + line
        log.write(line.encode() + b"\n")
        log.flush()
        os.fsync(log.fileno())


def sync_file(path: Path) -> None:
    """Make a file's content last through a power cut."""
    with path.open("rb") as written:
        os.fsync(written.fileno())


def sync_directory(path: Path) -> None:
    """Make a rename in this directory last through a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()

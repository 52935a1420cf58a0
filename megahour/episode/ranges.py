"""Where an episode's bytes come from: a file of the lake, a file of this machine, mapped memory, or memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from megahour.episode.model import EpisodeError
from megahour.storage import Lake, read_ranges, read_tail

Buffer = bytes | memoryview


class ByteSource(Protocol):
    """A file somewhere, and its name for messages. It can be pickled, and serves in a forked process."""

    name: str

    def tail(self, length: int) -> tuple[Buffer, int]:
        """The last `length` bytes, or all there are, and the file's size; one request."""

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[Buffer]:
        """Several ranges at once, each one request where requests have a price. A range may come back short."""


class FileBytes:
    """A file on this machine, opened for each read: an open episode holds no descriptor."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def tail(self, length: int) -> tuple[Buffer, int]:
        file = self._open()
        try:
            size = os.fstat(file).st_size
            return os.pread(file, length, max(0, size - length)), size
        finally:
            os.close(file)

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[Buffer]:
        file = self._open()
        try:
            return [_pread(file, start, end - start) for start, end in zip(starts, ends, strict=True)]
        finally:
            os.close(file)

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise EpisodeError("missing", f"There is no episode {self.name}") from error


def _pread(file: int, start: int, length: int) -> bytes:
    # One call returns at most 2 GiB.
    parts = []
    while length > 0 and (part := os.pread(file, length, start)):
        parts.append(part)
        start, length = start + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class MappedBytes:
    """A file on this machine, mapped into memory: ranges are views, and nothing is copied.

    For files that nobody cuts short while they are read: the system ends a process that reads beyond the new end.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._view: memoryview | None = None

    def __reduce__(self) -> tuple[type[MappedBytes], tuple[Path]]:
        return MappedBytes, (self._path,)

    def tail(self, length: int) -> tuple[Buffer, int]:
        view = self._mapped()
        return view[max(0, len(view) - length) :], len(view)

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[Buffer]:
        view = self._mapped()
        return [view[start:end] for start, end in zip(starts, ends, strict=True)]

    def _mapped(self) -> memoryview:
        if self._view is None:
            try:
                with self._path.open("rb") as file:
                    # An empty file cannot be mapped.
                    empty = os.fstat(file.fileno()).st_size == 0
                    self._view = memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise EpisodeError("missing", f"There is no episode {self.name}") from error
        return self._view


class StoredBytes:
    """A file of a lake on an object store."""

    def __init__(self, lake: Lake, key: str) -> None:
        self.name = key
        self._lake = lake

    def tail(self, length: int) -> tuple[Buffer, int]:
        with self._said_of_this_file():
            return read_tail(self._lake, self.name, length)

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[Buffer]:
        with self._said_of_this_file():
            return list(read_ranges(self._lake, self.name, starts, ends))

    @contextmanager
    def _said_of_this_file(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise EpisodeError("missing", f"There is no episode {self.name} in {self._lake.uri}") from error
        except EOFError as error:
            raise EpisodeError("truncated", f"{error}. Ingest its recording again") from error


class MemoryBytes:
    """A file that was read whole."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self._data = data

    def tail(self, length: int) -> tuple[Buffer, int]:
        return self._data[max(0, len(self._data) - length) :], len(self._data)

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[Buffer]:
        return [self._data[start:end] for start, end in zip(starts, ends, strict=True)]


def lake_bytes(lake: Lake, key: str) -> ByteSource:
    """The bytes of a key: of a local lake its file itself, without the object store's client."""
    path = lake.local_path(key)
    return StoredBytes(lake, key) if path is None else FileBytes(path)

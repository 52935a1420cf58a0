"""Where an episode's bytes come from: a file of the lake, a file of this machine, or memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from megahour.episode.model import EpisodeError
from megahour.storage import Lake, head, read_ranges


class ByteSource(Protocol):
    """A file somewhere: its name for messages, its size, and several ranges of it with one request."""

    name: str

    def size_bytes(self) -> int: ...

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]: ...


class FileBytes:
    """A file on this machine, opened for each read: an open episode holds no descriptor."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def size_bytes(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError as error:
            raise EpisodeError("missing", f"There is no episode {self.name}") from error

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        parts = []
        with self._path.open("rb") as file:
            for start, end in zip(starts, ends, strict=True):
                file.seek(start)
                parts.append(file.read(end - start))
        return parts


class LakeBytes:
    """A file of the lake. A size that is known already saves a question."""

    def __init__(self, lake: Lake, key: str, size_bytes: int | None) -> None:
        self.name = key
        self._lake, self._size = lake, size_bytes

    def size_bytes(self) -> int:
        if self._size is None:
            ref = head(self._lake, self.name)
            if ref is None:
                raise EpisodeError("missing", f"There is no episode {self.name} in {self._lake.uri}")
            self._size = ref.size_bytes
        return self._size

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        try:
            return read_ranges(self._lake, self.name, starts, ends)
        except FileNotFoundError as error:
            raise EpisodeError("missing", f"There is no episode {self.name} in {self._lake.uri}") from error
        except EOFError as error:
            raise EpisodeError("truncated", f"{error}. Ingest its recording again") from error


class MemoryBytes:
    """A file that was read whole."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self._data = data

    def size_bytes(self) -> int:
        return len(self._data)

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        return [self._data[start:end] for start, end in zip(starts, ends, strict=True)]

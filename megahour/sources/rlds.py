"""rlds: not here yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from megahour.episode.model import RawEpisode
from megahour.sources.model import Recording
from megahour.storage import FileRef

FORMATS: tuple[str, ...] = ()


def find(files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    return []


def read(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    yield from ()


def identity(recording: Recording, local: Callable[[str], Path]) -> bytes | None:
    return None

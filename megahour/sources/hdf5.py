"""HDF5 files: whose layout one has is known when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.episode.model import RawEpisode
from megahour.sources import aloha
from megahour.sources.model import Recording, source_of

if TYPE_CHECKING:
    from megahour.storage import FileRef

FORMATS: tuple[str, ...] = ("hdf5",)
SUFFIXES = (".hdf5", ".h5")


def find(files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """Every HDF5 file is a recording."""
    return [
        Recording(key, FORMATS[0], source_of(key), (file,))
        for key, file in files.items()
        if key.lower().endswith(SUFFIXES)
    ]


def read(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The episodes of a file, by its layout.

    Raises:
        SourceError: as the layout's reader.
    """
    yield from aloha.read(recording, local)


def identity(recording: Recording, local: Callable[[str], Path]) -> bytes | None:
    """The bytes of the file."""
    return None

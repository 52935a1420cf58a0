"""HDF5 files: whose layout one has is known when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.episode.model import RawEpisode
from megahour.sources.hdf5 import aloha, robomimic
from megahour.sources.hdf5.file import children, opened
from megahour.sources.hdf5.heap import check_heaps
from megahour.sources.model import Identity, Recording, SourceError
from megahour.sources.one_file import find_by_suffix
from megahour.sources.options import read_options

if TYPE_CHECKING:
    from megahour.storage import FileRef

FORMATS: tuple[str, ...] = ("hdf5",)
SUFFIXES = (".hdf5", ".h5")


def find(files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """Every HDF5 file is a recording."""
    return find_by_suffix(files, FORMATS[0], SUFFIXES)


def read(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The episodes of a file: the one of an ALOHA file, all demonstrations of a robomimic file.

    Raises:
        SourceError: `unknown_format` for another layout, else as the layout's reader.
    """
    key = recording.files[0].key
    path = local(key)
    options = read_options(recording, local)
    check_heaps(path, key)
    with opened(path, key) as file:
        groups, others = children(file, key, "")
    if "observations" in groups or "action" in (*groups, *others):
        yield aloha.read(path, key, options)
    elif "data" in groups:
        yield from robomimic.read(path, key, options)
    else:
        held = ", ".join(f"/{name}" for name in sorted((*groups, *others))[:20]) or "nothing"
        raise SourceError(
            "unknown_format",
            f"{key} holds {held}: that is neither ALOHA (/action and /observations) nor robomimic (/data/demo_0, "
            "/data/demo_1, ...), the layouts of HDF5 that Megahour reads",
        )


def identity(recording: Recording, local: Callable[[str], Path]) -> Identity | None:
    """All bytes of the file make it what it is."""
    return None

"""Importers: find recordings among landed files and read them as episodes.

An importer is one module or folder with `FORMATS`, `find` and `read`, as `Importer` describes them, and a line in
`IMPORTERS`. `docs/sources.md` shows how to add one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from megahour.episode.model import RawEpisode
from megahour.sources import hdf5, lerobot, mcap, rlds
from megahour.sources.content import content_of
from megahour.sources.model import Identity, Recording, SourceError, source_of
from megahour.sources.options import canonical, options_key

if TYPE_CHECKING:
    from megahour.storage import FileRef

__all__ = [
    "IMPORTERS",
    "Ids",
    "Importer",
    "Recording",
    "SourceError",
    "find_recordings",
    "ids_of",
    "read_recording",
    "recording_id",
]

FOREIGN_SUFFIXES = (".bag", ".db3", ".tfrecord", ".rrd", ".zarr.zip")
"""Recordings that no importer took: they are held in quarantine, not passed over in silence."""


class Importer(Protocol):
    """What an importer offers. `FORMATS` are the values of `Recording.format` that are its own."""

    FORMATS: tuple[str, ...]

    def find(self, files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
        """The recordings of this importer among a source's files, by key. Broken metadata raises nothing here.

        `read` gives the bytes of a key; it is called for small metadata files alone.
        """

    def read(self, recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
        """The episodes of a recording; pictures are read later, from the same files.

        Raises:
            SourceError: the recording cannot be imported; `Camera.frames()` raises it too.
        """

    def identity(self, recording: Recording, local: Callable[[str], Path]) -> Identity | None:
        """What makes the recording what it is, where that is not all bytes of its files; else None."""


IMPORTERS: tuple[Importer, ...] = (lerobot, rlds, hdf5, mcap)


def find_recordings(files: Iterable[FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """The recordings among files below `landing/<source>/`, sorted by URI.

    Files that belong to nothing (notes, licences, a dataset whose metadata has not come yet) are passed over. Broken
    metadata raises nothing here: reading the recording will say what is wrong.
    """
    by_key = {file.key: file for file in files}
    left = dict(by_key)
    found: list[Recording] = []
    for importer in IMPORTERS:
        taken = importer.find(left, read)
        for recording in taken:
            for file in recording.files:
                left.pop(file.key, None)
        found += taken
    for key, file in left.items():
        name = key.lower()
        if name.endswith(FOREIGN_SUFFIXES) or ".tfrecord-" in name:
            found.append(Recording(key, "unknown", source_of(key), (file,)))
    found = [replace(each, options=by_key.get(options_key(each.source))) for each in found]
    return sorted(found, key=lambda recording: recording.uri)


@dataclass(frozen=True)
class Ids:
    """A recording's names, of 32 hexadecimal digits each. Recordings with one `content_id` are one thing recorded;
    each way of reading it has a `recording_id`."""

    recording_id: str
    content_id: str


def ids_of(recording: Recording, local: Callable[[str], Path]) -> Ids:
    """The ids of a recording: from the bytes of its files, not from their names or times.

    Of a recording that shares files with others, from its own part; where that cannot be read, from their bytes and its
    place. The `recording_id` also from what is said of it, beside it and in the source's `source.yaml`. Of a recording
    with missing files, from those there are. `local` gives the path of a key on this machine.
    """
    importer = _importer(recording)
    own = None if importer is None else importer.identity(recording, local)
    if own is None:
        own = Identity(content_of(recording.files, local) + recording.place.encode())
    content = hashlib.sha256(own.content)
    whole = content.copy()
    whole.update(own.said)
    if recording.options is not None:
        whole.update(canonical(local(recording.options.key).read_bytes()).encode())
    return Ids(whole.hexdigest()[:32], content.hexdigest()[:32])


def recording_id(recording: Recording, local: Callable[[str], Path]) -> str:
    """The `recording_id` of `ids_of`."""
    return ids_of(recording, local).recording_id


def read_recording(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The episodes of a recording; their pictures are read later, by `Camera.frames()`, from the same files.

    Raises:
        SourceError: the recording cannot be imported; `frames()` raises it too.
    """
    importer = _importer(recording)
    if importer is None:
        raise SourceError(
            "unknown_format",
            f"{recording.uri} cannot be imported: Megahour reads LeRobot and RLDS datasets, HDF5 files of ALOHA and "
            "robomimic, and MCAP files",
        )
    yield from importer.read(recording, local)


def _importer(recording: Recording) -> Importer | None:
    return next((each for each in IMPORTERS if recording.format in each.FORMATS), None)

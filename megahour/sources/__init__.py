"""Importers: find recordings among landed files and read them as episodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.episode.model import RawEpisode
from megahour.sources import aloha_hdf5, lerobot_v21
from megahour.sources.model import Recording, SourceError

if TYPE_CHECKING:
    from megahour.storage import FileRef

__all__ = ["Recording", "SourceError", "find_recordings", "read_recording", "recording_id"]

HDF5_SUFFIXES = (".hdf5", ".h5")
FOREIGN_SUFFIXES = (".mcap", ".bag", ".db3", ".tfrecord", ".rrd", ".zarr.zip")
"""Recordings that are no importer's yet: they are held in quarantine, not passed over in silence."""


def find_recordings(files: Iterable[FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """The recordings among files below `landing/<source>/`, sorted by URI.

    An HDF5 file is a recording; a LeRobot v2.1 dataset (a folder with `meta/info.json`) is one per episode, its Parquet
    file and its videos. Files that belong to nothing (notes, licences, a dataset whose `meta/info.json` has not come
    yet) are passed over. Broken metadata raises nothing here: reading the recording will say what is wrong.

    `read` gives the bytes of a key; it is called for small metadata files alone.
    """
    by_key = {file.key: file for file in files}
    found = []
    for root in lerobot_v21.dataset_roots(by_key):
        found += lerobot_v21.find(root, _source(root), by_key, read)
    for key, file in by_key.items():
        name = key.lower()
        if name.endswith(HDF5_SUFFIXES):
            found.append(Recording(key, aloha_hdf5.FORMAT, _source(key), (file,)))
        elif name.endswith(FOREIGN_SUFFIXES) or ".tfrecord-" in name:
            found.append(Recording(key, "unknown", _source(key), (file,)))
    return sorted(found, key=lambda recording: recording.uri)


def _source(key: str) -> str:
    parts = key.split("/")
    return parts[1] if parts[0] == "landing" and len(parts) > 1 else parts[0]


def recording_id(recording: Recording, local: Callable[[str], Path]) -> str:
    """32 hexadecimal digits from a recording's content: the bytes of its files, not their names or times.

    Of a LeRobot episode also what the dataset's metadata says of it: its task, robot and rate. Of a recording with
    missing files, of those there are. `local` gives the path of a key on this machine.
    """
    digest = hashlib.sha256()
    for file in recording.files:
        digest.update(f"{file.size_bytes}\n".encode())
        with local(file.key).open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    if recording.format == lerobot_v21.FORMAT:
        digest.update(lerobot_v21.said_of_episode(recording, local).encode())
    return digest.hexdigest()[:32]


def read_recording(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The episodes of a recording; their pictures are read later, by `Camera.frames()`, from the same files.

    Raises:
        SourceError: the recording cannot be imported; `frames()` raises it too.
    """
    if recording.format == aloha_hdf5.FORMAT:
        yield from aloha_hdf5.read(recording, local)
    elif recording.format == lerobot_v21.FORMAT:
        yield from lerobot_v21.read(recording, local)
    else:
        raise lerobot_v21.why_unknown(recording, local)

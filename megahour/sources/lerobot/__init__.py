"""LeRobot datasets, versions 2.1 and 3.0: a folder with `meta/info.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.episode.model import RawEpisode
from megahour.sources.content import content_of
from megahour.sources.lerobot import v21
from megahour.sources.model import Recording, source_of

if TYPE_CHECKING:
    from megahour.storage import FileRef

FORMATS: tuple[str, ...] = (v21.FORMAT, v21.UNKNOWN)


def find(files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """The episodes of all datasets among the files, one recording each."""
    return [each for root in v21.dataset_roots(files) for each in v21.find(root, source_of(root), files, read)]


def read(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The one episode of a recording.

    Raises:
        SourceError: as the version's reader.
    """
    if recording.format == v21.UNKNOWN:
        raise v21.why_unknown(recording, local)
    yield from v21.read(recording, local)


def identity(recording: Recording, local: Callable[[str], Path]) -> bytes | None:
    """The bytes of its files, and what the dataset's metadata says of the episode: task, robot and rate."""
    if recording.format == v21.UNKNOWN:
        return None
    return content_of(recording.files, local) + v21.said_of_episode(recording, local).encode()

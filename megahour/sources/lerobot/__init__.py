"""LeRobot datasets, versions 2.0, 2.1 and 3.0: a folder with `meta/info.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.episode.model import RawEpisode
from megahour.sources.lerobot import v21, v30
from megahour.sources.lerobot.dataset import INFO, UNUSABLE, V2, Episode, existing, parse_info, usable
from megahour.sources.lerobot.listing import EPISODES
from megahour.sources.lerobot.listing import load as load_listing
from megahour.sources.model import Identity, Recording, SourceError, source_of
from megahour.sources.options import read_options

if TYPE_CHECKING:
    from megahour.storage import FileRef

FORMATS: tuple[str, ...] = (v21.FORMAT, v30.FORMAT, UNUSABLE)


def find(files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """The episodes of all datasets among the files, one recording each; one for a dataset whose metadata cannot be
    used, so that it is held and not passed over."""
    listings: dict[str, list[str]] = {key.removesuffix(INFO): [] for key in sorted(files) if key.endswith(INFO)}
    for key in sorted(files):
        root, folder, _ = key.partition(EPISODES)
        if folder and root in listings and key.endswith(".parquet"):
            listings[root].append(key)
    found: list[Recording] = []
    for root, keys in listings.items():
        try:
            with usable(root):
                dataset = parse_info(read(root + INFO), root)
                if dataset.version in V2:
                    found += v21.find(dataset, files, read)
                else:
                    found += v30.find(dataset, keys, files, read)
        except SourceError:
            said = [key for key in (root + INFO, *(root + name for name in v21.SAID), *keys) if key in files]
            found.append(Recording(root, UNUSABLE, source_of(root), tuple(files[key] for key in said)))
    return found


def read(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The one episode of a recording.

    Raises:
        SourceError: as `episode.read`, and whatever makes metadata unusable.
    """
    from megahour.sources.lerobot import episode

    if recording.format == UNUSABLE:
        raise _why(recording, local)
    yield episode.read(recording, _episode(recording, local), read_options(recording, local), local)


def identity(recording: Recording, local: Callable[[str], Path]) -> Identity | None:
    """What an episode's rows and coded pictures hold, and what the metadata says of it: task, robot, rate and names.

    Not the bytes of its files: LeRobot appends to them, and puts them together anew.
    """
    from megahour.sources.lerobot import content

    if recording.format == UNUSABLE:
        return None
    try:
        return content.of_episode(recording, _episode(recording, local), local)
    except SourceError:
        # Whatever is wrong is said when it is read; until it is mended its bytes are what it is.
        return None


def _episode(recording: Recording, local: Callable[[str], Path]) -> Episode:
    place = v30.episode_of if recording.format == v30.FORMAT else v21.episode_of
    return place(recording, local)


def _why(recording: Recording, local: Callable[[str], Path]) -> SourceError:
    """What is wrong with a dataset, or with one listing of its episodes."""
    root, folder, _ = recording.uri.partition(EPISODES)
    try:
        if folder:
            load_listing(root, recording.uri, local)
        else:
            with usable(root):
                dataset = parse_info(existing(local, root + INFO).read_bytes(), root)
                if dataset.version in V2:
                    v21.load(root, local)
                else:
                    v30.check(dataset, any(file.key.startswith(root + EPISODES) for file in recording.files))
                    raise v30.nothing_listed(dataset)
    except SourceError as error:
        return error
    return SourceError("unreadable", f"The metadata of {root} could not be used when it was found, and can be now")

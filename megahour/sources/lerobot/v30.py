"""Where the episodes of LeRobot v3.0 lie: many in one Parquet file, many in one video file of each camera."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.sources.lerobot.dataset import (
    INFO,
    UNUSABLE,
    Dataset,
    Episode,
    Mark,
    Video,
    digest,
    mark,
    place_of,
    present,
    read_parquet,
    says_one_task,
    texts_of_table,
    uri_of,
    usable,
)
from megahour.sources.lerobot.listing import EPISODES, Listed, load, parse_listing
from megahour.sources.model import Recording, SourceError, source_of

if TYPE_CHECKING:
    from megahour.storage import FileRef

FORMAT = "lerobot_v30"
TASKS, SUBTASKS = "/meta/tasks.parquet", "/meta/subtasks.parquet"
KNOWN = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index")
PLACES = ("stats/", "data/", "videos/", "meta/")
"""Columns of `meta/episodes` that say nothing of an episode itself begin so."""
KEPT_BY_LEROBOT = ("stats/", "meta/")
"""Those that say not even where it lies."""


def find(
    dataset: Dataset, listings: Sequence[str], files: Mapping[str, FileRef], read: Callable[[str], bytes]
) -> list[Recording]:
    """The dataset's episodes as recordings. `listings` are the keys of `meta/episodes`; one that cannot be used is a
    recording of its own.

    An episode's files are that of its rows and those of its videos. The listing, by which it is found again, is beside.

    Raises:
        SourceError: the metadata cannot be used at all.
    """
    check(dataset, bool(listings))
    lists, found = [], []
    for key in listings:
        try:
            lists.append(parse_listing(dataset, key, read(key)))
        except SourceError:
            found.append(Recording(key, UNUSABLE, source_of(key), (files[dataset.root + INFO], files[key])))
    weights = _weights(lists)
    last = _last_of_each(lists)
    of_all = _of_all(dataset, files)
    episodes: dict[int, Recording] = {}
    for listed in lists:
        for at, number in enumerate(listed.numbers):
            one = _recording(listed, at, files, weights, last, of_all)
            if number in episodes:
                # Listed twice: reading it finds both, and says so.
                other = episodes[number]
                one = replace(
                    one,
                    files=tuple(dict.fromkeys((*one.files, *other.files))),
                    beside=tuple(dict.fromkeys((*one.beside, *other.beside))),
                    said=digest(one.said, other.said),
                )
            episodes[number] = one
    if not found and not episodes:
        raise nothing_listed(dataset)
    return [*found, *episodes.values()]


def _of_all(dataset: Dataset, files: Mapping[str, FileRef]) -> Mapping[bool, str]:
    """What is said of all episodes alike, by whether they say their one task themselves: for others the texts of the
    dataset count."""
    tasks, subtasks = (
        None if (file := files.get(dataset.root + name)) is None else (file.size_bytes, file.etag)
        for name in (TASKS, SUBTASKS)
    )
    return {True: digest(dataset, subtasks), False: digest(dataset, subtasks, tasks)}


def _recording(
    listed: Listed,
    at: int,
    files: Mapping[str, FileRef],
    weights: Mapping[str, float],
    last: Mapping[str, int],
    of_all: Mapping[bool, str],
) -> Recording:
    dataset, number, data_key = listed.dataset, listed.numbers[at], listed.data_keys[at]
    claims = dict(_claims(listed, at))
    following: list[str] = []
    if data_key is not None and last[data_key] == number:
        # LeRobot's own converter from v2.1 lists the first episode of a data file under the file before.
        chunk, file = (int(listed.columns[f"data/{name}_index"][at]) for name in ("chunk", "file"))
        following = [
            dataset.data_key(chunk_index=chunk, file_index=file + 1),
            dataset.data_key(chunk_index=chunk + 1, file_index=0),
        ]
    there = [key for key in (*claims, *following) if key in files]
    said = {name: values[at] for name, values in listed.columns.items() if not name.startswith(KEPT_BY_LEROBOT)}
    beside = [dataset.root + INFO, dataset.root + TASKS, dataset.root + SUBTASKS, listed.key]
    own_bytes = sum(files[key].size_bytes * weight / weights[key] for key, weight in claims.items() if key in files)
    return Recording(
        uri=uri_of(dataset.root, number),
        format=FORMAT,
        source=source_of(dataset.root),
        files=tuple(files[key] for key in dict.fromkeys(there)),
        missing=tuple(key for key in claims if key not in files),
        own_bytes=max(1, round(own_bytes)),
        beside=tuple(files[key] for key in beside if key in files),
        said=digest(of_all[says_one_task(said.get("tasks"))], said),
    )


def _claims(listed: Listed, at: int) -> Iterator[tuple[str, float]]:
    """The shared files of an episode, and its weight in each: rows of the data, seconds of a video."""
    data_key = listed.data_keys[at]
    if data_key is not None:
        yield data_key, float(listed.length(at) or 1)
    for camera, keys in listed.video_keys.items():
        key = keys[at]
        if key is not None:
            span = listed.span(camera, at)
            seconds = span.to_s - span.from_s
            yield key, seconds if 0 < seconds < math.inf else 1.0


def _weights(lists: Iterable[Listed]) -> Mapping[str, float]:
    """The sum of all episodes' weights in each file."""
    sums: dict[str, float] = {}
    for listed in lists:
        for at in range(len(listed.numbers)):
            for key, weight in _claims(listed, at):
                sums[key] = sums.get(key, 0.0) + weight
    return sums


def _last_of_each(lists: Iterable[Listed]) -> Mapping[str, int]:
    """The last episode of each data file."""
    last: dict[str, int] = {}
    for listed in lists:
        for number, key in zip(listed.numbers, listed.data_keys, strict=True):
            if key is not None:
                last[key] = max(last.get(key, number), number)
    return last


def check(dataset: Dataset, has_listings: bool) -> None:
    """Refuse a dataset whose files cannot be found.

    Raises:
        SourceError: `missing_file` without a listing, `unreadable` when paths lead out of the dataset.
    """
    with usable(dataset.root):
        dataset.data_key(chunk_index=0, file_index=0)
        _ = [dataset.video_key(camera, chunk_index=0, file_index=0) for camera in dataset.cameras]
    if not has_listings:
        raise SourceError(
            "missing_file",
            f"{dataset.root}{EPISODES} holds no Parquet file: which episodes the dataset has is not known. "
            "Copy the dataset whole",
        )


def nothing_listed(dataset: Dataset) -> SourceError:
    """What is wrong with a dataset without episodes."""
    return SourceError("empty", f"{dataset.root}{EPISODES} lists no episode: the dataset has nothing to ingest")


def episode_of(recording: Recording, local: Callable[[str], Path]) -> Episode:
    """Where the episode of a recording lies.

    Raises:
        SourceError: the metadata cannot be used, or does not list it once.
    """
    root, number = place_of(recording.uri)
    # In older plans the listing is among the files.
    there = (*recording.beside, *recording.files)
    listings = list(dict.fromkeys(file.key for file in there if file.key.startswith(root + EPISODES)))
    lists = [load(root, key, local) for key in listings]
    places = [(listed, at) for listed in lists for at in listed.places.get(number, ())]
    if len(places) != 1:
        raise SourceError(
            "unreadable",
            f"{recording.uri} is listed {len(places)} times in {', '.join(listings) or root + EPISODES}: which entry "
            "is right cannot be known. Remove the wrong ones",
        )
    listed, at = places[0]
    dataset = listed.dataset
    videos = {}
    for camera in dataset.cameras:
        key = listed.video_keys[camera][at]
        if key is not None:
            sharing = listed.sharing[camera][key]
            videos[camera] = Video(key, tuple(listed.span(camera, each) for each in sharing), sharing.index(at))
    claimed = listed.data_keys[at]
    # The files of the recording that are neither videos nor listings: the rows may lie in the next file (`find`).
    others = {*listings, *(video.key for video in videos.values()), claimed}
    following = [file.key for file in recording.files if file.key not in others]
    with usable(root):
        tasks = listed.columns["tasks"][at] if "tasks" in listed.columns else []
        return Episode(
            dataset=dataset,
            number=number,
            length=listed.length(at),
            tasks=tuple(str(task) for task in (tasks if isinstance(tasks, list) else [tasks] if tasks else [])),
            data_keys=tuple(key for key in (claimed, *following) if key is not None),
            videos=videos,
            is_shared=True,
            listed_in=listed.key.removeprefix(root + "/"),
            task_texts=_texts(root, TASKS, "task_index", local),
            subtask_texts=_texts(root, SUBTASKS, "subtask_index", local),
            said={
                name: values[at]
                for name, values in listed.columns.items()
                if name not in KNOWN and not name.startswith(PLACES)
            },
        )


def _texts(root: str, name: str, index: str, local: Callable[[str], Path]) -> Mapping[int, str]:
    path = present(local, root + name)
    return {} if path is None else _load_texts(root, index, mark(root + name, path))


@lru_cache(maxsize=16)
def _load_texts(root: str, index: str, texts: Mark) -> Mapping[int, str]:
    with usable(root):
        return texts_of_table(read_parquet(Path(texts[1]).read_bytes(), texts[0]), index)

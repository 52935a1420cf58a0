"""Where the episodes of LeRobot v2.0 and v2.1 lie: a Parquet file for each, and a video for each camera of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megahour.sources.lerobot.dataset import (
    INFO,
    Dataset,
    Episode,
    Mark,
    Video,
    digest,
    existing,
    mark,
    parse_info,
    place_of,
    present,
    says_one_task,
    texts_of_lines,
    uri_of,
    usable,
)
from megahour.sources.model import Recording, SourceError, source_of

if TYPE_CHECKING:
    from megahour.storage import FileRef

FORMAT = "lerobot_v21"
EPISODES, TASKS = "/meta/episodes.jsonl", "/meta/tasks.jsonl"
SAID = (EPISODES, TASKS)
KNOWN = ("episode_index", "tasks", "length")


@dataclass(frozen=True)
class Listed:
    """A dataset and the lines of its `meta/episodes.jsonl`, by episode."""

    dataset: Dataset
    episodes: Mapping[int, Mapping[str, Any]]

    def data_key(self, episode: int) -> str:
        """The key of an episode's rows."""
        return self.dataset.data_key(episode_chunk=episode // self.dataset.chunks_size, episode_index=episode)

    def video_key(self, episode: int, camera: str) -> str:
        """The key of an episode's video."""
        chunk = episode // self.dataset.chunks_size
        return self.dataset.video_key(camera, episode_chunk=chunk, episode_index=episode)


def find(dataset: Dataset, files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """The dataset's episodes as recordings, each with the files it should have.

    Raises:
        SourceError: the metadata cannot be used.
    """
    listed = _listed(dataset, lambda: read(dataset.root + EPISODES))
    beside = tuple(files[key] for key in (dataset.root + name for name in (INFO, *SAID)) if key in files)
    of_all, tasks = digest(dataset), files.get(dataset.root + TASKS)
    found = []
    for episode in sorted(listed.episodes):
        keys = [listed.data_key(episode), *(listed.video_key(episode, camera) for camera in dataset.cameras)]
        said = listed.episodes[episode]
        # Of one task its own line has the text; of several, or none, the texts of the dataset count.
        texts = None if tasks is None or says_one_task(said.get("tasks")) else (tasks.size_bytes, tasks.etag)
        found.append(
            Recording(
                uri=uri_of(dataset.root, episode),
                format=FORMAT,
                source=source_of(dataset.root),
                files=tuple(files[key] for key in keys if key in files),
                missing=tuple(key for key in keys if key not in files),
                beside=beside,
                said=digest(of_all, said, texts),
            )
        )
    return found


def episode_of(recording: Recording, local: Callable[[str], Path]) -> Episode:
    """Where the episode of a recording lies.

    Raises:
        SourceError: the metadata cannot be used, or does not list it.
    """
    root, number = place_of(recording.uri)
    listed = load(root, local)
    said = listed.episodes.get(number)
    if said is None:
        raise SourceError("missing_file", f"{root}{EPISODES} does not list episode {number} any more")
    with usable(root):
        tasks = said.get("tasks") or []
        length = said.get("length")
        return Episode(
            dataset=listed.dataset,
            number=number,
            length=None if length is None else int(length),
            tasks=tuple(str(task) for task in (tasks if isinstance(tasks, list) else [tasks])),
            data_keys=(listed.data_key(number),),
            videos={camera: Video(listed.video_key(number, camera)) for camera in listed.dataset.cameras},
            is_shared=False,
            listed_in=EPISODES.removeprefix("/"),
            task_texts=_texts(root, local),
            said={name: value for name, value in said.items() if name not in KNOWN},
        )


def load(root: str, local: Callable[[str], Path]) -> Listed:
    """The dataset from files on this machine, read anew only when they changed: every episode asks for it.

    Raises:
        SourceError: it cannot be used.
    """
    return _load(root, mark(INFO, existing(local, root + INFO)), mark(EPISODES, existing(local, root + EPISODES)))


@lru_cache(maxsize=8)
def _load(root: str, info: Mark, episodes: Mark) -> Listed:
    return _listed(parse_info(Path(info[1]).read_bytes(), root), Path(episodes[1]).read_bytes)


def _listed(dataset: Dataset, lines: Callable[[], bytes]) -> Listed:
    root = dataset.root
    with usable(root):
        said = (json.loads(line) for line in lines().decode().splitlines() if line.strip())
        listed = Listed(dataset, {int(one["episode_index"]): one for one in said})
        if not listed.episodes:
            raise SourceError("empty", f"{root}{EPISODES} lists no episode: the dataset has nothing to ingest")
        for episode in list(listed.episodes)[:1]:
            listed.data_key(episode)
            _ = [listed.video_key(episode, camera) for camera in dataset.cameras]
        return listed


def _texts(root: str, local: Callable[[str], Path]) -> Mapping[int, str]:
    path = present(local, root + TASKS)
    return {} if path is None else _load_texts(root, mark(TASKS, path))


@lru_cache(maxsize=8)
def _load_texts(root: str, tasks: Mark) -> Mapping[int, str]:
    with usable(root):
        return texts_of_lines(Path(tasks[1]).read_bytes())

"""`meta/episodes` of LeRobot v3.0: which episodes there are, and which part of which files is whose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from megahour.sources.lerobot.dataset import (
    INFO,
    Dataset,
    Mark,
    Span,
    existing,
    mark,
    parse_info,
    read_parquet,
    usable,
)
from megahour.sources.model import SourceError

_T = TypeVar("_T")

EPISODES = "/meta/episodes/"
NUMBERS, SECONDS = ("chunk_index", "file_index"), ("from_timestamp", "to_timestamp")


@dataclass(frozen=True)
class Listed:
    """One file of `meta/episodes`: its columns as lists, and where the rows of each episode and its pictures lie."""

    dataset: Dataset
    key: str
    columns: Mapping[str, Sequence[Any]]
    data_keys: Sequence[str | None]
    video_keys: Mapping[str, Sequence[str | None]]

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the episodes."""
        return self.columns["episode_index"]

    @cached_property
    def places(self) -> Mapping[int, Sequence[int]]:
        """The places in this listing of the episodes, by number."""
        return _places(self.numbers)

    @cached_property
    def sharing(self) -> Mapping[str, Mapping[str | None, Sequence[int]]]:
        """The places of the episodes that share a video, by camera and key."""
        return {camera: _places(keys) for camera, keys in self.video_keys.items()}

    def length(self, at: int) -> int | None:
        """How many rows an episode has, where that is said."""
        length: int | None = self.columns["length"][at]
        return length

    def span(self, camera: str, at: int) -> Span:
        """What an episode claims of its video; NaN where it says nothing."""
        from_s, to_s = (self.columns[f"videos/{camera}/{end}_timestamp"][at] for end in ("from", "to"))
        return Span(from_s, to_s, self.length(at) or 0)


def load(root: str, key: str, local: Callable[[str], Path]) -> Listed:
    """A listing from files on this machine, read anew only when they changed: every episode asks for it.

    Raises:
        SourceError: it cannot be used.
    """
    return _load(root, mark(INFO, existing(local, root + INFO)), mark(key, existing(local, key)))


@lru_cache(maxsize=32)
def _load(root: str, info: Mark, listing: Mark) -> Listed:
    dataset = parse_info(Path(info[1]).read_bytes(), root)
    return parse_listing(dataset, listing[0], Path(listing[1]).read_bytes())


def parse_listing(dataset: Dataset, key: str, data: bytes) -> Listed:
    """A listing from its bytes.

    Raises:
        SourceError: `unreadable`, or `feature_mismatch` when it lacks a column that the dataset needs.
    """
    with usable(dataset.root):
        table = read_parquet(data, key, lambda name: not name.startswith("stats/"))
        columns: dict[str, list[Any]] = {name: table[name].to_pylist() for name in table.column_names}
        needed = ["episode_index", "data/chunk_index", "data/file_index"]
        needed += [f"videos/{camera}/{name}" for camera in dataset.cameras for name in (*NUMBERS, *SECONDS)]
        if lacking := [name for name in needed if name not in columns]:
            raise SourceError(
                "feature_mismatch",
                f"{key} lacks the column '{lacking[0]}', and meta/info.json says that the dataset needs it",
            )
        columns["episode_index"] = [int(number) for number in columns["episode_index"]]
        columns["length"] = _lengths(columns, table.num_rows)
        for name in (f"videos/{camera}/{end}" for camera in dataset.cameras for end in SECONDS):
            columns[name] = [math.nan if second is None else float(second) for second in columns[name]]
        videos = {
            camera: _keys(columns, f"videos/{camera}/", partial(dataset.video_key, camera))
            for camera in dataset.cameras
        }
        return Listed(dataset, key, columns, _keys(columns, "data/", dataset.data_key), videos)


def _keys(columns: Mapping[str, list[Any]], prefix: str, key_of: Callable[..., str]) -> list[str | None]:
    pairs = zip(*(columns[prefix + name] for name in NUMBERS), strict=True)
    return [
        None if chunk is None or file is None else key_of(chunk_index=int(chunk), file_index=int(file))
        for chunk, file in pairs
    ]


def _lengths(columns: Mapping[str, list[Any]], rows: int) -> list[int | None]:
    if "length" in columns:
        return [None if length is None else int(length) for length in columns["length"]]
    ends = [columns.get(f"dataset_{end}_index", [None] * rows) for end in ("to", "from")]
    return [None if None in pair else int(pair[0]) - int(pair[1]) for pair in zip(*ends, strict=True)]


def _places(values: Iterable[_T]) -> Mapping[_T, Sequence[int]]:
    places: dict[_T, list[int]] = {}
    for at, value in enumerate(values):
        places.setdefault(value, []).append(at)
    return places

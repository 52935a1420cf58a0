"""What a LeRobot dataset says of itself in `meta/`: rate, robot, features, where files lie, what tasks are called."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megahour.sources.model import SourceError
from megahour.storage import is_key

if TYPE_CHECKING:
    import pyarrow as pa

INFO = "/meta/info.json"
V2, V3 = ("v2.0", "v2.1"), ("v3.0",)
UNUSABLE = "lerobot"
"""The format of a dataset whose metadata cannot be used."""
_PLACE = re.compile(r"\{([a-z_]+)(?::0?(\d{1,2})d)?\}")


@dataclass(frozen=True)
class Feature:
    """A column or camera that the dataset promises. `names` is whatever the dataset has: lists, dicts, None."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any
    is_depth: bool


@dataclass(frozen=True)
class Dataset:
    """`meta/info.json`. `features` are in its order, and `chunks_size` counts the episodes of a folder of version 2."""

    root: str
    version: str
    fps: float
    robot: str
    features: tuple[Feature, ...]
    data_path: str
    video_path: str
    chunks_size: int

    @property
    def cameras(self) -> list[str]:
        """The features that are videos."""
        return sorted(feature.name for feature in self.features if feature.dtype == "video")

    def data_key(self, **numbers: int) -> str:
        """The key of a Parquet file.

        Raises:
            SourceError: `unreadable` when the dataset's `data_path` leads out of it.
        """
        return self._key("data_path", self.data_path, numbers)

    def video_key(self, camera: str, **numbers: int) -> str:
        """The key of a video file; raises as `data_key`."""
        return self._key("video_path", self.video_path, {**numbers, "video_key": camera})

    def _key(self, which: str, template: str, values: Mapping[str, Any]) -> str:
        # Not `str.format`: its fields may be endless, and reach into objects.
        name = _PLACE.sub(lambda found: str(values[found[1]]).zfill(int(found[2] or 0)), template)
        if "{" in name or "\\" in name or not is_key(name) or not is_key(f"{self.root}/{name}"):
            raise SourceError(
                "unreadable",
                f"{self.root}{INFO} has the {which} {template!r}, which names {name[:200]!r}: it must be a plain path "
                "inside the dataset. Correct it",
            )
        return f"{self.root}/{name}"


@dataclass(frozen=True)
class Span:
    """What an episode claims of a video file: the seconds from where to where, and how many rows it has for them."""

    from_s: float
    to_s: float
    frames: int


@dataclass(frozen=True)
class Video:
    """An episode's pictures in a video file. `spans` are those of all known episodes in it, `spans[mine]` its own; none
    where the file is the episode's alone."""

    key: str
    spans: tuple[Span, ...] = ()
    mine: int = 0


@dataclass(frozen=True)
class Episode:
    """Where an episode of a dataset lies, and what the metadata says of it, whichever version.

    Its rows are in one of `data_keys`: those with its number where the file is shared. `videos` by feature; a camera
    may be missing. `tasks` is what the metadata says, `task_texts` and `subtask_texts` what the numbers of rows mean.
    `listed_in` names the metadata file for people, `said` holds what else it says.
    """

    dataset: Dataset
    number: int
    length: int | None
    tasks: tuple[str, ...]
    data_keys: tuple[str, ...]
    videos: Mapping[str, Video]
    is_shared: bool
    listed_in: str
    task_texts: Mapping[int, str] = field(default_factory=dict)
    subtask_texts: Mapping[int, str] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)


def uri_of(root: str, episode: int) -> str:
    """The name of an episode's recording."""
    return f"{root}#episode={episode}"


def place_of(uri: str) -> tuple[str, int]:
    """Dataset and number of the episode that `uri` names."""
    root, _, episode = uri.rpartition("#episode=")
    return root, int(episode)


def parse_info(text: bytes, root: str) -> Dataset:
    """A dataset from its `meta/info.json`.

    Raises:
        SourceError: `unknown_format` for other versions, `feature_mismatch` when the rate is none, `unreadable`.
    """
    with usable(root):
        info = json.loads(text)
        version = str(info["codebase_version"])
        if version not in (*V2, *V3):
            raise SourceError(
                "unknown_format",
                f"{root} is a LeRobot dataset of version {version}; versions v2.0, v2.1 and v3.0 can be imported",
            )
        if not 0 < float(info["fps"]) < math.inf:
            raise SourceError("feature_mismatch", f"{root}{INFO} has fps {info['fps']}: it must be a positive number")
        dataset = Dataset(
            root=root,
            version=version,
            fps=float(info["fps"]),
            robot=str(info.get("robot_type") or ""),
            features=tuple(_feature(name, said) for name, said in info["features"].items()),
            data_path=str(info["data_path"]),
            video_path=str(info.get("video_path") or ""),
            chunks_size=int(info.get("chunks_size", 1000)),
        )
        if dataset.cameras and not dataset.video_path:
            raise SourceError(
                "unreadable", f"{root}{INFO} has cameras and no video_path: where their videos lie is not known"
            )
        return dataset


def _feature(name: str, said: Mapping[str, Any]) -> Feature:
    shape = said["shape"] if isinstance(said["shape"], list) else [said["shape"]]
    info = said.get("info") or said.get("video_info") or {}
    is_depth = bool(info.get("video.is_depth_map") or info.get("is_depth_map"))
    return Feature(name, str(said["dtype"]), tuple(int(n) for n in shape), said.get("names"), is_depth)


@contextmanager
def usable(root: str) -> Iterator[None]:
    """Make whatever broken metadata raises a `SourceError` that names the dataset: `unreadable`, or `missing_file`."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError("missing_file", f"{root} lacks a file of its metadata: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SourceError(
            "unreadable", f"The metadata of {root} cannot be used: {type(error).__name__}: {error}"
        ) from error


def read_parquet(data: bytes, key: str, columns: Callable[[str], bool] = lambda name: True) -> pa.Table:
    """A small Parquet file of metadata, its columns that `columns` wants.

    Raises:
        SourceError: `unreadable`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        return file.read([name for name in file.schema_arrow.names if columns(name)])
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            "unreadable", f"{key} cannot be read as Parquet: {error}. Copy it again from where it was made"
        ) from error


def says_one_task(tasks: object) -> bool:
    """Whether an episode's own list of tasks is one text."""
    return isinstance(tasks, str) or (isinstance(tasks, list) and len(tasks) == 1)


def texts_of_lines(lines: bytes) -> dict[int, str]:
    """`meta/tasks.jsonl`: what the numbers in `task_index` mean."""
    said = (json.loads(line) for line in lines.decode().splitlines() if line.strip())
    return {int(one["task_index"]): str(one["task"]) for one in said}


def texts_of_table(table: pa.Table, index: str) -> dict[int, str]:
    """`meta/tasks.parquet` or `meta/subtasks.parquet`: what the numbers in the column `index` mean.

    The text is pandas' index, under its own name or as `__index_level_0__`, or a column. Without numbers rows count.
    """
    import pyarrow as pa

    strings = [one.name for one in table.schema if pa.types.is_string(one.type) or pa.types.is_large_string(one.type)]
    named = [name for name in (index.removesuffix("_index"), "__index_level_0__") if name in strings]
    if not (named or strings):
        return {}
    texts = table[(named or strings)[0]].to_pylist()
    numbers = table[index].to_pylist() if index in table.column_names else range(len(texts))
    return {int(number): str(text) for number, text in zip(numbers, texts, strict=True) if text is not None}


def existing(local: Callable[[str], Path], key: str) -> Path:
    """The path of a metadata file on this machine.

    Raises:
        SourceError: `missing_file`.
    """
    path = present(local, key)
    if path is None:
        raise SourceError("missing_file", f"{key} is missing: without it the dataset cannot be read")
    return path


def present(local: Callable[[str], Path], key: str) -> Path | None:
    """The same, or None where there is none."""
    try:
        path = local(key)
        path.stat()
    except FileNotFoundError:
        return None
    return path


def digest(*parts: object) -> str:
    """A short name for what metadata says; another one where it says something else."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode(errors="surrogatepass")).hexdigest()[:32]


Mark = tuple[str, str, int, int]
"""A file on this machine: key, path, time of change and size, by which a cache knows that it is the same."""


def mark(key: str, path: Path) -> Mark:
    """The mark of a file."""
    stat = path.stat()
    return key, str(path), stat.st_mtime_ns, stat.st_size

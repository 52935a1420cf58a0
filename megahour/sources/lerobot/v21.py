"""LeRobot v2.1: a folder with `meta/`, one Parquet file per episode and one video per camera and episode."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.episode.model import Camera, Note, RawEpisode, Series
from megahour.sources.model import Recording, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.storage import FileRef

FORMAT = "lerobot_v21"
UNKNOWN = "lerobot"
INFO, EPISODES = "/meta/info.json", "/meta/episodes.jsonl"
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
GRID_TOLERANCE_S = 1e-4
"""LeRobot's own tolerance between a timestamp and its frame's place on the grid of 1/fps."""


@dataclass(frozen=True)
class _Dataset:
    """What `meta/` says: `info` whole, `episodes` by index."""

    root: str
    info: dict[str, Any]
    episodes: dict[int, dict[str, Any]]

    def parquet_key(self, episode: int) -> str:
        chunk = episode // int(self.info.get("chunks_size", 1000))
        name = self.info["data_path"].format(episode_chunk=chunk, episode_index=episode)
        return f"{self.root}/{name}"

    def video_key(self, episode: int, camera: str) -> str:
        chunk = episode // int(self.info.get("chunks_size", 1000))
        name = self.info["video_path"].format(episode_chunk=chunk, episode_index=episode, video_key=camera)
        return f"{self.root}/{name}"

    @property
    def cameras(self) -> list[str]:
        return sorted(name for name, feature in self.info["features"].items() if feature["dtype"] == "video")


def dataset_roots(keys: Mapping[str, FileRef]) -> list[str]:
    """Folders of LeRobot datasets among `keys`, of any version."""
    return sorted(key.removesuffix(INFO) for key in keys if key.endswith(INFO))


def find(root: str, source: str, files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """A dataset's episodes as recordings, each with the files it should have; one recording for a dataset whose
    metadata cannot be used, so that it is held and not passed over."""
    try:
        dataset = _dataset(root, read)
        found = []
        for episode in sorted(dataset.episodes):
            keys = [dataset.parquet_key(episode)]
            keys += [dataset.video_key(episode, camera) for camera in dataset.cameras]
            found.append(
                Recording(
                    uri=f"{root}#episode={episode}",
                    format=FORMAT,
                    source=source,
                    files=tuple(files[key] for key in keys if key in files),
                    missing=tuple(key for key in keys if key not in files),
                )
            )
        return found
    except SourceError:
        return [Recording(root, UNKNOWN, source, (files[root + INFO],))]


def _dataset(root: str, read: Callable[[str], bytes]) -> _Dataset:
    try:
        info = json.loads(read(root + INFO))
        version = str(info["codebase_version"])
        if version not in ("v2.1", "v2.0"):
            raise SourceError(
                "unknown_format",
                f"{root} is a LeRobot dataset of version {version}; versions v2.0 and v2.1 can be imported",
            )
        lines = read(root + EPISODES).decode().splitlines()
        episodes = {int(e["episode_index"]): e for e in (json.loads(line) for line in lines if line.strip())}
        if not episodes:
            raise SourceError("empty", f"{root}{EPISODES} lists no episode: the dataset has nothing to ingest")
        dataset = _Dataset(root, info, episodes)
        if not 0 < float(info["fps"]) < math.inf:
            raise SourceError("feature_mismatch", f"{root}{INFO} has fps {info['fps']}: it must be a positive number")
        for episode in list(episodes)[:1]:
            dataset.parquet_key(episode)
            _ = [dataset.video_key(episode, camera) for camera in dataset.cameras]
    except FileNotFoundError as error:
        raise SourceError("missing_file", f"{root} lacks a file of its metadata: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SourceError(
            "unreadable", f"The metadata of {root} cannot be used: {type(error).__name__}: {error}"
        ) from error
    return dataset


def _local_dataset(root: str, local: Callable[[str], Path]) -> _Dataset:
    """The dataset from files on this machine, read anew only when they changed: every episode asks for it."""
    paths = [_existing(local, root + name) for name in (INFO, EPISODES)]
    marks = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    return _dataset_of(root, marks)


@lru_cache(maxsize=8)
def _dataset_of(root: str, marks: tuple[tuple[str, int, int], ...]) -> _Dataset:
    paths = {root + name: Path(path) for name, (path, _, _) in zip((INFO, EPISODES), marks, strict=True)}
    return _dataset(root, lambda key: paths[key].read_bytes())


def _existing(local: Callable[[str], Path], key: str) -> Path:
    try:
        path = local(key)
        path.stat()
    except FileNotFoundError as error:
        raise SourceError("missing_file", f"{key} is missing: without it the dataset cannot be read") from error
    return path


def _place(recording: Recording) -> tuple[str, int]:
    root, _, episode = recording.uri.rpartition("#episode=")
    return root, int(episode)


def said_of_episode(recording: Recording, local: Callable[[str], Path]) -> str:
    """What the metadata says that the files of an episode do not: task, robot and rate, as canonical JSON."""
    root, episode = _place(recording)
    try:
        dataset = _local_dataset(root, local)
    except SourceError:
        return ""
    said = [_task(dataset, episode), dataset.info.get("robot_type"), dataset.info["fps"]]
    return json.dumps(said, separators=(",", ":"))


def why_unknown(recording: Recording, local: Callable[[str], Path]) -> SourceError:
    """What is wrong with a recording that no importer reads."""
    if recording.format == UNKNOWN:
        try:
            _local_dataset(recording.uri, local)
        except SourceError as error:
            return error
    return SourceError(
        "unknown_format",
        f"{recording.uri} cannot be imported: Megahour reads ALOHA HDF5 files and LeRobot v2.1 datasets",
    )


def read(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The one episode of a recording.

    `observation.images.cam_high` becomes the camera `cam_high`, `observation.state` the series `state`, `action`
    `action`, every other column of floats a series of its own; what is left out is in the episode's `notes`.

    Raises:
        SourceError: `missing_video`, `missing_file`, `unreadable`, `missing_feature`, `feature_mismatch`, `empty`,
            `times`, or `frame_count` when a video has not one frame per row.
    """
    root, episode = _place(recording)
    dataset = _local_dataset(root, local)
    _refuse_missing(recording, dataset, episode)
    table = _table(local(dataset.parquet_key(episode)), dataset.parquet_key(episode))
    times_ns = _times(table, float(dataset.info["fps"]), dataset.parquet_key(episode))
    declared = dataset.episodes[episode].get("length")
    if declared is not None and int(declared) != len(times_ns):
        raise SourceError(
            "frame_count",
            f"{dataset.parquet_key(episode)} has {len(times_ns)} rows, and meta/episodes.jsonl says {declared}",
        )
    notes: list[Note] = []
    series = tuple(_series(dataset, table, times_ns, notes))
    cameras = tuple(
        _camera(dataset, camera, dataset.video_key(episode, camera), local, times_ns) for camera in dataset.cameras
    )
    yield RawEpisode(
        index=0,
        robot=str(dataset.info.get("robot_type") or "unknown"),
        task=_task(dataset, episode),
        rate_hz=float(dataset.info["fps"]),
        success=_success(table),
        cameras=cameras,
        series=series,
        attributes={"lerobot_version": str(dataset.info["codebase_version"]), "lerobot_episode": str(episode)},
        notes=tuple(notes),
    )


def _refuse_missing(recording: Recording, dataset: _Dataset, episode: int) -> None:
    for key in recording.missing:
        if key == dataset.parquet_key(episode):
            raise SourceError("missing_file", f"{recording.uri} has no data: its Parquet file {key} has not landed")
        camera = next((name for name in dataset.cameras if dataset.video_key(episode, name) == key), key)
        raise SourceError(
            "missing_video", f"{recording.uri} has no video of the camera '{camera}': {key} has not landed"
        )


def _table(path: Path, key: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        if path.read_bytes()[-4:] != b"PAR1":
            raise SourceError(
                "truncated",
                f"{key} is cut short: a Parquet file ends in PAR1, and this one after {path.stat().st_size} bytes does "
                "not. Copy it again from where it was recorded",
            ) from error
        text = str(error).replace(str(path), key)
        raise SourceError("unreadable", f"{key} cannot be read as Parquet: {text}. Export it again") from error
    if table.num_rows == 0:
        raise SourceError("empty", f"{key} has no rows")
    return table


def _times(table: pa.Table, fps: float, key: str) -> Any:
    """Times of the rows in nanoseconds: the exact grid of 1/fps where the float32 timestamps mean it."""
    for name in ("timestamp", "frame_index"):
        if name not in table.column_names:
            raise SourceError("missing_feature", f"{key} has no column '{name}'")
    frames = table["frame_index"].to_numpy()
    if not np.array_equal(frames, np.arange(len(frames))):
        at = int(np.argmax(frames != np.arange(len(frames))))
        raise SourceError("times", f"{key}: frame_index is {frames[at]} in row {at}; rows are missing or out of order")
    seconds = table["timestamp"].to_numpy().astype(np.float64)
    grid = np.arange(len(frames)) / fps
    if np.abs(seconds - grid).max() <= GRID_TOLERANCE_S:
        return np.round(np.arange(len(frames)) * (1e9 / fps)).astype(np.int64)
    times_ns = np.round(seconds * 1e9).astype(np.int64) if np.isfinite(seconds).all() else np.zeros(2, np.int64)
    if times_ns[0] < 0 or (np.diff(times_ns) <= 0).any():
        raise SourceError("times", f"{key}: its timestamps do not increase from row to row")
    return times_ns


def _series(dataset: _Dataset, table: pa.Table, times_ns: Any, notes: list[Note]) -> Iterator[Series]:
    for name, feature in dataset.info["features"].items():
        if name in BOOKKEEPING or feature["dtype"] == "video":
            continue
        if feature["dtype"] not in ("float32", "float64") or len(feature["shape"]) != 1:
            text = f"{name} left out: {feature['dtype']} {tuple(feature['shape'])} is not a row of floats"
            notes.append(Note("left_out", text))
            continue
        if name not in table.column_names:
            raise SourceError(
                "missing_feature", f"{dataset.root}: meta/info.json promises '{name}', and the Parquet file lacks it"
            )
        width = int(feature["shape"][0])
        values = _matrix(table[name].combine_chunks(), feature["dtype"], width, f"{dataset.root}: '{name}'")
        yield Series(_topic(name), times_ns, values, _names(feature.get("names"), width, _topic(name)))


def _matrix(column: Any, dtype: str, width: int, what: str) -> Any:
    import pyarrow as pa

    rows = len(column)
    nested = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
    flat = column.flatten() if nested else column
    if column.null_count or flat.null_count:
        raise SourceError("missing_feature", f"{what} has rows without values")
    even = not nested or (np.asarray(column.value_lengths()) == width).all()
    if not even or len(flat) != rows * width or str(flat.type) not in ("float", "double", "halffloat"):
        raise SourceError(
            "feature_mismatch",
            f"{what} is {column.type} in the Parquet file, and meta/info.json says {dtype} ({width},)",
        )
    values = flat.to_numpy(zero_copy_only=False).reshape(rows, width)
    return values if values.dtype == np.float64 else values.astype(np.float32)


def _topic(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", name.removeprefix("observation.images.").removeprefix("observation."))


def _names(names: Any, width: int, topic: str) -> tuple[str, ...]:
    """A feature's names, which datasets nest in lists and dicts; numbered ones where they do not fit."""
    flat: list[str] = []

    def gather(value: Any) -> None:
        if isinstance(value, str):
            flat.append(value)
        elif isinstance(value, dict):
            for member in value.values():
                gather(member)
        elif isinstance(value, list):
            for member in value:
                gather(member)

    gather(names)
    fits = len(flat) == width and len(set(flat)) == width
    return tuple(flat) if fits else tuple(f"{topic}_{i}" for i in range(width))


def _task(dataset: _Dataset, episode: int) -> str:
    tasks = dataset.episodes.get(episode, {}).get("tasks") or []
    return " ".join(str(task) for task in tasks)


def _success(table: pa.Table) -> bool | None:
    if "next.success" not in table.column_names:
        return None
    return any(bool(np.any(value)) for value in table["next.success"].to_pylist())


def _camera(dataset: _Dataset, name: str, key: str, local: Callable[[str], Path], times_ns: Any) -> Camera:
    from megahour.sources.video import probe_video, read_video

    path = local(key)
    facts = probe_video(path, key)
    if facts.frames != len(times_ns):
        raise SourceError(
            "frame_count",
            f"{key} has {facts.frames} frames, and its episode has {len(times_ns)} rows: which frame belongs to which "
            "row cannot be known. Export the episode again",
        )
    shape = [int(n) for n in dataset.info["features"][name]["shape"]]
    if sorted((facts.height, facts.width, 3)) != sorted(shape):
        raise SourceError(
            "feature_mismatch", f"{key} is {facts.width}x{facts.height}, and meta/info.json says {shape} for '{name}'"
        )
    drift_s = float(np.abs(facts.times_s - facts.times_s[0] - (times_ns - times_ns[0]) / 1e9).max())
    if drift_s > 0.5 / float(dataset.info["fps"]):
        raise SourceError(
            "times", f"{key} and the timestamps of its episode drift {drift_s:.3f} s apart: frames were dropped"
        )
    return Camera(_topic(name), facts.width, facts.height, times_ns, lambda: read_video(path, key, facts))

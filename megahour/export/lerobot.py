"""Write a LeRobot v3.0 dataset from episodes; their coded pictures go into its videos as they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from megahour.episode.index import CameraIndex
from megahour.episode.reader import EpisodeReader, open_episode
from megahour.episode.sample import nearest
from megahour.export import layout, statistics
from megahour.export.choose import Choice, Chosen
from megahour.export.files import Limits, ParquetFiles, Place, VideoFiles
from megahour.export.folder import appearing_folder
from megahour.export.layout import camera_feature, series_feature
from megahour.export.model import ExportError
from megahour.export.statistics import Stats
from megahour.export.survey import Agreed, coded_from, shape_of
from megahour.export.timeline import Timeline
from megahour.storage import Lake

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_PICTURES = 256
"""Coded pictures of a camera that are in memory at a time."""
STATS_PICTURES, STATS_BLOCK = 32, 8
"""Pictures of a camera and episode that statistics are made of, and how many of them are in memory at a time."""
EPISODE_GROUP_ROWS = 64


@dataclass(frozen=True)
class Exported:
    """An episode that was written. `size_bytes` counts its coded pictures."""

    episode_id: str
    frames: int
    size_bytes: int


@dataclass(frozen=True)
class _Part:
    """The pictures `start` to `end` of a camera, which go into a video; `first` is that of the first row."""

    camera: CameraIndex
    start: int
    first: int
    end: int


def export_lerobot(
    out: Path, lake: Lake, choice: Choice, agreed: Agreed, limits: Limits | None = None
) -> Generator[Exported]:
    """Write the chosen episodes to the new folder `out`, one after the other; it appears when the last was taken.

    Frame i of an episode is at i/fps, whatever its time; where times are not so, the feature `megahour.time_s` has
    them. Series have the row nearest in time. `meta/megahour.json` says where all came from.

    Raises:
        ExportError: `exists`, `busy`, or `mixed` where two topics would get one name. Nothing is left behind.
        EpisodeError: an episode is damaged.
    """
    with appearing_folder(out) as folder:
        with ExitStack() as open_files:
            dataset = _Dataset(folder, lake, agreed, limits or Limits(), open_files)
            for chosen in choice:
                yield dataset.add(chosen)
        dataset.finish({"recipe": choice.recipe, "manifest": choice.manifest})


class _Dataset:
    """A dataset being written: its open files, and what `meta/` will say of it."""

    def __init__(self, folder: Path, lake: Lake, agreed: Agreed, limits: Limits, open_files: ExitStack) -> None:
        self._folder, self._lake, self._agreed, self._limits = folder, lake, agreed, limits
        self._shape = agreed.shape
        self._features = layout.features_of(agreed.shape, with_time=agreed.off_grid > 0)
        self._data_schema = layout.data_schema(self._features)
        self._episodes_schema = layout.episodes_schema(self._features)
        self._data = ParquetFiles(folder / "data", self._data_schema, limits)
        self._episodes = ParquetFiles(folder / "meta/episodes", self._episodes_schema, limits, EPISODE_GROUP_ROWS)
        self._videos = {
            camera.name: VideoFiles(folder / "videos" / camera_feature(camera.name), agreed.shape.fps, limits)
            for camera in agreed.shape.cameras
        }
        for close in (self._data.close, self._episodes.close, *(each.close for each in self._videos.values())):
            open_files.callback(close)
        self._tasks: dict[str, int] = {}
        self._stats: dict[str, Stats] = {}
        self._written: list[dict[str, Any]] = []
        self._left_out: Counter[str] = Counter()
        self._frames = 0

    def add(self, chosen: Chosen) -> Exported:
        """Write one episode."""
        reader = open_episode(self._lake, chosen.uri, chosen.size_bytes)
        shape, rows = shape_of(reader, self._shape.wanted)
        if shape != self._shape:
            raise ExportError("mixed", f"{chosen.episode_id} is not what it was when it was looked at: export again")
        number, frames = len(self._written), len(rows.times_ns)
        columns = self._columns(reader, rows, number)
        table = _table(columns, self._data_schema)
        place = self._data.place(table.nbytes)
        self._data.write(table)
        parts = list(_parts(reader, rows))
        videos, size_bytes = self._add_videos(reader, parts)
        stats = {name: statistics.of_rows(values) for name, values in columns.items()}
        stats |= {camera_feature(part.camera.name): _picture_stats(reader, part) for part in parts}
        self._add_row(number, reader.facts.task, frames, place, videos, stats)
        for name, found in stats.items():
            self._stats[name] = statistics.merge(self._stats[name], found) if name in self._stats else found
        self._left_out.update(self._missing(reader))
        self._written.append(
            {
                "episode_index": number,
                "episode_id": chosen.episode_id,
                "sha256": chosen.sha256,
                "split": chosen.split,
                "success": reader.facts.success,
                "start_ns": int(rows.times_ns[0]),
                "on_grid": rows.on_grid,
            }
        )
        self._frames += frames
        return Exported(chosen.episode_id, frames, size_bytes)

    def _columns(self, reader: EpisodeReader, rows: Timeline, number: int) -> dict[str, NDArray[Any]]:
        """The episode's rows by feature, each `(frames, d)`."""
        found: dict[str, NDArray[Any]] = {}
        for one in self._shape.series:
            series = reader.series(one.name)
            found[series_feature(one.name)] = series.values[nearest(series.times_ns, rows.times_ns)]
        frames = np.arange(len(rows.times_ns))
        found[layout.TIME] = (rows.times_ns - rows.times_ns[0])[:, None] / 1e9
        task = self._tasks.setdefault(reader.facts.task, len(self._tasks))
        found["timestamp"] = (frames / rows.fps).astype(np.float32)[:, None]
        found["frame_index"] = frames[:, None]
        found["episode_index"] = np.full((len(frames), 1), number)
        found["index"] = self._frames + frames[:, None]
        found["task_index"] = np.full((len(frames), 1), task)
        return {name: values for name, values in found.items() if name in self._features}

    def _add_videos(self, reader: EpisodeReader, parts: Sequence[_Part]) -> tuple[dict[str, tuple[Place, float]], int]:
        """Copy coded pictures; returns where the first row of each camera is, and how many bytes all have."""
        begun: dict[str, tuple[Place, float]] = {}
        for part in parts:
            name, span = part.camera.name, slice(part.start, part.end)
            place, at = self._videos[name].begin(int(part.camera.lengths[span].sum()), part.end - part.start)
            begun[name] = (place, (at + part.first - part.start) / self._shape.fps)
        size_bytes = 0
        longest = max((part.end - part.start for part in parts), default=0)
        # Block by block through all cameras: what is read for one holds the others' pictures of the same time.
        for block in range(0, longest, BLOCK_PICTURES):
            for part in parts:
                low, high = (min(part.start + block + more, part.end) for more in (0, BLOCK_PICTURES))
                units = reader.coded(part.camera.name, low, high)
                self._videos[part.camera.name].write(units, part.camera.keyframes[low:high].tolist())
                size_bytes += sum(len(unit) for unit in units)
        return begun, size_bytes

    def _add_row(
        self,
        number: int,
        task: str,
        frames: int,
        place: Place,
        videos: Mapping[str, tuple[Place, float]],
        stats: Mapping[str, Stats],
    ) -> None:
        import pyarrow as pa

        own = self._episodes.place(0)
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": [task],
            "length": frames,
            "data/chunk_index": place.chunk,
            "data/file_index": place.file,
            "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + frames,
            "meta/episodes/chunk_index": own.chunk,
            "meta/episodes/file_index": own.file,
        }
        for camera, (where, at_s) in videos.items():
            key = f"videos/{camera_feature(camera)}"
            row |= {f"{key}/chunk_index": where.chunk, f"{key}/file_index": where.file}
            row |= {f"{key}/from_timestamp": at_s, f"{key}/to_timestamp": at_s + frames / self._shape.fps}
        for feature, found in stats.items():
            row |= {f"stats/{feature}/{name}": found[name].tolist() for name in statistics.KEPT}
        self._episodes.write(pa.Table.from_pylist([row], schema=self._episodes_schema))

    def _missing(self, reader: EpisodeReader) -> list[str]:
        """Topics of an episode that the dataset has not."""
        taken = {camera.name for camera in self._shape.cameras} | {series.name for series in self._shape.series}
        there = (*reader.cameras, *reader.series_names, *(topic.name for topic in reader.extras))
        return [name for name in there if name not in taken]

    def finish(self, origin: Mapping[str, str]) -> None:
        """Write what is known when all episodes are there; their files are closed."""
        import pyarrow.parquet as pq

        meta = self._folder / "meta"
        pq.write_table(layout.tasks_table(list(self._tasks)), meta / "tasks.parquet")
        found = {name: {key: self._stats[name][key].tolist() for key in statistics.KEPT} for name in self._features}
        _write_json(meta / "stats.json", found)
        named = {camera_feature(camera.name): camera.name for camera in self._shape.cameras}
        named |= {series_feature(series.name): series.name for series in self._shape.series}
        left_out = dict(self._left_out.most_common())
        details = {**origin, "topics": named, "left_out": left_out, "episodes": self._written}
        _write_json(meta / "megahour.json", details)
        _write_json(meta / "info.json", {**self._info(), "megahour": {**origin, "details": "meta/megahour.json"}})

    def _info(self) -> dict[str, Any]:
        fps = self._shape.fps
        features = {name: dict(feature) for name, feature in self._features.items()}
        for camera, videos in self._videos.items():
            feature = features[camera_feature(camera)]
            feature["info"] = layout.video_info(feature, fps, videos.pix_fmt)
        return {
            "codebase_version": layout.VERSION,
            "robot_type": ", ".join(self._agreed.robots),
            "total_episodes": len(self._written),
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": self._limits.files_per_chunk,
            "data_files_size_in_mb": self._limits.data_mib,
            "video_files_size_in_mb": self._limits.video_mib,
            "fps": fps,
            "splits": layout.splits_of([each["split"] for each in self._written]),
            "data_path": f"data/{layout.FILE}.parquet",
            "video_path": f"videos/{{video_key}}/{layout.FILE}.mp4" if self._videos else None,
            "features": features,
        }


def _parts(reader: EpisodeReader, rows: Timeline) -> Iterator[_Part]:
    """What goes into the videos: from the keyframe that the first row needs to the last row."""
    by_name = {camera.name: camera for camera in reader.index.cameras}
    for name, first in rows.first.items():
        camera = by_name[name]
        yield _Part(camera, coded_from(camera, first), first, first + len(rows.times_ns))


def _picture_stats(reader: EpisodeReader, part: _Part) -> Stats:
    """From a few pictures all over the episode: keyframes, each of which is decoded by itself."""
    keys = part.first + np.flatnonzero(part.camera.keyframes[part.first : part.end])
    if not len(keys):
        keys = np.array([part.first])
    chosen = keys[np.unique(np.linspace(0, len(keys) - 1, STATS_PICTURES).round().astype(np.int64))]
    levels = np.zeros((3, 256), np.int64)
    for low in range(0, len(chosen), STATS_BLOCK):
        levels += statistics.levels_of(reader.frames(part.camera.name, chosen[low : low + STATS_BLOCK].tolist()))
    return statistics.of_levels(levels, len(chosen))


def _table(columns: Mapping[str, NDArray[Any]], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    arrays = []
    for field in schema:
        values = columns[field.name]
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        arrays.append(flat if values.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1]))
    return pa.Table.from_arrays(arrays, schema=schema)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False), "utf-8")

"""Small LeRobot v3.0 datasets out of arrays, or out of a dataset of version 2.1: many episodes in each file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megahour.episode.model import RawEpisode
from megahour.sources import Recording, find_recordings, read_recording
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import pictures, series

CAMERA = "observation.images.front"
FPS = 30


@dataclass(frozen=True)
class Take:
    """An episode to write: its columns but for the bookkeeping, an MP4 file per camera, and the task of each row."""

    columns: Mapping[str, pa.Array]
    videos: Mapping[str, Path]
    tasks: Sequence[str]
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def frames(self) -> int:
        """How many rows it has."""
        return len(self.tasks)


@dataclass(frozen=True)
class Sharing:
    """How many episodes share a file of each kind; `group_rows` is the most rows of a Parquet row group."""

    data: int = 3
    videos: int = 2
    listing: int = 100
    group_rows: int = 1 << 20


def rows_of(values: Any) -> pa.Array:
    """Numbers `(n, d)` or `(n, d, ...)` as a column of lists."""
    array = np.asarray(values)
    column = pa.array(array.ravel())
    for width in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, width)
    return column


def encode_mp4(path: Path, video: Any, codec: str = "libx264", rate: int = FPS, **options: str) -> Path:
    """Pictures `(n, height, width, 3)` as an MP4 file, with B-frames unless `options` say otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt = video.shape[1], video.shape[2], "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = {"g": "5", "bf": "2", "threads": "1", **options}
        for picture in video:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def take(
    folder: Path,
    frames: int = 12,
    seed: int = 0,
    task: str = "press the button",
    cameras: Sequence[str] = (CAMERA,),
    **columns: pa.Array,
) -> Take:
    """An episode of random states and actions, and pictures that differ from seed to seed."""
    videos = {
        camera: encode_mp4(folder / f"{seed}_{frames}_{i}.mp4", pictures(frames, 48, 64, seed=100 * seed + i))
        for i, camera in enumerate(cameras)
    }
    lists = {
        "observation.state": rows_of(series("state", frames, 4, seed=seed).values),
        "action": rows_of(series("action", frames, 3, seed=seed + 1).values),
    }
    return Take({**lists, **columns}, videos, [task] * frames)


def write_v30(
    target: Path,
    takes: Sequence[Take],
    sharing: Sharing = Sharing(),
    features: Mapping[str, Any] | None = None,
    tasks: Sequence[str] = (),
    info: Mapping[str, Any] | None = None,
) -> Path:
    """Write a dataset; `tasks` come first in its table of tasks. Returns `target`."""
    texts = list(dict.fromkeys([*tasks, *(task for one in takes for task in one.tasks)]))
    listed: list[dict[str, Any]] = [
        {"episode_index": i, "tasks": list(dict.fromkeys(one.tasks)), "length": one.frames}
        for i, one in enumerate(takes)
    ]
    at = 0
    for file, members in enumerate(_shared(takes, sharing.data)):
        tables = []
        for number in members:
            tables.append(_table(takes[number], number, at, texts))
            at += takes[number].frames
            listed[number] |= {"data/chunk_index": file // 2, "data/file_index": file % 2}
            listed[number] |= {"dataset_from_index": at - takes[number].frames, "dataset_to_index": at}
        write_table(target / data_path(file), pa.concat_tables(tables), row_group_size=sharing.group_rows)
    for camera in takes[0].videos:
        for file, members in enumerate(_shared(takes, sharing.videos)):
            spans = concatenate([takes[number].videos[camera] for number in members], target / video_path(file, camera))
            for number, (from_s, to_s) in zip(members, spans, strict=True):
                said = {"chunk_index": 0, "file_index": file, "from_timestamp": from_s, "to_timestamp": to_s}
                listed[number] |= {f"videos/{camera}/{name}": value for name, value in said.items()}
    names = dict.fromkeys(name for one in takes for name in one.said)
    for number, one in enumerate(takes):
        listed[number] |= {name: one.said.get(name) for name in names}
    for file, members in enumerate(_shared(takes, sharing.listing)):
        rows = [listed[number] for number in members]
        write_table(target / f"meta/episodes/chunk-000/file-{file:03d}.parquet", pa.Table.from_pylist(rows))
    named = {"task_index": list(range(len(texts))), "__index_level_0__": texts}
    write_table(target / "meta/tasks.parquet", pa.table(named))
    plain = {
        "codebase_version": "v3.0",
        "robot_type": "sawyer",
        "fps": FPS,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {**_features(takes[0]), **(features or {})},
        **(info or {}),
    }
    (target / "meta/info.json").write_text(json.dumps(plain))
    return target


def takes_of_v21(source: Path, episodes: Sequence[int]) -> list[Take]:
    """The episodes of a dataset of version 2.1, their videos as they are."""
    lines = map(json.loads, (source / "meta/tasks.jsonl").read_text().splitlines())
    texts = {line["task_index"]: line["task"] for line in lines}
    found = []
    for number in episodes:
        table = pq.read_table(next(source.glob(f"data/*/episode_{number:06d}.parquet")))
        columns = {name: table[name].combine_chunks() for name in table.column_names if name not in BOOKKEEPING}
        videos = {path.parent.name: path for path in source.glob(f"videos/*/*/episode_{number:06d}.mp4")}
        found.append(Take(columns, videos, [texts[index] for index in table["task_index"].to_pylist()]))
    return found


def concatenate(paths: Sequence[Path], target: Path) -> list[tuple[float, float]]:
    """Put videos one after the other without coding them anew; the seconds from where to where each lies."""
    target.parent.mkdir(parents=True, exist_ok=True)
    spans, at = [], Fraction(0)
    with av.open(str(target), "w") as out:
        into: Any = None
        for path in paths:
            with av.open(str(path)) as source:
                stream = source.streams.video[0]
                into = into or out.add_stream_from_template(stream, opaque=True)
                packets: list[Any] = [packet for packet in source.demux(stream) if packet.size]
                assert stream.time_base is not None and stream.average_rate is not None
                shift = round(at / stream.time_base)
                for packet in packets:
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = into
                    out.mux(packet)
                end = at + len(packets) / stream.average_rate
            spans.append((float(at), float(end)))
            at = end
    return spans


def data_path(file: int) -> str:
    """Where the `file`-th data file lies: two to a chunk."""
    return f"data/chunk-{file // 2:03d}/file-{file % 2:03d}.parquet"


def video_path(file: int, camera: str = CAMERA) -> str:
    """Where the `file`-th video of a camera lies."""
    return f"videos/{camera}/chunk-000/file-{file:03d}.mp4"


BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
LISTING = "meta/episodes/chunk-000/file-000.parquet"


def write_table(path: Path, table: pa.Table, row_group_size: int | None = None) -> None:
    """A Parquet file, and the folders it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)


def change_listing(dataset: Path, change: Callable[[list[dict[str, Any]]], Any], name: str = LISTING) -> None:
    """Change the rows of `meta/episodes`, by number of the episode."""
    rows = pq.read_table(dataset / name).to_pylist()
    change(rows)
    write_table(dataset / name, pa.Table.from_pylist(rows))


def change_column(path: Path, name: str, column: Any) -> None:
    """Replace a column of a Parquet file, add it, or with None remove it."""
    table = pq.read_table(path)
    if name in table.column_names:
        table = table.drop_columns([name])
    write_table(path, table if column is None else table.append_column(name, column))


def found(root: Path) -> list[Recording]:
    """The recordings of the lake at `root`, by dataset and number."""
    lake = open_lake(root.as_uri())
    recordings = find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))
    return sorted(recordings, key=lambda one: (one.uri.partition("#")[0], len(one.uri), one.uri))


def read_all(root: Path) -> list[RawEpisode]:
    """The episodes of the lake at `root`."""
    return [episode for recording in found(root) for episode in read_recording(recording, root.joinpath)]


def _shared(takes: Sequence[Take], share: int) -> Iterator[range]:
    for start in range(0, len(takes), share):
        yield range(start, min(start + share, len(takes)))


def _table(one: Take, number: int, at: int, texts: Sequence[str]) -> pa.Table:
    frames = np.arange(one.frames)
    return pa.table(
        {
            **one.columns,
            "timestamp": (frames / FPS).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(one.frames, number),
            "index": frames + at,
            "task_index": np.array([texts.index(task) for task in one.tasks]),
        }
    )


def _features(one: Take) -> dict[str, Any]:
    features: dict[str, Any] = {}
    for name, column in one.columns.items():
        kind, shape = column.type, []
        while pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
            shape.append(kind.list_size if pa.types.is_fixed_size_list(kind) else len(column[0]))
            kind = kind.value_type
        dtype = {"float": "float32", "double": "float64"}.get(str(kind), str(kind))
        features[name] = {"dtype": dtype, "shape": shape or [1], "names": None}
    for camera, path in one.videos.items():
        with av.open(str(path)) as container:
            context = container.streams.video[0].codec_context
            features[camera] = {"dtype": "video", "shape": [context.height, context.width, 3], "names": None}
    return features

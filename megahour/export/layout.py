"""What a LeRobot v3.0 dataset looks like: features, columns, and what its `meta/` says.

Facts of the format: github.com/huggingface/lerobot 0.4.4, `src/lerobot/datasets`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megahour.export.model import ExportError, Shape
from megahour.export.statistics import QUANTILES

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = "v3.0"
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
BOOKKEEPING = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
TIME = "megahour.time_s"
"""A feature of datasets with episodes whose times are not 1/fps apart: the true seconds since the first row."""

Features = dict[str, dict[str, Any]]
"""Features by name: `dtype`, `shape`, and the `names` of a series' columns."""


def camera_feature(name: str) -> str:
    """The name of a camera's feature. LeRobot's names hold no slash."""
    return f"observation.images.{name.strip('/').replace('/', '.')}"


def series_feature(name: str) -> str:
    """The name of a series' feature."""
    return name if name == "action" else f"observation.{name.strip('/').replace('/', '.')}"


def features_of(shape: Shape, with_time: bool) -> Features:
    """The features of a dataset, series before LeRobot's own columns.

    Raises:
        ExportError: `mixed` where two topics would get one name.
    """
    named: list[tuple[str, dict[str, Any]]] = [
        (
            camera_feature(camera.name),
            {"dtype": "video", "shape": [camera.height, camera.width, 3], "names": ["height", "width", "channels"]},
        )
        for camera in shape.cameras
    ]
    named += [(series_feature(one.name), _feature(one.dtype, list(one.names))) for one in shape.series]
    if repeated := [name for name, count in Counter(name for name, _ in named).items() if count > 1]:
        raise ExportError("mixed", f"Two topics would both be called {', '.join(repeated)}: choose one of them")
    named += [(TIME, _feature("float64", None))] if with_time else []
    return dict(named) | {name: _feature(dtype, None) for name, dtype in BOOKKEEPING.items()}


def _feature(dtype: str, names: list[str] | None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [len(names) if names else 1], "names": names}


def video_info(feature: Mapping[str, Any], fps: int, pix_fmt: str) -> dict[str, Any]:
    """What LeRobot says of a video beside its feature."""
    height, width, channels = feature["shape"]
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": "h264",
        "video.pix_fmt": pix_fmt,
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": channels,
        "has_audio": False,
    }


def data_schema(features: Features) -> pa.Schema:
    """The columns of `data/`: a list of fixed length per row, a plain number where that is 1."""
    import pyarrow as pa

    fields = []
    for name, feature in features.items():
        if feature["dtype"] != "video":
            value, width = pa.type_for_alias(feature["dtype"]), feature["shape"][0]
            fields.append((name, value if width == 1 else pa.list_(value, width)))
    return pa.schema(fields)


def episodes_schema(features: Features) -> pa.Schema:
    """The columns of `meta/episodes/`."""
    import pyarrow as pa

    whole, real = pa.int64(), pa.float64()
    fields: list[tuple[str, Any]] = [
        ("episode_index", whole),
        ("tasks", pa.list_(pa.string())),
        ("length", whole),
        ("data/chunk_index", whole),
        ("data/file_index", whole),
        ("dataset_from_index", whole),
        ("dataset_to_index", whole),
    ]
    for name, feature in features.items():
        if feature["dtype"] == "video":
            fields += [(f"videos/{name}/chunk_index", whole), (f"videos/{name}/file_index", whole)]
            fields += [(f"videos/{name}/from_timestamp", real), (f"videos/{name}/to_timestamp", real)]
    for name, feature in features.items():
        # Of pictures (3, 1, 1), one number per colour.
        kind = pa.list_(pa.list_(pa.list_(real))) if feature["dtype"] == "video" else pa.list_(real)
        ends = pa.list_(whole) if feature["dtype"] == "int64" else kind
        fields += [(f"stats/{name}/min", ends), (f"stats/{name}/max", ends)]
        fields += [(f"stats/{name}/{key}", kind) for key in ("mean", "std", *QUANTILES)]
        fields.append((f"stats/{name}/count", pa.list_(whole)))
    return pa.schema([*fields, ("meta/episodes/chunk_index", whole), ("meta/episodes/file_index", whole)])


def splits_of(splits: Sequence[str]) -> dict[str, str]:
    """Which episodes are whose, as `{"train": "0:40"}`; all are for training where no manifest says otherwise."""
    counts = Counter(name or "train" for name in splits)
    found, first = {}, 0
    for name, count in counts.items():
        found[name] = f"{first}:{first + count}"
        first += count
    return found


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """The tasks as pandas writes a table whose index they are: LeRobot takes their text from the index."""
    import pyarrow as pa

    index = "__index_level_0__"
    text = {"name": None, "pandas_type": "unicode", "numpy_type": "object"}
    number = {"name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    pandas = {
        "index_columns": [index],
        "column_indexes": [{**text, "field_name": None, "metadata": {"encoding": "UTF-8"}}],
        "columns": [
            {**number, "field_name": "task_index", "metadata": None},
            {**text, "field_name": index, "metadata": None},
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), index: pa.array(tasks, pa.string())})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})

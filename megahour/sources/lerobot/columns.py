"""The columns of an episode: times, series where they are floats, and for all else what any recording has for it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.episode.model import Series, TimesNs
from megahour.sources import pictures, steps
from megahour.sources.extra import json_messages, json_topic
from megahour.sources.lerobot.dataset import Feature
from megahour.sources.lerobot.rows import Rows, batches
from megahour.sources.model import SourceError
from megahour.sources.steps import Column, Gathered

if TYPE_CHECKING:
    import pyarrow as pa

BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
INDEX_OF_PANDAS = "__index_level_"
MAIN = ("observation.state", "action")
"""Features that are series whatever they hold: whole numbers become floats."""
GRID_TOLERANCE_S = 1e-4
"""LeRobot's own tolerance between a timestamp and its frame's place on the grid of 1/fps."""
RATE_TOLERANCE = 0.05
"""How far the rate of the rows may be from the dataset's before it is told."""
MOST_SECONDS = 9e9
"""The greatest time in seconds that fits 64 bits of nanoseconds, rounded down."""
PICTURE_ROWS = 16
"""Pictures held in memory at once."""


def topic_of(name: str) -> str:
    """What a feature is called: `observation.images.cam_high` is `cam_high`, `observation.state` is `state`."""
    return steps.topic_name(name.removeprefix("observation.images.").removeprefix("observation."))


def times_of(table: pa.Table, fps: float, key: str) -> TimesNs:
    """Times of the rows: the exact grid of 1/fps where the float32 timestamps mean it, else as they are.

    Raises:
        SourceError: `missing_feature`, or `times` when rows are missing or do not follow each other.
    """
    for name in ("timestamp", "frame_index"):
        if name not in table.column_names:
            raise SourceError("missing_feature", f"{key} has no column '{name}'")
    frames = numbers_of(table["frame_index"], f"{key}: 'frame_index'")
    if not np.array_equal(frames, np.arange(len(frames))):
        at = int(np.argmax(frames != np.arange(len(frames))))
        raise SourceError(
            "times", f"{key}: frame_index is {frames[at]:g} in row {at}; rows are missing or out of order"
        )
    seconds = numbers_of(table["timestamp"], f"{key}: 'timestamp'")
    grid = np.arange(len(frames)) / fps
    # A float32 alone is further off than the tolerance from half an hour on.
    if (np.abs(seconds - grid) <= np.maximum(GRID_TOLERANCE_S, np.spacing(grid.astype(np.float32)))).all():
        return steps.times_of(len(frames), fps)
    if not (np.abs(seconds) < MOST_SECONDS).all() or seconds[0] < 0 or (np.diff(seconds) <= 0).any():
        raise SourceError("times", f"{key}: its timestamps do not increase from row to row")
    return np.array(np.round(seconds * 1e9), np.int64)


def rate_of(into: Gathered, fps: float) -> float:
    """The rate of an episode in Hz: the dataset's, or that of the rows, with a note, where they are of another."""
    if len(into.times_ns) > 1:
        found = 1e9 / float(np.median(np.diff(into.times_ns)))
        if abs(found / fps - 1) > RATE_TOLERANCE:
            into.note(
                "rate_disagrees", f"meta/info.json says {fps:g} fps, and the rows come at {found:.4g} Hz: kept so"
            )
            return found
    return fps


def is_picture(kind: pa.DataType) -> bool:
    """Whether a column of this type holds picture files: `{bytes, path}`, or bytes alone."""
    import pyarrow as pa

    return _is_bytes(kind) or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are numbers, truth counted."""
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def add_column(into: Gathered, name: str, column: Any, feature: Feature | None, key: str) -> None:
    """A column of values: floats are a series with one name per value, all else what `steps.add_column` makes of it.

    Raises:
        SourceError: `missing_feature`, `feature_mismatch` or `unreadable`; so do the messages.
    """
    import pyarrow as pa

    values, shape, has_gaps = unfold(column)
    is_float = pa.types.is_floating(values.type)
    if is_float and has_gaps:
        raise SourceError("missing_feature", f"{key}: '{name}' has rows without values")
    if feature is None:
        into.note("undeclared", f"{name} is in the rows and not in meta/info.json: kept as it is")
    elif _disagrees(feature, values, shape, has_gaps):
        raise SourceError(
            "feature_mismatch",
            f"{key}: '{name}' is {column.type} in the Parquet file, and meta/info.json says {feature.dtype} "
            f"{feature.shape}",
        )
    where = f"{key}: '{name}'"
    if not is_number(values.type) or has_gaps or shape is None:
        if is_float:
            into.note("as_messages", f"{name}: its rows change in length, and are kept as messages")
        rows = partial(_plain_rows, column, where)
        entries = Column(name, where, (), np.dtype(object), rows, lambda: np.array(list(rows()), object))
        return steps.add_column(into, entries, topic_of(name))
    numbers = values.to_numpy(zero_copy_only=False).reshape(len(column), *shape)
    width = math.prod(shape)
    if width and (width <= steps.MOST_SERIES_VALUES) and (is_float or name in MAIN):
        return _add_series(into, name, numbers, feature)
    if is_float and width:
        into.note("as_messages", f"{name}: {numbers.dtype} {shape} has too many values for a series: kept as messages")
    return steps.add_column(
        into, Column(name, where, shape, numbers.dtype, lambda: iter(numbers), lambda: numbers), topic_of(name)
    )


def _add_series(into: Gathered, name: str, numbers: Any, feature: Feature | None) -> None:
    shape, topic = numbers.shape[1:], into.name(topic_of(name))
    flat = numbers.reshape(len(numbers), -1)
    if flat.dtype.kind != "f":
        into.note("converted", f"{name} is {flat.dtype}, and is kept as float64, exact up to 2**53")
        flat = flat.astype(np.float64)
    flat = flat if flat.dtype == np.float64 else flat.astype(np.float32)
    if odd := int((~np.isfinite(flat)).sum()):
        into.note("nan", f"{name} has {odd} values that are not finite; they are kept")
    if len(shape) > 1:
        into.note("flattened", f"{name}: {numbers.dtype} {shape} is kept as {flat.shape[1]} columns, row by row")
    names = names_of(feature.names if feature else None, shape or (1,), topic)
    into.series.append(Series(topic, into.times_ns, flat, names))


def add_pictures(into: Gathered, name: str, rows: Rows, feature: Feature | None) -> None:
    """A column of picture files, streamed: a camera, or an extra topic where they are 16 bits of grey.

    Raises:
        SourceError: `missing_file` when pictures lie elsewhere, `feature_mismatch`, `unreadable`; so does the camera.
    """
    where = f"{rows.key}: '{name}'"
    files = partial(picture_files, name, rows)
    column = Column(name, where, (), np.dtype(object), files, lambda: np.array(list(files()), object), True)
    if feature is None:
        into.note("undeclared", f"{name} is in the rows and not in meta/info.json: kept as it is")
    first = next((data for data in files() if data), None)
    if first is not None and feature is not None:
        look = pictures.look(first, where)
        refuse_size(feature, look.width, look.height, where)
    steps.add_picture_files(into, column, topic_of(name))


def refuse_size(feature: Feature, width: int, height: int, what: str) -> None:
    """Refuse pictures of another size than promised.

    Raises:
        SourceError: `feature_mismatch`.
    """
    if sorted(feature.shape) not in [sorted((height, width, channels)) for channels in (1, 3, 4)]:
        raise SourceError(
            "feature_mismatch",
            f"{what} is {width}x{height}, and meta/info.json says {list(feature.shape)} for '{feature.name}'",
        )


def add_changes(into: Gathered, topic: str, texts: Sequence[str | None]) -> None:
    """Texts that hold until the next one, as messages where they change."""
    at = [i for i, text in enumerate(texts) if i == 0 or text != texts[i - 1]]
    name, times_ns = into.name(topic), into.times_ns[at]
    into.extras.append(json_topic(name))
    into.passes.append(partial(json_messages, name, times_ns, [texts[i] for i in at]))


def names_of(names: Any, shape: tuple[int, ...], topic: str) -> tuple[str, ...]:
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
    width = math.prod(shape)
    fits = len(flat) == width and len(set(flat)) == width
    return tuple(flat) if fits else tuple("_".join([topic, *map(str, at)]) for at in np.ndindex(shape))


def unfold(column: Any) -> tuple[Any, tuple[int, ...] | None, bool]:
    """A column without its lists, the shape of a row, `()` for single values and None when it changes, and whether
    values are missing."""
    import pyarrow as pa

    values = column.storage if isinstance(column, pa.ExtensionArray) else column
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    shape: list[int] = []
    is_even, has_gaps = True, bool(values.null_count)
    while any(is_kind(values.type) for is_kind in kinds):
        lengths = np.asarray(values.value_lengths().fill_null(0))
        is_even = is_even and bool((lengths == lengths[:1]).all())
        shape.append(int(lengths[0]) if len(lengths) else 0)
        values = values.flatten()
        has_gaps = has_gaps or bool(values.null_count)
    return values, tuple(shape) if is_even else None, has_gaps


def _disagrees(feature: Feature, values: Any, shape: tuple[int, ...] | None, has_gaps: bool) -> bool:
    """Whether numbers are of another kind, or not as many, as promised; texts and the like may be anything."""
    import pyarrow as pa

    is_float = feature.dtype.startswith("float")
    if is_float != pa.types.is_floating(values.type):
        return True
    if has_gaps or (not is_float and not re.match(r"u?int|bool", feature.dtype)):
        return False
    return shape is None or math.prod(shape) != math.prod(feature.shape)


def _plain_rows(column: Any, where: str) -> Iterator[Any]:
    for i in range(len(column)):
        try:
            yield column[i].as_py()
        except UnicodeDecodeError as error:
            raise SourceError("unreadable", f"{where} has a text in row {i} that is no UTF-8: {error}") from error


def picture_files(name: str, rows: Rows) -> Iterator[bytes]:
    """The bytes of a column of pictures, one per row, none where there is no picture.

    Raises:
        SourceError: `missing_file` when pictures lie elsewhere, `truncated` or `unreadable`.
    """
    for batch in batches(rows, [name], PICTURE_ROWS):
        column = batch.column(0)
        files = column if _is_bytes(column.type) else column.field("bytes")
        for i, data in enumerate(files.to_pylist()):
            if data is None and (path := _path(column[i])):
                raise SourceError(
                    "missing_file",
                    f"{rows.key}: '{name}' holds no pictures but the paths of files, as '{path}', which are not read. "
                    "Export the dataset with its pictures embedded",
                )
            yield data or b""


def _path(entry: Any) -> str:
    """The path that stands in the place of a picture, empty where none does."""
    path = entry.get("path") if isinstance(entry, Mapping) else None
    return path.as_buffer().to_pybytes().decode(errors="replace") if path is not None and path.is_valid else ""


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def numbers_of(column: Any, what: str) -> Any:
    """A column of single numbers, `(n,)` float64.

    Raises:
        SourceError: `missing_feature` or `feature_mismatch`.
    """
    values, shape, has_gaps = unfold(column.combine_chunks())
    if has_gaps:
        raise SourceError("missing_feature", f"{what} has rows without values")
    if not is_number(values.type) or shape is None or math.prod(shape) != 1:
        raise SourceError("feature_mismatch", f"{what} is {column.type}, and must be one number in each row")
    return values.to_numpy(zero_copy_only=False).astype(np.float64)

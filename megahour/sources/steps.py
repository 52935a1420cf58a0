"""Columns with an entry per step, as what an episode has for them: cameras, series, extra topics, attributes, notes."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.episode.model import Camera, Coded, ExtraMessage, ExtraTopic, Frames, Note, Series, TimesNs
from megahour.sources import pictures
from megahour.sources.extra import image_messages, image_topic, json_messages, json_topic, merged
from megahour.sources.model import SourceError

MOST_SERIES_VALUES = 1024
"""Floats of one step that still make a series; more are an array, kept as its bytes."""
MOST_STATE_VALUES = 64
"""Floats of one step that still belong into a `state` put together from several: not features, not point clouds."""
MOST_ATTRIBUTE_CHARS = 4096
"""Longer texts become a message: attributes are read whenever an episode is opened."""
IMAGE_ENCODINGS = {"uint8": "mono8", "uint16": "16UC1", "float32": "32FC1"}
"""Encodings of `foxglove.RawImage` for pictures of one channel, by dtype."""
RATES_HZ = (0.001, 1_000_000.0)
"""Rates that a recording may have: the times of any other do not fit nanoseconds."""
SUCCESS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


@dataclass(frozen=True)
class Column:
    """Values of one name, an entry per step.

    `shape` and `dtype` are those of an entry, dtype object for texts, bytes and lists. `rows()` starts a new pass over
    the entries, `whole()` gives all of them, `(steps, *shape)`. `where` names it in messages. `pictured` says that it
    lies where pictures lie.
    """

    path: str
    where: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: Callable[[], Iterator[Any]]
    whole: Callable[[], NDArray[Any]]
    pictured: bool = False

    @property
    def size(self) -> int:
        """Values of an entry."""
        return int(np.prod(self.shape))

    @property
    def is_floats(self) -> bool:
        """Whether an entry is one or more numbers with a fraction."""
        return self.dtype.kind == "f" and self.dtype.itemsize <= 8 and self.size > 0


@dataclass
class Gathered:
    """An episode on its way: what its columns became so far. Names of topics are given once."""

    times_ns: TimesNs
    cameras: list[Camera] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    extras: list[ExtraTopic] = field(default_factory=list)
    passes: list[Callable[[], Iterator[ExtraMessage]]] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def name(self, path: str) -> str:
        """A topic's name for a path in the source; numbered when another topic has it."""
        name = wanted = topic_name(path)
        number = 2
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name

    def note(self, code: str, text: str) -> None:
        """Say what was lost, mended or guessed."""
        self.notes.append(Note(code, text))

    def messages(self) -> Callable[[], Iterator[ExtraMessage]]:
        """The messages of all extra topics, in order of time."""
        return merged(self.passes)


def times_of(steps: int, rate_hz: float) -> TimesNs:
    """Times of steps at a rate, from 0."""
    return np.round(np.arange(steps) * (1e9 / rate_hz)).astype(np.int64)


def rate_of(said: Any, what: str) -> float:
    """A rate that a recording says.

    Raises:
        SourceError: `feature_mismatch` when it is none; `what` is where it stands.
    """
    try:
        rate_hz = 0.0 if isinstance(said, bool) else float(said)
    except (TypeError, ValueError, OverflowError):
        rate_hz = 0.0
    low, high = RATES_HZ
    if not low <= rate_hz <= high:
        raise SourceError("feature_mismatch", f"{what} must be a number from {low:g} to {high:g}, and is {said!r}")
    return rate_hz


def success_of(said: Any) -> bool | None:
    """Whether an episode succeeded, from a truth, a number or a text; None for what says neither."""
    return SUCCESS.get(as_text(said).strip().lower())


def steps_of(actions: Mapping[str, int], observations: Mapping[str, int], where: str) -> tuple[int, bool]:
    """The number of steps on which all columns agree, and whether observations have one more behind the last action.

    Many recorders store where the last action led to. Any other difference is refused: which entry lacks cannot be
    known.

    Raises:
        SourceError: `empty` or `frame_count`.
    """
    first, steps = next(iter(actions.items()))
    if steps == 0:
        raise SourceError("empty", f"{where} has no steps: its {first} is empty")
    lengths = {*observations.values()}
    trailing = lengths == {steps + 1} and {*actions.values()} == {steps}
    for name, found in (*actions.items(), *observations.items()):
        if found != steps and not trailing:
            raise SourceError(
                "frame_count", f"{where} has {steps} actions, but {found} entries in {name}: they must be as many"
            )
    return steps, trailing


def topic_name(path: str) -> str:
    """A path in a source as the name of a topic."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", path).strip("_") or "unnamed"


def add_column(into: Gathered, column: Column, name: str = "") -> None:
    """What a column is: uint8 pictures a camera, rows of floats a series, depth and the rest extra topics.

    A text that stays the same becomes an attribute. `name` is the topic's, by default made from the column's path.

    Raises:
        SourceError: as the column's own readers.
    """
    name = name or column.path
    shape, dtype = column.shape, column.dtype
    is_depth = "depth" in column.path.lower()
    if column.size == 0:
        into.note("left_out", f"{column.path} left out: {dtype} {shape} holds no values")
    elif _is_files(column):
        add_picture_files(into, column, name)
    elif dtype == np.uint8 and _channels(shape) in (3, 4):
        _add_camera(into, column, name)
    elif _is_plane(shape) and dtype == np.uint8 and column.pictured and not is_depth:
        into.note("converted", f"camera {topic_name(name)} {pictures.GREY}")
        _add_camera(into, column, name)
    elif _is_plane(shape) and _as_image(dtype) and (column.pictured or is_depth):
        _add_planes(into, column, name, into.times_ns)
    elif column.is_floats and column.size <= MOST_SERIES_VALUES:
        _add_floats(into, column, name)
    else:
        _add_values(into, column, name)


def add_series(into: Gathered, name: str, columns: list[Column]) -> None:
    """Columns of numbers side by side as one series; float64 when one of them needs it.

    Values are called `<column>_<i>` by the column's path, or as the column where it has but one.
    """
    parts: list[NDArray[np.floating]] = []
    names: list[str] = []
    for column in columns:
        values = column.whole()
        parts.append(_exact_floats(values.reshape(len(values), -1)))
        names += _names(topic_name(column.path), column)
    together = np.concatenate(parts, axis=1)
    _note_not_finite(into, name, together)
    into.taken.add(name)
    into.series.append(Series(name, into.times_ns, together, tuple(names)))


def add_said(into: Gathered, path: str, value: Any) -> None:
    """What holds for the whole episode: an attribute, or a single message where it is long."""
    text = as_text(value)
    if len(text) <= MOST_ATTRIBUTE_CHARS:
        into.attributes[path] = text
    else:
        add_once(into, path, value)


def add_once(into: Gathered, path: str, value: Any, step: int = 0) -> None:
    """A value as the single message of a topic of its own, at a step, the first by default."""
    name, time_ns = into.name(path), into.times_ns[[step]]
    into.extras.append(json_topic(name))
    into.passes.append(lambda: json_messages(name, time_ns, [as_json(value)]))


def add_picture_files(into: Gathered, column: Column, name: str, swap: bool = False) -> None:
    """Pictures that are files, one per step, trailing zeros allowed: a camera, or an extra topic for 16 bits of grey.

    Steps without bytes have no picture. `swap` exchanges red and blue. JPEG in colours that need no change is handed
    over as it is, too.

    Raises:
        SourceError: `unreadable`, or `feature_mismatch` when the pictures are not all of one size, or some are depth;
            so does the camera.
    """
    looks = [pictures.look(data, column.where) if data else None for data in _file_bytes(column)]
    found = {number: look for number, look in enumerate(looks) if look is not None}
    if not found:
        into.note("left_out", f"{column.path} left out: none of its entries holds a picture")
        return
    first = next(iter(found.values()))
    times_ns = into.times_ns[list(found)]
    if len(found) < len(looks):
        into.note("dropped", f"{column.path}: {len(looks) - len(found)} steps have no picture")
    is_depth = first.mode in pictures.GREY_16 or (first.mode == "L" and "depth" in column.path.lower())
    _refuse_unlike(found, is_depth, column.where)
    if is_depth:
        _add_planes(into, _decoded(column, first), name, times_ns)
        return
    name = into.name(name)
    for text in dict.fromkeys(map(pictures.conversion, found.values())):
        if text:
            into.note("converted", f"camera {name} {text}")

    def frames() -> Iterator[Frames]:
        for data in _file_bytes(column):
            if data:
                frame = pictures.colours(data, column.where)
                yield np.ascontiguousarray(frame[:, :, ::-1]) if swap else frame

    is_plain = not swap and all(look.kind == "jpeg" and look.mode == "RGB" for look in found.values())
    coded = Coded("jpeg", lambda: (data for data in _file_bytes(column) if data)) if is_plain else None
    into.cameras.append(Camera(name, first.width, first.height, times_ns, frames, coded))


def blank_note(camera: Camera) -> str | None:
    """That all pictures of a camera show one colour, as a sentence, else None. Costs one picture where they do not.

    Raises:
        SourceError: a picture cannot be read.
    """
    colour = pictures.only_colour(camera.frames())
    if colour is None:
        return None
    size = f"{camera.width}x{camera.height}"
    return f"camera {camera.name}: all {len(camera.times_ns)} pictures are {size} of the colour {colour}"


def is_embedding(path: str) -> bool:
    """Whether a column is a text turned into numbers, by its name."""
    return "embed" in path.lower() or path.lower().endswith("_emb")


def as_json(value: Any) -> Any:
    """A value as JSON has it; arrays with many values as their bytes, described."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.size > MOST_SERIES_VALUES:
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        data = base64.b64encode(np.ascontiguousarray(little).tobytes()).decode()
        return {"dtype": value.dtype.name, "shape": list(value.shape), "base64": data}
    if isinstance(value, np.void) and value.dtype.names:
        return {name: as_json(value[name]) for name in value.dtype.names}
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return as_json(value[()])
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [as_json(each) for each in value]
    if isinstance(value, np.generic):
        plain = value.item()
        # Some have no plain form, such as long doubles.
        return str(value) if isinstance(plain, np.generic) else as_json(plain)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        # HDF5 hands on bytes that are no UTF-8 as surrogates, which nothing can store.
        return value.encode(errors="backslashreplace").decode()
    return value if isinstance(value, int | float | None) else str(value)


def as_text(value: Any) -> str:
    """A value as the text of an attribute: texts as they are, the rest as JSON or as Python writes a scalar."""
    plain = as_json(value)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, list | dict) else str(plain)


def _channels(shape: tuple[int, ...]) -> int:
    """Channels of an entry that is a colour picture, 3 or 4 last or 3 first; 0 when it is none."""
    if len(shape) != 3:
        return 0
    return shape[2] if shape[2] in (3, 4) else shape[0] if shape[0] == 3 else 0


def _is_plane(shape: tuple[int, ...]) -> bool:
    """Whether an entry is a picture of one channel."""
    return len(shape) == 2 or (len(shape) == 3 and 1 in (shape[0], shape[2]))


def _as_image(dtype: np.dtype[Any]) -> bool:
    return dtype.name in (*IMAGE_ENCODINGS, "float16", "float64")


def _is_files(column: Column) -> bool:
    """Whether entries are JPEG or PNG files, as bytes or as padded rows of them."""
    if column.dtype == np.uint8 and len(column.shape) == 1:
        if column.size < len(pictures.PNG):
            return False
    elif column.shape or column.dtype.kind not in "SVO":
        return False
    first = next((data for data in _file_bytes(column) if data), b"")
    return pictures.is_picture(first)


def _file_bytes(column: Column) -> Iterator[bytes]:
    for row in column.rows():
        yield (row if isinstance(row, bytes) else row.tobytes() if hasattr(row, "tobytes") else b"").rstrip(b"\0")


def _decoded(column: Column, first: pictures.Look) -> Column:
    def rows() -> Iterator[Any]:
        for data in _file_bytes(column):
            if data:
                yield pictures.values(data, column.where)

    shape, dtype = (first.height, first.width), np.dtype(np.uint8 if first.mode == "L" else np.uint16)
    return Column(column.path, column.where, shape, dtype, rows, lambda: np.stack(list(rows())), True)


def _refuse_unlike(found: Mapping[int, pictures.Look], is_depth: bool, where: str) -> None:
    """Refuse pictures that cannot be read as the first is: of another size, or with other values where these count."""
    first = next(iter(found.values()))
    for number, look in found.items():
        if (look.width, look.height) != (first.width, first.height):
            text = f"{look.width}x{look.height}, and the first is {first.width}x{first.height}"
        elif (look.mode, look.bits) != (first.mode, first.bits) and (is_depth or look.mode in pictures.GREY_16):
            text = f"{look.mode} with {look.bits} bits per value, and the first is {first.mode} with {first.bits}"
        else:
            continue
        raise SourceError("feature_mismatch", f"{where}: picture {number} is {text}")


def _add_camera(into: Gathered, column: Column, name: str) -> None:
    """A camera of arrays: colour with channels last or first, alpha dropped, or grey."""
    shape = column.shape
    first = len(shape) == 3 and shape[2] not in (1, 3, 4)
    height, width = shape[-2:] if first else shape[:2]
    name = into.name(name)
    if first and shape[0] > 1:
        into.note("converted", f"camera {name}: {shape} taken as channels first")
    if _channels(shape) == 4:
        into.note("converted", f"camera {name} has four channels: stored as red, green and blue, the fourth dropped")

    def frames() -> Iterator[Frames]:
        for row in column.rows():
            picture = np.moveaxis(row, 0, 2) if first else row.reshape(height, width, -1)
            picture = picture.repeat(3, axis=2) if picture.shape[2] == 1 else picture[:, :, :3]
            yield np.ascontiguousarray(picture)

    into.cameras.append(Camera(name, int(width), int(height), into.times_ns, frames))


def _add_planes(into: Gathered, column: Column, name: str, times_ns: TimesNs) -> None:
    name = into.name(name)
    dtype = np.dtype(np.float32) if column.dtype.kind == "f" else column.dtype
    if column.dtype == np.float64:
        into.note("converted", f"{name} is float64: its pictures are stored as float32")
    shape = column.shape[-2:] if len(column.shape) == 3 and column.shape[2] != 1 else column.shape[:2]

    def messages() -> Iterator[ExtraMessage]:
        rows = column.rows()
        return image_messages(
            name, times_ns, lambda i: next(rows).reshape(shape).astype(dtype), IMAGE_ENCODINGS[dtype.name]
        )

    into.extras.append(image_topic(name))
    into.passes.append(messages)


def _add_floats(into: Gathered, column: Column, name: str) -> None:
    values = column.whole()
    if is_embedding(column.path) and (values == values[:1]).all():
        add_once(into, name, values[0])
        return
    flat = _exact_floats(values.reshape(len(values), -1))
    name = into.name(name)
    _note_not_finite(into, name, flat)
    into.series.append(Series(name, into.times_ns, flat, _names(name, column)))


def _add_values(into: Gathered, column: Column, name: str) -> None:
    """Entries that are no floats, as messages; a text that stays the same as an attribute."""
    if column.dtype.kind in "SUO" and column.shape == ():
        texts = [as_json(row) for row in column.rows()]
        if isinstance(texts[0], str) and texts.count(texts[0]) == len(texts):
            add_said(into, topic_name(name), texts[0])
            return
    name = into.name(name)
    into.extras.append(json_topic(name))
    into.passes.append(lambda: json_messages(name, into.times_ns, (as_json(row) for row in column.rows())))


def _names(label: str, column: Column) -> tuple[str, ...]:
    return (label,) if column.shape == () else tuple(f"{label}_{i}" for i in range(column.size))


def _exact_floats(values: NDArray[Any]) -> NDArray[np.floating]:
    """The same numbers as float32 where that holds them all, else as float64. float16 widens exactly."""
    if values.dtype.kind == "f":
        return values.astype(np.float32 if values.dtype.itemsize <= 4 else np.float64)
    narrow = values.astype(np.float32)
    return narrow if (narrow.astype(np.float64) == values.astype(np.float64)).all() else values.astype(np.float64)


def _note_not_finite(into: Gathered, name: str, values: NDArray[np.floating]) -> None:
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        into.note("nan", f"{name} has values that are not finite in {int(bad.sum())} steps, first in {np.argmax(bad)}")

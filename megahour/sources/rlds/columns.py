"""The lists of a record as columns with an entry per step, shaped as `features.json` says."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.sources import pictures
from megahour.sources.model import SourceError
from megahour.sources.rlds.example import Values
from megahour.sources.rlds.features import STEPS, Features, Leaf
from megahour.sources.steps import Column

Table = Mapping[str, Values]
RAGGED_VALUES, RAGGED_LENGTHS = "ragged_flat_values", "ragged_row_lengths_{}"
"""How TensorFlow Datasets stores sequences in sequences: all values, and the lengths of each level."""
LISTS = {"b": np.int64, "i": np.int64, "u": np.int64, "f": np.float32}
"""What a record stores numbers as, by the kind of their dtype."""


def step_columns(table: Table, features: Features, where: str) -> tuple[int, dict[str, Column]]:
    """The number of steps of a record, and its columns by their names below `steps`.

    Raises:
        SourceError: `missing_feature`, `feature_mismatch`, or `empty` when there is no step.
    """
    there = [leaf for leaf in features.steps if not (leaf.optional and _is_absent(table, f"{STEPS}/{leaf.path}"))]
    steps = _count_steps(table, there, where)
    return steps, {leaf.path: _column(table, leaf, steps, where) for leaf in there}


def episode_values(table: Table, features: Features, where: str) -> dict[str, Any]:
    """What a record says of its episode, by name.

    Raises:
        SourceError: `missing_feature` or `feature_mismatch`.
    """
    said = {}
    for leaf in features.episode:
        if leaf.optional and _is_absent(table, leaf.path):
            continue
        if leaf.depth:
            # A single sequence lies flat, and only those inside of it have lengths.
            flat = _nested(table, leaf, leaf.path, leaf.depth - 1, None, where)
            said[leaf.path] = list(flat)
        else:
            said[leaf.path] = _entries(table, leaf, leaf.path, 1, where)[0]
    return said


def undescribed(table: Table, features: Features) -> list[str]:
    """Names of a record that `features.json` does not describe."""
    known = {f"{STEPS}/{leaf.path}" for leaf in features.steps} | {leaf.path for leaf in features.episode}
    return sorted(name for name in table if name not in known and name.rpartition("/")[0] not in known)


def _is_absent(table: Table, name: str) -> bool:
    return not any(part in table for part in (name, f"{name}/value", f"{name}/{RAGGED_VALUES}"))


def _values(table: Table, name: str, where: str) -> Values:
    if name not in table:
        raise SourceError("missing_feature", f"{where} has no {name}, which features.json promises")
    return table[name]


def _count_steps(table: Table, leaves: Sequence[Leaf], where: str) -> int:
    """The number of steps, on which all lists whose entries have a known size must agree."""
    found: tuple[str, int] | None = None
    for leaf in leaves:
        name = f"{STEPS}/{leaf.path}"
        count = _count(table, leaf, name, where)
        if count is None:
            continue
        if found is not None and found[1] != count:
            raise SourceError("feature_mismatch", f"{where}: {found[0]} has {found[1]} entries, and {name} has {count}")
        found = found or (name, count)
    if found is None or found[1] == 0:
        raise SourceError("empty", f"{where} has no steps")
    return found[1]


def _count(table: Table, leaf: Leaf, name: str, where: str) -> int | None:
    """The number of entries of a list; None where it depends on the number of steps."""
    if leaf.depth:
        return len(_values(table, f"{name}/{RAGGED_LENGTHS.format(0)}", where))
    if leaf.encoding != "none":
        return len(_values(table, f"{name}/value" if _is_dynamic(leaf) else name, where))
    values = _values(table, name, where)
    if leaf.kind == "image":
        return len(values)
    if None in leaf.shape or 0 in leaf.shape:
        return None
    size = _size(leaf.shape)
    if len(values) % size:
        raise SourceError(
            "feature_mismatch",
            f"{where}: {name} has {len(values)} values, and by features.json an entry has {size} {leaf.shape}",
        )
    return len(values) // size


def _column(table: Table, leaf: Leaf, steps: int, where: str) -> Column:
    name = f"{STEPS}/{leaf.path}"
    if leaf.depth:
        entries: Any = _nested(table, leaf, name, leaf.depth, steps, where)
    else:
        entries = _entries(table, leaf, name, steps, where)
    if leaf.kind == "image" and leaf.dtype == "float32" and not leaf.depth:
        return _float_pictures(leaf, entries, f"{where}: {name}")
    is_array = isinstance(entries, np.ndarray)
    shape, dtype = (entries.shape[1:], entries.dtype) if is_array else ((), np.dtype(object))

    def rows() -> Iterator[Any]:
        return iter(entries)

    def whole() -> NDArray[Any]:
        return np.asarray(entries)

    return Column(leaf.path, f"{where}: {name}", shape, dtype, rows, whole, pictured=leaf.kind == "image")


def _float_pictures(leaf: Leaf, files: Sequence[bytes], where: str) -> Column:
    """Pictures of floats, which are stored as PNG files whose four channels are the bytes of a float."""
    first = pictures.look(files[0], where)

    def rows() -> Iterator[NDArray[np.float32]]:
        for data in files:
            picture = pictures.values(data, where)
            if picture.shape != (first.height, first.width, 4) or picture.dtype != np.uint8:
                raise SourceError(
                    "feature_mismatch", f"{where}: a picture of floats is {picture.dtype} {picture.shape}"
                )
            yield np.ascontiguousarray(picture).view("<f4")[:, :, 0]

    shape = (first.height, first.width)
    return Column(leaf.path, where, shape, np.dtype(np.float32), rows, lambda: np.stack(list(rows())), pictured=True)


def _entries(table: Table, leaf: Leaf, name: str, count: int, where: str) -> NDArray[Any] | list[Any]:
    """The entries of a list: an array `(count, *shape)`; bytes, texts and arrays of several shapes as a list."""
    if leaf.encoding != "none":
        return _unpacked(table, leaf, name, count, where)
    values = _values(table, name, where)
    if leaf.kind != "tensor":
        if isinstance(values, np.ndarray):
            raise _mismatch(where, name, "numbers", leaf)
        if leaf.kind == "image" or leaf.shape == ():
            texts: list[Any] = values
        else:
            shape = _filled(leaf.shape, len(values), count)
            texts = [] if shape is None else np.array(values, object).reshape(count, *shape).tolist()
        if len(texts) != count:
            raise _mismatch(where, name, f"{len(values)} texts for {count} entries", leaf)
        return texts
    dtype = _dtype(leaf, name, where)
    if not isinstance(values, np.ndarray):
        if values:
            raise _mismatch(where, name, "bytes", leaf)
        values = np.zeros(0, LISTS[dtype.kind])
    if values.dtype != LISTS[dtype.kind]:
        raise _mismatch(where, name, f"{values.dtype} numbers", leaf)
    shape = _filled(leaf.shape, len(values), count)
    if shape is None:
        raise _mismatch(where, name, f"{len(values)} values for {count} entries", leaf)
    return _restored(values, dtype, name, where).reshape(count, *shape)


def _restored(values: NDArray[Any], dtype: np.dtype[Any], name: str, where: str) -> NDArray[Any]:
    """Numbers in their own dtype; of floats a record has kept 32 bits."""
    if dtype.kind == "f":
        return values
    if dtype == np.uint64:
        return values.view(np.uint64)
    if dtype.kind in "iu" and len(values):
        limits = np.iinfo(dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise SourceError("feature_mismatch", f"{where}: {name} has values that are no {dtype}")
    return values.astype(dtype)


def _unpacked(table: Table, leaf: Leaf, name: str, count: int, where: str) -> NDArray[Any] | list[Any]:
    """The entries of a tensor that is stored as its bytes, plain or packed with zlib."""
    dtype = _dtype(leaf, name, where).newbyteorder("<")
    if _is_dynamic(leaf):
        stored = _values(table, f"{name}/value", where)
        shapes = np.asarray(_values(table, f"{name}/shape", where))
        if shapes.size != count * len(leaf.shape):
            raise _mismatch(where, f"{name}/shape", f"{shapes.size} numbers for {count} entries", leaf)
        wanted: list[tuple[int | None, ...]] = [tuple(shape) for shape in shapes.reshape(count, -1).tolist()]
    else:
        stored = _values(table, name, where)
        wanted = [leaf.shape] * count
    if isinstance(stored, np.ndarray) or len(stored) != count:
        raise _mismatch(where, name, f"{len(stored)} values for {count} entries of bytes", leaf)
    entries = []
    for data, shape in zip(stored, wanted, strict=True):
        try:
            raw = zlib.decompress(data) if leaf.encoding == "zlib" else data
            flat = np.frombuffer(raw, dtype)
        except (zlib.error, ValueError) as error:
            raise SourceError("feature_mismatch", f"{where}: {name} cannot be unpacked as {dtype}: {error}") from error
        filled = _filled(shape, len(flat), 1)
        if filled is None:
            raise _mismatch(where, name, f"{len(flat)} values in an entry", leaf)
        entries.append(flat.reshape(filled))
    return np.stack(entries) if len({entry.shape for entry in entries}) == 1 else entries


def _nested(table: Table, leaf: Leaf, name: str, levels: int, count: int | None, where: str) -> Any:
    """Entries that are lists of values, one in the other `levels` deep; `count` of them where that is known."""
    lengths = [np.asarray(_values(table, f"{name}/{RAGGED_LENGTHS.format(i)}", where)) for i in range(levels)]
    place = f"{name}/{RAGGED_VALUES}" if levels else name
    size = _size(leaf.shape)
    if levels:
        total = int(lengths[-1].sum())
    elif size and leaf.encoding == "none":
        total = len(_values(table, place, where)) // size
    else:
        total = len(_values(table, place, where))
    nested: Any = _entries(table, leaf, place, total, where)
    for level in reversed(lengths):
        if level.dtype != np.int64 or (level < 0).any() or int(level.sum()) != len(nested):
            raise _mismatch(where, name, "lengths that do not fit its values", leaf)
        ends = np.cumsum(level).tolist()
        nested = [list(nested[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    if count is not None and len(nested) != count:
        raise _mismatch(where, name, f"{len(nested)} entries for {count}", leaf)
    return nested


def _filled(shape: tuple[int | None, ...], values: int, count: int) -> tuple[int, ...] | None:
    """The shape of an entry with its one unknown number filled in; None when `values` do not make `count` entries."""
    known = _size(shape)
    if shape.count(None) == 0:
        return tuple(n or 0 for n in shape) if known * count == values else None
    if shape.count(None) > 1 or not known * count or values % (known * count):
        return None
    return tuple(values // (known * count) if n is None else n for n in shape)


def _size(shape: tuple[int | None, ...]) -> int:
    """Values of an entry, as far as its shape is known."""
    return math.prod(n for n in shape if n is not None)


def _is_dynamic(leaf: Leaf) -> bool:
    return leaf.shape.count(None) > 1


def _dtype(leaf: Leaf, name: str, where: str) -> np.dtype[Any]:
    if leaf.dtype == "bfloat16" and leaf.encoding == "none":
        return np.dtype(np.float32)
    try:
        dtype = np.dtype(leaf.dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in LISTS:
        raise SourceError("feature_mismatch", f"{where}: {name} is {leaf.dtype} by features.json, which is not known")
    return dtype


def _mismatch(where: str, name: str, found: str, leaf: Leaf) -> SourceError:
    return SourceError(
        "feature_mismatch",
        f"{where}: {name} holds {found}, and by features.json it is {leaf.dtype or leaf.kind} {leaf.shape}",
    )

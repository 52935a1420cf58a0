"""Rows of named numbers out of messages, and the table that they make."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.sources.mcap.decode import NoFieldError, Step, find, get, names_of, numbers

JOINT_FIELDS = ("position", "velocity", "effort", "acceleration")
MOST_COLUMNS = 4096
"""More numbers in a row are a point cloud or a picture, and no series."""
NOT_NUMBERS = ("header", "timestamp", "stamp", "layout")
"""Fields that a whole message's numbers leave out: they say when and how, not what."""

Row = list[tuple[str, float]]


def row_of(message: Any, fields: Sequence[Sequence[Step]]) -> Row:
    """The numbers at `fields` of a message with their names; at none, all but its time.

    Raises:
        NoFieldError: a field is not there, or is no number.
    """
    row: Row = []
    if not fields:
        for name in names_of(message) or ():
            if name not in NOT_NUMBERS:
                row += numbers(get(message, name), name)
    for path in fields:
        value = find(message, path)
        if isinstance(value, str):
            raise NoFieldError(f"'{path_text(path)}' is the text {value[:40]!r}, and no number")
        first = path[-1]
        if isinstance(first, slice):
            for place, each in enumerate(value or (), first.start):
                row += numbers(each, f"{_name(path[:-1])}_{place}")
        else:
            row += numbers(value, _name(path))
    if len(row) > MOST_COLUMNS:
        raise NoFieldError(f"it has {len(row)} numbers; a series has at most {MOST_COLUMNS}")
    return row


def joints_row(message: Any, fields: Sequence[str]) -> Row:
    """The numbers of a message of joints, each by the name of its joint; behind it the field, where there are several.

    Raises:
        NoFieldError: a field has not one number for each joint.
    """
    rows = {name: list(_joints(message, name)) for name in fields}
    many = len(fields) > 1
    return [
        (joint if name == "position" or not many else f"{joint}.{name}", value)
        for name in fields
        for joint, value in rows[name]
    ]


def _joints(message: Any, name: str) -> Iterator[tuple[str, float]]:
    if "joints" in (names_of(message) or ()):
        for i, joint in enumerate(get(message, "joints")):
            known = names_of(joint) or ()
            value = get(joint, name) if name in known else None
            if value is not None:
                yield str(get(joint, "name")) if "name" in known else f"joint_{i}", float(value)
        return
    if name not in (names_of(message) or ()):
        return
    values, joints = get(message, name), get(message, "name")
    if len(joints) and len(values) not in (0, len(joints)):
        raise NoFieldError(f"it has {len(values)} values in '{name}' for {len(joints)} joints")
    for i, value in enumerate(values):
        yield (str(joints[i]) if len(joints) else f"joint_{i}"), float(value)


@dataclass
class Rows:
    """Rows as they come. Names may differ from row to row, in number and in order."""

    _layouts: dict[tuple[str, ...], int] = field(default_factory=dict)
    _layout: array[int] = field(default_factory=lambda: array("q"))
    _values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, row: Row) -> None:
        names = tuple(name for name, _ in row)
        self._layout.append(self._layouts.setdefault(names, len(self._layouts)))
        self._values.extend([value for _, value in row])

    def __len__(self) -> int:
        return len(self._layout)

    def table(self) -> tuple[NDArray[np.float64], dict[str, int]]:
        """Values `(rows, columns)`, NaN where a row lacks a column; the columns' names in their first order, each with
        the number of rows that lack it."""
        layouts = [_unique(names) for names in self._layouts]
        columns = {name: i for i, name in enumerate(dict.fromkeys(n for names in layouts for n in names))}
        layout = np.frombuffer(self._layout, np.int64)
        flat = np.frombuffer(self._values, np.float64)
        lengths = np.array([len(names) for names in layouts], np.int64)[layout]
        starts = np.cumsum(lengths) - lengths
        values = np.full((len(layout), len(columns)), np.nan)
        for number, names in enumerate(layouts):
            rows = np.flatnonzero(layout == number)
            places = np.array([columns[name] for name in names], np.int64)
            values[rows[:, None], places] = flat[starts[rows][:, None] + np.arange(len(names))]
        counts = np.bincount(layout, minlength=len(layouts))
        lacking = {n: int(sum(c for c, names in zip(counts, layouts, strict=True) if n not in names)) for n in columns}
        return values, lacking


def _unique(names: Sequence[str]) -> list[str]:
    """The names of a row; one that comes again is numbered."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return result


def _name(path: Sequence[Step]) -> str:
    """The name of the column at a path."""
    return "".join(f"_{step}" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def path_text(path: Sequence[Step]) -> str:
    """A path as it is written in `source.yaml`."""
    text = ""
    for step in path:
        if isinstance(step, slice):
            text += f"[{step.start}:{step.stop}]"
        elif isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text

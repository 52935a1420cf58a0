"""What a sample is: pictures and values around a moment, each topic at its own rate, aligned by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from megahour.episode.model import Chroma, Frames, TimesNs

VALID_PERIODS = 1.5
"""What is further from the wanted time than this many of its topic's periods does not stand for that time."""


How = Literal["nearest", "last", "linear", "raw"]
"""Which rows stand for wanted times."""
Pick = Literal["nearest", "last"]
"""Which picture stands for a wanted time."""


def check_choice(name: str, value: object, choices: Any) -> None:
    """Refuse what is none of a `Literal`'s choices: a mistyped one must not stand for another.

    Raises:
        ValueError: it is none of them.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}, and must be one of {', '.join(get_args(choices))}")


@dataclass(frozen=True)
class SeriesQuery:
    """Rows of a series around a moment.

    `offsets_ns` are wanted times relative to the moment, ascending. `nearest` takes the row closest in time, `last` the
    last one not later, `linear` interpolates between two. `raw` takes all rows from the first to the last offset
    instead, as they are.
    """

    offsets_ns: tuple[int, ...]
    how: How = "nearest"

    def __post_init__(self) -> None:
        check_choice("how", self.how, How)


@dataclass(frozen=True)
class Query:
    """What a sample holds: per camera and series, wanted times relative to the sample's moment, in nanoseconds.

    `size` is the pictures' (height, width), their own without. `pick` says which picture stands for a wanted time:
    the `nearest`, or the `last` one not later, as a robot would have seen it. `chroma` matters where pictures are not
    scaled; see `Chroma`.
    """

    cameras: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    size: tuple[int, int] | None = None
    series: Mapping[str, SeriesQuery] = field(default_factory=dict)
    pick: Pick = "nearest"
    chroma: Chroma = "nearest"

    def __post_init__(self) -> None:
        check_choice("pick", self.pick, Pick)
        check_choice("chroma", self.chroma, Chroma)


@dataclass(frozen=True)
class Pictures:
    """Pictures of one camera: `frames` `(n, height, width, 3)` uint8 RGB, their own `times_ns` `(n,)`.

    `valid` `(n,)` is false where no picture is near the wanted time, and the closest stands in its place.
    """

    frames: Frames
    times_ns: TimesNs
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Rows of one series: `values` `(n, d)`, `times_ns` `(n,)` those they stand for (of `raw`: their own).

    `valid` `(n,)` is false where no row is near enough, or a value is not finite. `linear` gives float64.
    """

    values: NDArray[np.floating]
    times_ns: TimesNs
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """What a query found around a moment (nanoseconds on the episode's clock)."""

    moment_ns: int
    pictures: dict[str, Pictures]
    series: dict[str, Rows]


def nearest(times_ns: TimesNs, wanted_ns: TimesNs) -> NDArray[np.int64]:
    """Index of the time nearest to each wanted one; of two equally near ones the earlier."""
    if len(times_ns) == 1:
        return np.zeros(wanted_ns.shape, np.int64)
    right = np.searchsorted(times_ns, wanted_ns).clip(1, len(times_ns) - 1)
    left = right - 1
    return np.where(wanted_ns - times_ns[left] <= times_ns[right] - wanted_ns, left, right)


def last(times_ns: TimesNs, wanted_ns: TimesNs) -> NDArray[np.int64]:
    """Index of the last time not later than each wanted one; 0 before the first."""
    return np.maximum(np.searchsorted(times_ns, wanted_ns, side="right") - 1, 0)


def near_enough(times_ns: TimesNs, found: NDArray[np.int64], wanted_ns: TimesNs, period_ns: float) -> NDArray[np.bool_]:
    """Whether what was found stands for the wanted time; everything does where there is no period."""
    if period_ns <= 0:
        return np.ones(wanted_ns.shape, np.bool_)
    near: NDArray[np.bool_] = np.abs(times_ns[found] - wanted_ns) <= VALID_PERIODS * period_ns
    return near


def rows_at(rows: tuple[TimesNs, NDArray[np.floating], int], wanted_ns: TimesNs, how: How) -> Rows:
    """The rows that stand for the wanted times, out of all around them: times, values `(n, d)`, period in ns."""
    times_ns, values, period_ns = rows
    if how == "raw":
        first, end = np.searchsorted(times_ns, wanted_ns[0]), np.searchsorted(times_ns, wanted_ns[-1], side="right")
        return Rows(values[first:end], times_ns[first:end], np.isfinite(values[first:end]).all(axis=1))
    if how == "linear":
        return _between(times_ns, values, wanted_ns, period_ns)
    found = (nearest if how == "nearest" else last)(times_ns, wanted_ns)
    taken = values[found]
    valid = near_enough(times_ns, found, wanted_ns, period_ns) & np.isfinite(taken).all(axis=1)
    if how == "last":
        valid &= times_ns[found] <= wanted_ns
    return Rows(taken, wanted_ns, valid)


def _between(times_ns: TimesNs, values: NDArray[np.floating], wanted_ns: TimesNs, period_ns: int) -> Rows:
    left = last(times_ns, wanted_ns)
    right = np.minimum(left + (times_ns[left] < wanted_ns), len(times_ns) - 1)
    span = np.maximum(times_ns[right] - times_ns[left], 1)
    share = np.clip((wanted_ns - times_ns[left]) / span, 0.0, 1.0)[:, None]
    before, after = values[left].astype(np.float64), values[right].astype(np.float64)
    # Between what is not finite lies nothing, and that is no reason for a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        between = before + share * (after - before)
    # A row met exactly is that row, whatever its neighbour holds.
    taken = np.where(share == 0, before, np.where(share == 1, after, between))
    valid = near_enough(times_ns, left, wanted_ns, period_ns) & near_enough(times_ns, right, wanted_ns, period_ns)
    inside = (wanted_ns >= times_ns[0]) & (wanted_ns <= times_ns[-1])
    return Rows(taken, wanted_ns, valid & inside & np.isfinite(taken).all(axis=1))

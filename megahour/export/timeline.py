"""An episode of many rates on one: the rows of its slowest camera, and what of each other topic belongs to a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from megahour.episode.model import TimesNs
from megahour.episode.sample import nearest
from megahour.export.model import ExportError

GRID_TOLERANCE_NS = 100_000
"""LeRobot's own tolerance between a time and its place on the grid of 1/fps."""
SAME_RATE = 0.1
"""A camera whose own rate is so near to the episode's, as a share, has that one."""
LAG_PICTURES = 4
"""Rates are measured over so many pictures: some cameras are early and late by turns."""
FARTHER_SHARE = 0.25
"""A picture may stand for another that is nearer in time by this share of a period: cameras jitter."""


@dataclass(frozen=True)
class Timeline:
    """Rows 1/`fps` apart. `times_ns` `(rows,)` are their true times; `on_grid` says that these are 1/`fps` apart too.

    `first` maps a camera to its picture of the first row; picture `first + i` belongs to row i.
    """

    times_ns: TimesNs
    fps: int
    on_grid: bool
    first: dict[str, int]


def timeline(
    topics: Mapping[str, TimesNs], cameras: Mapping[str, TimesNs], fps: int | None, rate_hz: float
) -> Timeline:
    """The timeline of an episode: of the camera with the fewest pictures, or without cameras of the shortest topic.

    Args:
        topics: the times of its series by name.
        fps: where None, `rate_hz` rounded, or what the camera that makes the rows has instead.
        rate_hz: what the episode says.

    Raises:
        ExportError: `unaligned` when a camera has not one picture after the other for the rows.
    """
    name, times = min((cameras or topics).items(), key=lambda each: len(each[1]))
    lag = min(LAG_PICTURES, len(times) - 1)
    period_ns = float(np.median(times[lag:] - times[:-lag])) / lag if lag else 1e9 / rate_hz
    own_hz = 1e9 / period_ns
    fps = fps or max(1, round(rate_hz if abs(own_hz - rate_hz) <= SAME_RATE * rate_hz else own_hz))
    grid = np.round(np.arange(len(times)) * (1e9 / fps))
    on_grid = bool((np.abs(times - times[0] - grid) <= GRID_TOLERANCE_NS).all())
    first = {}
    for camera, own in cameras.items():
        start = consecutive(own, times, period_ns)
        if start is None:
            raise ExportError(
                "unaligned",
                f"the camera '{camera}' has {len(own)} pictures ({_rate(own)}), and '{name}', which makes the rows, "
                f"{len(times)} ({_rate(times)}): they do not follow each other one by one, and pictures would have to "
                "be left out or shown twice",
            )
        first[camera] = start
    return Timeline(times, fps, on_grid, first)


def consecutive(own_ns: TimesNs, rows_ns: TimesNs, period_ns: float) -> int | None:
    """The picture from which on a camera's pictures are one by one the nearest to the rows; None when none is.

    Frames before and after may be over. One that is lost in between shifts all later ones, which is seen here.
    """
    spare = len(own_ns) - len(rows_ns)
    if spare < 0:
        return None
    ahead = nearest(own_ns, rows_ns)
    least = np.abs(own_ns[ahead] - rows_ns)
    near = int(ahead[0])
    starts = [start for start in (near - 1, near, near + 1) if 0 <= start <= spare]
    distance = {start: np.abs(own_ns[start : start + len(rows_ns)] - rows_ns) for start in starts}
    fitting = [start for start in starts if (distance[start] - least <= FARTHER_SHARE * period_ns).all()]
    return min(fitting, key=lambda start: int(distance[start].max()), default=None)


def _rate(times_ns: TimesNs) -> str:
    span_s = int(times_ns[-1] - times_ns[0]) / 1e9
    return f"{(len(times_ns) - 1) / span_s:.3g} Hz" if span_s > 0 else "one moment"

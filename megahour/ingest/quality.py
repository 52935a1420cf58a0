"""Quality signals of an episode: numbers to filter by, never verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from megahour.episode.model import Frames, Series, TimesNs

FROZEN_LEVEL = 4
"""Grey levels (of 255) that coding a repeated picture again may move a scaled-down pixel by: on six real episodes this
found 314 of the 328 frames that their camera had repeated bit for bit, and 6 others of 1,249."""
LATE = 1.5
"""Median intervals after which the next frame is late: one was dropped."""
IDLE_PER_S = 0.02
"""A robot that would need longer than the inverse, 50 s, to move through the episode's range stands still."""


def frozen_share(frames: Iterable[Frames]) -> float | None:
    """Share of pictures that show the same as the one before; None of fewer than two.

    Args:
        frames: stacks `(n, h, w, 3)` of consecutive pictures, scaled down: small movements then still move a pixel,
            while noise and the codec's own flicker average out.
    """
    last: Frames | None = None
    frozen = pairs = 0
    for stack in frames:
        joined = stack if last is None else np.concatenate([last, stack])
        change = np.abs(np.diff(joined.astype(np.int16), axis=0)).max(axis=(1, 2, 3), initial=0)
        frozen += int(np.count_nonzero(change <= FROZEN_LEVEL))
        pairs += len(change)
        last = joined[-1:]
    return frozen / pairs if pairs else None


def dropped_frames(times_ns: TimesNs) -> int:
    """How many pictures are missing between the others, by the gaps in their times."""
    if len(times_ns) < 3:
        return 0
    gaps = np.diff(times_ns)
    usual = float(np.median(gaps))
    late = gaps[gaps > LATE * usual]
    return int(np.sum(np.rint(late / usual) - 1))


def nan_values(series: Sequence[Series]) -> int:
    """Values that are NaN or infinite, over all series."""
    return sum(int(np.count_nonzero(~np.isfinite(one.values))) for one in series)


def action_jump(values: NDArray[np.floating]) -> float | None:
    """The largest step between two actions, as a share of its column's range in the episode (0 to 1).

    Columns that know two values (a gripper's switch) or one jump by nature and do not count; None when no column is
    left. `values` is `(n, d)`; rows that are not finite are left out.
    """
    moving = [column for column in _finite(values).T if len(np.unique(column)) > 2]
    if not moving:
        return None
    return max(float(np.abs(np.diff(column)).max() / np.ptp(column)) for column in moving)


def idle_share(values: NDArray[np.floating], rate_hz: float) -> float | None:
    """Share of steps in which the robot stands still; None of fewer than two.

    Standing still is measured over all columns of the state `(n, d)` together, against their range in the episode.
    """
    finite = _finite(values).astype(np.float64)
    if len(finite) < 2:
        return None
    reach = float(np.linalg.norm(np.ptp(finite, axis=0)))
    speed = np.linalg.norm(np.diff(finite, axis=0), axis=1) * rate_hz
    return float(np.mean(speed <= IDLE_PER_S * reach))


def _finite(values: NDArray[np.floating]) -> NDArray[np.floating]:
    finite: NDArray[np.floating] = values[np.isfinite(values).all(axis=1)]
    return finite

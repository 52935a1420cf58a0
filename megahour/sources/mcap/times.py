"""A topic's times as an episode needs them: ascending, none twice; and what was done to get there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megahour.sources.steps import RATES_HZ

GAP_MEDIANS = 10
GAP_NS = 1_000_000_000
SAME = 0.02
"""A rate this near to a whole number of Hz is that number."""


@dataclass(frozen=True)
class Arranged:
    """`times_ns[i]` is that of the entry `order[i]`. `is_moved`: they were out of order; `nudged` were equal."""

    order: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    is_moved: bool
    nudged: int


def arrange(times_ns: NDArray[np.int64]) -> Arranged:
    """Sort times `(n,)`; equal ones follow each other by 1 ns, in their order."""
    order = np.argsort(times_ns, kind="stable")
    rising = times_ns[order]
    steps = np.arange(len(rising))
    apart = np.maximum.accumulate(rising - steps) + steps
    return Arranged(order, apart, bool((np.diff(times_ns) < 0).any()), int((apart != rising).sum()))


def gap(times_ns: NDArray[np.int64]) -> str | None:
    """The largest gap of ascending times, as text, where it is no matter of their rate."""
    if len(times_ns) < 3:
        return None
    steps = np.diff(times_ns)
    at = int(np.argmax(steps))
    if steps[at] <= max(GAP_NS, GAP_MEDIANS * float(np.median(steps))):
        return None
    since_s = (int(times_ns[at]) - int(times_ns[0])) / 1e9
    return f"nothing for {steps[at] / 1e9:.3f} s, {since_s:.3f} s after its start"


def rate_hz(times_ns: NDArray[np.int64]) -> float | None:
    """The rate of ascending times by their median step, a whole number where it is near one; None of a single time."""
    if len(times_ns) < 2:
        return None
    rate = min(max(1e9 / max(float(np.median(np.diff(times_ns))), 1.0), RATES_HZ[0]), RATES_HZ[1])
    whole = round(rate)
    return float(whole) if whole and abs(rate - whole) <= SAME * whole else round(rate, 3)

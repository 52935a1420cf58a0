"""Times of frames as their file has them: made to increase where they stand still, and what is odd about them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.episode.model import Note
from megahour.sources.model import SourceError

REGULAR_SHARE = 0.9
"""The share of steps between frames that are the usual one, in a video that has a frame rate."""
REGULAR_TOLERANCE = 0.25
"""How far a usual step may be off: containers round times to milliseconds."""
GAP_STEPS = 1.5
"""A longer step, counted in usual ones, is a gap."""


def frame_times(stamps: NDArray[np.int64], unit_s: float, key: str) -> tuple[NDArray[np.float64], list[Note]]:
    """Strictly increasing times in seconds, `(n,)`, from ascending stamps of `unit_s` each; and notes on them.

    Frames of one time are spread until the next one (`duplicate_times`). Times that do not begin at 0
    (`start_offset`), without one frame rate (`variable_rate`) or with holes in it (`gaps`) are kept as they are.

    Raises:
        SourceError: `times` when most frames have the time of the one before.
    """
    times_s: NDArray[Any] = stamps * unit_s
    notes = []
    starts = np.flatnonzero(np.diff(stamps, prepend=stamps[0] - 1))
    if repeats := len(stamps) - len(starts):
        if repeats > len(starts):
            raise SourceError(
                "times",
                f"{key}: {repeats} of its {len(stamps)} frames have the time of the one before. Export it with times "
                "that increase",
            )
        times_s = _spread(times_s, starts, unit_s)
        text = f"{key}: {repeats} frames have the time of the one before, and were spread until the next"
        notes.append(Note("duplicate_times", text))
    steps_s = np.diff(times_s)
    usual_s = float(np.median(steps_s)) if len(steps_s) else 0.0
    if abs(times_s[0]) > usual_s / 2:
        notes.append(Note("start_offset", f"{key}: its first frame is at {times_s[0]:.3f} s, not at 0"))
    regular = np.abs(steps_s - usual_s) <= REGULAR_TOLERANCE * usual_s
    gaps = np.flatnonzero(steps_s > GAP_STEPS * usual_s)
    if len(steps_s) and regular.mean() < REGULAR_SHARE:
        text = f"{key}: it has no one frame rate, frames are {steps_s.min():.3f} to {steps_s.max():.3f} s apart"
        notes.append(Note("variable_rate", text + "; their times are kept"))
    elif len(gaps):
        longest = gaps[np.argmax(steps_s[gaps])]
        text = f"{key}: gaps between frames: {len(gaps)}, the longest one {steps_s[longest]:.3f} s"
        text += f" after {times_s[longest]:.3f} s, where {usual_s:.3f} s is usual; their times are kept"
        notes.append(Note("gaps", text))
    return times_s, notes


def _spread(times_s: NDArray[Any], starts: NDArray[np.intp], unit_s: float) -> NDArray[Any]:
    """Times whose runs of equal ones, which begin at `starts`, fill the step to the next run evenly."""
    lengths = np.diff(starts, append=len(times_s))
    steps_s = np.diff(times_s[starts])
    steps_s = np.append(steps_s, np.median(steps_s) if len(steps_s) else unit_s)
    within = np.arange(len(times_s)) - np.repeat(starts, lengths)
    return np.repeat(times_s[starts], lengths) + within * np.repeat(steps_s / lengths, lengths)

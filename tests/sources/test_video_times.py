"""Times of frames: increasing ones out of what files have, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

from megahour.sources.frame_times import frame_times
from megahour.sources.model import SourceError


def times(*stamps: int) -> tuple[list[float], list[str]]:
    times_s, notes = frame_times(np.array(stamps), 0.001, "a.mp4")
    assert (np.diff(times_s) > 0).all()
    return np.round(times_s * 1000, 3).tolist(), [note.code for note in notes]


def test_even_times_are_nothing_to_speak_of() -> None:
    assert times(0, 33, 67, 100, 133) == ([0, 33, 67, 100, 133], [])
    assert times(0) == ([0], [])
    assert times(16, 49, 82) == ([16, 49, 82], []), "less than half a step"


def test_a_late_start_is_kept() -> None:
    assert times(1400, 1433, 1466) == ([1400, 1433, 1466], ["start_offset"])
    assert times(-66, -33, 0) == ([-66, -33, 0], ["start_offset"])
    assert times(5) == ([5], ["start_offset"])


def test_equal_times_fill_the_step_to_the_next() -> None:
    assert times(0, 30, 30, 30, 60, 90) == ([0, 30, 40, 50, 60, 90], ["duplicate_times", "variable_rate"])
    assert times(0, 30, 60, 60) == ([0, 30, 60, 75], ["duplicate_times", "variable_rate"])
    assert times(0, 0) == ([0, 0.5], ["duplicate_times"])


def test_times_that_stand_still_are_refused() -> None:
    with pytest.raises(SourceError, match="3 of its 4 frames") as caught:
        times(0, 0, 0, 0)
    assert caught.value.reason == "times"


def test_one_rate_with_gaps_and_no_one_rate() -> None:
    even = list(range(0, 3000, 30))
    assert times(*even[:50], *even[53:])[1] == ["gaps"]
    assert times(*(stamp + 10 * (i % 3) for i, stamp in enumerate(even)))[1] == ["variable_rate"]

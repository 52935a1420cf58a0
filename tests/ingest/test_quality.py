"""Each signal finds what it is named after, and nothing in a good episode."""

from __future__ import annotations

import numpy as np

from megahour.episode.model import Series
from megahour.ingest.quality import action_jump, dropped_frames, frozen_share, idle_share, nan_values


def moving(count: int) -> np.ndarray:
    frames = np.full((count, 32, 32, 3), 90, np.uint8)
    for number, frame in enumerate(frames):
        frame[8:10, number % 32] = 200
    return frames


def test_frozen_share_counts_repeated_pictures_across_stacks() -> None:
    frames = moving(21)
    assert frozen_share([frames]) == 0.0
    frames[6:11] = frames[5]
    assert frozen_share([frames]) == frozen_share([frames[:7], frames[7:8], frames[8:]]) == 5 / 20
    assert frozen_share([frames[:1]]) is None
    assert frozen_share([]) is None


def test_frozen_share_is_not_fooled_by_the_codecs_flicker() -> None:
    still = np.full((10, 32, 32, 3), 90, np.uint8)
    still[::2] += 2
    assert frozen_share([still]) == 1.0


def test_dropped_frames_are_counted_by_their_gaps() -> None:
    times = np.arange(100, dtype=np.int64) * 33_333_333
    assert dropped_frames(times) == 0
    assert dropped_frames(np.delete(times, [10, 50, 51])) == 3
    assert dropped_frames(times[:2]) == 0


def test_jitter_is_no_dropped_frame() -> None:
    jitter = np.random.default_rng(0).integers(-4_000_000, 4_000_000, 200)
    assert dropped_frames(np.arange(200, dtype=np.int64) * 33_333_333 + jitter) == 0


def test_values_that_are_not_finite_are_counted_over_all_series() -> None:
    values = np.zeros((4, 3))
    values[1, 2], values[3, 0] = np.nan, np.inf
    times = np.arange(4, dtype=np.int64)
    names = ("a", "b", "c")
    assert (
        nan_values([Series("state", times, values, names), Series("action", times, np.full((4, 3), np.nan), names)])
        == 2 + 12
    )


def test_action_jump_is_the_largest_step_of_its_columns_range() -> None:
    ramp = np.linspace(0, 1, 101)
    switch = np.where(ramp < 0.5, 0.0, 1.0)
    smooth = np.stack([ramp, switch, np.zeros(101)], axis=1)
    jump = action_jump(smooth)
    assert jump is not None
    assert abs(jump - 0.01) < 1e-9
    smooth[40, 0] = 1.0
    assert (action_jump(smooth) or 0) > 0.5
    assert action_jump(smooth[:, 1:]) is None


def test_idle_share_counts_the_steps_without_movement() -> None:
    ramp = np.linspace(0, 1, 50)
    still = np.ones(50)
    states = np.stack([np.concatenate([ramp, still]), np.zeros(100)], axis=1)
    share = idle_share(states, rate_hz=30)
    assert share is not None
    assert abs(share - 50 / 99) < 0.02
    assert idle_share(states[:1], rate_hz=30) is None
    assert idle_share(np.zeros((5, 2)), rate_hz=30) == 1.0

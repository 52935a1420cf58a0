"""Rows of an episode: of its slowest camera, with a picture of every other camera for each, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.export.model import ExportError
from megahour.export.timeline import consecutive, timeline

PERIOD_NS = 33_333_333


def steady(count: int, first: float = 0.0, jitter: float = 0.0, seed: int = 0) -> NDArray[np.int64]:
    """Times of a camera from the period `first` on, each off by at most `jitter` periods."""
    places = first + np.arange(count) + np.random.default_rng(seed).uniform(-jitter, jitter, count)
    return np.round((places + 10) * PERIOD_NS).astype(np.int64)


@given(
    ahead=st.integers(0, 3),
    more=st.integers(0, 3),
    phase=st.floats(-0.45, 0.45),
    jitter=st.floats(0, 0.05),
    seed=st.integers(0, 99),
)
def test_pictures_before_and_after_the_rows_are_passed_over(
    ahead: int, more: int, phase: float, jitter: float, seed: int
) -> None:
    rows = steady(40, jitter=jitter, seed=seed)
    own = steady(ahead + 40 + more, phase - ahead, jitter, seed + 1)
    assert consecutive(own, rows, PERIOD_NS) == ahead


@given(lost=st.integers(5, 35), phase=st.floats(-0.3, 0.3), jitter=st.floats(0, 0.05))
def test_a_picture_lost_in_between_is_seen(lost: int, phase: float, jitter: float) -> None:
    rows = steady(40, jitter=jitter)
    own = np.delete(steady(42, phase, jitter, seed=1), lost)
    assert consecutive(own, rows, PERIOD_NS) is None


def test_a_faster_a_shorter_and_a_later_camera_do_not_fit() -> None:
    rows = steady(30)
    assert (
        consecutive(np.sort(np.concatenate([rows, rows + PERIOD_NS // 3, rows + 2 * PERIOD_NS // 3])), rows, 1) is None
    )
    assert consecutive(rows[:-1], rows, PERIOD_NS) is None
    assert consecutive(rows + 100 * PERIOD_NS, rows, PERIOD_NS) is None


def test_the_camera_with_the_fewest_pictures_makes_the_rows() -> None:
    found = timeline({}, {"front": steady(31), "wrist": steady(30, 0.2)}, None, 30.0)
    assert found.times_ns.tolist() == steady(30, 0.2).tolist()
    assert (found.fps, found.on_grid, found.first) == (30, True, {"front": 0, "wrist": 0})
    early = timeline({}, {"front": steady(31, -1), "wrist": steady(30)}, None, 30.0)
    assert early.first == {"front": 1, "wrist": 0}


def test_a_camera_that_does_not_fit_is_named_with_both_rates() -> None:
    with pytest.raises(ExportError, match=r"'fast' has 90 pictures \(90 Hz\), and 'slow', .* 30 \(30 Hz\)") as caught:
        timeline({}, {"fast": np.arange(90) * 11_111_111, "slow": steady(30)}, None, 30.0)
    assert caught.value.reason == "unaligned"


@pytest.mark.parametrize(("jitter", "on_grid"), [(0.0, True), (0.002, True), (0.02, False)])
def test_times_are_on_the_grid_within_a_tenth_of_a_millisecond(jitter: float, on_grid: bool) -> None:
    assert timeline({}, {"front": steady(60, jitter=jitter)}, None, 1.0).on_grid is on_grid


def test_the_rate_is_the_episodes_where_the_camera_has_about_that() -> None:
    assert timeline({}, {"front": steady(60)}, None, 29.0).fps == 29
    assert timeline({}, {"front": steady(60)}, None, 100.0).fps == 30
    assert timeline({}, {"front": steady(60)}, 15, 29.0).fps == 15
    assert timeline({}, {"front": np.arange(9) * 33_366_700}, None, 29.97).fps == 30
    assert timeline({}, {"front": steady(1)}, None, 12.4).fps == 12
    assert timeline({}, {"front": np.array([0, 3 * 10**9])}, None, 30.0).fps == 1


def test_lost_pictures_and_turns_of_early_and_late_ones_do_not_change_the_rate() -> None:
    lost = timeline({}, {"front": np.delete(steady(60), [7, 20, 21])}, None, 1.0)
    assert (lost.fps, lost.on_grid) == (30, False)
    by_turns = steady(60) + np.arange(60) % 2 * 12_000_000
    assert timeline({}, {"front": by_turns}, None, 1.0).fps == 30


def test_without_cameras_the_shortest_topic_makes_the_rows() -> None:
    found = timeline({"state": steady(50), "action": steady(49)}, {}, None, 30.0)
    assert (len(found.times_ns), found.first) == (49, {})

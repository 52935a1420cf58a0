"""Wilson's interval, against values printed by other implementations."""

from __future__ import annotations

import pytest

from megahour.success import wilson


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(0, 20, 0.0, 0.1611252), (18, 20, 0.6989664, 0.9721335), (20, 20, 0.8388748, 1.0), (1, 2, 0.0945312, 0.9054688)],
)
def test_wilson_interval(k: int, n: int, low: float, high: float) -> None:
    assert wilson(k, n) == pytest.approx((low, high), abs=1e-6)


def test_nothing_is_known_of_no_trials() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_counts_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="are no counts"):
        wilson(3, 2)

"""Normalization: moments of parts merge into those of the whole, exactly and in any order."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from megahour.manifest.statistics import ExactSum, merge_moments

FINITE = hnp.arrays(
    np.float64,
    st.tuples(st.integers(0, 20), st.integers(1, 3)),
    elements=st.floats(allow_nan=False, allow_infinity=False),
)


@given(FINITE)
def test_sums_have_no_rounding(values: np.ndarray) -> None:
    total = ExactSum(values.shape[1])
    total.add(values[:7])
    total.add(values[7:])
    assert total.totals() == [sum((Fraction(v) for v in column.tolist()), Fraction()) for column in values.T]


def test_sums_agree_with_fsum_at_length() -> None:
    values = np.random.default_rng(0).normal(0, 1, (100_000, 2)) * 10.0 ** np.arange(-8, 8, 8)
    total = ExactSum(2)
    total.add(values)
    assert [float(part) for part in total.totals()] == [math.fsum(column) for column in values.T]


def moments(values: np.ndarray) -> tuple[Any, Any, Any, Any, Any]:
    mean = values.mean(axis=0)
    m2 = ((values - mean) ** 2).sum(axis=0)
    return np.array([len(values)]), mean[None], m2[None], values.min(axis=0)[None], values.max(axis=0)[None]


def test_merged_moments_are_those_of_the_whole_in_any_order() -> None:
    generator = np.random.default_rng(1)
    episodes = [generator.normal(1000 * i, 10.0**-i, (20 + i, 3)) for i in range(6)]
    parts = [moments(values) for values in episodes]
    merged = merge_moments(parts)
    whole = np.concatenate(episodes)
    np.testing.assert_allclose(merged["mean"], whole.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(merged["std"], whole.std(axis=0), rtol=1e-12)
    assert merged["min"] == whole.min(axis=0).tolist()
    assert merge_moments(parts[::-1]) == merged
    count, mean, m2, low, high = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    assert merge_moments([(count, mean, m2, low, high)]) == merged


def test_what_never_moves_has_no_deviation() -> None:
    constant = moments(np.full((7, 2), 0.1))
    assert merge_moments([constant] * 3)["std"] == pytest.approx([0, 0], abs=1e-8)


def test_nothing_has_no_statistics() -> None:
    with pytest.raises(ValueError, match="no sample"):
        merge_moments([])

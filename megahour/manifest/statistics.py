"""Normalization: the moments of many episodes merged into one, the same to the last digit in any order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MANTISSA_BITS = 53
LOW_BITS = 27
SMALLEST_EXPONENT = -1074


class ExactSum:
    """Sums of `columns` columns without any rounding: floats in groups of one exponent are integers."""

    def __init__(self, columns: int) -> None:
        self._totals = [0] * columns

    def add(self, values: Floats) -> None:
        """Add the rows of `(n, columns)` finite values; n at most 2**26, so that the groups' sums stay exact."""
        if not values.size:
            return
        columns = values.shape[1]
        mantissas, exponents = np.frexp(values)
        whole = (mantissas * 2.0**MANTISSA_BITS).astype(np.int64)
        lowest = int(exponents.min())
        groups = ((exponents - lowest) * columns + np.arange(columns)).ravel()
        high = np.bincount(groups, weights=(whole >> LOW_BITS).ravel())
        low = np.bincount(groups, weights=(whole & (2**LOW_BITS - 1)).ravel())
        for group in np.flatnonzero((high != 0) | (low != 0)):
            shift = lowest + int(group) // columns - SMALLEST_EXPONENT
            self._totals[int(group) % columns] += ((int(high[group]) << LOW_BITS) + int(low[group])) << shift

    def totals(self) -> list[Fraction]:
        """The sums, exact."""
        unit = 2 ** (MANTISSA_BITS - SMALLEST_EXPONENT)
        return [Fraction(total, unit) for total in self._totals]


def merge_moments(parts: Iterable[tuple[NDArray[np.int64], Floats, Floats, Floats, Floats]]) -> dict[str, list[float]]:
    """Mean, standard deviation (of the population), minimum and maximum over all samples of all episodes.

    Args:
        parts: episodes in any grouping: count `(n,)`; mean, m2 (sum of squared deviations), min, max `(n, columns)`.

    Raises:
        ValueError: there is no sample.
    """
    samples = 0
    sums: tuple[ExactSum, ExactSum, ExactSum] | None = None
    lowest = highest = np.empty(0)
    for count, mean, m2, low, high in parts:
        if not len(count):
            continue
        if sums is None:
            columns = mean.shape[1]
            sums = (ExactSum(columns), ExactSum(columns), ExactSum(columns))
            lowest, highest = np.full(columns, np.inf), np.full(columns, -np.inf)
        weighted = count[:, None] * mean
        samples += int(count.sum())
        for total, values in zip(sums, (weighted, weighted * mean, m2), strict=True):
            total.add(values)
        lowest, highest = np.minimum(lowest, low.min(axis=0)), np.maximum(highest, high.max(axis=0))
    if sums is None or not samples:
        raise ValueError("There is no sample to take statistics of")
    firsts, squares, deviations = (total.totals() for total in sums)
    variances = [
        (inner + square - first * first / samples) / samples
        for first, square, inner in zip(firsts, squares, deviations, strict=True)
    ]
    return {
        "mean": [float(first / samples) for first in firsts],
        "std": [math.sqrt(max(float(variance), 0.0)) for variance in variances],
        "min": lowest.tolist(),
        "max": highest.tolist(),
    }

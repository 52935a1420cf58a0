"""Success rates: k of n, with how sure one may be of them."""

from __future__ import annotations

from math import sqrt

Z_95 = 1.959963984540054


def wilson(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """The Wilson score interval of a rate, (low, high), at 95% unless `z` says otherwise; (0, 1) of no trials.

    Wilson, "Probable inference, the law of succession, and statistical inference", 1927.

    Raises:
        ValueError: the counts are no counts.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials are no counts")
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    center = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == trials else center + half
    return low, high

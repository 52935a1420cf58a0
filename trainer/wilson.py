"""Wilson's score interval: what k successes out of n say about a rate (E. B. Wilson, 1927)."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054


def wilson(k: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Lower and upper bound of the rate behind `k` of `n`, at 95% by default; (0, 1) for n = 0.

    Raises:
        ValueError: k is not between 0 and n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"{k} successes out of {n} rollouts cannot be")
    if n == 0:
        return 0.0, 1.0
    rate = k / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)

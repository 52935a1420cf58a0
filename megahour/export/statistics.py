"""Statistics of features as LeRobot keeps them: per episode, and merged over episodes by their counts of values.

Keys are `min`, `max`, `mean`, `std`, `count` and the quantiles `q01` to `q99`
(github.com/huggingface/lerobot, `compute_stats.py` of 0.4.4). Merged quantiles are means of the episodes', as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Stats = dict[str, NDArray[Any]]
"""Of a series of `d` columns each `(d,)`, of pictures `(3, 1, 1)` in [0, 1]; `count` is `(1,)`, the rows or pictures.

`values`, which LeRobot does not keep, is how many of each column's are finite; where none is, the others are 0.
"""

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
KEPT = ("min", "max", "mean", "std", *QUANTILES, "count")
"""What LeRobot keeps."""
SCALED_PX, LARGE_PX = 150, 300
"""Pictures of at least `LARGE_PX` are thinned to about `SCALED_PX`, by taking every n-th pixel."""


def of_rows(values: NDArray[Any]) -> Stats:
    """Statistics of each column of `(n, d)` numbers. Values that are not finite are left out."""
    finite = np.isfinite(values)
    columns = [_of_column(column[there]) for column, there in zip(values.T, finite.T, strict=True)]
    stats = {name: np.array([column[name] for column in columns]) for name in columns[0]}
    return {**stats, "values": finite.sum(axis=0), "count": np.array([len(values)])}


def _of_column(values: NDArray[Any]) -> dict[str, Any]:
    if not len(values):
        values = np.zeros(1, values.dtype)
    exact = values.astype(np.float64)
    return {
        "min": values.min(),
        "max": values.max(),
        "mean": exact.mean(),
        "std": exact.std(),
        **_quantiles(np.sort(exact), np.arange(1, len(exact) + 1)),
    }


def levels_of(pictures: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How often each byte occurs in each colour of pictures `(n, height, width, 3)`: `(3, 256)`, to be added up."""
    longest = max(pictures.shape[1:3])
    if longest >= LARGE_PX:
        step = longest // SCALED_PX
        pictures = pictures[:, ::step, ::step]
    return np.stack([np.bincount(pictures[..., colour].ravel(), minlength=256) for colour in range(3)])


def of_levels(levels: NDArray[np.int64], pictures: int) -> Stats:
    """Statistics of each colour of so many pictures, from what `levels_of` counted."""
    columns = [_of_levels(counts) for counts in levels]
    stats = {name: np.array([column[name] for column in columns]).reshape(3, 1, 1) for name in columns[0]}
    return {**stats, "values": levels.sum(axis=1).reshape(3, 1, 1), "count": np.array([pictures])}


def _of_levels(counts: NDArray[Any]) -> dict[str, Any]:
    """Statistics of bytes, of which there are `counts` `(256,)` of each value."""
    levels = np.arange(256) / 255
    there = np.flatnonzero(counts)
    mean = (counts * levels).sum() / counts.sum()
    return {
        "min": levels[there[0]],
        "max": levels[there[-1]],
        "mean": mean,
        "std": np.sqrt((counts * (levels - mean) ** 2).sum() / counts.sum()),
        **_quantiles(levels, np.cumsum(counts)),
    }


def _quantiles(ascending: NDArray[np.float64], cumulative: NDArray[Any]) -> dict[str, float]:
    """The least value that at least this share of all is at or below."""
    total = cumulative[-1]
    if total < 2:
        return dict.fromkeys(QUANTILES, float(ascending[-1]))
    places = np.searchsorted(cumulative, [share * total for share in QUANTILES.values()])
    return {name: float(ascending[place]) for name, place in zip(QUANTILES, places, strict=True)}


def merge(one: Stats, other: Stats) -> Stats:
    """Statistics of both together; each counts by its finite values."""
    values = np.array([one["values"], other["values"]])
    # Without any value both are 0, and so is what is mixed of them.
    shares = values / np.maximum(values.sum(axis=0), 1)

    def mixed(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(shares[0] * first + shares[1] * second)

    def either(first: NDArray[Any], second: NDArray[Any], both: NDArray[Any]) -> NDArray[Any]:
        return np.where(values[0] == 0, second, np.where(values[1] == 0, first, both))

    mean = mixed(one["mean"], other["mean"])
    variance = mixed(one["std"] ** 2 + (one["mean"] - mean) ** 2, other["std"] ** 2 + (other["mean"] - mean) ** 2)
    return {
        "min": either(one["min"], other["min"], np.minimum(one["min"], other["min"])),
        "max": either(one["max"], other["max"], np.maximum(one["max"], other["max"])),
        "mean": mean,
        "std": np.sqrt(variance),
        "values": values.sum(axis=0),
        "count": one["count"] + other["count"],
        **{name: mixed(one[name], other[name]) for name in QUANTILES},
    }

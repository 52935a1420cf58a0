"""Statistics are those of the values, and merging episodes gives those of all values together."""

from __future__ import annotations

import numpy as np
import pytest

from megahour.export.statistics import QUANTILES, Stats, levels_of, merge, of_levels, of_rows


def values(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal([3, -1, 0], [1, 10, 0.1], (rows, 3)).astype(np.float32)


def test_columns_of_numbers() -> None:
    given = values(1000)
    found = of_rows(given)
    exact = given.astype(np.float64)
    assert found["count"].tolist() == [1000]
    assert found["min"].tolist() == given.min(axis=0).tolist()
    assert found["max"].tolist() == given.max(axis=0).tolist()
    np.testing.assert_allclose(found["mean"], exact.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["std"], exact.std(axis=0), rtol=1e-12)
    for name, share in QUANTILES.items():
        expected = np.quantile(exact, share, axis=0, method="inverted_cdf")
        assert found[name].tolist() == expected.tolist()


def test_merged_statistics_are_those_of_all_together() -> None:
    parts = [values(n, seed=n) for n in (5, 300, 77)]
    merged = of_rows(parts[0])
    for part in parts[1:]:
        merged = merge(merged, of_rows(part))
    whole = of_rows(np.concatenate(parts))
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(merged[name], whole[name], rtol=1e-6)
    weighted = sum(of_rows(part)["q50"] * len(part) for part in parts) / 382
    np.testing.assert_allclose(merged["q50"], weighted)


def test_numbers_that_are_none_are_left_out() -> None:
    found = of_rows(np.array([[1.0], [np.inf], [3.0]]))
    assert (found["min"].tolist(), found["max"].tolist(), found["mean"].tolist()) == ([1], [3], [2])
    assert found["count"].tolist() == [3]


@pytest.mark.parametrize("first", [True, False])
def test_an_episode_without_a_value_of_a_column_changes_nothing_of_it(first: bool) -> None:
    there, none = np.full((100, 1), 10.0), np.full((100, 1), np.nan)
    merged = merge(of_rows(none), of_rows(there)) if first else merge(of_rows(there), of_rows(none))
    for name in ("min", "max", "mean", *QUANTILES):
        assert merged[name].tolist() == [10.0], name
    assert (merged["std"].tolist(), merged["count"].tolist()) == ([0.0], [200])


def test_episodes_count_by_the_values_that_each_column_has() -> None:
    """One column is half none in the first episode and whole in the second; the other the other way round."""
    one, other = values(400)[:, :2].astype(np.float64), values(100, seed=1)[:, :2].astype(np.float64)
    one[::2, 0] = np.nan
    other[10:, 1] = np.inf
    merged, whole = merge(of_rows(one), of_rows(other)), of_rows(np.concatenate([one, other]))
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(merged[name], whole[name], rtol=1e-12)
    shares = np.array([[200, 400], [100, 10]]) / [300, 410]
    np.testing.assert_allclose(merged["q50"], shares[0] * of_rows(one)["q50"] + shares[1] * of_rows(other)["q50"])


def test_a_column_that_no_episode_has_a_value_of_is_nought() -> None:
    none = of_rows(np.full((5, 1), np.nan))
    merged = merge(merge(none, none), none)
    assert {merged[name].tolist()[0] for name in ("min", "max", "mean", "std", *QUANTILES)} == {0.0}
    assert merged["count"].tolist() == [15]


def test_whole_numbers_stay_whole() -> None:
    found = of_rows(np.arange(4)[:, None])
    assert (found["min"].dtype, found["max"].tolist(), found["mean"].tolist()) == (np.int64, [3], [1.5])
    assert merge(found, found)["min"].dtype == np.int64


def test_one_row_is_its_own_quantiles() -> None:
    found = of_rows(np.array([[2.5]]))
    assert {found[name].tolist()[0] for name in ("min", "max", "mean", *QUANTILES)} == {2.5}
    assert found["std"].tolist() == [0]


def _of_pictures(pictures: np.ndarray) -> Stats:
    return of_levels(levels_of(pictures), len(pictures))


def test_pictures_are_counted_per_colour_in_shares_of_white() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (7, 20, 30, 3), np.uint8)
    pictures[..., 1] //= 2
    found = _of_pictures(pictures)
    exact = pictures / 255
    assert found["count"].tolist() == [7]
    assert {name: value.shape for name, value in found.items() if name not in ("values", "count")} == dict.fromkeys(
        ("min", "max", "mean", "std", *QUANTILES), (3, 1, 1)
    )
    np.testing.assert_allclose(found["mean"][:, 0, 0], exact.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(found["std"][:, 0, 0], exact.std(axis=(0, 1, 2)))
    for name, share in QUANTILES.items():
        expected = np.quantile(exact.reshape(-1, 3), share, axis=0, method="inverted_cdf")
        np.testing.assert_allclose(found[name][:, 0, 0], expected)


@pytest.mark.parametrize(("height", "width", "step"), [(299, 200, 1), (480, 640, 4), (300, 300, 2), (640, 100, 4)])
def test_large_pictures_are_thinned(height: int, width: int, step: int) -> None:
    picture = np.random.default_rng(1).integers(0, 256, (1, height, width, 3), np.uint8)
    assert np.array_equal(levels_of(picture), levels_of(picture[:, ::step, ::step][:, :299, :299]))

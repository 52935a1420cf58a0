"""Random orders that are worked out, not stored."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from trainer.order import Shuffled


def listed(order: Shuffled) -> list[int]:
    return [order[i] for i in range(len(order))]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097])
def test_every_number_comes_once(count: int) -> None:
    assert sorted(listed(Shuffled(count, "seed"))) == list(range(count))


def test_the_order_follows_from_the_seed() -> None:
    assert listed(Shuffled(500, "1")) == listed(Shuffled(500, "1")) != listed(Shuffled(500, "2"))


def test_all_orders_of_a_few_come_about_equally_often() -> None:
    seeds = 6000
    found = [tuple(listed(Shuffled(3, str(seed)))) for seed in range(seeds)]
    for order in permutations(range(3)):
        assert found.count(order) == pytest.approx(seeds / 6, rel=0.15)


def test_neighbours_come_apart_and_places_are_even() -> None:
    numbers = np.array(listed(Shuffled(4096, "seed")))
    steps = np.abs(np.diff(numbers))
    # two random numbers below n are n/3 apart on average
    assert steps.mean() == pytest.approx(4096 / 3, rel=0.05)
    assert abs(np.corrcoef(np.arange(4096), numbers)[0, 1]) < 0.05
    assert numbers.reshape(8, -1).mean(axis=1) == pytest.approx(np.full(8, 2047.5), rel=0.1)


def test_a_place_among_a_billion_is_known_at_once() -> None:
    order = Shuffled(10**9 + 7, "seed")
    places = [order[i] for i in range(1000)]
    assert len(set(places)) == 1000 and max(places) < len(order)
    with pytest.raises(IndexError, match="asked for"):
        order[len(order)]

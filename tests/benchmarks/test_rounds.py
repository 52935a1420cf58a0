"""Sides take turns, and a sample's cost is the work's by its number."""

from __future__ import annotations

import os

from benchmarks.rounds import Spent, medians, one_core, timed


def test_every_side_works_once_a_round_in_turning_order() -> None:
    worked: list[str] = []
    costs = {"a": iter([1.0, 9.0, 2.0]), "b": iter([5.0, 5.0, 5.0])}

    def side(name: str) -> Spent:
        worked.append(name)
        return Spent(next(costs[name]), 0.0)

    found = medians({"a": lambda: side("a"), "b": lambda: side("b")}, 3)
    assert worked == ["a", "b", "b", "a", "a", "b"]
    assert {name: spent.wall_ms for name, spent in found.items()} == {"a": 2.0, "b": 5.0}


def test_work_is_done_for_each_task() -> None:
    done: list[int] = []
    spent = timed(done.append, range(5))
    assert done == [0, 1, 2, 3, 4]
    assert spent.wall_ms >= 0


def test_one_core_is_given_back() -> None:
    before = os.sched_getaffinity(0)
    with one_core():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before

"""What a sample costs: sides take turns in rounds, and the medians count."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Task = TypeVar("Task")


@dataclass(frozen=True)
class Spent:
    """Milliseconds per sample: by the clock, and of CPU, all threads of the process together."""

    wall_ms: float
    cpu_ms: float


def timed(work: Callable[[Task], object], tasks: Iterable[Task]) -> Spent:
    """Do the work for each task, and say what one took."""
    tasks = list(tasks)
    wall, cpu = time.perf_counter(), time.process_time()
    for task in tasks:
        work(task)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Spent(wall * 1e3 / len(tasks), cpu * 1e3 / len(tasks))


def medians(sides: Mapping[str, Callable[[], Spent]], rounds: int) -> dict[str, Spent]:
    """Let each side work once per round, each round in another order. Whoever calls has warmed them up."""
    names = list(sides)
    spent: dict[str, list[Spent]] = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            spent[name].append(sides[name]())
    return {
        name: Spent(median(each.wall_ms for each in found), median(each.cpu_ms for each in found))
        for name, found in spent.items()
    }


@contextmanager
def one_core() -> Iterator[None]:
    """Hold this process, and what it starts, on one core: nobody then works with more threads than others."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

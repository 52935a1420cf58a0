"""The two ways in which models read episodes, as a question to Megahour's reader and as exact times for the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.jpeg import Window
from megahour.episode.model import RawEpisode
from megahour.episode.sample import Query, SeriesQuery

SIZE = (224, 224)
"""(height, width) of pictures in training."""


@dataclass(frozen=True)
class Pattern:
    """What a sample holds around the picture of its moment.

    `back` and `on` count the pictures per camera before and after that one. `states` and `actions` count rows: states
    up to the moment, actions from it on; without `actions`, those of the pictures' time.
    """

    name: str
    back: int
    on: int
    states: int
    actions: int | None


VLA = Pattern("VLA", back=1, on=0, states=150, actions=50)
SHORT_VLA = Pattern("VLA, short window", back=1, on=0, states=15, actions=15)
WORLD_ACTION = Pattern("world-action", back=0, on=48, states=0, actions=None)


def query(episode: RawEpisode, pattern: Pattern, rows: bool = True) -> Query:
    """The question of a pattern to Megahour's reader; without `rows`, of pictures alone."""
    period = _period(episode.cameras[0].times_ns)
    offsets = tuple(round(i * period) for i in range(-pattern.back, pattern.on + 1))
    series = {name: SeriesQuery(span, "raw") for name, span in _spans(episode, pattern).items()} if rows else {}
    return Query({camera.name: offsets for camera in episode.cameras}, SIZE, series)


def window(episode: RawEpisode, pattern: Pattern, frame: int) -> Window:
    """What the pattern's sample at a picture of the first camera holds."""
    moment = int(episode.cameras[0].times_ns[frame])
    frames = slice(frame - pattern.back, frame + pattern.on + 1)
    return Window(
        {camera.name: tuple(camera.times_ns[frames].tolist()) for camera in episode.cameras},
        {name: (moment + since, moment + until) for name, (since, until) in _spans(episode, pattern).items()},
        SIZE,
    )


def moments(episode: RawEpisode, pattern: Pattern, count: int, seed: int = 0) -> NDArray[np.int64]:
    """Pictures of the first camera, drawn at random among those whose sample lies inside the episode."""
    times = episode.cameras[0].times_ns
    inside = np.ones(len(times), bool)
    inside[: pattern.back] = False
    inside[len(times) - pattern.on :] = False
    for series in episode.series:
        if series.name in (spans := _spans(episode, pattern)):
            since, until = spans[series.name]
            half = _period(series.times_ns) / 2
            inside &= (times + since + half + 1 >= series.times_ns[0]) & (
                times + until - half - 1 <= series.times_ns[-1]
            )
    found = np.flatnonzero(inside)
    return np.random.default_rng(seed).choice(found, count, replace=len(found) < count)


def _spans(episode: RawEpisode, pattern: Pattern) -> dict[str, tuple[int, int]]:
    """Times of the first and last row of each series, half a period wider, relative to the moment."""
    spans = {}
    periods = {series.name: _period(series.times_ns) for series in episode.series}
    if pattern.states:
        spans["state"] = _wider(-(pattern.states - 1) * periods["state"], 0, periods["state"])
    until = pattern.on * _period(episode.cameras[0].times_ns)
    if pattern.actions is not None:
        until = (pattern.actions - 1) * periods["action"]
    spans["action"] = _wider(0, until, periods["action"])
    return spans


def _wider(since: float, until: float, period: float) -> tuple[int, int]:
    return round(since - period / 2), round(until + period / 2)


def _period(times_ns: NDArray[np.int64]) -> float:
    return float(times_ns[-1] - times_ns[0]) / (len(times_ns) - 1)

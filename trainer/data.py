"""Samples for training: windows of episodes, read through a memory-mapped slice of the manifest.

Nothing is exported: a window's pictures are decoded from the episode itself. Episodes that are drawn again stay decoded
in memory until a budget is used up; windows of all others are decoded one by one, from a few episodes that are kept
open. Which windows make up a step depends on the seed, the step and the rank alone, so a resumed run sees what it would
have seen.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from megahour.episode.episodes import Episodes
from megahour.episode.model import TimesNs
from megahour.episode.reader import EpisodeReader
from megahour.episode.sample import Query, SeriesQuery, nearest
from megahour.manifest.recipe import Observation, Windows
from megahour.manifest.timeline import timeline_of
from megahour.storage import Lake
from trainer.config import ModelConfig
from trainer.flow import Batch, shrink

PREFETCHED_BATCHES = 2
OPEN_SHARE = 4
"""A quarter of the memory is for open episodes: their indexes, values and last pictures."""
SLICE_SHARE = 8
"""An eighth is for what decoding a slice of an episode takes meanwhile. The rest is for whole ones."""

_Arrays = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]
"""Pictures, states and actions."""


@dataclass(frozen=True)
class Samples:
    """Windows as they are in the episodes: n samples, c cameras, k future pictures, a actions.

    `pictures` is `(n, 1 + k, c, height, width, 3)` uint8, `states` `(n, state_dim)`, `actions` `(n, a, action_dim)`.
    """

    pictures: NDArray[np.uint8]
    states: NDArray[np.float32]
    actions: NDArray[np.float32]


@dataclass(frozen=True)
class Normalization:
    """Means and standard deviations of states and actions over the training episodes; a part of every checkpoint."""

    state_mean: Tensor
    state_std: Tensor
    action_mean: Tensor
    action_std: Tensor

    CONSTANT_STD = 1e-6
    STD_OF_CONSTANTS = 1e-2

    @staticmethod
    def of(statistics: dict[str, Any]) -> Normalization:
        """From a manifest's `normalization`: `{"state": {"mean", "std"}, "action": {"mean", "std"}}`."""

        def row(series: str, key: str) -> Tensor:
            return torch.tensor(statistics[series][key], dtype=torch.float32)

        def std(series: str) -> Tensor:
            # a joint that never moved would blow up the first time it does
            std = row(series, "std")
            return torch.where(std < Normalization.CONSTANT_STD, Normalization.STD_OF_CONSTANTS, std)

        return Normalization(row("state", "mean"), std("state"), row("action", "mean"), std("action"))

    def to(self, device: torch.device) -> Normalization:
        return Normalization(*(t.to(device) for t in vars(self).values()))


@dataclass(frozen=True)
class Share:
    """What one rank draws from: `rows` (columns `uri, bytes, start, end, windows`), and where each row's part of the
    draws ends, ascending to 1.
    """

    rows: pa.Table
    ends: NDArray[np.float64]


class WindowReader:
    """Windows of the episodes of one rank's share of a manifest.

    The first window of an episode is decoded by itself. The second decodes the whole episode, as long as `memory_bytes`
    has room for it: that costs an episode's length over a window's as much, once, and every later window a copy. It is
    worth it where episodes are drawn again and again; where they are so many that few are, the memory stays unused.

    `memory_bytes` bounds what is held between reads and while one decodes, beside the samples that are returned, one
    window, and the decoders' own memory. Not to be shared by threads.

    Raises:
        ValueError: the rows do not say which timeline they count in, or count in other steps than `windows`.
    """

    def __init__(self, lake: Lake, share: Share, observation: Observation, windows: Windows, memory_bytes: int) -> None:
        self._timeline = timeline_of(share.rows)
        if self._timeline.stride != windows.stride:
            raise ValueError(
                f"The rows count windows that begin every {self._timeline.stride} frames, and windows of every "
                f"{windows.stride} are to be read: read them with the recipe that they were made by"
            )
        self._rows = share.rows
        self._ends = share.ends
        self._observation = observation
        self._windows = windows
        self._episodes = Episodes(lake, memory_bytes // OPEN_SHARE)
        self._slice_bytes = memory_bytes // SLICE_SHARE
        self._room_bytes = memory_bytes - memory_bytes // OPEN_SHARE
        self._decoded: dict[int, _Arrays] = {}
        self._met = np.zeros(share.rows.num_rows, np.bool_)
        self._first = share.rows.column("start").to_numpy()
        self._counts = share.rows.column("windows").to_numpy()

    def draw(self, seed: tuple[int, ...], count: int) -> NDArray[np.int64]:
        """`count` windows drawn by weight, as `(row, start frame)` pairs `(count, 2)`."""
        random = np.random.default_rng(seed)
        row = np.searchsorted(self._ends, random.random(count), side="right")
        number = (random.random(count) * self._counts[row]).astype(np.int64)
        return self._starts(row, number)

    def spread(self, count: int) -> NDArray[np.int64]:
        """At most `count` windows spread evenly over all, the same ones always: for validation."""
        ends = np.cumsum(self._counts)
        chosen = np.linspace(0, ends[-1] - 1, num=min(count, int(ends[-1])), dtype=np.int64)
        row = np.searchsorted(ends, chosen, side="right")
        return self._starts(row, chosen - (ends[row] - self._counts[row]))

    def _starts(self, row: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.stack([row, self._first[row] + number * self._windows.stride], axis=1)

    def read(self, windows: NDArray[np.int64]) -> Samples:
        """The samples of `(row, start frame)` pairs.

        Raises:
            megahour.episode.model.EpisodeError: an episode is damaged; the message names it.
            megahour.manifest.timeline.TimelineError: an episode's windows were counted on another timeline.
        """
        looks = (self._look(row, start) for row, start in windows.tolist())
        first = next(looks)
        samples = Samples(*(np.empty((len(windows), *part.shape), part.dtype) for part in first))
        for place, found in enumerate(chain([first], looks)):
            samples.pictures[place], samples.states[place], samples.actions[place] = found
        return samples

    def _look(self, row: int, start: int) -> _Arrays:
        """One window's pictures `(frames, cameras, height, width, 3)`, state and actions."""
        frames = start + np.array([0, *self._windows.future_frames])
        rows = start + np.arange(self._windows.actions)
        if row not in self._decoded:
            reader = self._open(row)
            times = self._timeline.times(reader, self._rows.column("end")[row].as_py())
            size_bytes = self._decoded_bytes(reader, len(times))
            room_bytes = self._room_bytes - size_bytes
            again, self._met[row] = self._met[row], True
            if room_bytes < self._slice_bytes or not again:
                return self._sample(reader, times, frames, rows)
            self._decoded[row] = _decode(reader, times, self._observation, room_bytes)
            self._room_bytes = room_bytes
        pictures, states, actions = self._decoded[row]
        return pictures[frames], states[start], actions[rows]

    def _decoded_bytes(self, reader: EpisodeReader, frames: int) -> int:
        """What a decoded episode takes: its pictures, and a float32 for each value of its states and actions."""
        seen = self._observation
        values = sum(len(each.names) for each in reader.index.series if each.name in (seen.state, seen.action))
        return frames * (len(seen.cameras) * _picture_bytes(seen) + 4 * values)

    def _open(self, row: int) -> EpisodeReader:
        return self._episodes.open(self._rows.column("uri")[row].as_py(), self._rows.column("bytes")[row].as_py())

    def _sample(
        self, reader: EpisodeReader, times: TimesNs, frames: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> _Arrays:
        seen = self._observation
        moment = int(times[frames[0]])
        query = Query(
            cameras=dict.fromkeys(seen.cameras, tuple((times[frames] - moment).tolist())),
            size=seen.size,
            series={
                seen.state: SeriesQuery((0,)),
                seen.action: SeriesQuery(tuple((times[rows] - moment).tolist())),
            },
        )
        sample = reader.sample(moment, query)
        return (
            np.stack([sample.pictures[camera].frames for camera in seen.cameras], axis=1),
            sample.series[seen.state].values[0].astype(np.float32),
            sample.series[seen.action].values.astype(np.float32),
        )


def _decode(reader: EpisodeReader, times: TimesNs, seen: Observation, room_bytes: int) -> _Arrays:
    """A whole episode on a timeline, in slices that take about `room_bytes` while they are decoded."""
    pictures = np.empty((len(times), len(seen.cameras), *seen.size, 3), np.uint8)
    # Of a slice there are the pictures and a copy, the coded bytes of its groups and a copy of one camera's.
    moment_bytes = 2 * (_picture_bytes(seen) + reader.size_bytes // len(times))
    at_once = max(1, room_bytes // moment_bytes)
    for start in range(0, len(times), at_once):
        part = slice(start, start + at_once)
        for place, camera in enumerate(seen.cameras):
            indices = nearest(reader.cameras[camera].times_ns, times[part])
            pictures[part, place] = reader.frames(camera, indices.tolist(), seen.size)
    state, action = reader.series(seen.state), reader.series(seen.action)
    return (
        pictures,
        state.values[nearest(state.times_ns, times)].astype(np.float32),
        action.values[nearest(action.times_ns, times)].astype(np.float32),
    )


def _picture_bytes(seen: Observation) -> int:
    height, width = seen.size
    return height * width * 3


def rank_share(rows: pa.Table, rank: int, world: int) -> Share:
    """The part of a manifest that one rank draws from: its stretch of the summed weights, a slice without a copy.

    All ranks together draw every window in proportion to its row's weight. A row on the border of two stretches is
    drawn by both, each its part. Rows are in the order of a hash, so a stretch is a random share.
    """
    if rows.num_rows == 0:
        raise ValueError("There are no episodes to read: the manifest has none in this split")
    ends = np.cumsum(rows.column("weight").to_numpy() * rows.column("windows").to_numpy())
    ends /= ends[-1]
    low, high = rank / world, (rank + 1) / world
    first = int(np.searchsorted(ends, low, side="right"))
    last = min(int(np.searchsorted(ends, high, side="left")), rows.num_rows - 1)
    part = (ends[first : last + 1] - low) * world
    part[-1] = 1.0
    return Share(rows.slice(first, last + 1 - first), part)


def picture_batch(pictures: Tensor) -> Tensor:
    """`(n, frames, cameras, height, width, 3)` uint8 to `(n, 3, frames, height, cameras * width)` in [-1, 1]."""
    n, frames, cameras, height, width, _ = pictures.shape
    side_by_side = pictures.permute(0, 5, 1, 3, 2, 4).reshape(n, 3, frames, height, cameras * width)
    return side_by_side.float() / 127.5 - 1.0


def to_batch(samples: Samples, normalization: Normalization, model: ModelConfig, device: torch.device) -> Batch:
    """Move samples to the device and normalise them there. Widths beyond the data's are zeros."""
    pictures = picture_batch(torch.from_numpy(samples.pictures).to(device))
    states = torch.from_numpy(samples.states).to(device)
    actions = torch.from_numpy(samples.actions).to(device)
    states = (states - normalization.state_mean) / normalization.state_std
    actions = (actions - normalization.action_mean) / normalization.action_std
    return Batch(
        clean=pictures[:, :, :1].contiguous(),
        future=shrink(pictures[:, :, 1:], model.future_scale).contiguous(),
        actions=F.pad(actions, (0, model.action_dim - actions.shape[-1])),
        states=F.pad(states, (0, model.state_dim - states.shape[-1]))[:, None],
    )


def prefetch(reader: WindowReader, seed: int, rank: int, steps: range, count: int) -> Generator[Samples]:
    """The samples of each step, read ahead by a thread. An error in the thread is raised here, at its step."""
    ready: queue.Queue[Samples | BaseException] = queue.Queue(PREFETCHED_BATCHES)
    stopped = threading.Event()

    def put(item: Samples | BaseException) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for step in steps:
                if stopped.is_set():
                    return
                put(reader.read(reader.draw((seed, step, rank), count)))
        except BaseException as error:
            put(error)

    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as pool:
        pool.submit(work)
        try:
            for _ in steps:
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stopped.set()

"""Samples for training: windows of episodes, read through a memory-mapped slice of the manifest.

Nothing is exported: a window's pictures are decoded from the episode itself. Decoded episodes stay in memory until a
budget is used up; windows of all others are decoded one by one, from a few episodes that are kept open. Which windows
make up a step depends on the seed, the step and the rank alone, so a resumed run sees what it would have seen.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from megahour.episode.model import TimesNs
from megahour.episode.reader import EpisodeReader, open_episode
from megahour.manifest.recipe import Observation, Windows
from megahour.storage import Lake
from trainer.config import ModelConfig
from trainer.flow import Batch, shrink

PREFETCHED_BATCHES = 2
MOST_OPEN = 64
"""Episodes kept open. One holds its index, a decoder per camera and the bytes it fetched last: some megabytes."""


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
class _Timeline:
    """Where the values of one episode stand on the times of its slowest camera."""

    cameras: dict[str, NDArray[np.int64]]
    states: NDArray[np.float32]
    actions: NDArray[np.float32]


@dataclass(frozen=True)
class Share:
    """What one rank draws from: `rows` (columns `uri, bytes, start, windows`), and where each row's part of the draws
    ends, ascending to 1.
    """

    rows: pa.Table
    ends: NDArray[np.float64]


class WindowReader:
    """Windows of the episodes of one rank's share of a manifest.

    Not to be shared by threads.
    """

    def __init__(self, lake: Lake, share: Share, observation: Observation, windows: Windows, memory_bytes: int) -> None:
        self._lake = lake
        self._rows = share.rows
        self._ends = share.ends
        self._observation = observation
        self._windows = windows
        self._room_bytes = memory_bytes
        self._opened: OrderedDict[int, tuple[EpisodeReader, _Timeline]] = OrderedDict()
        self._decoded: dict[int, tuple[_Timeline, NDArray[np.uint8]]] = {}
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
        """
        offsets = np.array([0, *self._windows.future_frames])
        action_offsets = np.arange(self._windows.actions)
        pictures, states, actions = [], [], []
        for row, start in windows.tolist():
            timeline, seen = self._look(row, start + offsets)
            pictures.append(seen)
            states.append(timeline.states[start])
            actions.append(timeline.actions[start + action_offsets])
        return Samples(np.stack(pictures), np.stack(states), np.stack(actions))

    def _open(self, row: int) -> tuple[EpisodeReader, _Timeline]:
        if row not in self._opened:
            uri, size = self._rows.column("uri")[row].as_py(), self._rows.column("bytes")[row].as_py()
            reader = open_episode(self._lake, uri, size)
            self._opened[row] = (reader, _timeline(reader, self._observation))
            if len(self._opened) > MOST_OPEN:
                self._opened.popitem(last=False)
        self._opened.move_to_end(row)
        return self._opened[row]

    def _look(self, row: int, frames: NDArray[np.int64]) -> tuple[_Timeline, NDArray[np.uint8]]:
        """An episode's values, and its pictures `(len(frames), cameras, height, width, 3)`."""
        if row in self._decoded:
            timeline, pictures = self._decoded[row]
            return timeline, pictures[frames]
        reader, timeline = self._open(row)
        length = len(timeline.states)
        height, width = self._observation.size
        size_bytes = length * len(self._observation.cameras) * height * width * 3
        keep = size_bytes <= self._room_bytes
        wanted = np.arange(length) if keep else frames
        decoded = np.stack(
            [
                reader.frames(camera, timeline.cameras[camera][wanted].tolist(), self._observation.size)
                for camera in self._observation.cameras
            ],
            axis=1,
        )
        if not keep:
            return timeline, decoded
        self._room_bytes -= size_bytes
        self._decoded[row] = timeline, decoded
        del self._opened[row]
        return timeline, decoded[frames]


def _timeline(reader: EpisodeReader, observation: Observation) -> _Timeline:
    times = min((reader.cameras[name].times_ns for name in observation.cameras), key=len)
    cameras = {name: nearest(reader.cameras[name].times_ns, times) for name in observation.cameras}
    state, action = reader.series(observation.state), reader.series(observation.action)
    return _Timeline(
        cameras,
        state.values[nearest(state.times_ns, times)].astype(np.float32),
        action.values[nearest(action.times_ns, times)].astype(np.float32),
    )


def nearest(times_ns: TimesNs, wanted_ns: TimesNs) -> NDArray[np.int64]:
    """Index of the time nearest to each wanted one; of two equally near ones the earlier."""
    right = np.searchsorted(times_ns, wanted_ns).clip(1, max(1, len(times_ns) - 1))
    if len(times_ns) == 1:
        return np.zeros(len(wanted_ns), dtype=np.int64)
    left = right - 1
    return np.where(wanted_ns - times_ns[left] <= times_ns[right] - wanted_ns, left, right)


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

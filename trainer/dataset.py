"""Episodes as torch datasets: windows at random, or an epoch of them in a stream that decodes each GOP about once.

For training code of your own. Rows come from a manifest (`megahour.manifest.load`), or are made by `rows_of`.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from megahour.episode.episodes import Episodes
from megahour.episode.model import TimesNs
from megahour.episode.reader import EpisodeReader
from megahour.episode.sample import Query, Sample
from megahour.storage import Lake

Item = dict[str, Tensor]
"""A sample: `camera.<name>` `(n, 3, height, width)` uint8, `<series>` `(n, d)`, each with `.valid` `(n,)` beside it;
`row` and `window` say which it is, `moment_ns` when."""

BUDGET_BYTES = 256 * 2**20
BLOCK_WINDOWS = 16
"""Neighbouring windows that a stream reads at once."""


def rows_of(lake: Lake, keys: Iterable[str], query: Query, stride: int = 1) -> pa.Table:
    """Rows (`uri, bytes, start, windows`) for every `stride`-th picture of the slowest camera whose query lies inside.

    Raises:
        megahour.episode.model.EpisodeError: an episode is missing or damaged.
    """
    found = []
    episodes = Episodes(lake, BUDGET_BYTES)
    for key in keys:
        reader = episodes.open(key)
        times = timeline(reader, query)
        low, high = _reach(query)
        first = int(np.searchsorted(times, times[0] - low))
        end = int(np.searchsorted(times, times[-1] - high, side="right"))
        windows = max(0, -(-(end - first) // stride))
        found.append({"uri": key, "bytes": reader.size_bytes, "start": first, "windows": windows})
    schema = pa.schema([("uri", pa.string()), ("bytes", pa.int64()), ("start", pa.int64()), ("windows", pa.int64())])
    return pa.Table.from_pylist([row for row in found if row["windows"]], schema)


def timeline(reader: EpisodeReader, query: Query) -> TimesNs:
    """The times that windows count in: those of the slowest camera of the query, without one of its slowest series."""
    if query.cameras:
        return min((reader.cameras[name].times_ns for name in query.cameras), key=len)
    return min((reader.series(name).times_ns for name in query.series), key=len)


def _reach(query: Query) -> tuple[int, int]:
    offsets = [offset for each in query.cameras.values() for offset in each]
    offsets += [offset for each in query.series.values() for offset in each.offsets_ns]
    return min(0, *offsets), max(0, *offsets)


class EpisodeDataset(Dataset[Item]):
    """Every window of every row by its number: for a `DataLoader` with a sampler of your own.

    Windows of a batch that lie in one episode are read together. Each worker keeps `budget_bytes`.
    """

    def __init__(
        self,
        lake: Lake,
        rows: pa.Table,
        query: Query,
        stride: int = 1,
        budget_bytes: int = BUDGET_BYTES,
        threads: int = 1,
    ) -> None:
        if any(each.how == "raw" for each in query.series.values()):
            raise ValueError(
                "Rows of a 'raw' series differ in number from sample to sample, and batches cannot hold it"
            )
        self.rows, self.query, self.stride = rows, query, stride
        self._episodes = Episodes(lake, budget_bytes, threads)
        self._first = rows.column("start").to_numpy()
        self._ends = np.cumsum(rows.column("windows").to_numpy())

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Item:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Several windows; `DataLoader` asks for a batch this way."""
        numbers = np.asarray(indices, np.int64)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"There are {len(self)} windows, and {numbers.min()} to {numbers.max()} were asked for")
        rows = np.searchsorted(self._ends, numbers, side="right")
        places: OrderedDict[int, list[int]] = OrderedDict()
        for i, row in enumerate(rows.tolist()):
            places.setdefault(row, []).append(i)
        items: list[Item] = [{}] * len(numbers)
        for row, members in places.items():
            begin = int(self._ends[row - 1]) if row else 0
            for i, item in zip(members, self.read(row, numbers[members] - begin), strict=True):
                items[i] = item
        return items

    def read(self, row: int, windows: NDArray[np.int64]) -> list[Item]:
        """Windows of one row by their number in it.

        Raises:
            megahour.episode.model.EpisodeError: the episode is damaged; the message names it.
        """
        reader = self._episodes.open(self.rows.column("uri")[row].as_py(), self.rows.column("bytes")[row].as_py())
        moments = timeline(reader, self.query)[self._first[row] + windows * self.stride]
        samples = reader.samples(moments.tolist(), self.query)
        return [_item(sample, row, window) for sample, window in zip(samples, windows.tolist(), strict=True)]


class EpisodeStream(IterableDataset[Item]):
    """An epoch in random order: every window once over all ranks and workers, each GOP decoded about once.

    Blocks of neighbouring windows are read in random order and mixed in a pool of `pool_bytes`. The order follows from
    `seed`, the epoch and the number of ranks and workers.
    """

    def __init__(
        self,
        dataset: EpisodeDataset,
        seed: int,
        rank: int = 0,
        world: int = 1,
        block_windows: int = BLOCK_WINDOWS,
        pool_bytes: int = BUDGET_BYTES,
    ) -> None:
        self.dataset, self.seed, self.rank, self.world = dataset, seed, rank, world
        self.block_windows, self.pool_bytes = block_windows, pool_bytes
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass, before its workers start."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(count for _, _, count in self._blocks()[self.rank :: self.world])

    def __iter__(self) -> Iterator[Item]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        # Workers share the rank's own blocks, so that the number of workers does not move windows between ranks.
        mine = self._blocks()[self.rank :: self.world][worker::workers]
        dice = random.Random(f"{self.seed} {self.epoch} {self.rank} {worker}")
        pool: list[Item] = []
        pool_bytes = 0
        for row, first, count in mine:
            for item in self.dataset.read(row, np.arange(first, first + count)):
                pool.append(item)
                pool_bytes += size_bytes(item)
            while pool_bytes > self.pool_bytes:
                taken = _draw(pool, dice)
                pool_bytes -= size_bytes(taken)
                yield taken
        while pool:
            yield _draw(pool, dice)

    def _blocks(self) -> list[tuple[int, int, int]]:
        """(row, first window, windows) of all blocks, in the order of this epoch."""
        counts = self.dataset.rows.column("windows").to_pylist()
        size = self.block_windows
        blocks = [(r, at, min(size, n - at)) for r, n in enumerate(counts) for at in range(0, n, size)]
        random.Random(f"{self.seed} {self.epoch}").shuffle(blocks)
        return blocks


def loader(
    dataset: EpisodeDataset | EpisodeStream, lake: Lake, batch: int, workers: int, **options: Any
) -> DataLoader[Item]:
    """A `DataLoader` whose workers start in a way that suits the lake: an object store's client survives no fork."""
    if workers and lake.root is None:
        options.setdefault("multiprocessing_context", "forkserver")
    return DataLoader(dataset, batch_size=batch, num_workers=workers, **options)


def size_bytes(item: Item) -> int:
    """Memory that an item takes."""
    return sum(tensor.nbytes for tensor in item.values())


def _draw(pool: list[Item], dice: random.Random) -> Item:
    at = dice.randrange(len(pool))
    pool[at], pool[-1] = pool[-1], pool[at]
    return pool.pop()


def _item(sample: Sample, row: int, window: int) -> Item:
    item = {
        "row": torch.tensor(row),
        "window": torch.tensor(window),
        "moment_ns": torch.tensor(sample.moment_ns),
    }
    for name, pictures in sample.pictures.items():
        # A copy: a view would hold the pictures of all samples that were read with it.
        item[f"camera.{name}"] = torch.from_numpy(pictures.frames.copy()).permute(0, 3, 1, 2)
        item[f"camera.{name}.valid"] = torch.from_numpy(pictures.valid.copy())
    for name, rows in sample.series.items():
        item[name] = torch.from_numpy(np.array(rows.values))
        item[f"{name}.valid"] = torch.from_numpy(np.array(rows.valid))
    return item

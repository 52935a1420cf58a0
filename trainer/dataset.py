"""Episodes as torch datasets: windows at random, or an epoch of them in a stream that decodes each GOP about once.

For training code of your own. Rows come from a manifest (`megahour.manifest.load`), or are made by `rows_of`.
"""

from __future__ import annotations

import copy
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
from megahour.episode.reader import EpisodeReader
from megahour.episode.sample import Query, Sample
from megahour.manifest.timeline import Timeline, timeline_of
from megahour.storage import Lake
from trainer.order import Shuffled

Item = dict[str, Tensor]
"""A sample: `camera.<name>` `(n, 3, height, width)` uint8, `<series>` `(n, d)`, each with `.valid` `(n,)` beside it;
`row` and `window` say which it is, `moment_ns` when."""

BUDGET_BYTES = 256 * 2**20
BLOCK_WINDOWS = 16
"""Neighbouring windows that a stream reads one after the other."""
SLICE_SHARE = 4
"""A quarter of a pool is for windows that are read at once, and as much for what is left of reading them."""

ROWS = pa.schema(
    [("uri", pa.string()), ("bytes", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("windows", pa.int64())]
)


def rows_of(lake: Lake, keys: Iterable[str], query: Query, stride: int = 1) -> pa.Table:
    """Rows (`uri, bytes, start, end, windows`) of the windows whose whole query lies inside their episode.

    Windows are at every `stride`-th picture of the query's slowest camera; without cameras, at every `stride`-th row of
    its slowest series. The rows say so (`megahour.manifest.timeline`).

    Raises:
        megahour.episode.model.EpisodeError: an episode is missing or damaged.
        megahour.manifest.timeline.TimelineError: an episode lacks a camera of the query.
    """
    found = []
    episodes = Episodes(lake, BUDGET_BYTES)
    timeline = Timeline(tuple(query.cameras), stride, () if query.cameras else tuple(query.series))
    low, high = _reach(query)
    for key in keys:
        reader = episodes.open(key)
        times = timeline.times(reader)
        first = int(np.searchsorted(times, times[0] - low))
        end = int(np.searchsorted(times, times[-1] - high, side="right"))
        windows = max(0, -(-(end - first) // stride))
        row = {"uri": key, "bytes": reader.size_bytes, "start": first, "end": len(times), "windows": windows}
        found.append(row)
    return timeline.put_on(pa.Table.from_pylist([row for row in found if row["windows"]], ROWS))


def _reach(query: Query) -> tuple[int, int]:
    offsets = [offset for each in query.cameras.values() for offset in each]
    offsets += [offset for each in query.series.values() for offset in each.offsets_ns]
    return min(0, *offsets), max(0, *offsets)


class EpisodeDataset(Dataset[Item]):
    """Every window of every row by its number: for a `DataLoader` with a sampler of your own.

    The rows (`uri, bytes, start, end, windows`) say where their windows are: on which timeline, and how far apart. The
    query may read other topics than those that the windows were counted by; what it finds outside of an episode is
    marked by `.valid`. Windows of a batch that lie in one episode are read together. Each worker keeps `budget_bytes`.

    Raises:
        ValueError: the rows do not say which timeline they count in, or the query has a `raw` series.
    """

    def __init__(
        self,
        lake: Lake,
        rows: pa.Table,
        query: Query,
        budget_bytes: int = BUDGET_BYTES,
        threads: int = 1,
    ) -> None:
        if any(each.how == "raw" for each in query.series.values()):
            raise ValueError(
                "Rows of a 'raw' series differ in number from sample to sample, and batches cannot hold it"
            )
        self.rows, self.query, self.timeline = rows, query, timeline_of(rows)
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
            for i, item in zip(members, self.read(row, numbers[members] - self._begin(row)), strict=True):
                items[i] = item
        return items

    def runs(self, first: int, end: int) -> Iterator[tuple[int, range]]:
        """The windows `first` to `end` (exclusive) as rows and their own windows, in order."""
        while first < end:
            row = int(np.searchsorted(self._ends, first, side="right"))
            begin, until = self._begin(row), min(end, int(self._ends[row]))
            yield row, range(first - begin, until - begin)
            first = until

    def _begin(self, row: int) -> int:
        return int(self._ends[row - 1]) if row else 0

    def read(self, row: int, windows: NDArray[np.int64]) -> list[Item]:
        """Windows of one row by their number in it.

        Raises:
            megahour.episode.model.EpisodeError: the episode is damaged; the message names it.
            megahour.manifest.timeline.TimelineError: the windows were counted on another timeline.
        """
        reader = self._open(row)
        times = self.timeline.times(reader, self.rows.column("end")[row].as_py())
        moments = times[self._first[row] + windows * self.timeline.stride]
        samples = reader.samples(moments.tolist(), self.query)
        return [_item(sample, row, window) for sample, window in zip(samples, windows.tolist(), strict=True)]

    def window_bytes(self, row: int) -> int:
        """About what one window of a row takes: exact for its pictures, at most 8 bytes for a value."""
        reader, query = self._open(row), self.query
        found = 0
        for name, camera in reader.cameras.items():
            height, width = query.size or (camera.height, camera.width)
            found += 3 * height * width * len(query.cameras.get(name, ()))
        for series in reader.index.series:
            if series.name in query.series:
                found += 8 * len(series.names) * len(query.series[series.name].offsets_ns)
        return found

    def _open(self, row: int) -> EpisodeReader:
        return self._episodes.open(self.rows.column("uri")[row].as_py(), self.rows.column("bytes")[row].as_py())


class EpisodeStream(IterableDataset[Item]):
    """An epoch in random order, each GOP decoded about once.

    All ranks have equally many windows, `len(stream)`: all there are over `world`, rounded up. Together they meet every
    window once, and fewer than `world` of them a second time to make up the number. Workers share their rank's windows
    in whole batches, where `loader` makes them.

    Blocks of neighbouring windows come in random order and are mixed in a pool: what the pool holds and what is being
    read into it take `pool_bytes` together, or two windows where that is more, beside the dataset's `budget_bytes`.
    Blocks that a quarter of the pool does not hold are read in parts, and a GOP across two parts is decoded twice.
    The order follows from `seed`, the epoch and the number of ranks, workers and windows in a batch. It is worked out
    block by block: an epoch of any length takes 8 bytes for each row, and nothing for a window.
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
        self.batch = 1
        # Shared with workers however they start: those that persist would not see another copy change.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch whose order the next pass has."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass, before it begins; its workers may be there already."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.world)

    def __iter__(self) -> Iterator[Item]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        epoch = self.epoch
        dice = random.Random(f"{self.seed} {epoch} {self.rank} {worker}")
        pool: list[Item] = []
        pool_bytes = 0
        for row, windows in self._parts(epoch, *self._share(worker, workers)):
            window_bytes = self.dataset.window_bytes(row)
            at_once = max(1, self.pool_bytes // SLICE_SHARE // max(1, window_bytes))
            for start in range(0, len(windows), at_once):
                part = windows[start : start + at_once]
                # While windows are read they are there twice: as they come from the decoder, and as items.
                while pool and pool_bytes + 2 * len(part) * window_bytes > self.pool_bytes:
                    taken = _draw(pool, dice)
                    pool_bytes -= size_bytes(taken)
                    yield taken
                # No name for these items: it would hold them after the pool let them go.
                pool += self.dataset.read(row, np.array(part))
                pool_bytes += sum(map(size_bytes, pool[-len(part) :]))
        while pool:
            yield _draw(pool, dice)

    def _share(self, worker: int, workers: int) -> tuple[int, int]:
        """First and end of a worker's places in the epoch. Where the epoch ends, it begins anew."""
        batches = -(-len(self) // self.batch)
        first, end = (min(len(self), i * batches // workers * self.batch) for i in (worker, worker + 1))
        return self.rank * len(self) + first, self.rank * len(self) + end

    def _parts(self, epoch: int, first: int, end: int) -> Iterator[tuple[int, range]]:
        """The rows and windows at the places `first` to `end` of an epoch.

        Its windows are numbered from a random one on, so that blocks differ from epoch to epoch; the whole blocks are
        shuffled, and what is left comes last.
        """
        total, size = len(self.dataset), self.block_windows
        blocks = Shuffled(total // size, f"{self.seed} {epoch}")
        turn = random.Random(f"{self.seed} {epoch} turn").randrange(max(1, total))
        while first < end:
            block, into = divmod(first % total, size)
            length = min(end - first, size - into, total - first % total)
            start = (turn + size * (blocks[block] if block < len(blocks) else block) + into) % total
            yield from self.dataset.runs(start, min(start + length, total))
            yield from self.dataset.runs(0, start + length - total)
            first += length


def loader(
    dataset: EpisodeDataset | EpisodeStream, lake: Lake, batch: int, workers: int, **options: Any
) -> DataLoader[Item]:
    """A `DataLoader` whose workers start in a way that suits the lake: an object store's client survives no fork.

    Of a stream it has as many batches as `len()` of it says, all of them whole but one, on every rank.
    """
    if workers and lake.root is None:
        options.setdefault("multiprocessing_context", "forkserver")
    if isinstance(dataset, EpisodeStream):
        dataset = copy.copy(dataset)
        dataset.batch = batch
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

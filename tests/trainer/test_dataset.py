"""The torch face of episodes: windows by number, and an epoch that meets each of them once."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from megahour.episode.h264 import Decoder
from megahour.episode.model import EpisodeError
from megahour.episode.reader import open_episode
from megahour.episode.sample import Query, SeriesQuery
from megahour.episode.writer import write_episode
from megahour.manifest.build import build_manifest
from megahour.manifest.timeline import TimelineError
from megahour.storage import Lake, open_lake
from tests.samples import FACTS, camera, pictures, raw_episode
from tests.trainer.toy import RECIPE
from trainer import dataset as rooms
from trainer.dataset import EpisodeDataset, EpisodeStream, loader, rows_of, size_bytes

MS = 1_000_000
QUERY = Query(
    cameras={"front": (-34 * MS, 0), "wrist": (0,)},
    size=(24, 32),
    series={"state": SeriesQuery((-10 * MS, 0), "linear"), "action": SeriesQuery((0, 33 * MS, 66 * MS))},
)
LENGTHS = (24, 7, 40)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = open_lake(tmp_path_factory.mktemp("lake").as_uri())
    for i, frames in enumerate(LENGTHS):
        path = Path(lake.url(f"episodes/2026-01-01/{i}.mcap"))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_episode(path, raw_episode(frames), FACTS)
    return lake


def make(lake: Lake, **options: int) -> EpisodeDataset:
    keys = [f"episodes/2026-01-01/{i}.mcap" for i in range(len(LENGTHS))]
    return EpisodeDataset(lake, rows_of(lake, keys, QUERY), QUERY, **options)


def test_rows_hold_the_windows_whose_query_lies_inside(lake: Lake) -> None:
    dataset = make(lake)
    # the picture before is 34 ms back, so the first two moments lack it; the last action is 66 ms ahead
    assert dataset.rows.column("start").to_pylist() == [2, 2, 2]
    assert dataset.rows.column("windows").to_pylist() == [frames - 4 for frames in LENGTHS]
    assert len(dataset) == sum(LENGTHS) - 12
    for item in dataset.__getitems__(range(len(dataset))):
        assert all(bool(value.all()) for name, value in item.items() if name.endswith(".valid"))


def test_an_item_is_the_sample_of_its_moment(lake: Lake) -> None:
    dataset = make(lake)
    numbers = [0, 37, 19, 21, 1]
    items = dataset.__getitems__(numbers)
    for number, item in zip(numbers, items, strict=True):
        row, window = int(item["row"]), int(item["window"])
        assert sum(frames - 4 for frames in LENGTHS[:row]) + window == number
        reader = open_episode(lake, f"episodes/2026-01-01/{row}.mcap")
        sample = reader.sample(int(reader.cameras["front"].times_ns[window + 2]), QUERY)
        assert np.array_equal(item["camera.front"].permute(0, 2, 3, 1).numpy(), sample.pictures["front"].frames)
        assert item["camera.front"].shape == (2, 3, 24, 32) and item["camera.front"].dtype == torch.uint8
        assert np.array_equal(item["state"].numpy(), sample.series["state"].values)
        assert np.array_equal(item["action"].numpy(), sample.series["action"].values)
    assert torch.equal(dataset[37]["camera.wrist"], items[1]["camera.wrist"])
    with pytest.raises(IndexError, match="asked for"):
        dataset.__getitems__([len(dataset)])


def met(batches: Iterable[rooms.Item]) -> list[tuple[int, int]]:
    """The rows and windows of batches, in order."""
    return [pair for b in batches for pair in zip(b["row"].tolist(), b["window"].tolist(), strict=True)]


WINDOWS = [(row, window) for row, frames in enumerate(LENGTHS) for window in range(frames - 4)]


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (2, 0), (3, 2), (8, 0), (70, 0)])
@pytest.mark.parametrize("block_windows", [6, 1, 100])
def test_an_epoch_meets_every_window_once_in_equal_parts(
    lake: Lake, world: int, workers: int, block_windows: int
) -> None:
    dataset = make(lake)
    orders = []
    for rank in range(world):
        stream = EpisodeStream(dataset, seed=5, rank=rank, world=world, block_windows=block_windows)
        order = met(loader(stream, lake, 4, workers))
        assert len(order) == len(stream)
        orders.append(order)
    # 59 windows do not divide: so that no rank waits for another at the end, a few come a second time
    assert {len(order) for order in orders} == {-(-len(WINDOWS) // world)}
    assert {pair for order in orders for pair in order} == set(WINDOWS)
    assert max(Counter(pair for order in orders for pair in order).values()) <= 2
    assert sum(map(len, orders)) - len(WINDOWS) < world
    assert world == 70 or orders[0] != sorted(orders[0])


@pytest.mark.parametrize(("batch", "workers"), [(4, 0), (4, 3), (7, 2), (64, 2)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_gives_as_many_batches_as_it_says(lake: Lake, batch: int, workers: int, drop_last: bool) -> None:
    batches = loader(EpisodeStream(make(lake), seed=5), lake, batch, workers, drop_last=drop_last)
    sizes = [len(each["row"]) for each in batches]
    assert len(sizes) == len(batches)
    whole, rest = divmod(len(WINDOWS), batch)
    assert Counter(sizes) == Counter([batch] * whole + [rest] * (rest > 0 and not drop_last))


def test_an_epoch_follows_from_its_seed(lake: Lake) -> None:
    def order(seed: int, epoch: int) -> list[tuple[int, int]]:
        stream = EpisodeStream(make(lake), seed, block_windows=5)
        stream.set_epoch(epoch)
        return [(int(item["row"]), int(item["window"])) for item in stream]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_workers_that_persist_hear_of_the_next_epoch(lake: Lake, how: str) -> None:
    stream = EpisodeStream(make(lake), 1, block_windows=5)
    batches = loader(stream, lake, 4, 1, persistent_workers=True, multiprocessing_context=how)
    for epoch in (0, 1, 7):
        stream.set_epoch(epoch)
        alone = EpisodeStream(make(lake), 1, block_windows=5)
        alone.set_epoch(epoch)
        assert met(batches) == met(loader(alone, lake, 4, 0))


def test_a_stream_decodes_a_gop_about_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Counter[str]()
    decode = Decoder.decode

    def counting(self: Decoder, units: list[bytes], *rest: Any) -> object:
        decoded["pictures"] += len(units)
        return decode(self, units, *rest)

    monkeypatch.setattr(Decoder, "decode", counting)
    items = list(EpisodeStream(make(lake, budget_bytes=0), 3, block_windows=16))
    # one by one each item decodes its GOPs up to the wanted picture: on average half a GOP for each camera
    assert decoded["pictures"] < 2 * 2 * sum(LENGTHS) < len(items) * 2 * 5


def peak_bytes(stream: EpisodeStream) -> int:
    """What a pass over a stream holds at most, as numpy tells it."""
    tracemalloc.start()
    try:
        for _ in stream:
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pool_windows", [0, 8, 32])
def test_a_stream_keeps_to_its_pool(lake: Lake, pool_windows: int) -> None:
    look_back = tuple(range(-15 * 33 * MS, 1, 33 * MS))
    query = Query(
        cameras={"front": look_back, "wrist": look_back},
        size=(48, 64),
        series={"state": SeriesQuery((0,)), "action": SeriesQuery((0,))},
    )
    rows = rows_of(lake, ["episodes/2026-01-01/2.mcap"], query)
    dataset = EpisodeDataset(lake, rows, query, budget_bytes=0)
    item_bytes = size_bytes(dataset[0])
    assert item_bytes == pytest.approx(2 * 16 * 48 * 64 * 3, rel=0.01) and item_bytes == pytest.approx(
        dataset.window_bytes(0), rel=0.01
    )
    pool_bytes = pool_windows * item_bytes
    peak = peak_bytes(EpisodeStream(dataset, 3, block_windows=16, pool_bytes=pool_bytes))
    # beside the pool: the window that was just given, and less than half of one for the index and coded bytes
    assert peak < max(pool_bytes, 2 * item_bytes) + 1.5 * item_bytes


def test_an_epoch_of_a_billion_windows_takes_no_memory(lake: Lake) -> None:
    rows = make(lake).rows
    first = rows.slice(0, 1).set_column(rows.schema.get_field_index("windows"), "windows", pa.array([10**9]))
    dataset = EpisodeDataset(lake, first, QUERY)
    stream = EpisodeStream(dataset, 1, rank=3, world=8, block_windows=1)
    tracemalloc.start()
    try:
        assert len(stream) == 125_000_000
        parts = stream._parts(0, *stream._share(0, 1))
        numbers = [windows[0] for _, (_, windows) in zip(range(100), parts, strict=False)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(numbers)) == 100 and max(numbers) > 5 * 10**8
    assert peak < 100_000


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_read_what_their_parent_reads(lake: Lake, how: str) -> None:
    dataset = make(lake)
    expected = dataset.__getitems__(range(len(dataset)))
    batches = loader(dataset, lake, 5, 4, multiprocessing_context=how)
    found = [front for batch in batches for front in batch["camera.front"]]
    assert len(found) == len(expected)
    assert all(torch.equal(a, b["camera.front"]) for a, b in zip(found, expected, strict=True))


def test_ragged_rows_are_refused(lake: Lake) -> None:
    with pytest.raises(ValueError, match="raw"):
        EpisodeDataset(lake, make(lake).rows, Query(series={"state": SeriesQuery((0, MS), "raw")}))


def test_rows_carry_their_stride(lake: Lake) -> None:
    keys = [f"episodes/2026-01-01/{i}.mcap" for i in range(len(LENGTHS))]
    every = EpisodeDataset(lake, rows_of(lake, keys, QUERY), QUERY)
    third = EpisodeDataset(lake, rows_of(lake, keys, QUERY, stride=3), QUERY)
    found = [(int(item["row"]), int(item["moment_ns"])) for item in third.__getitems__(range(len(third)))]
    all_of_them = [(int(item["row"]), int(item["moment_ns"])) for item in every.__getitems__(range(len(every)))]
    wanted = [pair for row in range(3) for pair in [each for each in all_of_them if each[0] == row][::3]]
    assert found == wanted


def test_rows_are_read_on_the_timeline_that_they_count_in(lake: Lake, tmp_path: Path) -> None:
    """Windows counted by the slow camera stay where they are for a query that reads the fast one, and none is lost."""
    path = Path(lake.url("episodes/2026-01-01/rates.mcap"))
    raw = raw_episode(40)
    slow = camera("overview", pictures(8, 48, 64), rate_hz=6.0)
    write_episode(path, replace(raw, cameras=(raw.cameras[0], slow)), FACTS)
    fast = Query(cameras={"front": (0,)}, size=(24, 32))
    both = Query(cameras={"front": (0,), "overview": (0,)}, size=(24, 32))
    key = "episodes/2026-01-01/rates.mcap"
    for counted, times in ((fast, raw.cameras[0].times_ns), (both, slow.times_ns)):
        rows = rows_of(lake, [key], counted)
        for query in (fast, both):
            dataset = EpisodeDataset(lake, rows, query)
            moments = [int(item["moment_ns"]) for item in dataset.__getitems__(range(len(dataset)))]
            assert moments == times.tolist()
    other = rows.set_column(rows.schema.get_field_index("end"), "end", pa.array([40]))
    with pytest.raises(TimelineError, match=r"counted over 40 frames, and overview.* has 8"):
        EpisodeDataset(lake, other, both)[0]


def test_rows_that_do_not_say_what_they_count_in_are_refused(lake: Lake) -> None:
    with pytest.raises(ValueError, match="which timeline"):
        EpisodeDataset(lake, make(lake).rows.replace_schema_metadata(None), QUERY)


def test_the_rows_of_a_manifest_are_read_as_they_are(toy_lake: Lake) -> None:
    rows = build_manifest(toy_lake, RECIPE).rows("train")
    query = Query(cameras={"front": (0,)}, size=(32, 32), series={"action": SeriesQuery((0,))})
    dataset = EpisodeDataset(toy_lake, rows, query)
    times = open_episode(toy_lake, rows.column("uri")[1].as_py()).cameras["front"].times_ns
    assert int(dataset[12 + 5]["moment_ns"]) == times[5]


def test_a_camera_that_is_not_there_is_named(lake: Lake) -> None:
    with pytest.raises(TimelineError, match=r"side, and the episode .* has front, wrist"):
        rows_of(lake, ["episodes/2026-01-01/0.mcap"], Query(cameras={"side": (0,)}))
    for query in (Query(cameras={"side": (0,)}), Query(series={"force": SeriesQuery((0,))})):
        with pytest.raises(EpisodeError, match="there is no"):
            next(iter(EpisodeStream(EpisodeDataset(lake, make(lake).rows, query), 1)))

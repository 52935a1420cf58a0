"""The torch face of episodes: windows by number, and an epoch that meets each of them once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megahour.episode.h264 import Decoder
from megahour.episode.reader import open_episode
from megahour.episode.sample import Query, SeriesQuery
from megahour.episode.writer import write_episode
from megahour.storage import Lake, open_lake
from tests.samples import FACTS, raw_episode
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


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (2, 0), (3, 2)])
def test_an_epoch_meets_every_window_once(lake: Lake, world: int, workers: int) -> None:
    met: Counter[tuple[int, int]] = Counter()
    orders = []
    for rank in range(world):
        stream = EpisodeStream(make(lake), seed=5, rank=rank, world=world, block_windows=6)
        batches = list(loader(stream, lake, 4, workers))
        order = [pair for b in batches for pair in zip(b["row"].tolist(), b["window"].tolist(), strict=True)]
        assert len(order) == len(stream)
        met.update(order)
        orders.append(order)
    assert met == {(row, window): 1 for row, frames in enumerate(LENGTHS) for window in range(frames - 4)}
    assert orders[0] != sorted(orders[0])


def test_an_epoch_follows_from_its_seed(lake: Lake) -> None:
    def order(seed: int, epoch: int) -> list[tuple[int, int]]:
        stream = EpisodeStream(make(lake), seed, block_windows=5)
        stream.set_epoch(epoch)
        return [(int(item["row"]), int(item["window"])) for item in stream]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)


def test_a_stream_decodes_a_gop_about_once_and_keeps_to_its_pool(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Counter[str]()
    decode = Decoder.decode

    def counting(self: Decoder, units: list[bytes], *rest: Any) -> object:
        decoded["pictures"] += len(units)
        return decode(self, units, *rest)

    monkeypatch.setattr(Decoder, "decode", counting)
    dataset = make(lake, budget_bytes=0)
    item_bytes = size_bytes(dataset[0])
    decoded.clear()
    held = 0
    draw = rooms._draw

    def watching(pool: list[rooms.Item], dice: object) -> rooms.Item:
        nonlocal held
        held = max(held, sum(map(size_bytes, pool)))
        return draw(pool, dice)  # type: ignore[arg-type]

    monkeypatch.setattr(rooms, "_draw", watching)
    items = list(EpisodeStream(dataset, 3, block_windows=16, pool_bytes=4 * item_bytes))
    assert held <= (4 + 16) * item_bytes
    # one by one each item decodes its GOPs up to the wanted picture: on average half a GOP for each camera
    assert decoded["pictures"] < 2 * 2 * sum(LENGTHS) < len(items) * 2 * 5


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

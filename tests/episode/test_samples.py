"""A sample holds what was nearest, last or between at every wanted time, each topic at its own rate, and says where
nothing was near."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.episode import decoding, h264, writer
from megahour.episode.decoding import Run, Threads
from megahour.episode.model import Camera, EpisodeError, Frames, RawEpisode, Series
from megahour.episode.profile import MIXED, Rendition
from megahour.episode.ranges import MemoryBytes
from megahour.episode.reader import EpisodeReader, open_episode_file
from megahour.episode.sample import Pictures, Query, Rows, Sample, SeriesQuery, rows_at
from megahour.episode.writer import write_episode
from tests.samples import FACTS, camera, jittered_ns, number_of, numbered, raw_episode, series

MS = 1_000_000
HOWS: tuple[Literal["nearest", "last", "linear", "raw"], ...] = ("nearest", "last", "linear", "raw")


def camera_at(name: str, times_ns: np.ndarray) -> Camera:
    return replace(camera(name, numbered(len(times_ns))), times_ns=times_ns)


def series_at(name: str, times_ns: np.ndarray, columns: int, dtype: Any = np.float32) -> Series:
    return replace(series(name, len(times_ns), columns, seed=columns, dtype=dtype), times_ns=times_ns)


def the_episode() -> RawEpisode:
    """Three seconds of a robot whose topics share no rate: no camera with another, no series with a camera."""
    gap = np.delete(jittered_ns(45, 15, seed=2, start_ns=3 * MS), slice(20, 26))
    state = series_at("state", jittered_ns(300, 100, seed=4, start_ns=1 * MS), 6)
    state.values[40:44, 2] = np.nan
    state.values[200, 0] = np.inf
    return replace(
        raw_episode(),
        rate_hz=1.0,
        cameras=(
            camera_at("a", jittered_ns(90, 30, seed=1)),
            camera_at("b", gap),
            camera_at("c", jittered_ns(22, 7.3, seed=3, start_ns=40 * MS)),
            camera_at("single", np.array([1_500 * MS])),
        ),
        series=(
            state,
            series_at("action", np.delete(jittered_ns(60, 20, seed=5), slice(30, 36)), 3, np.float64),
            series_at("event", np.array([700 * MS]), 1),
        ),
    )


EPISODE = the_episode()
TOPICS: list[Camera | Series] = [*EPISODE.cameras, *EPISODE.series]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    path = tmp_path_factory.mktemp("samples") / "e.mcap"
    with pytest.MonkeyPatch.context() as patch:
        # Many chunks of few rows: what lies around a moment then lies in one, in two, or in several.
        patch.setattr(writer, "COMPRESSED_CHUNK_BYTES", 3_000)
        write_episode(path, EPISODE, FACTS)
    yield path.read_bytes()


def opened(data: bytes, threads: int = 1) -> EpisodeReader:
    return EpisodeReader(MemoryBytes("e.mcap", data), threads=Threads(threads))


# What a sample ought to hold, worked out one time after the other.


def period_of(times: Sequence[int]) -> float:
    return statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0


def found_at(times: Sequence[int], wanted: int, how: str, period: float) -> tuple[int, bool]:
    """The place of what stands for a wanted time, and whether it may."""
    if how == "nearest":
        i = min(range(len(times)), key=lambda i: (abs(times[i] - wanted), i))
    else:
        i = max((i for i, time in enumerate(times) if time <= wanted), default=0)
    near = period == 0 or abs(times[i] - wanted) <= 1.5 * period
    return i, near and (how == "nearest" or times[i] <= wanted)


def row_at(times: Sequence[int], values: np.ndarray, wanted: int, how: str) -> tuple[list[float], bool]:
    period = int(period_of(times))
    if how != "linear":
        i, valid = found_at(times, wanted, how, period)
        row = values[i].tolist()
        return row, valid and all(map(math.isfinite, row))
    before, _ = found_at(times, wanted, "last", period)
    after = before if times[before] >= wanted else min(before + 1, len(times) - 1)
    if wanted >= times[after] or before == after:
        row = values[after].tolist()
    else:
        share = (wanted - times[before]) / (times[after] - times[before])
        pairs = zip(values[before].tolist(), values[after].tolist(), strict=True)
        row = [a + share * (b - a) for a, b in pairs]
    near = period == 0 or all(abs(times[i] - wanted) <= 1.5 * period for i in (before, after))
    return row, near and times[0] <= wanted <= times[-1] and all(map(math.isfinite, row))


def assert_rows(found: Rows, topic: Series, moment_ns: int, query: SeriesQuery) -> None:
    times, wanted = topic.times_ns.tolist(), [moment_ns + offset for offset in query.offsets_ns]
    if query.how == "raw":
        inside = [i for i, time in enumerate(times) if wanted[0] <= time <= wanted[-1]]
        assert found.times_ns.tolist() == [times[i] for i in inside]
        assert found.values.tobytes() == topic.values[inside].tobytes()
        assert found.values.shape == (len(inside), len(topic.names))
        assert found.valid.tolist() == [bool(np.isfinite(topic.values[i]).all()) for i in inside]
        return
    expected = [row_at(times, topic.values, each, query.how) for each in wanted]
    assert found.times_ns.tolist() == wanted
    assert found.valid.tolist() == [valid for _, valid in expected]
    assert found.values.dtype == (np.float64 if query.how == "linear" else topic.values.dtype)
    np.testing.assert_allclose(found.values, [row for row, _ in expected], rtol=1e-12)


def assert_pictures(found: Pictures, source: Camera, moment_ns: int, offsets: Sequence[int], pick: str) -> None:
    times = source.times_ns.tolist()
    expected = [found_at(times, moment_ns + offset, pick, period_of(times)) for offset in offsets]
    assert [number_of(picture) for picture in found.frames] == [i for i, _ in expected]
    assert found.times_ns.tolist() == [times[i] for i, _ in expected]
    assert found.valid.tolist() == [valid for _, valid in expected]


offsets_ns = st.lists(st.integers(-1_500 * MS, 1_500 * MS), min_size=1, max_size=4).map(
    lambda each: tuple(sorted(each))
)
moments_ns = st.integers(-1_000 * MS, 4_000 * MS) | st.sampled_from(
    [time for topic in TOPICS for time in topic.times_ns[::7].tolist()]
)
queries = st.builds(
    Query,
    cameras=st.dictionaries(st.sampled_from([each.name for each in EPISODE.cameras]), offsets_ns),
    series=st.dictionaries(
        st.sampled_from([each.name for each in EPISODE.series]),
        st.builds(SeriesQuery, offsets_ns, st.sampled_from(HOWS)),
    ),
    pick=st.sampled_from(["nearest", "last"]),
)


def assert_sample(sample: Sample, moment_ns: int, query: Query) -> None:
    assert sample.moment_ns == moment_ns
    assert (sample.pictures.keys(), sample.series.keys()) == (query.cameras.keys(), query.series.keys())
    for source in EPISODE.cameras:
        if source.name in query.cameras:
            assert_pictures(sample.pictures[source.name], source, moment_ns, query.cameras[source.name], query.pick)
    for topic in EPISODE.series:
        if topic.name in query.series:
            assert_rows(sample.series[topic.name], topic, moment_ns, query.series[topic.name])


@settings(max_examples=60, deadline=None)
@given(moments=st.lists(moments_ns, min_size=1, max_size=3), query=queries)
def test_samples_are_those_worked_out_by_hand(data: bytes, moments: list[int], query: Query) -> None:
    for sample, moment_ns in zip(opened(data).samples(moments, query), moments, strict=True):
        assert_sample(sample, moment_ns, query)


times_of = st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True).map(sorted)
values_of = st.sampled_from([0.0, 1.0, -2.5, 1e9, math.nan, math.inf, -math.inf, 1.7e308, -1.7e308])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_rows_of_any_times_are_those_worked_out_by_hand(drawn: st.DataObject) -> None:
    times = drawn.draw(times_of)
    values = np.array(drawn.draw(st.lists(values_of, min_size=2 * len(times), max_size=2 * len(times)))).reshape(-1, 2)
    wanted = sorted(drawn.draw(st.lists(st.integers(-30, 90), min_size=1, max_size=5)))
    how = drawn.draw(st.sampled_from(HOWS))
    topic = Series("any", np.array(times, np.int64), values, ("x", "y"))
    with np.errstate(invalid="raise", over="raise"):
        found = rows_at((topic.times_ns, values, int(period_of(times))), np.array(wanted, np.int64), how)
    assert_rows(found, topic, 0, SeriesQuery(tuple(wanted), how))


def test_of_two_rows_equally_near_the_earlier_one_is_taken() -> None:
    times_ns, values = np.array([0, 10, 20]), np.array([[0.0], [1.0], [2.0]])
    found = rows_at((times_ns, values, 10), np.array([4, 5, 6, 14, 15, 16]), "nearest")
    assert found.values[:, 0].tolist() == [0, 0, 1, 1, 1, 2]
    for end, valid in ((35, True), (36, False)):
        assert rows_at((times_ns, values, 10), np.array([end]), "nearest").valid.tolist() == [valid], "1.5 periods"


def sampled(data: bytes, moment_ms: float, query: Query) -> Sample:
    return opened(data).sample(round(moment_ms * MS), query)


def test_outside_the_episode_the_ends_stand_in_and_are_not_valid(data: bytes) -> None:
    for how in ("nearest", "last", "linear"):
        wanted = SeriesQuery((-2_000 * MS, 0, 2_000 * MS), how)
        found = sampled(data, 1_500, Query({"a": wanted.offsets_ns}, series={"state": wanted}))
        assert found.series["state"].valid.tolist() == [False, True, False]
        np.testing.assert_array_equal(found.series["state"].values[[0, 2]], EPISODE.series[0].values[[0, -1]])
        assert found.pictures["a"].valid.tolist() == [False, True, False]
        assert [number_of(picture) for picture in found.pictures["a"].frames[[0, 2]]] == [0, 89]


def test_in_a_gap_nothing_is_valid(data: bytes) -> None:
    times = EPISODE.cameras[1].times_ns
    middle_ms = float(times[19] + times[20]) / 2 / MS
    assert times[20] - times[19] > 6 * period_of(times.tolist())
    for pick in ("nearest", "last"):
        found = sampled(data, middle_ms, Query({"a": (0,), "b": (0,)}, pick=pick)).pictures
        assert (found["a"].valid.tolist(), found["b"].valid.tolist()) == ([True], [False])
        assert number_of(found["b"].frames[0]) in (19, 20)
    action = EPISODE.series[1].times_ns
    middle_ms = float(action[29] + action[30]) / 2 / MS
    for how in ("nearest", "last", "linear"):
        rows = sampled(data, middle_ms, Query(series={"action": SeriesQuery((0,), how)})).series["action"]
        assert rows.valid.tolist() == [False]


def test_a_row_that_is_not_finite_is_not_valid_and_neighbours_are(data: bytes) -> None:
    for how in HOWS:
        offsets = tuple(int(t) for t in EPISODE.series[0].times_ns[38:46])
        rows = sampled(data, 0, Query(series={"state": SeriesQuery(offsets, how)})).series["state"]
        assert rows.valid.tolist() == [True] * 2 + [False] * 4 + [True] * 2
        assert np.isnan(rows.values[2:6, 2]).all()
    between_ms = float(EPISODE.series[0].times_ns[43:45].mean()) / MS
    found = sampled(data, between_ms, Query(series={"state": SeriesQuery((0,), "linear")}))
    assert found.series["state"].valid.tolist() == [False]


@settings(max_examples=30, deadline=None)
@given(moment_ns=moments_ns)
def test_last_never_looks_into_the_future(data: bytes, moment_ns: int) -> None:
    query = Query({"a": (0,), "b": (0,)}, series={"state": SeriesQuery((0,), "last")}, pick="last")
    sample = opened(data).sample(moment_ns, query)
    for found in sample.pictures.values():
        assert found.times_ns[0] <= moment_ns or not found.valid[0]
    (row,) = sample.series["state"].values
    rows = EPISODE.series[0]
    known = rows.values[rows.times_ns <= moment_ns]
    if len(known):
        assert row.tobytes() == known[-1].tobytes()
    else:
        assert sample.series["state"].valid.tolist() == [False]


def test_a_single_picture_or_row_stands_for_any_time(data: bytes) -> None:
    query = Query({"single": (-100 * MS, 0)}, series={"event": SeriesQuery((-100 * MS, 0), "nearest")})
    found = sampled(data, 2_900, query)
    assert [number_of(picture) for picture in found.pictures["single"].frames] == [0, 0]
    assert found.pictures["single"].valid.all()
    assert found.series["event"].values.tolist() == EPISODE.series[2].values.tolist() * 2
    assert found.series["event"].valid.all()
    # The last picture not later is none before the first.
    early = sampled(data, 0, Query({"single": (0,)}, series={"event": SeriesQuery((0,), "last")}, pick="last"))
    assert not early.pictures["single"].valid.any()
    assert not early.series["event"].valid.any()


def test_a_word_that_is_none_is_refused(data: bytes) -> None:
    reader, word = opened(data), cast(Any, "neareast")
    wrong: dict[str, Callable[[], object]] = {
        "how is 'neareast', and must be one of nearest, last, linear, raw": lambda: SeriesQuery((0,), word),
        "pick is 'neareast', and must be one of nearest, last": lambda: Query({"a": (0,)}, pick=word),
        "chroma is 'neareast', and must be one of nearest, smooth": lambda: Query({"a": (0,)}, chroma=word),
        "chroma is None, and must be one of": lambda: reader.frames("a", [0], chroma=cast(Any, None)),
    }
    for sentence, make in wrong.items():
        with pytest.raises(ValueError, match=sentence):
            make()


def test_a_query_may_ask_for_nothing(data: bytes) -> None:
    reader = opened(data)
    assert reader.samples([], Query({"a": (0,)})) == []
    assert reader.sample(5, Query()) == Sample(5, {}, {})
    assert reader.sample(5, Query({"a": ()})).pictures["a"].frames.shape == (0, 48, 64, 3)
    with pytest.raises(EpisodeError, match="'state' asks for no times"):
        reader.sample(5, Query(series={"state": SeriesQuery(())}))
    for wrong in (Query({"side": (0,)}), Query(series={"force": SeriesQuery((0,))})):
        with pytest.raises(EpisodeError, match=r"e\.mcap: there is no") as caught:
            reader.sample(5, wrong)
        assert caught.value.reason == "no_topic"


EVERYTHING = Query(
    {each.name: (-60 * MS, 0, 200 * MS) for each in EPISODE.cameras},
    (24, 40),
    {each.name: SeriesQuery((-60 * MS, 0, 10 * MS), how) for each, how in zip(EPISODE.series, HOWS, strict=False)},
)
MANY_NS = [2_900 * MS, 0, 700 * MS, 710 * MS, 1_333 * MS, 700 * MS]


def plain(sample: Sample) -> list[Any]:
    columns = [*sample.pictures.values(), *sample.series.values()]
    return [sample.moment_ns, [[array.tobytes() for array in vars(column).values()] for column in columns]]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_at_once_are_the_same_as_one_by_one(data: bytes, threads: int) -> None:
    together = opened(data, threads).samples(MANY_NS, EVERYTHING)
    reader = opened(data)
    assert [plain(sample) for sample in together] == [plain(reader.sample(each, EVERYTHING)) for each in MANY_NS]
    assert [plain(sample) for sample in together] == [plain(opened(data).sample(each, EVERYTHING)) for each in MANY_NS]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were decoded."""
    runs: list[Run] = []
    really = decoding.decode

    def recorded(run: Run) -> list[Frames]:
        runs.append(run)
        return really(run)

    monkeypatch.setattr(decoding, "decode", recorded)
    return runs


def test_a_picture_that_several_need_is_decoded_once_and_none_behind_the_last(
    data: bytes, decoded: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[Any] = []
    really = h264._rgb

    def convert(reformatter: Any, *how: Any) -> Frames:
        converted.append(how)
        return really(reformatter, *how)

    monkeypatch.setattr(h264, "_rgb", convert)
    times = EPISODE.cameras[0].times_ns
    reader = opened(data)
    keys = np.flatnonzero(reader.index.cameras[0].keyframes).tolist()
    first, second, third = [key for key, following in pairwise(keys) if following - key > 4][:3]
    wanted = [first + 1, first + 3, second, second + 2]
    reader.samples([int(times[i]) for i in [*wanted, *wanted]], Query({"a": (0,)}))
    assert [len(run.units) for run in decoded] == [4, 3], "each GOP once, up to its last wanted picture"
    assert [[i for i, want in enumerate(run.wanted) if want] for run in decoded] == [[1, 3], [0, 2]]
    assert len(converted) == 4, "only wanted pictures are converted"

    reader.samples([int(times[first + 3]), int(times[third])], Query({"a": (0,)}))
    assert [len(run.units) for run in decoded[2:]] == [1], "the other picture is remembered"
    reader.sample(int(times[third]), Query({"a": (0,)}, (24, 32)))
    assert len(decoded) == 4, "at another size it is another picture"


def test_a_wide_query_of_all_cameras_decodes_each_gop_once(data: bytes, decoded: list[Run]) -> None:
    opened(data, threads=2).samples(MANY_NS, EVERYTHING)
    begins = [run.units[0] for run in decoded]
    assert len(begins) == len(set(begins))


@pytest.mark.parametrize("rendition", [None, Rendition(24, 32)])
def test_samples_of_any_size_show_the_same_pictures(tmp_path: Path, rendition: Rendition | None) -> None:
    write_episode(tmp_path / "e", EPISODE, FACTS, replace(MIXED, rendition=rendition))
    reader = opened((tmp_path / "e").read_bytes())
    for size in ((24, 32), (12, 16), (30, 21), None):
        found = reader.sample(1_500 * MS, Query({"a": (-500 * MS, 0, 400 * MS)}, size))
        assert found.pictures["a"].frames.shape[1:3] == (size or (48, 64))
        assert_pictures(found.pictures["a"], EPISODE.cameras[0], 1_500 * MS, (-500 * MS, 0, 400 * MS), "nearest")


def test_a_size_that_cannot_be_is_told(tmp_path: Path) -> None:
    write_episode(tmp_path / "e.mcap", raw_episode(3), FACTS)
    reader = open_episode_file(tmp_path / "e.mcap")
    with pytest.raises(EpisodeError, match="pictures of 5x0 pixels cannot be made") as caught:
        reader.sample(0, Query({"front": (0,)}, (0, 5)))
    assert caught.value.reason == "out_of_range"

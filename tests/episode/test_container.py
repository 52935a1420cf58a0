"""An episode is an MCAP file that other tools read, and that its own reader reads by range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory

from megahour.episode.check import check_bytes, check_episode
from megahour.episode.model import Camera, EpisodeError, Series
from megahour.episode.profile import MIXED, PROFILES, WORLD
from megahour.episode.reader import open_episode, open_episode_file
from megahour.episode.writer import WrittenEpisode, write_episode
from megahour.storage import open_lake, put_file
from tests.samples import FACTS, camera, pictures, psnr_db, raw_episode, series


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "episode.mcap"


def test_stock_reader_finds_equal_messages(path: Path) -> None:
    episode = raw_episode()
    write_episode(path, episode, FACTS)
    reader = open_episode_file(path)
    stock: dict[str, list[Any]] = {}
    with path.open("rb") as file:
        found = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        for _, channel, message, decoded in found.iter_decoded_messages():
            stock.setdefault(channel.topic, []).append((message.log_time, decoded))
        metadata = {record.name: record.metadata for record in found.iter_metadata()}

    for source in episode.cameras:
        times, videos = zip(*stock[f"/camera/{source.name}"], strict=True)
        assert list(times) == source.times_ns.tolist()
        assert [video.data for video in videos] == reader.coded(source.name, 0, len(times))
        assert {video.format for video in videos} == {"h264"}
    for topic in episode.series:
        times, joints = zip(*stock[f"/{topic.name}"], strict=True)
        assert list(times) == topic.times_ns.tolist()
        values = np.array([[joint.position for joint in message.joints] for message in joints], np.float32)
        assert values.tobytes() == topic.values.tobytes()
        assert tuple(joint.name for joint in joints[0].joints) == topic.names
        assert [m.timestamp.seconds * 10**9 + m.timestamp.nanos for m in joints] == list(times)
    assert metadata["megahour.episode"]["task"] == FACTS.task
    assert check_bytes("episode", path.read_bytes()) == []


def test_facts_and_notes_return(path: Path) -> None:
    episode = raw_episode()
    facts = replace(FACTS, task="Öffne die Flasche", success=None, rate_hz=1 / 3, attributes={"b": "2", "a": '"'})
    written = write_episode(path, episode, facts, WORLD)
    reader = open_episode_file(path)
    assert written == WrittenEpisode(path.stat().st_size, 24, {"front": 24, "wrist": 24})
    assert (reader.facts, reader.notes, reader.profile) == (facts, episode.notes, "world")
    assert reader.series_names == ("state", "action")
    for source in episode.cameras:
        info = reader.cameras[source.name]
        assert (info.width, info.height, info.frames) == (source.width, source.height, 24)
        assert info.times_ns.tolist() == source.times_ns.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_return_bit_for_bit(path: Path, dtype: Any) -> None:
    info = np.finfo(dtype)
    odd = [0.0, -0.0, np.nan, np.inf, -np.inf, info.tiny, info.smallest_subnormal, info.max, 0.1, -1 / 3]
    topic = series("torque", 400, len(odd), dtype=dtype)
    topic.values[7] = odd
    write_episode(path, replace(raw_episode(), series=(topic,)), FACTS)
    returned = open_episode_file(path).series("torque")
    assert returned.values.dtype == dtype
    assert returned.values.tobytes() == topic.values.tobytes()
    assert returned.times_ns.tolist() == topic.times_ns.tolist()
    assert returned.names == topic.names
    with pytest.raises(ValueError, match="read-only"):
        returned.values[0] = 1


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
def test_same_input_same_bytes(tmp_path: Path, profile: Any) -> None:
    # Widths of 5 macroblocks are where x264 once read beyond its rows; the heap differs from pass to pass.
    episode, written = raw_episode(size=(48, 80)), set()
    for i in range(8):
        heap = [bytes(7919 * (i + 1)) for _ in range(i)]
        write_episode(tmp_path / "e", episode, FACTS, profile)
        written.add((tmp_path / "e").read_bytes())
        del heap
    assert len(written) == 1


def test_cameras_at_different_rates(path: Path) -> None:
    fast, slow, still = pictures(90, 32, 32, 1), pictures(30, 32, 32, 2), pictures(1, 32, 32, 3)
    episode = replace(
        raw_episode(), cameras=(camera("fast", fast, 90), camera("slow", slow, 30), camera("still", still, 1))
    )
    written = write_episode(path, episode, FACTS, replace(MIXED, chunk_bytes=1))
    assert written.frames == 1
    reader = open_episode_file(path)
    for name, video in (("fast", fast), ("slow", slow), ("still", still)):
        returned = reader.frames(name, range(len(video)))
        assert min(psnr_db(a, b) for a, b in zip(video, returned, strict=True)) > 25
    keys = np.flatnonzero(reader.index.cameras[0].keyframes)
    assert np.diff(keys).max() <= MIXED.gop
    assert check_bytes("episode", path.read_bytes()) == []


def test_episode_of_the_lake(tmp_path: Path, path: Path) -> None:
    lake = open_lake((tmp_path / "lake").as_uri())
    write_episode(path, raw_episode(), FACTS)
    ref = put_file(lake, "episodes/2026-01-02/e.mcap", path)
    for size_bytes in (None, ref.size_bytes):
        reader = open_episode(lake, ref.key, size_bytes)
        assert reader.frames("front", [3]).shape == (1, 48, 64, 3)
    assert check_episode(lake, ref.key) == []
    with pytest.raises(EpisodeError, match=r"no episode .*episodes/none\.mcap") as caught:
        open_episode(lake, "episodes/none.mcap")
    assert caught.value.reason == "missing"
    assert [problem.reason for problem in check_episode(lake, "episodes/none.mcap")] == ["missing"]


def test_a_source_that_fails_leaves_nothing_behind(path: Path) -> None:
    good = raw_episode()

    def broken() -> Iterator[Any]:
        yield from pictures(5, 48, 64)
        raise OSError("the cable was pulled")

    write_episode(path, good, FACTS)
    before = path.read_bytes()
    with pytest.raises(OSError, match="cable"):
        write_episode(path, replace(good, cameras=(replace(good.cameras[0], frames=broken),)), FACTS)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def _with_times(topic: Series | Camera, times: Any) -> Any:
    return replace(topic, times_ns=np.asarray(times, np.int64))


@pytest.mark.parametrize("shown", [23, 25])
def test_pictures_and_times_must_be_as_many(path: Path, shown: int) -> None:
    good = raw_episode()
    wrong = replace(good.cameras[0], frames=camera("front", pictures(shown, 48, 64)).frames)
    with pytest.raises(EpisodeError, match="24 times") as caught:
        write_episode(path, replace(good, cameras=(wrong,)), FACTS)
    assert caught.value.reason == "frame_count"


def test_times_must_increase(path: Path) -> None:
    good = raw_episode()
    times = good.series[0].times_ns.copy()
    times[5] = times[4]
    with pytest.raises(EpisodeError, match="'state' must be positive and increase; row 5") as caught:
        write_episode(path, replace(good, series=(_with_times(good.series[0], times),)), FACTS)
    assert caught.value.reason == "times"
    with pytest.raises(EpisodeError, match="row 0"):
        write_episode(path, replace(good, series=(_with_times(good.series[0], times - 1),)), FACTS)


def test_topics_need_different_names_and_rows(path: Path) -> None:
    good = raw_episode()
    for wrong in (
        replace(good, series=(good.series[0], good.series[0])),
        replace(good, series=(series("state", 0, 4),)),
        replace(good, series=(replace(good.series[0], names=("one",)),)),
        replace(good, cameras=(replace(good.cameras[0], width=60),)),
        replace(good, cameras=(), series=()),
    ):
        with pytest.raises(EpisodeError) as caught:
            write_episode(path, wrong, FACTS)
        assert caught.value.reason == "invalid"
    assert not path.exists()

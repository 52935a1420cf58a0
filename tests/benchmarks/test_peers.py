"""The other readers read the same pictures out of the same streams, or the benchmark says so and stops."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import peers as benchmark
from benchmarks.patterns import SIZE, VLA, moments
from benchmarks.peers import OURS, PEERS, SMALL, VARIANT, Peer, Streams, fits, look, one_by_one, peers, written
from infra.laptop.peers import FOLDER
from megahour.episode.model import RawEpisode
from megahour.episode.profile import MIXED, WORLD, Rendition
from megahour.episode.profile import VLA as VLA_PROFILE
from megahour.episode.reader import open_episode_file
from tests.samples import camera, raw_episode, series

FRAMES = 210


def passing_by(seed: int) -> RawEpisode:
    """A bright bar moves over a still scene, one pixel a picture: all pictures are about as bright."""
    rng = np.random.default_rng(seed)
    video = rng.integers(60, 100, (1, 96, 128, 1)).repeat(3, axis=-1).repeat(FRAMES, axis=0).astype(np.uint8)
    for i, picture in enumerate(video):
        picture[:, np.arange(i, i + 24) % 128] = 220
    return RawEpisode(
        index=0,
        robot="r",
        task="t",
        rate_hz=30.0,
        success=True,
        cameras=(camera("a", video), camera("b", video[::-1])),
        series=(series("state", FRAMES, 4), series("action", FRAMES, 3)),
    )


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    return written(tmp_path_factory.mktemp("streams") / "mixed", MIXED, [passing_by(0), passing_by(1)])


@pytest.fixture(scope="module")
def peer(streams: Streams) -> Iterator[Peer]:
    if not (FOLDER / "lerobot" / "bin" / "python").exists():
        pytest.skip("the other readers are not here: python -m infra.laptop.peers")
    with peers(streams) as found:
        yield found


def test_a_profile_with_a_rendition_is_also_read_without(tmp_path: Path) -> None:
    episode = raw_episode(frames=12, size=(256, 256), cameras=("a",))
    streams = written(tmp_path / "small", replace(MIXED, rendition=Rendition(*SIZE)), [episode])
    assert set(streams.sides) == {OURS, SMALL}
    assert streams.sides[OURS] == streams.plain
    assert open_episode_file(streams.sides[SMALL][0]).cameras["a"].renditions == (SIZE,)
    assert not open_episode_file(streams.plain[0]).cameras["a"].renditions
    assert [set(videos) for videos in streams.videos] == [{"a"}]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("resize", [True, False])
def test_everyone_reads_the_same_pictures(streams: Streams, peer: Peer, resize: bool) -> None:
    tasks = [(number, int(frame)) for number in range(2) for frame in moments(streams.episodes[number], VLA, 3)]
    asked = [{"file": task[0], "cameras": streams.indices(VLA, task)} for task in tasks]
    ours = one_by_one(streams, streams.plain, VLA, SIZE if resize else None)
    look("toys", ours, peer, resize, tasks, asked)
    assert all(peer.spent(name, resize, asked).cpu_ms > 0 for name in (*PEERS, VARIANT))


@pytest.mark.parametrize("resize", [True, False])
@pytest.mark.parametrize("late", [-1, 1])
def test_pictures_of_one_moment_beside_are_noticed(streams: Streams, peer: Peer, late: int, resize: bool) -> None:
    ours = one_by_one(streams, streams.plain, VLA, SIZE if resize else None)
    asked = [{"file": 0, "cameras": streams.indices(VLA, (0, 160 + late))}]
    with pytest.raises(RuntimeError, match="did not read the same pictures"):
        look("toys", ours, peer, resize, [(0, 160)], asked)


def test_a_peer_that_ends_is_an_error() -> None:
    command = [sys.executable, "-c", "input(); raise SystemExit(3)"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program,
        pytest.raises(RuntimeError, match="torchcodec ended with code 3"),
    ):
        Peer(program).spent("torchcodec", True, [])


def test_without_the_peers_the_way_to_make_them_is_named(
    streams: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match=r"infra\.laptop\.peers"), peers(streams):
        pass


def test_a_profile_is_read_as_it_is_meant_to_be() -> None:
    assert [fits(profile, VLA) for profile in (VLA_PROFILE, MIXED, WORLD)] == [True, True, False]
    assert [fits(profile, benchmark.WORLD_ACTION) for profile in (VLA_PROFILE, MIXED, WORLD)] == [False, True, True]

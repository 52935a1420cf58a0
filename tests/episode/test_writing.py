"""An episode is written whole or not at all; the same input gives the same bytes, on however many cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megahour.episode import joints, streams
from megahour.episode.model import Camera, EpisodeError, ExtraMessage, ExtraTopic, Frames, RawEpisode
from megahour.episode.profile import MIXED, PROFILES, Profile, Rendition
from megahour.episode.reader import open_episode_file
from megahour.episode.writer import write_episode
from megahour.storage import list_files, open_lake
from tests.samples import FACTS, camera, h264_camera, jpeg_camera, number_of, numbered, pictures, raw_episode, series

REPO = Path(__file__).parents[2]


def mixed_cameras() -> RawEpisode:
    """Pixels at three rates, JPEG and H.264."""
    return replace(
        raw_episode(),
        cameras=(
            camera("fast", pictures(60, 48, 80, 1), 60.0),
            camera("odd", pictures(30, 47, 63, 2)),
            camera("slow", pictures(10, 48, 64, 3), 10.0),
            jpeg_camera("files", pictures(30, 48, 64, 4)),
            h264_camera("stream", pictures(30, 48, 64, 5), gop=7),
        ),
        extras=(ExtraTopic("said", "json", "", "", b""),),
        extra_messages=lambda: iter([ExtraMessage("said", i, b"{}") for i in range(40)]),
    )


APART = {"fast": ("/camera/fast",), "cameras": ("/camera/*",), "renditions": ("/rendition/*",), "rest": ("*",)}
LAYOUTS: dict[str, Profile] = {
    **PROFILES,
    "renditions": replace(MIXED, rendition=Rendition(24, 32)),
    "as coded": replace(MIXED, pictures="as_coded", rendition=Rendition(24, 32), groups=APART),
}


@pytest.mark.parametrize("profile", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_cores_do_not_change_the_bytes(tmp_path: Path, profile: Profile) -> None:
    episode, written = mixed_cameras(), set()
    for cores in (1, 2, 3):
        write_episode(tmp_path / "e", episode, FACTS, profile, cores)
        written.add((tmp_path / "e").read_bytes())
    assert len(written) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


def watched(source: Camera, see: Callable[[int], None]) -> Camera:
    """A camera that tells before each picture which one it is."""

    def frames() -> Iterator[Frames]:
        for i, picture in enumerate(source.frames()):
            see(i)
            yield picture

    return replace(source, frames=frames)


def test_one_core_is_this_thread_alone(tmp_path: Path) -> None:
    before, during = set(threading.enumerate()), set()

    def see(_: int) -> None:
        during.update(threading.enumerate())
        assert threading.current_thread() is threading.main_thread()

    episode = mixed_cameras()
    seen = replace(episode, cameras=tuple(watched(each, see) for each in episode.cameras))
    write_episode(tmp_path / "e", seen, FACTS, LAYOUTS["renditions"], cores=1)
    assert during == before
    # Nor does a single camera need another.
    write_episode(tmp_path / "e", replace(seen, cameras=seen.cameras[:1]), FACTS, cores=8)
    assert during == before


@pytest.mark.parametrize("cores", [2, 3])
def test_as_many_cameras_as_cores_are_coded_at_once_and_never_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    lock, meeting, entries = threading.Lock(), threading.Barrier(cores), count()
    inside, most = 0, 0
    really = streams.encode

    def encode(*how: Any) -> Iterator[Any]:
        nonlocal inside, most
        units = really(*how)
        while True:
            with lock:
                inside += 1
                most = max(most, inside)
            # The first few meet, or the test fails; later ones only let others have their chance.
            if next(entries) < cores:
                meeting.wait(60)
            os.sched_yield()
            unit = next(units, None)
            with lock:
                inside -= 1
            if unit is None:
                return
            yield unit

    monkeypatch.setattr(streams, "encode", encode)
    cameras = tuple(camera(f"c{i}", numbered(40)) for i in range(5))
    write_episode(tmp_path / "e", replace(raw_episode(), cameras=cameras), FACTS, cores=cores)
    assert most == cores
    reader = open_episode_file(tmp_path / "e")
    assert {number_of(reader.frames(each.name, [33])[0]) for each in cameras} == {33}


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("at", [0, 5, 39])
def test_an_error_in_a_camera_comes_out_and_leaves_no_file_and_no_thread(tmp_path: Path, cores: int, at: int) -> None:
    def see(i: int) -> None:
        if i == at:
            raise OSError("the cable was pulled")

    threads = threading.enumerate()
    cameras = [camera(f"c{i}", numbered(40)) for i in range(4)]
    cameras[2] = watched(cameras[2], see)
    with pytest.raises(OSError, match="cable"):
        write_episode(tmp_path / "e", replace(raw_episode(), cameras=tuple(cameras)), FACTS, cores=cores)
    assert list(tmp_path.iterdir()) == []
    assert threading.enumerate() == threads


def test_an_error_elsewhere_ends_the_threads_too(tmp_path: Path) -> None:
    """What the writer itself finds wrong in one camera does not leave the other waiting for its turn."""
    threads = threading.enumerate()
    long, short = camera("long", numbered(300)), camera("short", numbered(40))
    wrong = replace(short, frames=camera("short", numbered(39)).frames)
    apart = replace(MIXED, groups={"short": ("/camera/short",), "cameras": ("/camera/*",), "rest": ("*",)})
    with pytest.raises(EpisodeError, match="39 pictures, and 40 times"):
        write_episode(tmp_path / "e", replace(raw_episode(), cameras=(wrong, long)), FACTS, apart, cores=2)
    assert list(tmp_path.iterdir()) == []
    assert threading.enumerate() == threads


VICTIM = """
import sys
from dataclasses import replace
from pathlib import Path
from megahour.episode.writer import write_episode
from tests.samples import FACTS, camera, numbered, raw_episode

def endless(source):
    def frames():
        for i, picture in enumerate(source.frames()):
            if i == 150:
                print("writing", flush=True)
                sys.stdin.read()
            yield picture
    return replace(source, frames=frames)

cameras = (camera("front", numbered(300)), endless(camera("wrist", numbered(300))))
episode = replace(raw_episode(), cameras=cameras)
write_episode(Path(sys.argv[1]), episode, FACTS, cores=int(sys.argv[2]))
"""


@pytest.mark.parametrize("cores", [1, 2])
def test_a_writer_that_is_killed_leaves_no_episode(tmp_path: Path, cores: int) -> None:
    lake = open_lake(tmp_path.as_uri())
    write_episode(tmp_path / "old.mcap", raw_episode(), FACTS)
    before = (tmp_path / "old.mcap").read_bytes()
    for name in ("new.mcap", "old.mcap"):
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(tmp_path / name), str(cores)],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert victim.stdout is not None
        assert victim.stdin is not None
        assert victim.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) > 1, "it is writing"
        victim.send_signal(signal.SIGKILL)
        assert victim.wait(60) == -signal.SIGKILL
        victim.stdin.close()
        victim.stdout.close()
        assert [ref.key for ref in list_files(lake, "")] == ["old.mcap"]
        assert (tmp_path / "old.mcap").read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("cores", [1, 2])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, cores: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        write_episode(disk / "small", raw_episode(), FACTS)
        threads = threading.enumerate()
        noise = np.random.default_rng(0).integers(0, 255, (30, 64, 96, 3), np.uint8)
        episode = replace(raw_episode(), cameras=(camera("a", noise), camera("b", noise)))
        with pytest.raises(OSError, match="No space left on device"):
            write_episode(disk / "large", episode, FACTS, cores=cores)
        assert [path.name for path in disk.iterdir()] == ["small"]
        assert threading.enumerate() == threads
        assert open_episode_file(disk / "small").frames("front", [3]).shape == (1, 48, 64, 3)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_pictures_are_pulled_as_they_are_written(tmp_path: Path) -> None:
    """No camera runs far ahead of another, so memory does not grow with the episode."""
    places = {"a": 0, "b": 0, "c": 0}
    widest = 0

    def see(name: str, i: int) -> None:
        nonlocal widest
        places[name] = i
        widest = max(widest, max(places.values()) - min(places.values()))

    def one(name: str) -> Camera:
        return watched(camera(name, numbered(300)), lambda i: see(name, i))

    episode = replace(raw_episode(), cameras=tuple(one(name) for name in places))
    write_episode(tmp_path / "e", episode, FACTS)
    assert widest < 60
    with_small = replace(MIXED, rendition=Rendition(24, 32))
    places, widest = dict.fromkeys(places, 0), 0
    write_episode(tmp_path / "e", episode, FACTS, with_small, cores=2)
    assert widest < 60


def test_rows_are_serialized_as_they_are_written(tmp_path: Path) -> None:
    """Of series that are read together each is a slice in memory, however long it is."""

    def peak_bytes(rows: int) -> int:
        together = tuple(series(f"s{i}", rows, 13, 1000.0, seed=i) for i in range(2))
        episode = replace(raw_episode(), cameras=(), series=together)
        tracemalloc.start()
        write_episode(tmp_path / "e", episode, FACTS)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found = open_episode_file(tmp_path / "e")
        assert all(found.series(each.name).values.tobytes() == each.values.tobytes() for each in together)
        return taken

    assert peak_bytes(10_000) - peak_bytes(5_000) < 1_000_000


@pytest.mark.parametrize("slice_bytes", [1, 200, 2**30])
def test_slices_do_not_change_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    episode = replace(raw_episode(), cameras=())
    write_episode(tmp_path / "e", episode, FACTS)
    expected = (tmp_path / "e").read_bytes()
    monkeypatch.setattr(joints, "SLICE_BYTES", slice_bytes)
    write_episode(tmp_path / "e", episode, FACTS)
    assert (tmp_path / "e").read_bytes() == expected

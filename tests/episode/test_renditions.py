"""A rendition is every larger camera once more, small; reads that want no larger pictures take it, and only it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megahour.episode.index import CameraIndex
from megahour.episode.model import EpisodeError
from megahour.episode.profile import MIXED, Profile, Rendition
from megahour.episode.ranges import FileBytes
from megahour.episode.reader import EpisodeReader, open_episode_file
from megahour.episode.sample import Query
from megahour.episode.writer import write_episode
from tests.samples import (
    FACTS,
    CountingBytes,
    camera,
    h264_camera,
    jpeg_camera,
    number_of,
    numbered,
    pictures,
    psnr_db,
    raw_episode,
)

SMALL = replace(MIXED, rendition=Rendition(24, 32, crf=12))
VIDEOS = {
    "front": pictures(40, 96, 128, 1),
    "odd": pictures(40, 47, 63, 2),
    "wide": pictures(40, 16, 64, 3),
    "same": pictures(40, 24, 32, 4),
    "tiny": pictures(40, 16, 24, 5),
}
EPISODE = replace(raw_episode(frames=400), cameras=tuple(camera(name, video) for name, video in VIDEOS.items()))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("renditions") / "e.mcap"
    write_episode(path, EPISODE, FACTS, SMALL)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same episode without renditions."""
    path = tmp_path_factory.mktemp("plain") / "e.mcap"
    write_episode(path, EPISODE, FACTS, replace(MIXED, crf=12))
    return path


def test_larger_cameras_have_one_and_others_none(path: Path) -> None:
    found = {name: info.renditions for name, info in open_episode_file(path).cameras.items()}
    one = ((24, 32),)
    assert found == {"front": one, "odd": one, "wide": one, "same": (), "tiny": ()}


def test_small_pictures_are_close_to_the_large_ones_scaled(path: Path, plain: Path) -> None:
    with_one, without = open_episode_file(path), open_episode_file(plain)
    for name in ("front", "odd"):
        for size in ((24, 32), (20, 20), (7, 9)):
            small = with_one.frames(name, range(40), size, chroma="smooth")
            assert small.shape == (40, *size, 3)
            assert psnr_db(without.frames(name, range(40), size), small) > 34, (name, size)
            # And none is one of another moment.
            shifted = without.frames(name, range(1, 40), size)
            assert psnr_db(shifted, small[:-1]) < 30, (name, size)


def _extent(cameras: list[CameraIndex]) -> tuple[int, int]:
    return (
        min(int(each.offsets[0]) for each in cameras),
        max(int(each.offsets[-1]) + int(each.lengths[-1]) for each in cameras),
    )


@pytest.mark.parametrize(
    ("size", "small"),
    [((24, 32), True), ((24, 31), True), ((8, 8), True), ((25, 32), False), ((24, 33), False), (None, False)],
)
def test_it_is_used_when_it_is_no_smaller_than_what_is_wanted(
    path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int] | None, small: bool
) -> None:
    # The tail of so small an episode would hold some of them.
    monkeypatch.setattr("megahour.episode.tail.TAIL_BYTES", 2_000)
    source = CountingBytes(FileBytes(path))
    reader = EpisodeReader(source)
    opening = len(source.reads)
    reader.sample(200_000_000, Query({"front": (0,)}, size))
    reader.frames("odd", [30], size)
    asked = [each for call in source.reads[opening:] for each in call]
    assert len(asked) == 2
    full = _extent([each for each in reader.index.cameras if not each.rendition_of])
    renditions = _extent([each for each in reader.index.cameras if each.rendition_of])
    assert full[1] <= renditions[0]
    low, high = renditions if small else full
    assert all(low <= start < end <= high for start, end in asked)


def test_cameras_without_one_are_read_themselves(path: Path, plain: Path) -> None:
    reader = open_episode_file(path)
    for name in ("same", "tiny"):
        own = VIDEOS[name].shape[1:3]
        assert psnr_db(reader.frames(name, range(40)), VIDEOS[name]) > 25
        again = open_episode_file(plain).frames(name, [5], (own[0] // 2, own[1] // 2))
        assert psnr_db(reader.frames(name, [5], (own[0] // 2, own[1] // 2)), again) > 30


def test_pictures_at_full_size_do_not_depend_on_renditions(path: Path, tmp_path: Path) -> None:
    write_episode(tmp_path / "e", EPISODE, FACTS)
    without, reader = open_episode_file(tmp_path / "e"), open_episode_file(path)
    for name in VIDEOS:
        assert reader.coded(name, 0, 40) == without.coded(name, 0, 40)


@pytest.mark.parametrize("gop", [3, 10, 50])
def test_pictures_that_came_coded_have_renditions_too(tmp_path: Path, gop: int) -> None:
    cameras = (
        jpeg_camera("files", numbered(40)),
        h264_camera("stream", numbered(40), gop),
        camera("raw", numbered(40)),
    )
    profile: Profile = replace(SMALL, pictures="as_coded")
    write_episode(tmp_path / "e", replace(EPISODE, cameras=cameras), FACTS, profile)
    reader = open_episode_file(tmp_path / "e")
    for name in ("files", "stream", "raw"):
        for size in ((24, 32), None):
            assert [number_of(each) for each in reader.frames(name, range(40), size)] == list(range(40))
    small = [each for each in reader.index.cameras if each.rendition_of == "stream"]
    assert np.diff(np.flatnonzero(small[0].keyframes)).max() <= SMALL.gop, "their GOPs are the profile's"


def test_a_camera_cannot_be_read_by_the_name_of_a_rendition(path: Path) -> None:
    reader = open_episode_file(path)
    assert list(reader.cameras) == list(VIDEOS)
    with pytest.raises(EpisodeError, match="no camera 'rendition/front'"):
        reader.frames("rendition/front", [0])

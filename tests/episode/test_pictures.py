"""Pictures keep their quality, their order and their size."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from megahour.episode.h264 import Settings, encode, encode_video, is_keyframe, nal_units, scale_frames
from megahour.episode.model import Chroma, EpisodeError
from megahour.episode.profile import MIXED
from megahour.episode.reader import open_episode_file
from megahour.episode.sample import Query
from megahour.episode.writer import write_episode
from tests.samples import FACTS, camera, careful_rgb, pictures, psnr_db, raw_episode, rgb

CHROMAS: tuple[Chroma, ...] = ("nearest", "smooth")
SETTINGS = Settings(rate_hz=30.0, crf=20, preset="veryfast")


@pytest.mark.parametrize("size", [(48, 64), (47, 63), (47, 64), (128, 128), (17, 19)])
def test_quality_also_of_odd_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    video = pictures(30, *size)
    episode = replace(raw_episode(), cameras=(camera("front", video),))
    write_episode(tmp_path / "e.mcap", episode, FACTS, replace(MIXED, crf=12))
    returned = open_episode_file(tmp_path / "e.mcap").frames("front", range(30))
    assert returned.shape == video.shape
    # Where few pixels share a colour sample, halving the chroma planes alone costs this much.
    expected = 32 if min(size) > 40 else 27
    assert np.mean([psnr_db(a, b) for a, b in zip(video, returned, strict=True)]) > expected


def test_any_order_any_repetition(tmp_path: Path) -> None:
    write_episode(tmp_path / "e.mcap", raw_episode(), FACTS)
    reader = open_episode_file(tmp_path / "e.mcap")
    whole = reader.frames("front", range(24))
    asked: list[Any] = [[5], [23, 0, 11, 11, 5], [9, 10], [20, 19, 18], [], [3] * 4, np.array([7, 1], np.int32)]
    for indices in asked:
        assert np.array_equal(reader.frames("front", indices), whole[np.asarray(indices, int)])
    for wrong in ([24], [-1], [0, 100]):
        with pytest.raises(EpisodeError, match="0 to 23") as caught:
            reader.frames("front", wrong)
        assert caught.value.reason == "out_of_range"
    with pytest.raises(EpisodeError, match="no camera 'side', only front, wrist"):
        reader.frames("side", [0])
    with pytest.raises(EpisodeError, match="no series 'force', only state, action"):
        reader.series("force")


@pytest.mark.parametrize("size", [(48, 64), (46, 50), (34, 18)])
def test_another_decoder_sees_the_same_pictures(tmp_path: Path, size: tuple[int, int]) -> None:
    """FFmpeg's own conversion repeats colours; with all its care it interpolates them."""
    episode = replace(raw_episode(), cameras=(camera("front", pictures(24, *size)),))
    write_episode(tmp_path / "e.mcap", episode, FACTS)
    reader = open_episode_file(tmp_path / "e.mcap")
    (tmp_path / "e.h264").write_bytes(b"".join(reader.coded("front", 0, 24)))
    with av.open(str(tmp_path / "e.h264")) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        assert stream.codec_context.has_b_frames is False
    repeated, interpolated = np.stack([rgb(frame) for frame in frames]), np.stack([careful_rgb(f) for f in frames])
    assert not np.array_equal(repeated, interpolated)
    assert np.array_equal(reader.frames("front", range(24)), repeated)
    assert np.array_equal(reader.frames("front", range(24), chroma="smooth"), interpolated)
    moment, queries = int(reader.cameras["front"].times_ns[5]), [Query({"front": (0,)}, chroma=c) for c in CHROMAS]
    for query, expected in zip(queries, (repeated, interpolated), strict=True):
        assert np.array_equal(reader.sample(moment, query).pictures["front"].frames, expected[5:6])


@pytest.mark.parametrize("size", [(48, 64), (47, 63), (33, 17)])
def test_a_repeated_colour_belongs_to_four_pixels(tmp_path: Path, size: tuple[int, int]) -> None:
    height, width = size
    colours = np.random.default_rng(0).integers(60, 200, (3, -(-height // 2), -(-width // 2), 3), np.uint8)
    video = colours.repeat(2, axis=1).repeat(2, axis=2)[:, :height, :width]
    episode = replace(raw_episode(), cameras=(camera("front", video),))
    write_episode(tmp_path / "e.mcap", episode, FACTS, replace(MIXED, crf=1))
    found = open_episode_file(tmp_path / "e.mcap").frames("front", range(3))
    assert np.abs(found.astype(int) - video).mean() < 3


def test_keyframes_are_where_asked_and_decode_alone() -> None:
    asked = [i in (0, 3, 4, 17) for i in range(24)]
    units = list(encode(pictures(24, 48, 64), (48, 64), asked, SETTINGS))
    assert [unit.keyframe for unit in units] == asked
    assert [is_keyframe(unit.data) for unit in units] == asked
    assert [[nal[0] & 31 for nal in nal_units(unit.data)] for unit in units] == [[7, 8, 5] if k else [1] for k in asked]


def test_damaged_structure_is_seen() -> None:
    units = list(encode(pictures(4, 48, 64), (48, 64), [True, False, False, False], SETTINGS))
    key, delta = units[0].data, units[1].data
    for wrong in (
        delta + units[2].data,
        key.replace(b"\x00\x00\x00\x01" + nal_units(key)[0], b""),
        b"\x00" + b"xyz",
        b"",
    ):
        with pytest.raises(EpisodeError) as caught:
            is_keyframe(wrong)
        assert caught.value.reason == "corrupt"


def test_b_frames_are_refused() -> None:
    codec = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt, codec.framerate = 64, 48, "yuv420p", Fraction(30)
    codec.options = {"x264-params": "bframes=3:b-adapt=0:annexb=1:repeat-headers=1:threads=1"}
    packets = []
    for i, picture in enumerate([*pictures(12, 48, 64), None]):
        frame = None if picture is None else av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format="yuv420p")
        if frame is not None:
            frame.pts = i
        packets += [bytes(packet) for packet in codec.encode(frame)]
    with pytest.raises(EpisodeError, match="B-frame"):
        _ = [is_keyframe(packet) for packet in packets]


def test_scaling_is_area_averaging_and_the_same_for_pictures_from_elsewhere(tmp_path: Path) -> None:
    video = pictures(12, 192, 256)
    episode = replace(raw_episode(), cameras=(camera("front", video),))
    write_episode(tmp_path / "e.mcap", episode, FACTS, replace(MIXED, crf=1))
    small = open_episode_file(tmp_path / "e.mcap").frames("front", range(12), size=(48, 64))
    means = video.reshape(12, 48, 4, 64, 4, 3).mean(axis=(2, 4)).round().astype(np.uint8)
    assert small.shape == (12, 48, 64, 3)
    assert psnr_db(means, small) > 38
    assert psnr_db(scale_frames(video, (48, 64)), small) > 45
    assert scale_frames(video, (64, 64)).shape == (12, 64, 64, 3)


def test_odd_pictures_scale_without_their_padding(tmp_path: Path) -> None:
    video = np.full((4, 47, 63, 3), (200, 60, 40), np.uint8)
    episode = replace(raw_episode(), cameras=(camera("front", video),))
    write_episode(tmp_path / "e.mcap", episode, FACTS)
    small = open_episode_file(tmp_path / "e.mcap").frames("front", range(4), size=(24, 24))
    assert np.abs(small.astype(int) - (200, 60, 40)).max() <= 4
    assert np.abs(scale_frames(video, (24, 24)).astype(int) - (200, 60, 40)).max() <= 4


def test_rollout_video_plays(tmp_path: Path) -> None:
    video = pictures(20, 63, 64)
    encode_video(tmp_path / "v.mp4", iter(video), 10.0)
    with av.open(str(tmp_path / "v.mp4")) as container:
        stream = container.streams.video[0]
        frames = [rgb(frame) for frame in container.decode(stream)]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt, stream.average_rate) == ("h264", "yuv420p", 10)
    assert len(frames) == 20
    assert psnr_db(video, np.stack(frames)[:, :63]) > 28
    with pytest.raises(ValueError, match="no pictures"):
        encode_video(tmp_path / "none.mp4", [], 10.0)
    assert [path.name for path in tmp_path.iterdir()] == ["v.mp4"]

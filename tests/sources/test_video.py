"""Odd videos: what is counted without decoding is what decodes, as it is meant to be shown."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from megahour.sources import SourceError
from megahour.sources.video import probe_video, read_video
from tests.samples import psnr_db, samples_dir


@pytest.mark.parametrize(
    ("name", "width", "height", "frames"),
    [
        ("h265_video.mp4", 128, 128, 10),
        ("testsrc2_mpeg4.mp4", 64, 64, 1),
        ("testsrc2_odd_height_and_width_vp9.mp4", 321, 241, 25),
        ("h264_10bits.mp4", 200, 200, 30),
        ("test_non_zero_start.mp4", 200, 112, 12),
        ("discard_first_keyframe.mp4", 64, 64, 25),
        ("nasa_13013_rotated.mp4", 270, 480, 17),
    ],
)
def test_odd_videos(name: str, width: int, height: int, frames: int) -> None:
    path = samples_dir() / "odd_videos" / name
    facts = probe_video(path, name)
    shown = list(read_video(path, name, facts))
    assert (facts.width, facts.height, facts.frames) == (width, height, frames)
    assert len(shown) == frames
    assert {picture.shape for picture in shown} == {(height, width, 3)}
    assert (np.diff(facts.times_s) > 0).all()


def test_rotated_video_stands_upright() -> None:
    path = samples_dir() / "odd_videos" / "nasa_13013_rotated.mp4"
    facts = probe_video(path, "rotated")
    with av.open(str(path)) as container:
        lying = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert psnr_db(np.rot90(lying, facts.quarter_turns), next(read_video(path, "rotated", facts))) > 35


def test_a_video_without_pictures(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(SourceError, match="no video in it") as caught:
        probe_video(tmp_path / "a.mp4", "a.mp4")
    assert caught.value.reason == "unreadable"

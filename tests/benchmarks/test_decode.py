"""Streams outside of the reader are the same streams."""

from __future__ import annotations

import shutil
from pathlib import Path

import av
import numpy as np
import pytest

from benchmarks.decode import ffmpeg, remux
from benchmarks.episodes import facts
from megahour.episode.reader import EpisodeReader, open_episode_file
from megahour.episode.writer import write_episode
from tests.samples import raw_episode


@pytest.fixture
def reader(tmp_path: Path) -> EpisodeReader:
    episode = raw_episode()
    write_episode(tmp_path / "e.mcap", episode, facts(episode, "e"))
    return open_episode_file(tmp_path / "e.mcap")


def test_an_mp4_holds_the_very_stream(tmp_path: Path, reader: EpisodeReader) -> None:
    path = remux(reader, "front", tmp_path / "front.mp4")
    info = reader.cameras["front"]
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    assert [round(frame.time * 1e9) for frame in frames] == pytest.approx(info.times_ns.tolist(), abs=5000)
    keyframes = reader.index.cameras[0].keyframes
    assert [frame.key_frame for frame in frames] == keyframes.tolist()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert frames[-1].pts is not None
        container.seek(frames[-1].pts, stream=stream)
        first = next(packet.pts for packet in container.demux(stream))
        assert first == frames[int(np.flatnonzero(keyframes)[-1])].pts, "whoever seeks lands on the keyframe before"
    codec = av.CodecContext.create("h264", "r")
    codec.flags |= av.codec.context.Flags.low_delay
    for frame, unit in zip(frames, reader.coded("front", 0, info.frames), strict=True):
        (own,) = codec.decode(av.Packet(unit))
        assert np.array_equal(frame.to_ndarray(), own.to_ndarray()), "planes before any conversion"


def test_ffmpeg_says_what_it_took(tmp_path: Path, reader: EpisodeReader) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("there is no ffmpeg here")
    path = remux(reader, "front", tmp_path / "front.mp4")
    assert 0 < ffmpeg(path, 24, 200, "scale=32:32,format=rgb24").cpu_ms < 1000

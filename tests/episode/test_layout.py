"""Chunks hold one group, in order of time, cut where all its cameras start anew; streams have no B-frames."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import PictureType
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from mcap.records import Chunk, Message
from mcap.stream_reader import StreamReader, breakup_chunk

from megahour.episode.h264 import is_keyframe, nal_units
from megahour.episode.nal import PPS, SPS
from megahour.episode.profile import MIXED, PROFILES, VLA, WORLD, Profile, Rendition
from megahour.episode.reader import EpisodeReader, open_episode_file
from megahour.episode.writer import write_episode
from tests.episode.test_writing import LAYOUTS, mixed_cameras
from tests.samples import FACTS, camera, h264_camera, numbered, pictures, raw_episode

ALL = {**LAYOUTS, "many chunks": replace(MIXED, chunk_bytes=1, rendition=Rendition(24, 32))}


@dataclass(frozen=True)
class Found:
    """A chunk as the stock reader finds it."""

    compression: str
    size_bytes: int
    messages: list[Message]


def chunks_of(path: Path) -> list[Found]:
    records = StreamReader(io.BytesIO(path.read_bytes()), emit_chunks=True).records
    return [
        Found(each.compression, each.uncompressed_size, [m for m in breakup_chunk(each) if isinstance(m, Message)])
        for each in records
        if isinstance(each, Chunk)
    ]


def groups_of(reader: EpisodeReader) -> dict[int, str]:
    return {channel: each.group for channel, each in reader.index.by_channel.items()}


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL.keys())
def test_chunks_hold_one_group_in_order_of_time(tmp_path: Path, profile: Profile) -> None:
    write_episode(tmp_path / "e", mixed_cameras(), FACTS, profile)
    reader, chunks = open_episode_file(tmp_path / "e"), chunks_of(tmp_path / "e")
    groups, cameras = groups_of(reader), {each.channel for each in reader.index.cameras}
    order = []
    for chunk in chunks:
        (group,) = {groups[message.channel_id] for message in chunk.messages}
        order.append(group)
        assert [m.log_time for m in chunk.messages] == sorted(m.log_time for m in chunk.messages)
        pictures = {message.channel_id for message in chunk.messages} & cameras
        assert chunk.compression == ("" if pictures else "zstd"), "a byte range inside pictures can be read"
    # Each group lies together, cameras first and what is read with every sample last.
    together = list(dict.fromkeys(order))
    assert order == sorted(order, key=together.index)
    assert together[0] == reader.index.cameras[0].group
    assert together[-1] == profile.group_of("/action")
    for one, other in pairwise(chunks):
        if groups[one.messages[0].channel_id] == groups[other.messages[0].channel_id]:
            assert one.messages[-1].log_time <= other.messages[0].log_time
            if not one.compression:
                assert one.size_bytes >= profile.chunk_bytes


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL.keys())
def test_a_chunk_of_cameras_begins_with_a_keyframe_of_each(tmp_path: Path, profile: Profile) -> None:
    write_episode(tmp_path / "e", mixed_cameras(), FACTS, replace(profile, chunk_bytes=1))
    reader, chunks = open_episode_file(tmp_path / "e"), chunks_of(tmp_path / "e")
    stored = {each.channel: each for each in reader.index.cameras}
    for chunk in chunks:
        numbers: dict[int, int] = {}
        for message in chunk.messages:
            if message.channel_id in stored:
                numbers.setdefault(message.channel_id, message.sequence)
        # A stream that came coded sets the pace, but not for its rendition: that has the GOPs of the profile.
        apart = profile.pictures == "as_coded" and groups_of(reader)[chunk.messages[0].channel_id] == "renditions"
        assert apart or all(stored[channel].keyframes[number] for channel, number in numbers.items())


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL.keys())
def test_every_keyframe_carries_its_parameter_sets_and_no_picture_is_a_b_frame(
    tmp_path: Path, profile: Profile
) -> None:
    write_episode(tmp_path / "e", mixed_cameras(), FACTS, profile)
    reader = open_episode_file(tmp_path / "e")
    units: dict[int, list[bytes]] = {}
    for chunk in chunks_of(tmp_path / "e"):
        for message in chunk.messages:
            units.setdefault(message.channel_id, []).append(message.data)
    streams = [each for each in reader.index.cameras if each.codec == "h264"]
    assert len(streams) >= 4
    for stream in streams:
        coded = [CompressedVideo.FromString(data).data for data in units[stream.channel]]
        assert [is_keyframe(unit) for unit in coded] == stream.keyframes.tolist()
        for unit, keyframe in zip(coded, stream.keyframes, strict=True):
            types = {nal[0] & 31 for nal in nal_units(unit)}
            assert ({SPS, PPS} <= types) == keyframe
        keys = np.flatnonzero(stream.keyframes)
        assert keys[0] == 0
        if stream.name != "stream" or profile.pictures == "h264":
            assert np.diff([*keys, len(coded)]).max() <= profile.gop
        # As a decoder sees it that is told nothing.
        (tmp_path / "raw.h264").write_bytes(b"".join(coded))
        with av.open(str(tmp_path / "raw.h264")) as container:
            kinds = [PictureType(frame.pict_type).name for frame in container.decode(video=0)]
            assert container.streams.video[0].codec_context.has_b_frames is False
        assert len(kinds) == len(coded)
        assert set(kinds) <= {"I", "P"}
        assert [kind == "I" for kind in kinds] == stream.keyframes.tolist()


def test_settings_of_a_profile_cannot_make_an_episode_unreadable(tmp_path: Path) -> None:
    wish = "bframes=3:b-adapt=2:b-pyramid=2:keyint=4:scenecut=60:threads=4:repeat-headers=0:annexb=0:aud=1"
    # Where the scene changes x264 would like to start anew.
    scenes = np.concatenate([pictures(13, 48, 64), 255 - pictures(14, 48, 64, seed=1), pictures(13, 48, 64, seed=2)])
    episode = replace(raw_episode(), cameras=(camera("front", scenes), camera("wrist", scenes[::-1])))
    for name, x264 in (("plain", "aq-mode=0"), ("wish", f"aq-mode=0:{wish}")):
        write_episode(tmp_path / name, episode, FACTS, replace(MIXED, x264=x264))
    assert np.flatnonzero(open_episode_file(tmp_path / "plain").index.cameras[0].keyframes).tolist() == [0, 10, 20, 30]
    assert (tmp_path / "wish").read_bytes() == (tmp_path / "plain").read_bytes()


def test_profiles_differ_in_how_often_pictures_stand_alone(tmp_path: Path) -> None:
    found = {}
    for profile in (VLA, MIXED, WORLD):
        write_episode(tmp_path / "e", replace(raw_episode(), cameras=(camera("front", numbered(90)),)), FACTS, profile)
        reader = open_episode_file(tmp_path / "e")
        assert reader.profile == profile.name
        found[profile.name] = np.flatnonzero(reader.index.cameras[0].keyframes).tolist()
    assert found == {profile.name: list(range(0, 90, profile.gop)) for profile in (VLA, MIXED, WORLD)}
    assert PROFILES.keys() >= found.keys()


def test_a_camera_far_slower_than_the_others_does_not_make_long_chunks(tmp_path: Path) -> None:
    cameras = (camera("fast", numbered(120)), camera("rare", numbered(4), 1.0))
    write_episode(tmp_path / "e", replace(raw_episode(), cameras=cameras), FACTS, replace(MIXED, chunk_bytes=1))
    fast = [
        sum(message.channel_id == 1 for message in chunk.messages)
        for chunk in chunks_of(tmp_path / "e")
        if not chunk.compression
    ]
    assert fast == [10] * 12


def test_a_stream_of_one_gop_is_one_chunk_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.episode.writer.MOST_CHUNK_BYTES", 4_000)
    source = h264_camera("front", numbered(120), gop=1_000)
    write_episode(tmp_path / "e", replace(raw_episode(), cameras=(source,)), FACTS, replace(MIXED, pictures="as_coded"))
    sizes = [chunk.size_bytes for chunk in chunks_of(tmp_path / "e") if not chunk.compression]
    assert len(sizes) > 2
    assert max(sizes) < 8_000
    reader = open_episode_file(tmp_path / "e")
    assert np.array_equal(reader.frames("front", [110])[0], reader.frames("front", range(120))[110])

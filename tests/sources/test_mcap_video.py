"""Coded video in MCAP files: every picture at its own time, and none that is not the one that was recorded."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from mcap.writer import Writer
from mcap_protobuf.schema import build_file_descriptor_set
from numpy.typing import NDArray

from megahour.episode.model import Camera, RawEpisode
from megahour.sources import SourceError
from tests.samples import pictures, psnr_db
from tests.sources.mcap_files import coded, codes, land, note, read, times

VIDEO = np.stack([np.roll(picture, 5 * i, axis=1) for i, picture in enumerate(pictures(40, 64, 96))])
GOP = 10
CODECS = ["h264", "h265", "vp9", "av1"]


@pytest.fixture(scope="module")
def packets() -> dict[str, list[bytes]]:
    """The same pictures, by every codec."""
    made = {codec: coded(VIDEO, codec, GOP) for codec in CODECS}
    return made | {
        "b-frames": coded(VIDEO, "h264", GOP, bframes=2),
        "10 bits": coded(VIDEO, "h265", GOP, 0, "yuv420p10le"),
    }


def write(
    path: Path,
    units: dict[int, bytes],
    codec: str = "h264",
    stamps: list[int] | None = None,
    second: dict[int, bytes] | None = None,
) -> None:
    """Messages, by their place among 40 times; `stamps` are those in the messages. `second` go to another channel."""
    when = times(len(VIDEO))
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = build_file_descriptor_set(CompressedVideo).SerializeToString()
        number = writer.register_schema("foxglove.CompressedVideo", "protobuf", schema)
        channels = [writer.register_channel("/front/video", "protobuf", number) for _ in range(2)]
        both = [(i, channels[0], data) for i, data in units.items()]
        both += [(i, channels[1], data) for i, data in (second or {}).items()]
        for i, channel, data in both:
            message: Any = CompressedVideo(format=codec, data=data)
            message.timestamp.FromNanoseconds((stamps or when)[i])
            writer.add_message(channel, when[i], message.SerializeToString(), when[i])
        writer.finish()


def every(units: list[bytes], but: tuple[int, ...] = ()) -> dict[int, bytes]:
    return {i: data for i, data in enumerate(units) if i not in but}


def places(camera: Camera) -> list[int]:
    """Which pictures a camera has, by their times."""
    return [times(len(VIDEO)).index(time_ns) for time_ns in camera.times_ns.tolist()]


def check(root: Path, expected: list[int], least_db: float = 30) -> RawEpisode:
    """The camera shows exactly the pictures `expected`, each at its own time, in every pass."""
    episode = read(root)
    (camera,) = episode.cameras
    assert places(camera) == expected
    for _ in range(2):
        frames = list(camera.frames())
        assert len(frames) == len(expected)
        assert min(psnr_db(one, VIDEO[i]) for one, i in zip(frames, expected, strict=True)) > least_db
    return episode


def spoiled(data: bytes) -> bytes:
    """The second half of a packet, overwritten."""
    half = len(data) // 2
    return data[:half] + bytes(0xFF if i % 2 else 0x3C for i in range(len(data) - half))


def test_neighbours_differ_enough() -> None:
    """A picture in the place of the next one would show."""
    assert max(psnr_db(one, other) for one, other in pairwise(VIDEO)) < 28


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(tmp_path: Path, packets: dict[str, list[bytes]], codec: str) -> None:
    assert len(packets[codec]) == 40
    write(land(tmp_path), every(packets[codec]), codec)
    episode = check(tmp_path, list(range(40)))
    assert codes(episode) == ["mapping_guessed", "rate_guessed"]
    camera = episode.cameras[0]
    assert (camera.name, camera.width, camera.height) == ("front", 96, 64)
    if codec == "h264":
        assert camera.coded is not None and list(camera.coded.units()) == packets[codec]
    else:
        assert camera.coded is None


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_that_begins_before_its_first_keyframe(
    tmp_path: Path, packets: dict[str, list[bytes]], codec: str
) -> None:
    write(land(tmp_path), every(packets[codec], but=tuple(range(4))), codec)
    episode = check(tmp_path, list(range(10, 40)))
    assert note(episode, "dropped") == "camera front: 6 pictures before its first keyframe left out"
    assert episode.cameras[0].coded is None


@pytest.mark.parametrize("codec", ["h264", "h265", "b-frames"])
def test_a_lost_message(tmp_path: Path, packets: dict[str, list[bytes]], codec: str) -> None:
    """Pictures that stand on the lost one are wrong though they decode: the next good one is the keyframe."""
    write(land(tmp_path), every(packets[codec], but=(13,)), "h265" if codec == "h265" else "h264")
    episode = read(tmp_path)
    frames = list(episode.cameras[0].frames())
    found = [int(np.argmax([psnr_db(frame, picture) for picture in VIDEO])) for frame in frames]
    assert (
        len(frames) == len(episode.cameras[0].times_ns)
        and min(psnr_db(frame, VIDEO[i]) for frame, i in zip(frames, found, strict=True)) > 30
    )
    assert found == sorted(set(found)) and found[-20:] == list(range(20, 40))
    if codec != "b-frames":
        assert found == places(episode.cameras[0]) == [*range(13), *range(20, 40)]
        assert note(episode, "dropped").startswith("camera front: 6 pictures left out that are damaged")


def test_a_damaged_message_among_b_frames(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    """Of a GOP I P B B P ..., the second B is damaged: the P before it, shown after it, is good.

    The first B is lost with it: the decoder was about to hand it out.
    """
    units = every(packets["b-frames"])
    write(land(tmp_path), {**units, 13: spoiled(units[13])})
    frames = list(read(tmp_path).cameras[0].frames())
    found = [int(np.argmax([psnr_db(frame, picture) for picture in VIDEO])) for frame in frames]
    assert found == [*range(11), 13, *range(20, 40)]


@pytest.mark.parametrize("codec", ["h264", "av1"])
@pytest.mark.parametrize("at", [13, 20])
def test_a_damaged_message(tmp_path: Path, packets: dict[str, list[bytes]], codec: str, at: int) -> None:
    units = every(packets[codec])
    # AV1 has no redundancy that would show bytes that are only others.
    for damage in (units[at][: len(units[at]) // 2], *([spoiled(units[at])] if codec == "h264" else [])):
        write(land(tmp_path), {**units, at: damage}, codec)
        episode = check(tmp_path, [*range(at), *range(at // 10 * 10 + 10, 40)])
        assert "dropped" in codes(episode)


def test_a_damaged_keyframe_of_h265(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    units = every(packets["h265"])
    write(land(tmp_path), {**units, 20: units[20][: len(units[20]) // 2]}, "h265")
    check(tmp_path, [*range(20), *range(30, 40)])


@pytest.mark.parametrize("codec", CODECS)
def test_empty_messages_do_not_end_the_stream(tmp_path: Path, packets: dict[str, list[bytes]], codec: str) -> None:
    units = every(packets[codec])
    write(land(tmp_path), {**{i - 1: data for i, data in units.items() if i}, 39: b""}, codec)
    write(land(tmp_path), {i: b"" if i == 5 else data for i, data in shifted(units).items()}, codec)
    episode = read(tmp_path)
    camera = episode.cameras[0]
    assert len(camera.times_ns) == len(list(camera.frames())) == 39
    assert note(episode, "dropped") == "/front/video: 1 of 40 messages left out: a message is empty"


def shifted(units: dict[int, bytes]) -> dict[int, bytes]:
    """The same stream with a place free at 5: all behind it one later, the last one gone."""
    return {i: units[i] if i < 5 else units[i - 1] for i in range(40)}


def test_b_frames_are_shown_in_order(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    """Messages come in the order of decoding; pictures are shown in theirs, and times ascend."""
    units = packets["b-frames"]
    write(land(tmp_path), every(units))
    episode = check(tmp_path, list(range(40)))
    assert "has B-frames" in note(episode, "reordered")
    assert episode.cameras[0].coded is None


def test_b_frames_by_their_stamps(tmp_path: Path) -> None:
    """Stamps that say when a picture is shown are its times."""
    # I P B B P B B ...: what a fixed pattern of two B-frames makes of each GOP of 10.
    shown = [0, 3, 1, 2, 6, 4, 5, 9, 7, 8]
    units = coded(VIDEO, "h264", GOP, bframes=2)
    stamps = [times(40)[10 * (i // 10) + shown[i % 10]] for i in range(40)]
    path = land(tmp_path, options="topics:\n  /front/video: {camera: front, time: stamp}\n")
    write(path, every(units), stamps=stamps)
    episode = check(tmp_path, list(range(40)))
    assert "reordered" not in codes(episode)


def test_ten_bits(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    write(land(tmp_path), every(packets["10 bits"]), "h265")
    assert note(check(tmp_path, list(range(40))), "converted") == "camera front has 10 bits per value: stored with 8"


def without(data: bytes, kinds: tuple[int, ...]) -> bytes:
    units = [unit for unit in data.split(b"\0\0\1")[1:] if unit[0] & 31 not in kinds]
    return b"".join(b"\0\0\1" + unit for unit in units)


def refused(root: Path, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        read(root)
    assert caught.value.reason == "unreadable"


def test_streams_that_cannot_be_decoded(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    units = packets["h264"]
    path = land(tmp_path)
    write(path, every([without(unit, (7, 8)) for unit in units]))
    refused(tmp_path, "carries its parameter sets")
    with_lengths = [
        b"".join(len(part).to_bytes(4, "big") + part for part in unit.split(b"\0\0\1")[1:]) for unit in units
    ]
    write(path, every(with_lengths))
    refused(tmp_path, "no Annex B stream")
    write(path, every(units[1:9]))
    refused(tmp_path, "no picture of the video /front/video decodes")
    write(path, every(units), "mjpeg2000")
    assert "its format 'mjpeg2000' is none of h264" in note(read(tmp_path), "undecoded")


def test_parameter_sets_in_a_message_of_their_own(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    units = every(packets["h264"])
    sets = without(units[0], (1, 5, 6))
    write(land(tmp_path), {0: sets, **{i + 1: without(data, (7, 8)) for i, data in units.items() if i < 39}})
    episode = read(tmp_path)
    frames = list(episode.cameras[0].frames())
    assert len(frames) == 39 and min(psnr_db(a, b) for a, b in zip(frames, VIDEO, strict=False)) > 30
    assert episode.cameras[0].coded is None


def test_parameter_sets_said_again_on_the_way(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    """They are no picture, and none is missing before them."""
    units = packets["h264"][:GOP]
    sets = without(units[0], (1, 5, 6))
    write(land(tmp_path), dict(enumerate([*units[:5], sets, *units[5:]])))
    assert len(list(read(tmp_path).cameras[0].frames())) == GOP


def test_a_publisher_that_started_anew(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    """One channel after the other is one camera; two at a time are no stream that can be decoded."""
    units = every(packets["h264"])
    first, second = {i: units[i] for i in range(20)}, {i: units[i] for i in range(20, 40)}
    write(land(tmp_path), first, second=second)
    assert "has 2 channels" in note(check(tmp_path, list(range(40))), "merged")
    write(land(tmp_path), units, second=second)
    episode = read(tmp_path)
    assert episode.cameras == () and len(list(episode.extra_messages())) == 60
    assert "streams of video at the same time" in note(episode, "undecoded")


def test_the_size_changes(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    small: NDArray[np.uint8] = np.ascontiguousarray(VIDEO[:10, :32, :48])
    units = {**every(packets["h264"]), **every(coded(small, "h264", GOP))}
    write(land(tmp_path), units)
    episode = check(tmp_path, list(range(10, 40)))
    assert "10 pictures left out that are not 96x64" in note(episode, "dropped")
    assert episode.cameras[0].coded is None


def test_two_pictures_in_a_message(tmp_path: Path, packets: dict[str, list[bytes]]) -> None:
    """Which time they have is not known: the next keyframe goes on."""
    units = packets["h264"]
    write(land(tmp_path), {**every(units, but=(12,)), 11: units[11] + units[12]})
    check(tmp_path, [*range(11), *range(20, 40)])

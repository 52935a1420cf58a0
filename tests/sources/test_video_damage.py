"""Damaged videos: each kind is refused with its reason and a sentence, before wrong pictures are taken for right."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from megahour.sources.cut import cut_short
from megahour.sources.model import SourceError
from megahour.sources.video import VideoFacts, probe_video, read_video
from tests.samples import psnr_db
from tests.sources.videos import (
    AV1,
    H264,
    H264_B_FRAMES,
    VP9,
    Coding,
    Pictures,
    box,
    empty_sample,
    noisy,
    packet_places,
    rewrite,
    without,
    write,
    x264,
    x265,
)


def read(path: Path) -> tuple[VideoFacts, list[Pictures]]:
    facts = probe_video(path, path.name)
    return facts, list(read_video(path, path.name, facts))


def refused(path: Path, reason: str, text: str = "") -> None:
    """Whether reading a video is refused so, in a sentence that names the file and says what to do."""
    with pytest.raises(SourceError, match=text or None) as caught:
        read(path)
    assert caught.value.reason == reason, caught.value
    assert path.name in str(caught.value)
    assert str(path.parent) not in str(caught.value)


def half(packet: bytes) -> bytes:
    return packet[: len(packet) // 2]


def shortened_unit(packet: bytes) -> bytes:
    """A packet whose last NAL unit ends too early, and whose length says so."""
    at = 0
    while at + 4 + (length := int.from_bytes(packet[at : at + 4], "big")) < len(packet):
        at += 4 + length
    return packet[:at] + (length // 2).to_bytes(4, "big") + packet[at + 4 : at + 4 + length // 2]


@pytest.mark.parametrize("movflags", ["+negative_cts_offsets", "+faststart"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut(tmp_path: Path, share: float, movflags: str) -> None:
    path = write(tmp_path / "a.mp4", muxing={"movflags": movflags})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    refused(path, "truncated", "cut short|never finished")


@pytest.mark.parametrize(("name", "coding"), [("a.webm", VP9), ("a.mkv", H264), ("a.avi", Coding("mpeg4", {}))])
def test_cut_files_of_other_containers(tmp_path: Path, name: str, coding: Coding) -> None:
    path = write(tmp_path / name, coding)
    assert len(read(path)[1]) == 24
    path.write_bytes(path.read_bytes()[:-200])
    refused(path, "truncated", "cut short")


def test_a_recording_that_was_never_finished(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4")
    data = path.read_bytes()
    path.write_bytes(data[: box(data, b"moov") - 8])
    refused(path, "truncated", "index \\(moov\\) is missing")


def test_what_need_not_end_is_not_cut(tmp_path: Path) -> None:
    """A live stream's size is not known; a last box may reach to the end."""
    live = write(tmp_path / "a.mkv", muxing={"live": "1"})
    assert cut_short(live) is None
    assert len(read(live)[1]) == 24
    path = write(tmp_path / "a.mp4", muxing={"movflags": "+faststart"})
    data = bytearray(path.read_bytes())
    at = box(data, b"mdat") - 8
    data[at : at + 4] = bytes(4)
    path.write_bytes(data)
    assert cut_short(path) is None
    assert len(read(path)[1]) == 24


def test_boxes_that_are_none(tmp_path: Path) -> None:
    """A last box of length 0 is not looked into, however its content reads; nor is what is no box."""
    start = b"\x00\x00\x00\x08ftyp\x00\x00\x00\x08moov"
    for rest in (b"\x00\x00\x00\x00mdat\xff\xff\xff\xffmdat", b"\x00\x00\x00\x04free\xff\xff\xff\xff" * 2):
        (tmp_path / "a.mp4").write_bytes(start + rest)
        assert cut_short(tmp_path / "a.mp4") is None
    (tmp_path / "a.mp4").write_bytes(start + b"\x00\x00\x00\x01mdat\x00\x00\x00\x01" + bytes(99))
    assert "4294967312" in (cut_short(tmp_path / "a.mp4") or "")


def test_no_video_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(np.random.default_rng(0).bytes(5000))
    refused(tmp_path / "a.mp4", "unreadable")
    with av.open(str(tmp_path / "b.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    refused(tmp_path / "b.mp4", "no_video", "no video in it")
    with av.open(str(tmp_path / "c.mp4"), "w") as container:
        cover: Any = container.add_stream("mjpeg", rate=1)
        sound = container.add_stream("aac", rate=16000, layout="mono")
        cover.height, cover.width, cover.pix_fmt = 64, 96, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        picture = av.VideoFrame.from_ndarray(noisy(1)[0], format="rgb24").reformat(format="yuvj420p")
        picture.pts = 0
        frame.pts = None
        container.mux([*cover.encode(picture), *cover.encode(None), *sound.encode(frame), *sound.encode(None)])
    refused(tmp_path / "c.mp4", "no_video", "no video in it")


def test_a_machine_at_fault_is_not_the_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megahour.sources import video

    path = write(tmp_path / "a.mp4")
    facts = probe_video(path, "a.mp4")
    with pytest.raises(FileNotFoundError):
        probe_video(tmp_path / "b.mp4", "b.mp4")
    with pytest.raises(FileNotFoundError):
        next(read_video(tmp_path / "b.mp4", "b.mp4", facts))

    def fails(error: type[av.error.FFmpegError], number: int) -> Callable[..., None]:
        def fail(*arguments: Any, **options: Any) -> None:
            raise error(number, "Input/output error")

        return fail

    decoder: Any = type("Decoder", (), {"decode": staticmethod(fails(av.error.MemoryError, errno.ENOMEM))})
    monkeypatch.setattr(video, "_strictest_decoder", lambda stream: decoder)
    with pytest.raises(MemoryError):
        next(read_video(path, "a.mp4", facts))
    decoder.decode = staticmethod(fails(av.error.OSError, errno.EIO))
    with pytest.raises(SourceError) as caught:
        next(read_video(path, "a.mp4", facts))
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None, "it would seem the disk's fault"
    monkeypatch.setattr(av, "open", fails(av.error.OSError, errno.EIO))
    with pytest.raises(SourceError) as caught:
        probe_video(path, "a.mp4")
    assert caught.value.reason == "unreadable"
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None


def test_a_video_without_frames(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4")
    data = bytearray(path.read_bytes())
    for kind, count in ((b"stts", 4), (b"stsc", 4), (b"stsz", 8), (b"stco", 4), (b"stss", 4)):
        at = box(data, kind) + count
        data[at : at + 4] = bytes(4)
    path.write_bytes(data)
    refused(path, "empty", "without frames")


@pytest.mark.parametrize("dropped", [1, 5, 9, 17])
def test_a_dropped_reference_frame(tmp_path: Path, dropped: int) -> None:
    """It decodes without an error, and the pictures behind it are wrong: frames are numbered, so it is found."""
    whole = write(tmp_path / "a.mp4", x264(g="16"))
    path = without(whole, tmp_path / "b.mp4", dropped)
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.options = {"err_detect": "explode"}
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    right = {picture.tobytes() for picture in read(whole)[1]}
    assert len(decoded) == 23
    assert any(picture.tobytes() not in right for picture in decoded)
    refused(path, "dropped_frames", "are gone")


def test_dropped_frames_of_any_kind_of_h264(tmp_path: Path) -> None:
    """Whatever frame of whatever stream is missing: what is read are pictures of the whole video, or nothing."""
    kinds = (H264, H264_B_FRAMES, x264("b-pyramid=normal:", bf="3", g="24"), x264("slices=3:"), x264("tff=1:"))
    found = 0
    for coding in kinds:
        whole = write(tmp_path / "a.mp4", coding)
        right = {picture.tobytes() for picture in read(whole)[1]}
        for i in range(24):
            try:
                facts, shown = read(without(whole, tmp_path / "b.mp4", i))
            except SourceError as error:
                assert error.reason == "dropped_frames" or (error.reason == "no_keyframe" and i == 0)
                found += 1
            else:
                assert all(picture.tobytes() in right for picture in shown)
                assert facts.notes or i in (0, 23) or len(shown) == 23
    assert found > 60


@pytest.mark.parametrize(
    "coding",
    [x265("bframes=0:"), x265("bframes=2:"), AV1, replace(AV1, options={**AV1.options, "g": "2"})],
    ids=["hevc", "hevc b", "av1", "av1 of 2"],
)
def test_dropped_frames_of_hevc_and_av1(tmp_path: Path, coding: Coding) -> None:
    whole = write(tmp_path / "a.mp4", coding)
    right = {picture.tobytes() for picture in read(whole)[1]}
    refusals = 0
    for i in range(24):
        try:
            shown = read(without(whole, tmp_path / "b.mp4", i))[1]
        except SourceError:
            refusals += 1
        else:
            assert all(picture.tobytes() in right for picture in shown)
    assert refusals >= 6


def test_dropped_frames_that_cannot_be_proven_are_spoken_of(tmp_path: Path) -> None:
    facts, _ = read(without(write(tmp_path / "a.mp4", VP9), tmp_path / "b.mp4", 10))
    assert [note.code for note in facts.notes] == ["gaps", "unproven"]
    facts, _ = read(without(write(tmp_path / "a.avi", Coding("mjpeg", {}, "yuvj420p")), tmp_path / "b.mp4", 10))
    assert [note.code for note in facts.notes] == ["gaps"], "each frame stands for itself"


def test_a_frame_with_no_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", x264(g="24"))
    empty_sample(path, 10)
    refused(path, "dropped_frames")
    path = write(tmp_path / "b.mp4", x264(g="1"))
    empty_sample(path, 10)
    facts, shown = read(path)
    assert [note.code for note in facts.notes] == ["left_out", "gaps"]
    assert psnr_db(np.stack(shown), np.delete(noisy(), 10, axis=0)) > 30


@pytest.mark.parametrize("codec", [H264, H264_B_FRAMES, x264("cabac=0:"), x265("bframes=0:")])
@pytest.mark.parametrize("frame", [0, 8, 9])
def test_half_a_frame(tmp_path: Path, codec: Coding, frame: int) -> None:
    """Half of keyframes 0 and 8 as of any other."""
    whole = write(tmp_path / "a.mp4", codec)
    path = rewrite(whole, tmp_path / "b.mp4", lambda i, data: [half(data) if i == frame else data])
    refused(path, "damaged_frame")


@pytest.mark.parametrize("codec", [H264, x264("cabac=0:")])
@pytest.mark.parametrize("frame", [0, 8, 9])
def test_half_a_slice(tmp_path: Path, codec: Coding, frame: int) -> None:
    """With lengths that fit: only a decoder notices."""
    whole = write(tmp_path / "a.mp4", codec)
    path = rewrite(whole, tmp_path / "b.mp4", lambda i, data: [shortened_unit(data) if i == frame else data])
    if frame:
        assert probe_video(path, "b.mp4").frames == 24
    refused(path, "damaged_frame")


def test_bytes_behind_the_end_of_a_slice(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.mp4", x264("cabac=0:"))

    def longer(i: int, data: bytes) -> list[bytes]:
        size = int.from_bytes(data[:4], "big")
        return [
            (size + 3).to_bytes(4, "big") + data[4:] + b"\x55\x55\x80" if i == 9 and size == len(data) - 4 else data
        ]

    refused(rewrite(whole, tmp_path / "b.mp4", longer), "damaged_frame")


@pytest.mark.parametrize("coding", [H264, x264("cabac=0:"), x265("bframes=0:"), VP9, AV1])
def test_an_overwritten_middle(tmp_path: Path, coding: Coding) -> None:
    path = write(tmp_path / "a.mp4", coding)
    position, size = packet_places(path)[8]
    data = bytearray(path.read_bytes())
    data[position + size // 2 : position + size // 2 + 512] = bytes(512)
    path.write_bytes(data[: len(path.read_bytes())])
    refused(path, "damaged_frame")


def test_a_lost_packet_of_a_transport_stream(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ts", H264, noisy(24, 128, 192))
    data = path.read_bytes()
    lost = packet_places(path)[8][0] // 188 + 2
    path.write_bytes(data[: lost * 188] + data[(lost + 1) * 188 :])
    refused(path, "damaged_frame", "is cut or damaged")


def test_no_parameter_sets(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4")
    data = bytearray(path.read_bytes())
    data[box(data, b"avcC") + 5] &= 0xE0
    path.write_bytes(data)
    refused(path, "no_parameter_sets", "SPS, PPS")


def test_hevc_without_parameter_sets(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", x265())
    data = bytearray(path.read_bytes())
    data[box(data, b"hvcC") + 22] = 0
    path.write_bytes(data)
    refused(path, "no_parameter_sets", "SPS, PPS")


def test_a_video_that_begins_between_keyframes(tmp_path: Path) -> None:
    """What comes before the first keyframe cannot be decoded; what comes behind it is whole."""
    for coding in (
        H264,
        x264("open-gop=1:keyint=8:min-keyint=2:b-pyramid=none:", bf="3"),
        x265("bframes=3:open-gop=1:"),
        VP9,
    ):
        whole = write(tmp_path / "a.mkv", coding, noisy(40))
        right = {picture.tobytes() for picture in read(whole)[1]}
        facts, shown = read(without(whole, tmp_path / "b.mkv", 0, 1, 2))
        assert facts.notes[0].code == "dropped"
        assert 24 <= len(shown) <= 33
        assert all(picture.tobytes() in right for picture in shown)


def test_a_transport_stream_that_begins_between_keyframes(tmp_path: Path) -> None:
    """Before its parameter sets, too: they come with the keyframe."""
    whole = write(tmp_path / "a.ts", H264, noisy(24, 96, 128))
    data = whole.read_bytes()
    tables = 2 * 188
    begin = packet_places(whole)[1][0] // 188 * 188
    (tmp_path / "b.ts").write_bytes(data[:tables] + data[begin:])
    facts, shown = read(tmp_path / "b.ts")
    assert facts.notes[0].code == "dropped"
    assert psnr_db(np.stack(shown), noisy(24, 96, 128)[8:]) > 28


def test_no_keyframe(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.mkv", x264(g="99"))
    refused(without(whole, tmp_path / "b.mkv", 0), "no_keyframe", "none of its 23 frames")


@pytest.mark.parametrize(
    ("restamp", "reason"),
    [
        (lambda i, ms: {8: 300, 9: 267}.get(i, ms), "times"),
        (lambda i, ms: ms + 5000 * (i < 8), "times"),
        (lambda i, ms: 100, "times"),
    ],
    ids=["two frames change places", "times jump back", "all times are one"],
)
def test_times_that_are_not_those_of_the_frames(
    tmp_path: Path, restamp: Callable[[int, int], int], reason: str
) -> None:
    path = rewrite(write(tmp_path / "a.mkv"), tmp_path / "b.mkv", restamp=restamp, early=9999)
    refused(path, reason)


def test_frames_without_times(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.h264"), "w", format="h264") as container:
        stream: Any = container.add_stream("libx264", rate=30)
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        for picture in noisy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    refused(tmp_path / "a.h264", "times", "no time")


def test_pictures_that_change_their_size(tmp_path: Path) -> None:
    jpeg = Coding("mjpeg", {}, "yuvj420p")
    larger = write(tmp_path / "b.avi", jpeg, noisy(24, 96, 128)).read_bytes()
    place, size = packet_places(tmp_path / "b.avi")[9]
    small = write(tmp_path / "a.avi", jpeg)
    path = rewrite(small, tmp_path / "c.avi", lambda i, data: [larger[place : place + size] if i == 9 else data])
    refused(path, "frame_size", "frame 9 of 24 .* is 128x96, and the video began with 96x64")


def test_a_header_that_claims_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megahour.sources import video

    path = write(tmp_path / "a.mp4")
    monkeypatch.setattr(video, "MOST_PIXELS", 96 * 63)
    refused(path, "damaged_frame")


def test_a_hidden_vp8_frame_is_none(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.webm", Coding("libvpx", {"g": "24", "b": "500k"}))
    path = rewrite(
        whole, tmp_path / "b.webm", lambda i, data: [bytes([data[0] & ~0x10, *data[1:]]) if i == 5 else data]
    )
    facts, shown = read(path)
    assert len(shown) == facts.frames == 23
    assert psnr_db(np.stack(shown), np.delete(noisy(), 5, axis=0)) > 25

"""Videos read: what is counted without decoding is what decodes, in its colours and as it is meant to be shown."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import ColorPrimaries, ColorTrc
from numpy.typing import NDArray

from megahour.sources.model import SourceError
from megahour.sources.video import VideoFacts, probe_video, read_video
from tests.samples import psnr_db, samples_dir
from tests.sources.videos import AV1, H264, VP9, Coding, Pictures, noisy, rewrite, write, x264, x265


def read(path: Path) -> tuple[VideoFacts, list[Pictures]]:
    facts = probe_video(path, path.name)
    return facts, list(read_video(path, path.name, facts))


def codes(facts: VideoFacts) -> list[str]:
    return [note.code for note in facts.notes]


@pytest.mark.parametrize(
    ("name", "width", "height", "frames", "notes"),
    [
        ("h265_video.mp4", 128, 128, 10, []),
        ("testsrc2_mpeg4.mp4", 64, 64, 1, []),
        ("testsrc2_odd_height_and_width_vp9.mp4", 321, 241, 25, []),
        ("h264_10bits.mp4", 200, 200, 30, ["converted"]),
        ("test_non_zero_start.mp4", 200, 112, 12, ["start_offset", "pixel_aspect"]),
        ("discard_first_keyframe.mp4", 64, 64, 25, ["left_out"]),
        ("nasa_13013_rotated.mp4", 270, 480, 17, ["converted"]),
    ],
)
def test_odd_videos(name: str, width: int, height: int, frames: int, notes: list[str]) -> None:
    facts, shown = read(samples_dir() / "odd_videos" / name)
    assert (facts.width, facts.height, facts.frames) == (width, height, frames)
    assert len(shown) == frames
    assert {picture.shape for picture in shown} == {(height, width, 3)}
    assert (np.diff(facts.times_s) > 0).all()
    assert codes(facts) == notes


def test_rotated_video_stands_upright() -> None:
    path = samples_dir() / "odd_videos" / "nasa_13013_rotated.mp4"
    facts, shown = read(path)
    with av.open(str(path)) as container:
        lying = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert psnr_db(np.rot90(lying, 1), shown[0]) > 35
    assert "90 degrees counter-clockwise" in facts.notes[0].text


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_turned_and_mirrored_videos(tmp_path: Path, degrees: int, mirrored: bool) -> None:
    video = noisy(2)
    coded = write(
        tmp_path / "a.mp4",
        H264,
        video,
        prepare=lambda container, stream: stream.set_display_rotation(degrees, hflip=mirrored),
    )
    facts, shown = read(coded)
    # A player turns what is mirrored: ffmpeg's own command shows all eight of these so.
    upright = np.rot90(video[0], degrees // 90)
    assert psnr_db(upright[:, ::-1] if mirrored else upright, shown[0]) > 30
    assert (facts.height, facts.width) == shown[0].shape[:2]
    assert codes(facts) == ["converted"] * (degrees > 0 or mirrored)


def test_a_slanted_video_is_kept_as_coded(tmp_path: Path) -> None:
    coded = write(tmp_path / "a.mp4", prepare=lambda container, stream: stream.set_display_rotation(30))
    facts, shown = read(coded)
    assert codes(facts) == ["left_out"]
    assert psnr_db(noisy()[0], shown[0]) > 30


# Sound H.264, HEVC, VP9, AV1 and others: nothing of it may be taken for damage.
SOUND = {
    "cabac": H264,
    "cavlc": x264("cabac=0:", bf="2"),
    "baseline": x264(profile="baseline"),
    "b pyramid": x264("b-pyramid=normal:ref=4:", bf="4", g="24"),
    "open gop": x264("open-gop=1:keyint=8:min-keyint=2:", bf="3"),
    "intra refresh": x264("intra-refresh=1:"),
    "slices": x264("slices=4:"),
    "short slices": x264("slice-max-size=100:"),
    "one gop": x264("keyint=infinite:", g="999"),
    "keyframes alone": x264(g="1"),
    "interlaced": x264("tff=1:", bf="2"),
    "filler": x264("nal-hrd=cbr:bitrate=800:vbv-maxrate=800:vbv-bufsize=800:"),
    "delimiters": x264("stitchable=1:aud=1:pic-struct=1:"),
    "scaling lists": x264("cqm=jvt:"),
    "4:4:4": x264(pixels="yuv444p"),
    "lossless": x264("qp=0:"),
    "no latency": x264(tune="zerolatency", preset="ultrafast"),
    "rgb": Coding("libx264rgb", {"qp": "0"}, "rgb24"),
    "hevc": x265("bframes=0:"),
    "hevc b pyramid": x265("bframes=4:b-pyramid=1:open-gop=1:"),
    "hevc checksums": x265("hash=1:"),
    "hevc intra refresh": x265("intra-refresh=1:"),
    "vp8": Coding("libvpx", {"g": "8", "b": "500k"}),
    "vp9": VP9,
    "vp9 hidden frames": Coding("libvpx-vp9", {"g": "30", "b": "300k", "threads": "1"}),
    "av1": AV1,
    "av1 grain": Coding("libsvtav1", {"g": "8", "preset": "10", "svtav1-params": "lp=1:film-grain=10"}),
    "mpeg4": Coding("mpeg4", {"bf": "2", "b": "2M"}),
    "mjpeg": Coding("mjpeg", {}, "yuvj420p"),
    "ffv1": Coding("ffv1", {}),
    "prores": Coding("prores_ks", {}, "yuv422p10le"),
}


@pytest.mark.parametrize("name", sorted(SOUND))
def test_sound_videos_are_read_whole(tmp_path: Path, name: str) -> None:
    video = noisy(40, 48, 64)
    facts, shown = read(
        write(tmp_path / ("a.mp4" if name not in ("vp8", "ffv1", "prores") else "a.mkv"), SOUND[name], video)
    )
    assert len(shown) == facts.frames == 40
    assert min(psnr_db(one, other) for one, other in zip(shown, video, strict=True)) > 25
    assert set(codes(facts)) <= {"interlaced", "converted"}


@pytest.mark.parametrize("suffix", [".mkv", ".mov", ".ts"])
@pytest.mark.parametrize("coding", [x264(bf="2"), x265("bframes=2:")], ids=["h264", "hevc"])
def test_other_containers(tmp_path: Path, coding: Coding, suffix: str) -> None:
    facts, shown = read(write(tmp_path / f"a{suffix}", coding))
    assert len(shown) == facts.frames == 24
    assert psnr_db(np.stack(shown), noisy()) > 28


def test_black_frames_are_no_overwritten_ones(tmp_path: Path) -> None:
    black = np.zeros((6, 720, 1280, 3), np.uint8)
    for name, coding in (("a.webm", VP9), ("a.mp4", H264), ("b.mp4", x265())):
        assert np.stack(read(write(tmp_path / name, coding, black))[1]).max() < 4


@pytest.mark.parametrize("name", ["b pyramid", "open gop", "intra refresh", "hevc b pyramid", "vp9", "av1", "ffv1"])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_part_is_what_it_is_in_the_whole(tmp_path: Path, name: str, suffix: str) -> None:
    path = write(tmp_path / f"a{suffix}", SOUND[name], noisy(40, 48, 64))
    facts, whole = read(path)
    for start in range(0, 40, 3):
        part = list(read_video(path, "a", facts, range(start, min(start + 5, 40))))
        assert np.array_equal(part, whole[start : start + 5])
    assert list(read_video(path, "a", facts, range(7, 7))) == []


def test_a_part_decodes_no_more_than_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megahour.sources import video

    path = write(tmp_path / "a.mp4")
    facts = probe_video(path, "a")
    given: list[int] = []
    inner = video._decoded

    def counted(*arguments: Any) -> Any:
        for frame in inner(*arguments):
            given.append(frame.pts)
            yield frame

    monkeypatch.setattr(video, "_decoded", counted)
    assert len(list(read_video(path, "a", facts, range(18, 20)))) == 2
    assert given == facts.stamps[16:20].tolist()


# Colours: (KR, KB, the matrix's number in ITU-T H.273).
MATRICES = {"bt601": (0.299, 0.114, 6), "bt709": (0.2126, 0.0722, 1), "bt2020": (0.2627, 0.0593, 9)}
PATCHES = (
    (200, 40, 40),
    (40, 200, 40),
    (40, 40, 200),
    (200, 200, 40),
    (40, 200, 200),
    (128, 128, 128),
    (230, 230, 230),
)


def patches() -> Pictures:
    return np.repeat(np.array([PATCHES], np.uint8), 32, axis=1)[:1].repeat(32, axis=0)


def patch_colours(picture: Pictures) -> NDArray[np.int64]:
    """The colour in the middle of every patch."""
    return picture[16, 16::32].astype(np.int64)


def yuv(signal: NDArray[np.float64], matrix: str, full: bool, bits: int) -> list[NDArray[np.float64]]:
    """Planes of a picture of R'G'B' values 0 to 1, after ITU-T H.273, 8.3."""
    kr, kb, _ = MATRICES[matrix]
    luma = signal @ np.array([kr, 1 - kr - kb, kb])
    blue, red = (signal[..., 2] - luma) / (2 * (1 - kb)), (signal[..., 0] - luma) / (2 * (1 - kr))
    scale = 1 << (bits - 8)
    if full:
        return [np.rint(255 * luma * scale), *(np.rint((255 * plane + 128) * scale) for plane in (blue, red))]
    return [np.rint((219 * luma + 16) * scale), *(np.rint((224 * plane + 128) * scale) for plane in (blue, red))]


def write_planes(path: Path, coding: Coding, planes: list[NDArray[np.float64]], tags: dict[str, int]) -> Path:
    """Encode planes as they are, 4:2:0, and tag them."""
    height, width = planes[0].shape
    kind = np.uint16 if "10" in coding.pixels else np.uint8
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(coding.codec, rate=30, options=dict(coding.options))
        stream.height, stream.width, stream.pix_fmt = height, width, coding.pixels
        for name, value in tags.items():
            setattr(stream.codec_context, name, value)
        frame: Any = av.VideoFrame(width, height, coding.pixels)
        for target, plane in zip(frame.planes, (planes[0], planes[1][::2, ::2], planes[2][::2, ::2]), strict=True):
            rows = np.zeros((target.height, target.line_size // np.dtype(kind).itemsize), kind)
            rows[:, : plane.shape[1]] = plane
            target.update(rows.tobytes())
        for name, value in tags.items():
            setattr(frame, name, value)
        frame.pts = 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("matrix", ["bt601", "bt709", "bt2020"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"qp": "0"}),
        ("libx265", {"x265-params": "log-level=none:pools=1:bframes=0:lossless=1"}),
        ("libvpx-vp9", {"lossless": "1"}),
    ],
)
def test_colours_return_as_they_are_tagged(
    tmp_path: Path, codec: str, options: dict[str, str], matrix: str, full: bool
) -> None:
    planes = yuv(patches() / 255, matrix, full, bits=8)
    tags = {"colorspace": MATRICES[matrix][2], "color_range": 2 if full else 1}
    _, shown = read(write_planes(tmp_path / "a.mp4", Coding(codec, options), planes, tags))
    assert np.abs(patch_colours(shown[0]) - PATCHES).max() <= 1


def test_colours_of_pixel_formats_that_mean_full_range(tmp_path: Path) -> None:
    planes = yuv(patches() / 255, "bt601", True, bits=8)
    _, shown = read(write_planes(tmp_path / "a.mp4", Coding("libx264", {"qp": "0"}, "yuvj420p"), planes, {}))
    assert np.abs(patch_colours(shown[0]) - PATCHES).max() <= 1


def test_untagged_colours_are_bt601(tmp_path: Path) -> None:
    planes = yuv(patches() / 255, "bt601", False, bits=8)
    _, shown = read(write_planes(tmp_path / "a.mp4", Coding("libx264", {"qp": "0"}), planes, {}))
    assert np.abs(patch_colours(shown[0]) - PATCHES).max() <= 1


def test_ten_bits_become_eight(tmp_path: Path) -> None:
    planes = yuv(patches() / 255, "bt709", False, bits=10)
    coding = Coding("libx264", {"qp": "0"}, "yuv420p10le")
    facts, shown = read(write_planes(tmp_path / "a.mp4", coding, planes, {"colorspace": 1, "color_range": 1}))
    assert np.abs(patch_colours(shown[0]) - PATCHES).max() <= 1
    assert [note.text for note in facts.notes] == ["a.mp4: 10-bit pictures became 8-bit"]


def test_hdr_becomes_srgb(tmp_path: Path) -> None:
    """White of 203 cd/m2 in PQ (ITU-R BT.2408) is white in sRGB again, and colours keep their hue."""
    signal = patches() / 255
    linear = np.where(signal <= 0.04045, signal / 12.92, ((signal + 0.055) / 1.055) ** 2.4)
    wide = linear @ np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]]).T
    power = (wide * 203 / 10_000) ** 0.1593017578125
    coded = ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375
    tags = {
        "colorspace": MATRICES["bt2020"][2],
        "color_range": 1,
        "color_trc": int(ColorTrc.SMPTE2084),
        "color_primaries": int(ColorPrimaries.BT2020),
    }
    coding = Coding("libx265", {"x265-params": "log-level=none:pools=1:bframes=0:lossless=1"}, "yuv420p10le")
    facts, shown = read(write_planes(tmp_path / "a.mp4", coding, yuv(coded, "bt2020", False, bits=10), tags))
    assert np.abs(patch_colours(shown[0]) - PATCHES).max() < 32, "a soft knee, but no washed-out picture"
    assert np.abs(patch_colours(shown[0]) - PATCHES)[5].max() <= 4, "grey"
    assert [note.text for note in facts.notes] == ["a.mp4: 10-bit HDR pictures (PQ) became 8-bit sRGB"]


def test_colours_that_cannot_be_converted(tmp_path: Path) -> None:
    planes = yuv(patches() / 255, "bt601", False, bits=8)
    path = write_planes(tmp_path / "a.mp4", Coding("libx264", {"qp": "0"}), planes, {"colorspace": 8, "color_range": 1})
    with pytest.raises(SourceError, match="matrix 8") as caught:
        probe_video(path, "a.mp4")
    assert caught.value.reason == "unsupported"


@pytest.mark.parametrize(
    ("name", "coding"),
    [
        ("a.mov", Coding("qtrle", {}, "argb")),
        ("a.mov", Coding("prores_ks", {"profile": "4444"}, "yuva444p10le")),
        ("a.webm", Coding("libvpx-vp9", {"lossless": "1", "auto-alt-ref": "0"}, "yuva420p")),
    ],
)
def test_transparency_is_left_out_and_said(tmp_path: Path, name: str, coding: Coding) -> None:
    colours = noisy(3)
    video = np.concatenate([colours, np.full((3, 64, 96, 1), 90, np.uint8)], axis=-1)
    facts, shown = read(write(tmp_path / name, coding, video))
    assert psnr_db(np.stack(shown), colours) > 28
    assert "left_out" in codes(facts)


@pytest.mark.parametrize(("pixels", "notes"), [("gray", []), ("gray10le", ["converted"]), ("gray16le", ["converted"])])
def test_grey_pictures(tmp_path: Path, pixels: str, notes: list[str]) -> None:
    grey = np.repeat(noisy(3)[..., :1], 3, axis=-1)
    facts, shown = read(write(tmp_path / "a.mkv", Coding("ffv1", {}, pixels), grey))
    assert psnr_db(np.stack(shown), grey) > 40
    assert codes(facts) == notes


def test_interlaced_pictures_and_pixels_that_are_not_square(tmp_path: Path) -> None:
    def prepare(container: Any, stream: Any) -> None:
        stream.sample_aspect_ratio = stream.codec_context.sample_aspect_ratio = Fraction(4, 3)

    facts, shown = read(write(tmp_path / "a.mp4", x264("tff=1:"), prepare=prepare))
    assert (facts.width, facts.height) == (96, 64), "as coded"
    assert codes(facts) == ["interlaced", "pixel_aspect"]
    assert "4/3" in facts.notes[1].text
    assert psnr_db(np.stack(shown), noisy()) > 28


def test_other_streams_are_left_out_and_said(tmp_path: Path) -> None:
    second, heard = noisy(seed=1), np.zeros((1, 1024), np.float32)
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        first: Any = container.add_stream("libx264", rate=30)
        other: Any = container.add_stream("libx264", rate=30)
        sound: Any = container.add_stream("aac", rate=16000, layout="mono")
        for stream in (first, other):
            stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        for i in range(24):
            for stream, video in ((first, noisy()), (other, second)):
                frame = av.VideoFrame.from_ndarray(video[i], format="rgb24")
                frame.pts = i
                container.mux(stream.encode(frame))
        audio = av.AudioFrame.from_ndarray(heard, format="fltp", layout="mono")
        audio.sample_rate = 16000
        container.mux(sound.encode(audio))
        for stream in (first, other, sound):
            container.mux(stream.encode(None))
    facts, shown = read(tmp_path / "a.mp4")
    assert psnr_db(np.stack(shown), noisy()) > 28
    assert [note.text for note in facts.notes] == ["a.mp4: its other streams are left out: 1 audio, 1 video"]


def test_a_still_picture_on_the_cover_is_no_video(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        cover: Any = container.add_stream("mjpeg", rate=1)
        cover.height, cover.width, cover.pix_fmt = 64, 96, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        stream: Any = container.add_stream("libx264", rate=30)
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        picture = av.VideoFrame.from_ndarray(noisy(1, seed=1)[0], format="rgb24").reformat(format="yuvj420p")
        picture.pts = 0
        container.mux([*cover.encode(picture), *cover.encode(None)])
        for i, shown in enumerate(noisy()):
            frame = av.VideoFrame.from_ndarray(shown, format="rgb24")
            frame.pts = i
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    facts, pictures = read(tmp_path / "a.mp4")
    assert psnr_db(np.stack(pictures), noisy()) > 28
    assert codes(facts) == ["left_out"]


def test_times_are_the_files_own(tmp_path: Path) -> None:
    stamps = np.cumsum(np.random.default_rng(0).integers(1, 6, 24)).tolist()
    facts, shown = read(write(tmp_path / "a.mp4", x264(bf="2"), stamps=stamps))
    assert np.abs(facts.times_s - np.array(stamps) / 30).max() < 0.001
    assert codes(facts) == ["start_offset", "variable_rate"]
    assert psnr_db(np.stack(shown), noisy()) > 28


def test_a_jump_in_time_is_kept_and_said(tmp_path: Path) -> None:
    later = rewrite(write(tmp_path / "a.mkv"), tmp_path / "b.mkv", restamp=lambda i, ms: ms + 5000 * (i >= 10))
    facts, shown = read(later)
    assert len(shown) == 24
    assert codes(facts) == ["gaps"]
    assert "5.033 s after 0.300 s, where 0.033 s is usual" in facts.notes[0].text


def test_frames_of_one_time_are_spread(tmp_path: Path) -> None:
    still = rewrite(
        write(tmp_path / "a.mkv"), tmp_path / "b.mkv", restamp=lambda i, ms: 167 if i in (6, 7) else ms, early=99
    )
    facts, shown = read(still)
    assert codes(facts) == ["duplicate_times"]
    assert np.allclose(facts.times_s[4:9], [0.133, 0.167, 0.167 + 0.1 / 3, 0.167 + 0.2 / 3, 0.267])
    assert psnr_db(np.stack(shown), noisy()) > 28
    for i in range(4, 9):
        assert np.array_equal(next(read_video(still, "b", facts, range(i, i + 1))), shown[i])

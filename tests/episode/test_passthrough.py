"""Pictures that came as JPEG or fitting H.264 can be stored as they came: not one byte of them changes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory
from PIL import Image

from megahour.episode.check import check_bytes
from megahour.episode.model import Camera, Coded, EpisodeError, RawEpisode
from megahour.episode.profile import MIXED
from megahour.episode.reader import EpisodeReader, open_episode_file
from megahour.episode.sample import Query
from megahour.episode.writer import write_episode
from tests.samples import (
    FACTS,
    camera,
    careful_rgb,
    h264_camera,
    jpeg_camera,
    number_of,
    numbered,
    pictures,
    psnr_db,
    raw_episode,
)

AS_CODED = replace(MIXED, pictures="as_coded")


def units_of(source: Camera) -> list[bytes]:
    assert source.coded is not None
    return list(source.coded.units())


def with_units(source: Camera, units: list[bytes], codec: Literal["jpeg", "h264"] = "h264") -> Camera:
    return replace(source, coded=Coded(codec, lambda: iter(units)))


def written(path: Path, *cameras: Camera, profile: Any = AS_CODED) -> EpisodeReader:
    episode: RawEpisode = replace(raw_episode(), cameras=cameras)
    write_episode(path, episode, FACTS, profile)
    assert check_bytes(path.name, path.read_bytes()) == []
    return open_episode_file(path)


@pytest.mark.parametrize("size", [(48, 64), (47, 63), (96, 128)])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_jpeg_returns_unchanged_and_looks_as_others_see_it(
    tmp_path: Path, size: tuple[int, int], subsampling: int
) -> None:
    source = jpeg_camera("front", pictures(12, *size), subsampling=subsampling)
    reader = written(tmp_path / "e", source)
    assert reader.coded("front", 0, 12) == units_of(source)
    expected = np.stack(list(source.frames()))
    found = reader.frames("front", range(12))
    assert found.shape == expected.shape
    # How the colours of 2x2 pixels become those of each is nowhere laid down.
    assert psnr_db(found, expected) > (45 if subsampling == 0 else 34)
    assert psnr_db(found.mean(axis=(2, 3)).astype(np.uint8), expected.mean(axis=(2, 3)).astype(np.uint8)) > 45

    small = (size[0] // 2, size[1] // 2)
    scaled = [np.asarray(Image.fromarray(each).resize(small[::-1], Image.Resampling.BOX)) for each in expected]
    assert psnr_db(reader.frames("front", range(12), small), np.stack(scaled)) > 30


@pytest.mark.parametrize("how", [{"progressive": True}, {"optimize": True}, {"quality": 30}])
def test_jpeg_of_any_make(tmp_path: Path, how: dict[str, Any]) -> None:
    for mode in ("RGB", "L"):
        files = []
        for picture in numbered(10):
            out = io.BytesIO()
            Image.fromarray(picture).convert(mode).save(out, "JPEG", **how)
            files.append(out.getvalue())
        reader = written(tmp_path / mode, with_units(camera("front", numbered(10)), files, "jpeg"))
        found = reader.frames("front", range(10))
        assert [number_of(picture) for picture in found] == list(range(10))
        assert psnr_db(found, numbered(10)) > 28


def test_each_jpeg_stands_alone(tmp_path: Path) -> None:
    reader = written(tmp_path / "e", jpeg_camera("front", numbered(30)))
    assert reader.index.cameras[0].keyframes.all()
    assert (reader.index.cameras[0].codec, reader.cameras["front"].frames) == ("jpeg", 30)
    found = reader.sample(0, Query({"front": tuple(int(t) for t in reader.cameras["front"].times_ns[[29, 3]])}))
    assert [number_of(picture) for picture in found.pictures["front"].frames] == [29, 3]


@pytest.mark.parametrize("gop", [1, 4, 100])
def test_h264_returns_unchanged_and_gives_the_same_pictures(tmp_path: Path, gop: int) -> None:
    source = h264_camera("front", pictures(30, 48, 64), gop)
    reader = written(tmp_path / "e", source)
    units = units_of(source)
    assert reader.coded("front", 0, 30) == units
    found = reader.frames("front", range(30), chroma="smooth")
    (tmp_path / "e.h264").write_bytes(b"".join(units))
    with av.open(str(tmp_path / "e.h264")) as container:
        assert np.array_equal(found, np.stack([careful_rgb(frame) for frame in container.decode(video=0)]))
    for i in (29, 0, 17):
        assert np.array_equal(reader.frames("front", [i], chroma="smooth")[0], found[i])
    keys = [i for i in range(30) if i % gop == 0]
    assert np.flatnonzero(reader.index.cameras[0].keyframes).tolist() == keys


def test_a_stream_and_its_remuxed_copy_are_the_same_episode_of_pictures(tmp_path: Path) -> None:
    first = written(tmp_path / "first", camera("front", pictures(30, 48, 64)), profile=MIXED)
    source = with_units(camera("front", pictures(30, 48, 64)), first.coded("front", 0, 30))
    again = written(tmp_path / "again", source)
    assert np.array_equal(first.frames("front", range(30)), again.frames("front", range(30)))
    assert np.array_equal(first.frames("front", range(30), (20, 30)), again.frames("front", range(30), (20, 30)))


def test_cameras_of_all_three_kinds_side_by_side(tmp_path: Path) -> None:
    cameras = (jpeg_camera("files", numbered(50)), h264_camera("stream", numbered(50), 7), camera("raw", numbered(50)))
    reader = written(tmp_path / "e", *cameras)
    assert [(each.name, each.codec) for each in reader.index.cameras] == [
        ("files", "jpeg"),
        ("stream", "h264"),
        ("raw", "h264"),
    ]
    for name in ("files", "stream", "raw"):
        for wanted in ([49, 0, 22, 23], [13], range(50)):
            assert [number_of(picture) for picture in reader.frames(name, wanted)] == list(wanted)
    for source in cameras[:2]:
        assert reader.coded(source.name, 0, 50) == units_of(source)
    # Where a stream keeps its own keyframes, cameras that are coded here follow them, within their own GOP.
    keys = [np.flatnonzero(each.keyframes).tolist() for each in reader.index.cameras]
    assert keys == [list(range(50)), list(range(0, 50, 7)), list(range(0, 50, 7))]


def test_other_tools_see_files_and_streams(tmp_path: Path) -> None:
    cameras = (jpeg_camera("files", numbered(6)), h264_camera("stream", numbered(6)))
    written(tmp_path / "e", *cameras)
    seen: dict[str, list[bytes]] = {}
    formats: dict[str, set[tuple[str, str]]] = {}
    with (tmp_path / "e").open("rb") as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        for schema, channel, _, message in reader.iter_decoded_messages(topics=["/camera/files", "/camera/stream"]):
            seen.setdefault(channel.topic, []).append(message.data)
            formats.setdefault(channel.topic, set()).add((schema.name if schema else "", message.format))
    assert seen == {f"/camera/{source.name}": units_of(source) for source in cameras}
    assert formats == {
        "/camera/files": {("foxglove.CompressedImage", "jpeg")},
        "/camera/stream": {("foxglove.CompressedVideo", "h264")},
    }


def test_other_profiles_code_the_pictures_anew(tmp_path: Path) -> None:
    reader = written(
        tmp_path / "e", jpeg_camera("front", numbered(20)), h264_camera("wrist", numbered(20)), profile=MIXED
    )
    assert [each.codec for each in reader.index.cameras] == ["h264", "h264"]
    assert np.flatnonzero(reader.index.cameras[1].keyframes).tolist() == [0, 10]


def _b_frames() -> list[bytes]:
    codec = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt, codec.framerate = 64, 48, "yuv420p", Fraction(30)
    codec.options = {"x264-params": "bframes=3:b-adapt=0:annexb=1:repeat-headers=1:threads=1"}
    units = []
    for i, picture in enumerate([*pictures(12, 48, 64), None]):
        frame = None if picture is None else av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format="yuv420p")
        if frame is not None:
            frame.pts = i
        units += [bytes(packet) for packet in codec.encode(frame)]
    return units


JPEG, H264 = jpeg_camera("front", numbered(12)), h264_camera("front", numbered(12), 4)


@pytest.mark.parametrize(
    ("source", "reason", "text"),
    [
        (with_units(JPEG, units_of(JPEG)[:-1], "jpeg"), "frame_count", "has 11 pictures, and 12 times"),
        (with_units(JPEG, units_of(JPEG) * 2, "jpeg"), "frame_count", "more pictures than its 12 times"),
        (replace(JPEG, width=63), "invalid", r"A JPEG of 'front' is \(48, 64\), and its camera says \(48, 63\)"),
        (with_units(JPEG, [*units_of(JPEG)[:-1], b"GIF89a"], "jpeg"), "corrupt", "no JPEG file"),
        (
            with_units(JPEG, [*units_of(JPEG)[:-1], units_of(JPEG)[-1][:12]], "jpeg"),
            "corrupt",
            "before it says its size",
        ),
        (with_units(H264, units_of(H264)[:-1]), "frame_count", "are 11, of 12 times"),
        (with_units(H264, units_of(H264) + units_of(H264)), "frame_count", "are 24, of 12 times"),
        (with_units(H264, units_of(H264)[1:] + units_of(H264)[:1]), "frame_count", "or the first is no keyframe"),
        (with_units(H264, []), "frame_count", "are 0, of 12 times"),
        (replace(H264, width=62), "invalid", "The coded pictures of 'front' do not fit it: .*64x48.* has 62x48"),
        (with_units(H264, _b_frames()), "corrupt", "B-frame"),
        (with_units(H264, units_of(JPEG)), "corrupt", "Annex B"),
    ],
)
def test_coded_pictures_that_do_not_fit_are_refused(tmp_path: Path, source: Camera, reason: str, text: str) -> None:
    with pytest.raises(EpisodeError, match=text) as caught:
        write_episode(tmp_path / "e", replace(raw_episode(), cameras=(source,)), FACTS, AS_CODED)
    assert caught.value.reason == reason
    assert list(tmp_path.iterdir()) == []


def test_a_stream_whose_size_changes_is_refused(tmp_path: Path) -> None:
    other = h264_camera("front", numbered(12, 64, 64), 4)
    changed = with_units(H264, [*units_of(H264)[:8], *units_of(other)[8:]])
    with pytest.raises(EpisodeError, match="do not fit it") as caught:
        write_episode(tmp_path / "e", replace(raw_episode(), cameras=(changed,)), FACTS, AS_CODED)
    assert caught.value.reason == "invalid"


def test_start_codes_with_nothing_behind_them(tmp_path: Path) -> None:
    """Careless writers leave some; decoders pass over them, and so does what looks into the pictures here."""
    stray = [b"\x00\x00\x01\x00\x00\x00\x01" + unit + b"\x00\x00\x01\x00" for unit in units_of(H264)]
    reader = written(tmp_path / "e", with_units(H264, stray))
    assert reader.coded("front", 0, 12) == stray
    assert [number_of(picture) for picture in reader.frames("front", range(12))] == list(range(12))
    for nothing in (
        b"\x00\x00\x01",
        b"\x00\x00\x01\x00\x00\x01\x00",
        b"\x00\x00\x01\x41",
        b"\x00\x00\x01\x41" + bytes(9),
    ):
        source = with_units(H264, [nothing, *units_of(H264)[1:]])
        with pytest.raises(EpisodeError) as caught:
            write_episode(tmp_path / "none", replace(raw_episode(), cameras=(source,)), FACTS, AS_CODED)
        assert caught.value.reason == "corrupt"


def test_coded_pictures_are_not_decoded_to_be_stored(tmp_path: Path) -> None:
    def never() -> Iterator[Any]:
        raise AssertionError("frames() was called")

    written(tmp_path / "e", replace(JPEG, frames=never), replace(H264, name="wrist", frames=never))


def test_a_source_that_changes_between_two_passes_is_noticed(tmp_path: Path) -> None:
    passes = iter([units_of(H264), units_of(H264)[:8]])
    source = replace(H264, coded=Coded("h264", lambda: iter(next(passes))))
    with pytest.raises(EpisodeError, match="has 8 pictures, and 12 times"):
        write_episode(tmp_path / "e", replace(raw_episode(), cameras=(source,)), FACTS, AS_CODED)
    assert list(tmp_path.iterdir()) == []

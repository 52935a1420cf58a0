"""Pictures of MCAP files: each encoding shows what was seen, depth stays depth, what is damaged is left out."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from mcap.writer import CompressionType
from numpy.typing import NDArray
from PIL import Image

from megahour.episode.model import Camera, RawEpisode
from megahour.sources import SourceError
from tests.samples import G1, pictures, psnr_db, rgb, samples_dir
from tests.sources.mcap_files import (
    ROS,
    START_NS,
    Said,
    codes,
    compressed,
    file_of,
    image,
    land,
    note,
    read,
    robot_bag,
    said,
    times,
    write_bag,
)

VIDEO = pictures(6, 48, 64)


def stills(files: list[bytes], kind: str = "jpeg") -> list[Said]:
    """A bag of pictures that are files."""
    return [
        said("/front/compressed", compressed(t, data, kind), t)
        for t, data in zip(times(len(files)), files, strict=True)
    ]


def raws(pixels: NDArray[Any], encoding: str, step: int | None = None) -> list[Said]:
    """A bag of raw pictures."""
    when = times(len(pixels))
    return [said("/front/image_raw", image(t, each, encoding, step), t) for t, each in zip(when, pixels, strict=True)]


def shown(camera: Camera) -> NDArray[np.uint8]:
    return np.stack(list(camera.frames()))


def only_camera(root: Path, bag: list[Said]) -> tuple[Camera, RawEpisode]:
    write_bag(land(root), bag)
    episode = read(root)
    (camera,) = episode.cameras
    return camera, episode


def grey(video: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(video[:, :, :, 1])


def yuyv(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuyv422")
    return np.frombuffer(bytes(frame.planes[0]), np.uint8).reshape(48, -1)[:, : 2 * 64].reshape(48, 64, 2)


def with_alpha(video: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.concatenate([video, np.full((*video.shape[:3], 1), 99, np.uint8)], axis=3)


RAW: dict[str, tuple[Callable[[NDArray[np.uint8]], NDArray[Any]], str | None]] = {
    "rgb8": (lambda v: v, None),
    "bgr8": (lambda v: v[:, :, :, ::-1], None),
    "8UC3": (lambda v: v[:, :, :, ::-1], "taken as bgr8"),
    "rgba8": (with_alpha, "alpha channel"),
    "bgra8": (lambda v: with_alpha(v[:, :, :, ::-1]), "alpha channel"),
    "rgb16": (lambda v: v.astype("<u2") << 8 | 5, "16 bits"),
    "bgr16": (lambda v: v[:, :, :, ::-1].astype("<u2") << 8 | 250, "16 bits"),
}


@pytest.mark.parametrize("encoding", RAW)
@pytest.mark.parametrize("padding", [0, 24])
def test_raw_colour_returns_exactly(tmp_path: Path, encoding: str, padding: int) -> None:
    make, converted = RAW[encoding]
    pixels = make(VIDEO)
    row_bytes = pixels.itemsize * pixels[0, 0].size
    camera, episode = only_camera(tmp_path, raws(pixels, encoding, row_bytes + padding))
    assert (camera.name, camera.width, camera.height, camera.coded) == ("front", 64, 48, None)
    assert np.array_equal(shown(camera), VIDEO)
    assert (converted in note(episode, "converted")) if converted else ("converted" not in codes(episode))


@pytest.mark.parametrize("encoding", ["mono8", "8UC1"])
def test_raw_grey(tmp_path: Path, encoding: str) -> None:
    camera, episode = only_camera(tmp_path, raws(grey(VIDEO), encoding))
    assert np.array_equal(shown(camera), np.repeat(grey(VIDEO)[..., None], 3, axis=3))
    assert "is grey" in note(episode, "converted")


@pytest.mark.parametrize("encoding", ["yuv422_yuy2", "yuyv", "yuv422", "uyvy"])
def test_raw_yuv(tmp_path: Path, encoding: str) -> None:
    pixels = np.stack([yuyv(picture) for picture in VIDEO])
    if encoding in ("yuv422", "uyvy"):
        pixels = pixels[:, :, :, ::-1]
    camera, _ = only_camera(tmp_path, raws(pixels, encoding))
    assert min(psnr_db(one, other) for one, other in zip(shown(camera), VIDEO, strict=True)) > 30


@pytest.mark.parametrize("order", ["rggb", "bggr", "gbrg", "grbg"])
def test_raw_bayer(tmp_path: Path, order: str) -> None:
    """A smooth picture through a mosaic of its own colours comes back near to itself."""
    smooth = pictures(4, 48, 64)
    smooth = np.repeat(smooth[:1] // 4 * 0 + np.array([200, 120, 40], np.uint8), 4, axis=0)
    mosaic = np.empty((4, 48, 64), np.uint8)
    for place, colour in enumerate(order):
        row, column = divmod(place, 2)
        mosaic[:, row::2, column::2] = smooth[:, row::2, column::2, "rgb".index(colour)]
    camera, episode = only_camera(tmp_path, raws(mosaic, f"bayer_{order}8"))
    assert np.abs(shown(camera).astype(int) - smooth).max() <= 2
    assert "Bayer mosaic" in note(episode, "converted")


@pytest.mark.parametrize(("encoding", "dtype"), [("16UC1", "<u2"), ("mono16", "<u2"), ("32FC1", "<f4")])
def test_depth_is_kept_as_it_came(tmp_path: Path, encoding: str, dtype: str) -> None:
    bag = raws((np.arange(6 * 48 * 64).reshape(6, 48, 64) % 5000).astype(dtype), encoding)
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    assert episode.cameras == () and [each.name for each in episode.extras] == ["front/image_raw"]
    assert [message.data for message in episode.extra_messages()] == [each.data for each in bag]
    assert note(episode, "depth").startswith("/front/image_raw is kept as it came")
    land(tmp_path, options="topics:\n  /front/image_raw: {camera: front}\n")
    with pytest.raises(SourceError, match="depth or 16 bits of grey") as caught:
        read(tmp_path)
    assert caught.value.reason == "feature_mismatch"


@pytest.mark.parametrize("kind", ["16UC1; compressedDepth png", "png"])
def test_compressed_depth_is_kept_as_it_came(tmp_path: Path, kind: str) -> None:
    depth = [file_of(np.full((48, 64), 700 + i, np.uint16), "PNG") for i in range(4)]
    bag = stills([b"\0" * 12 + each for each in depth] if "Depth" in kind else depth, kind)
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    assert episode.cameras == ()
    assert [message.data for message in episode.extra_messages()] == [each.data for each in bag]


def test_an_encoding_that_no_one_knows(tmp_path: Path) -> None:
    bag = raws(grey(VIDEO), "secret8")
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    assert len(list(episode.extra_messages())) == 6
    assert "its encoding 'secret8' is none of rgb8" in note(episode, "undecoded")


def test_real_pictures_as_jpeg(tmp_path: Path) -> None:
    """JPEG files of a real robot's camera: shown as any decoder shows them, and handed over byte for byte."""
    source = samples_dir() / G1 / "videos/chunk-000/observation.images.cam_high/episode_000001.mp4"
    with av.open(str(source)) as container:
        frames = [rgb(frame) for frame in islice(container.decode(video=0), 12)]
    files = [file_of(frame) for frame in frames]
    camera, episode = only_camera(tmp_path, stills(files, "rgb8; jpeg compressed bgr8"))
    assert (camera.height, camera.width) == frames[0].shape[:2]
    for one, data, frame in zip(camera.frames(), files, frames, strict=True):
        assert np.array_equal(one, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
        assert psnr_db(one, frame) > 33
    assert camera.coded is not None and (camera.coded.codec, list(camera.coded.units())) == ("jpeg", files)
    assert codes(episode) == ["mapping_guessed", "rate_guessed"]


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_other_kinds_of_files(tmp_path: Path, kind: str) -> None:
    files = [file_of(each, kind, **({"lossless": True} if kind == "WEBP" else {})) for each in VIDEO]
    camera, _ = only_camera(tmp_path, stills(files, kind.lower()))
    assert np.array_equal(shown(camera), VIDEO) and camera.coded is None


def test_files_of_several_kinds_are_not_handed_over(tmp_path: Path) -> None:
    files = [file_of(each, "PNG" if i == 3 else "JPEG") for i, each in enumerate(VIDEO)]
    camera, _ = only_camera(tmp_path, stills(files))
    assert camera.coded is None and len(shown(camera)) == 6


def test_grey_jpeg(tmp_path: Path) -> None:
    files = [file_of(each) for each in grey(VIDEO)]
    camera, episode = only_camera(tmp_path, stills(files, "mono8; jpeg compressed "))
    assert shown(camera).shape == (6, 48, 64, 3) and "is grey" in note(episode, "converted")
    assert camera.coded is None


GOOD = file_of(VIDEO[0])
BROKEN = {
    "empty": (b"", "a message is empty"),
    "cut": (GOOD[:-100], "cut short"),
    "cut in its head": (GOOD[:100], ""),
    "no picture": (b"hello" * 100, "not a JPEG or PNG"),
    "cut PNG": (file_of(VIDEO[0], "PNG")[:-400], ""),
    "a bad table": (GOOD.replace(b"\xff\xc4\x00\x1f\x00", b"\xff\xc4\x00\x1f\xff"), ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_picture_is_left_out_alone(tmp_path: Path, name: str) -> None:
    """The others keep their own times: nothing moves up into its place."""
    data, words = BROKEN[name]
    files = [file_of(each) for each in VIDEO]
    files[2] = data
    camera, episode = only_camera(tmp_path, stills(files))
    assert camera.times_ns.tolist() == [t for i, t in enumerate(times(6)) if i != 2]
    kept = np.stack([each for i, each in enumerate(VIDEO) if i != 2])
    assert min(psnr_db(one, other) for one, other in zip(shown(camera), kept, strict=True)) > 30
    text = note(episode, "dropped")
    assert text.startswith("/front/compressed: 1 of 6 messages left out") and words in text


def test_raw_pictures_with_too_few_bytes(tmp_path: Path) -> None:
    bag = raws(VIDEO, "rgb8")
    message = ROS.deserialize_cdr(bag[3].data, bag[3].schema)
    bag[3] = said("/front/image_raw", type(message)(**{**vars(message), "height": 480}), bag[3].time_ns)
    camera, episode = only_camera(tmp_path, bag)
    assert np.array_equal(shown(camera), np.delete(VIDEO, 3, axis=0))
    assert "a picture of 64x480 in rgb8, 192 bytes a row, has 9216 bytes" in note(episode, "dropped")


def test_a_camera_has_one_size(tmp_path: Path) -> None:
    files = [file_of(each[:24] if i in (0, 4) else each) for i, each in enumerate(VIDEO)]
    camera, episode = only_camera(tmp_path, stills(files))
    assert (camera.height, len(camera.times_ns)) == (48, 4) and shown(camera).shape == (4, 48, 64, 3)
    assert note(episode, "dropped") == "camera front: 2 pictures left out that are not 64x48 as the most"


def test_pictures_out_of_order(tmp_path: Path) -> None:
    bag = stills([file_of(each) for each in VIDEO])
    bag = [bag[i] for i in (5, 0, 3, 1, 2, 4)]
    camera, episode = only_camera(tmp_path, bag)
    assert camera.times_ns.tolist() == times(6) and "sorted" in codes(episode)
    assert min(psnr_db(one, other) for one, other in zip(shown(camera), VIDEO, strict=True)) > 30


def test_pictures_by_their_stamps(tmp_path: Path) -> None:
    order = [1, 0, 2, 4, 3, 5]
    bag = [
        said("/front/compressed", compressed(1000 + i, file_of(VIDEO[i])), START_NS + k) for k, i in enumerate(order)
    ]
    land(tmp_path, options="topics:\n  /front/compressed: {camera: eye, time: stamp}\n")
    camera, _ = only_camera(tmp_path, bag)
    assert (camera.name, camera.times_ns.tolist()) == ("eye", [1000 + i for i in range(6)])
    assert min(psnr_db(one, other) for one, other in zip(shown(camera), VIDEO, strict=True)) > 30


def test_a_file_that_is_gone_when_pictures_are_read(tmp_path: Path) -> None:
    path = write_bag(land(tmp_path), robot_bag(6))
    episode = read(tmp_path)
    path.write_bytes(path.read_bytes()[:3000])
    for camera in episode.cameras:
        with pytest.raises(SourceError, match="changed while it was read") as caught:
            list(camera.frames())
        assert caught.value.reason == "unreadable"


def test_a_pass_reads_the_pictures_of_its_camera_alone(tmp_path: Path) -> None:
    """Whatever becomes of the rest of the file in the meantime."""
    path = write_bag(land(tmp_path), robot_bag(12))
    episode = read(tmp_path)
    whole = path.read_bytes()
    _, wrist = episode.cameras
    left = bytearray(len(whole))
    for message in (each for each in robot_bag(12) if "wrist" in each.topic):
        at = whole.index(message.data)
        left[at : at + len(message.data)] = message.data
    path.write_bytes(bytes(left))
    assert np.array_equal(shown(wrist), pictures(12, 48, 64, seed=1))


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_pictures_are_never_all_in_memory(tmp_path: Path, compression: CompressionType) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 120, 160, 3), np.uint8)
    bag = [said("/front", image(t, noise[i % 8], "rgb8"), t) for i, t in enumerate(times(400))]
    write_bag(land(tmp_path), bag, compression=compression, chunk_size=300_000)
    del bag
    read(tmp_path)
    tracemalloc.start()
    (camera,) = read(tmp_path).cameras
    count = sum(1 for _ in camera.frames())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 400 and 400 * noise[0].nbytes > 20_000_000
    assert peak < 6_000_000


def test_cameras_are_read_beside_each_other(tmp_path: Path) -> None:
    """Passes are independent: each has its place in the file."""
    write_bag(land(tmp_path), robot_bag(12), chunk_size=5000)
    front, wrist = read(tmp_path).cameras
    pairs = list(zip(front.frames(), wrist.frames(), strict=True))
    assert np.array_equal(np.stack([one for one, _ in pairs]), shown(front))
    assert np.array_equal(np.stack([other for _, other in pairs]), shown(wrist))

"""Pictures to H.264 and back: Annex B without B-frames, one access unit per picture, scaling on the way out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
from av.error import FFmpegError
from av.video.frame import PictureType
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter

from megahour.episode.model import Chroma, EpisodeError, Frames
from megahour.episode.nal import DELIMITER, KEY_SLICE, PPS, SEI, SLICE, SPS, Bits, NalError, payload, stream_units
from megahour.files import appearing

Size = tuple[int, int]
"""(height, width)."""

ANNEX_B = re.compile(rb"\x00\x00+\x01")
"""How an Annex B stream begins: with the start code of its first NAL unit, of three bytes or more."""

BT601 = 6
LIMITED, FULL = 1, 2
"""Matrix and range that every stream is written in and tagged with (ITU-T H.273), so that no reader has to guess."""

TO_YUV = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP
TO_SMALLER_RGB = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
FAITHFUL = (
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP | Interpolation.FULL_CHR_H_INT
)
REPEATABLE = ("yuv420p", "yuvj420p", "yuv422p", "yuvj422p")
"""What swscale has its fast conversion for, on even heights and without `ACCURATE_RND`."""


@dataclass(frozen=True)
class AccessUnit:
    """One coded picture, Annex B. A keyframe carries its SPS and PPS."""

    data: bytes
    keyframe: bool


@dataclass(frozen=True)
class Settings:
    """What x264 is told: the rate it may assume, quality, effort, and whatever else, as `name=value:...`."""

    rate_hz: float
    crf: float
    preset: str
    x264: str = ""


def encode(
    frames: Iterable[Frames], size: Size, keyframes: Sequence[bool], settings: Settings, target: Size | None = None
) -> Iterator[AccessUnit]:
    """Code pictures `(height, width, 3)` uint8 RGB, one access unit each, with keyframes exactly where asked.

    They are scaled to `target`, an even size, where one is given. The same pictures give the same bytes: x264 runs in
    one thread. Odd sizes are padded by one row or column.

    Raises:
        EpisodeError: `frame_count` when the pictures are not as many as `keyframes`, `invalid` when one has another
            size or type, or x264 refuses its settings.
    """
    height, width = target or (size[0] + size[0] % 2, size[1] + size[1] % 2)
    codec = _encoder(width, height, settings)
    to_yuv = VideoReformatter()
    coded = taken = 0
    for picture in frames:
        if taken == len(keyframes):
            raise EpisodeError("frame_count", f"There are more pictures than the {len(keyframes)} times of this camera")
        frame = _yuv(to_yuv, picture, size, target)
        frame.pts = taken
        frame.pict_type = PictureType.I if keyframes[taken] else PictureType.P
        taken += 1
        for packet in codec.encode(frame):
            yield _access_unit(bytes(packet), keyframes[coded])
            coded += 1
    if taken != len(keyframes):
        raise EpisodeError("frame_count", f"There are {taken} pictures, and {len(keyframes)} times of this camera")
    if taken:
        for packet in codec.encode(None):
            yield _access_unit(bytes(packet), keyframes[coded])
            coded += 1
    if coded != taken:
        raise EpisodeError("frame_count", f"x264 returned {coded} access units for {taken} pictures")


def _encoder(width: int, height: int, settings: Settings) -> Any:
    rate = max(Fraction(settings.rate_hz).limit_denominator(1001), Fraction(1, 1000))
    codec: Any = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt = width, height, "yuv420p"
    codec.framerate, codec.time_base, codec.thread_count = rate, 1 / rate, 1
    codec.colorspace, codec.color_range = BT601, LIMITED
    codec.options = {
        "preset": settings.preset,
        "tune": "fastdecode",
        "crf": f"{settings.crf:g}",
        "forced-idr": "1",
        # What makes an episode readable is said last, and holds against whatever a profile says.
        "x264-params": "keyint=infinite:scenecut=0:bframes=0:threads=1:repeat-headers=1:annexb=1:aud=0" + _asm(),
    }
    if settings.x264:
        # Unlike `x264-params` this refuses what x264 does not know.
        codec.options["x264opts"] = settings.x264
    try:
        codec.open()
    except FFmpegError as error:
        said = f"preset '{settings.preset}', crf {settings.crf:g} and '{settings.x264}'"
        raise EpisodeError("invalid", f"x264 refuses {said}: {error.strerror}") from error
    return codec


@lru_cache(maxsize=1)
def _asm() -> str:
    """Hold x264 to one instruction set, AVX2, wherever there is one.

    With AVX-512 its macroblock tree reads beyond its rows, and the bytes differ from run to run; between other sets
    they differ by rounding, so machines of one cluster would disagree.
    """
    cpu = Path("/proc/cpuinfo")
    return ":asm=avx2" if cpu.exists() and " avx2 " in cpu.read_text() else ""


def _yuv(reformatter: VideoReformatter, picture: Frames, size: Size, target: Size | None = None) -> Any:
    height, width = size
    if picture.shape != (height, width, 3) or picture.dtype != np.uint8:
        raise EpisodeError(
            "invalid",
            f"A picture is {picture.shape} {picture.dtype}, and its camera says ({height}, {width}, 3) uint8",
        )
    if target is None and (height % 2 or width % 2):
        picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    return reformatter.reformat(
        frame,
        height=target[0] if target else frame.height,
        width=target[1] if target else frame.width,
        format="yuv420p",
        dst_colorspace=Colorspace.ITU601,
        dst_color_range=LIMITED,
        interpolation=TO_YUV,
        threads=1,
    )


def _rgb(
    reformatter: VideoReformatter,
    frame: Any,
    size: Size,
    target: Size,
    chroma: Chroma = "nearest",
    into: Frames | None = None,
) -> Frames:
    """An RGB picture of size `target` from a coded one, whose padding to even sizes is cut off first."""
    scaled = target != size
    if scaled and (frame.height, frame.width) != size:
        frame = av.VideoFrame.from_ndarray(_rgb(reformatter, frame, size, size, "smooth"), format="rgb24")
    if not scaled and chroma == "nearest" and frame.format.name in REPEATABLE and frame.height % 2 == 0:
        return _packed_rgb(reformatter, frame, target, into)
    picture = np.empty((*target, 3), np.uint8) if into is None else into
    planar_rgb(reformatter, frame, target if scaled else None, TO_SMALLER_RGB if scaled else FAITHFUL, picture)
    return picture


def _packed_rgb(reformatter: VideoReformatter, frame: Any, size: Size, into: Frames | None) -> Frames:
    """A frame's upper left `size` as RGB, each colour repeated: the one conversion to pixels that swscale has fast."""
    height, width = size
    pixels: Any = reformatter.reformat(
        frame,
        format="rgb24",
        src_colorspace=Colorspace.ITU601,
        src_color_range=_range_of(frame.format.name),
        interpolation=Interpolation.BICUBIC,
        threads=1,
    )
    (plane,) = pixels.planes
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    picture = np.empty((height, width, 3), np.uint8) if into is None else into
    picture[:] = rows[:height, : 3 * width].reshape(height, width, 3)
    return picture


def planar_rgb(
    reformatter: VideoReformatter, frame: Any, size: Size | None, how: Interpolation, into: Frames | None = None
) -> Frames:
    """A frame as RGB `(height, width, 3)`, scaled to `size` where one is given; written `into` an array where given.

    swscale writes planes two to three times as fast as it writes pixels, for the same values.
    """
    planes: Any = reformatter.reformat(
        frame,
        height=size[0] if size else frame.height,
        width=size[1] if size else frame.width,
        format="gbrp",
        src_colorspace=Colorspace.ITU601,
        src_color_range=_range_of(frame.format.name),
        interpolation=how,
        threads=1,
    )
    return pixels_of(planes, into)


def pixels_of(planes: Any, into: Frames | None = None) -> Frames:
    """A frame of the format `gbrp` as `(height, width, 3)`; of a smaller array `into` as much as fits."""
    picture = np.empty((planes.height, planes.width, 3), np.uint8) if into is None else into
    height, width, _ = picture.shape
    for plane, channel in zip(planes.planes, (1, 2, 0), strict=True):
        rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
        picture[:, :, channel] = rows[:height, :width]
    return picture


def _range_of(pixels: str) -> int | None:
    if pixels.startswith("yuvj"):
        return FULL
    return LIMITED if pixels.startswith("yuv") else None


def scale_frames(frames: Frames, size: Size) -> Frames:
    """Scale pictures `(n, height, width, 3)` to `size` exactly as an episode's reader does, chroma planes included.

    For pictures that never were in an episode: what a simulator renders looks to a model like what it was trained on.
    """
    reformatter = VideoReformatter()
    out = np.empty((len(frames), *size, 3), np.uint8)
    for i, picture in enumerate(frames):
        own: Size = (picture.shape[0], picture.shape[1])
        _rgb(reformatter, _yuv(reformatter, picture, own), own, size, into=out[i])
    return out


def nal_units(data: bytes) -> list[bytes]:
    """The NAL units of an Annex B access unit, without their start codes, none of them empty.

    Raises:
        EpisodeError: `corrupt` when it does not begin with a start code.
    """
    if ANNEX_B.match(data) is None:
        raise EpisodeError("corrupt", "A picture is not an Annex B stream: it does not begin with a start code")
    return stream_units(data)


def is_keyframe(data: bytes) -> bool:
    """Whether an access unit can be decoded by itself.

    Raises:
        EpisodeError: it does not hold exactly the slices of one picture, has B slices, or lacks its SPS or PPS.
    """
    units = nal_units(data)
    types = [unit[0] & 31 for unit in units]
    slices = [_slice_header(unit) for unit, kind in zip(units, types, strict=True) if kind in (SLICE, KEY_SLICE)]
    pictures = sum(first_macroblock == 0 for first_macroblock, _ in slices)
    if pictures != 1:
        raise EpisodeError("corrupt", f"A message holds {pictures} pictures instead of one (NAL units {types})")
    if any(slice_type % 5 == 1 for _, slice_type in slices):
        raise EpisodeError("corrupt", "A picture is a B-frame, and pictures must be stored in the order they decode")
    if KEY_SLICE not in types:
        return False
    if SPS not in types or PPS not in types:
        raise EpisodeError("corrupt", f"A keyframe lacks its SPS or PPS (NAL units {types})")
    return True


def _slice_header(unit: bytes) -> tuple[int, int]:
    """first_mb_in_slice and slice_type (ITU-T H.264, 7.3.3)."""
    bits = Bits(payload(unit, 1))
    try:
        return bits.ue(), bits.ue()
    except NalError as error:
        raise EpisodeError("corrupt", f"A slice of a picture {error}") from error


def _access_unit(data: bytes, keyframe: bool) -> AccessUnit:
    """Drop what no decoder needs: x264 repeats its option string in front of every keyframe."""
    units = [unit for unit in nal_units(data) if unit[0] & 31 not in (SEI, DELIMITER)]
    kept = b"".join(b"\x00\x00\x00\x01" + unit for unit in units)
    if is_keyframe(kept) != keyframe:
        raise EpisodeError("corrupt", "x264 placed a keyframe where none was asked for")
    return AccessUnit(kept, keyframe)


class Decoder:
    """A decoder and a scaler for pictures of one codec and size, kept between reads. Not to be shared by threads."""

    def __init__(self, codec: Literal["h264", "jpeg"], size: Size) -> None:
        self._size = size
        self._kind = codec
        self._codec: Any = av.CodecContext.create("mjpeg" if codec == "jpeg" else "h264", "r")
        self._codec.thread_count = 1
        self._codec.flags |= av.codec.context.Flags.low_delay
        self._codec.options = {"err_detect": "explode"}
        self._reformatter = VideoReformatter()

    def decode(
        self,
        units: Sequence[bytes],
        wanted: Sequence[bool],
        size: Size,
        chroma: Chroma = "nearest",
        into: Sequence[Frames] | None = None,
    ) -> list[Frames]:
        """Decode a run of coded pictures that starts with a keyframe; the wanted ones, scaled to `size`, in order.

        `into` are arrays to write them to, as many as are wanted.

        Raises:
            EpisodeError: `corrupt` when a unit does not decode to exactly one picture of the camera's size.
        """
        pictures: list[Frames] = []
        try:
            for unit, want in zip(units, wanted, strict=True):
                frames = self._codec.decode(av.Packet(unit))
                if len(frames) != 1:
                    raise EpisodeError("corrupt", f"A coded picture decoded to {len(frames)} pictures")
                if frames[0].is_corrupt:
                    raise EpisodeError("corrupt", "A coded picture decodes only in part")
                if want:
                    place = None if into is None else into[len(pictures)]
                    pictures.append(self._scaled(frames[0], size, chroma, place))
        except FFmpegError as error:
            raise EpisodeError("corrupt", f"A coded picture does not decode: {error}") from error
        finally:
            self._codec.flush_buffers()
        return pictures

    def _scaled(self, frame: Any, size: Size, chroma: Chroma, into: Frames | None) -> Frames:
        height, width = self._size
        padded = (height + height % 2, width + width % 2) if self._kind == "h264" else self._size
        if (frame.height, frame.width) != padded:
            raise EpisodeError(
                "corrupt", f"A picture decoded to {frame.width}x{frame.height}, and its camera has {width}x{height}"
            )
        return _rgb(self._reformatter, frame, self._size, size, chroma, into)


def encode_video(path: Path, frames: Iterable[Frames], rate_hz: float) -> None:
    """Write pictures `(height, width, 3)` uint8 RGB as a small MP4 that browsers play."""
    to_yuv = VideoReformatter()
    with (
        appearing(path) as partial,
        av.open(str(partial), "w", format="mp4", options={"movflags": "+faststart"}) as container,
    ):
        stream: Any = None
        for i, picture in enumerate(frames):
            size: Size = (picture.shape[0], picture.shape[1])
            frame = _yuv(to_yuv, picture, size)
            if stream is None:
                stream = container.add_stream("libx264", rate=Fraction(rate_hz).limit_denominator(1001))
                stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, "yuv420p"
                stream.codec_context.colorspace, stream.codec_context.color_range = BT601, LIMITED
                stream.options = {"preset": "veryfast", "crf": "23"}
                stream.codec_context.thread_count = 1
            frame.pts = i
            container.mux(stream.encode(frame))
        if stream is None:
            raise ValueError(f"{path.name} would have no pictures")
        container.mux(stream.encode(None))

"""Pictures out of messages: files such as JPEG, and raw pixels in the encodings of ROS 2 and Foxglove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.episode.jpeg import jpeg_head
from megahour.episode.model import EpisodeError, Frames
from megahour.sources import pictures
from megahour.sources.mcap.decode import NoFieldError, UndecodableError, bytes_of, get
from megahour.sources.model import SourceError

END_OF_JPEG = b"\xff\xd9"
MOST_HEADS = 64

Pixels = NDArray[np.uint8]


class DepthError(Exception):
    """A picture is no colour, but distances or 16 bits of grey."""


@dataclass(frozen=True)
class Encoding:
    """How raw pixels lie: bytes of a pixel in a row, and RGB from an array `(height, width, bytes)`.

    `note` says what the way to RGB takes for granted or loses.
    """

    pixel_bytes: int
    rgb: Callable[[Pixels], Frames]
    note: str = ""


def _channels(*order: int) -> Callable[[Pixels], Frames]:
    return lambda pixels: np.ascontiguousarray(pixels[:, :, list(order)])


def _high_bytes(*order: int) -> Callable[[Pixels], Frames]:
    return lambda pixels: np.ascontiguousarray(pixels[:, :, 1::2][:, :, list(order)])


def _by_ffmpeg(name: str, swap: bool = False) -> Callable[[Pixels], Frames]:
    def rgb(pixels: Pixels) -> Frames:
        import av

        pixels = pixels[:, :, ::-1] if swap else pixels
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format=name)
        return np.asarray(frame.reformat(format="rgb24").to_ndarray(), np.uint8)

    return rgb


ALPHA = "has an alpha channel, which is not stored"
BITS = pictures.BITS.format(bits=16)
MOSAICS = ("bayer_rggb", "bayer_bggr", "bayer_gbrg", "bayer_grbg")
MOSAIC = "is a Bayer mosaic: colours are interpolated"
ENCODINGS = {
    "rgb8": Encoding(3, _channels(0, 1, 2)),
    "bgr8": Encoding(3, _channels(2, 1, 0)),
    "8uc3": Encoding(3, _channels(2, 1, 0), "is 8UC3, which does not say its colours' order: taken as bgr8"),
    "rgba8": Encoding(4, _channels(0, 1, 2), ALPHA),
    "bgra8": Encoding(4, _channels(2, 1, 0), ALPHA),
    "mono8": Encoding(1, _channels(0, 0, 0), pictures.GREY),
    "8uc1": Encoding(1, _channels(0, 0, 0), pictures.GREY),
    "rgb16": Encoding(6, _high_bytes(0, 1, 2), BITS),
    "bgr16": Encoding(6, _high_bytes(2, 1, 0), BITS),
    "yuv422": Encoding(2, _by_ffmpeg("yuyv422", swap=True)),
    "uyvy": Encoding(2, _by_ffmpeg("yuyv422", swap=True)),
    "yuv422_yuy2": Encoding(2, _by_ffmpeg("yuyv422")),
    "yuyv": Encoding(2, _by_ffmpeg("yuyv422")),
    **{f"{name}8": Encoding(1, _by_ffmpeg(f"{name}8"), MOSAIC) for name in MOSAICS},
}
DEPTH = ("16uc1", "mono16", "32fc1", "64fc1", "16sc1", "32sc1")


@dataclass(frozen=True)
class Shape:
    """What a picture is. `kind` and `mode` are of a file as `megahour.sources.pictures.Look` says, or `raw`."""

    width: int
    height: int
    kind: str
    mode: str = ""
    note: str = ""


@dataclass
class Files:
    """Looks at pictures that are files of their own, before they are needed.

    A JPEG is decoded only where its head is new: what follows a known head decodes, once it ends as it should.
    """

    _heads: set[bytes] = field(default_factory=set)

    def look(self, message: Any) -> Shape:
        """What the picture of a message is.

        Raises:
            DepthError: it is no colour picture.
            UndecodableError: it is none at all, or damaged.
        """
        data = file_of(message)
        if "compresseddepth" in _format(message):
            raise DepthError
        try:
            found = pictures.look(data, "a message")
            if found.mode in pictures.GREY_16 or found.mode == "F":
                raise DepthError
            if found.kind != "jpeg" or not self._is_whole(data):
                self._decode(data, found)
        except SourceError as error:
            raise UndecodableError(str(error)) from error
        return Shape(found.width, found.height, found.kind, found.mode, pictures.conversion(found))

    def _is_whole(self, data: bytes) -> bool:
        try:
            head = jpeg_head(data)
        except EpisodeError as error:
            raise UndecodableError("a JPEG ends before its picture") from error
        if data.rfind(END_OF_JPEG, len(head)) < 0:
            raise UndecodableError(f"a JPEG of {len(data)} bytes is cut short")
        if head in self._heads:
            return True
        if len(self._heads) < MOST_HEADS:
            pictures.colours(data, "a message")
            self._heads.add(head)
            return True
        return False

    def _decode(self, data: bytes, found: pictures.Look) -> None:
        if pictures.colours(data, "a message").shape[:2] != (found.height, found.width):
            raise UndecodableError("a picture has another size than it says")


def file_of(message: Any) -> bytes:
    """The bytes of a picture that is a file of its own.

    Raises:
        UndecodableError: there are none.
    """
    try:
        data = bytes_of(get(message, "data"))
    except NoFieldError as error:
        raise UndecodableError(str(error)) from error
    if not data:
        raise UndecodableError("a message is empty")
    return data


def _format(message: Any) -> str:
    try:
        return str(get(message, "format")).lower()
    except NoFieldError:
        return ""


def file_rgb(message: Any, where: str) -> Frames:
    """The picture of a message that holds a file, `(height, width, 3)`.

    Raises:
        SourceError: `unreadable` when it is damaged in a way that its head does not show.
    """
    return pictures.colours(file_of(message), where)


def raw_look(message: Any) -> Shape:
    """What the raw picture of a message is.

    Raises:
        DepthError: it is no colour picture.
        UndecodableError: its encoding is unknown, or its bytes are too few.
    """
    encoding, _, width, height, _ = _raw(message)
    return Shape(width, height, "raw", note=encoding.note)


def raw_rgb(message: Any) -> Frames:
    """The picture of a message that holds pixels, `(height, width, 3)`.

    Raises:
        UndecodableError: as `raw_look`.
    """
    encoding, data, width, height, step = _raw(message)
    rows = np.frombuffer(data, np.uint8, height * step).reshape(height, step)
    return encoding.rgb(rows[:, : width * encoding.pixel_bytes].reshape(height, width, encoding.pixel_bytes))


def _raw(message: Any) -> tuple[Encoding, bytes, int, int, int]:
    try:
        name = str(get(message, "encoding"))
        width, height, step = (int(get(message, field) or 0) for field in ("width", "height", "step"))
        data = bytes_of(get(message, "data"))
    except (NoFieldError, TypeError, ValueError) as error:
        raise UndecodableError(str(error)) from error
    if name.lower() in DEPTH:
        raise DepthError
    encoding = ENCODINGS.get(name.lower())
    if encoding is None:
        raise UndecodableError(f"its encoding '{name}' is none of {', '.join(ENCODINGS)}")
    if width <= 0 or height <= 0 or step < width * encoding.pixel_bytes or len(data) < step * height:
        text = f"a picture of {width}x{height} in {name}, {step} bytes a row, has {len(data)} bytes"
        raise UndecodableError(text)
    if encoding.pixel_bytes == 2 and width % 2:
        raise UndecodableError(f"a picture in {name} is {width} wide, which must be even")
    return encoding, data, width, height, step

"""Pictures that a source holds as files of their own, JPEG or PNG: what they are, and what they show."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from megahour.episode.model import Frames
from megahour.sources.model import SourceError

if TYPE_CHECKING:
    from PIL import Image

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
PNG_DEPTH_AT = 24
"""Where a PNG says its bits per value (PNG specification, 11.2.1)."""
GREY_16 = ("I;16", "I;16B", "I")
"""Pillow's names for pictures of one channel with more than 8 bits."""
GREY = "is grey: stored as colour with three equal channels"
BITS = "has {bits} bits per value: stored with 8"


@dataclass(frozen=True)
class Look:
    """What a picture says of itself. `mode` is Pillow's name for its channels, `bits` those of a value."""

    kind: str
    mode: str
    width: int
    height: int
    bits: int


def is_picture(data: bytes) -> bool:
    """Whether bytes begin as a JPEG or PNG file does."""
    return data.startswith((JPEG, PNG))


def look(data: bytes, where: str) -> Look:
    """What a picture is, by its head.

    Raises:
        SourceError: `unreadable` when it is no picture. `where` is its place, for the message.
    """
    picture = _opened(data, where)
    bits = data[PNG_DEPTH_AT] if data.startswith(PNG) else 8
    return Look(str(picture.format).lower(), picture.mode, picture.width, picture.height, bits)


def colours(data: bytes, where: str) -> Frames:
    """A picture as `(height, width, 3)` uint8, channels in the order of its file; grey is repeated, alpha dropped.

    Raises:
        SourceError: `unreadable`.
    """
    return np.asarray(_decoded(data, where, lambda picture: picture.convert("RGB")), np.uint8)


def values(data: bytes, where: str) -> NDArray[Any]:
    """A picture's own values, `(height, width[, channels])`: uint16 of a grey picture with 16 bits, else uint8.

    Raises:
        SourceError: `unreadable`.
    """
    array = np.asarray(_decoded(data, where, lambda picture: picture))
    return array.astype(np.uint16) if array.dtype != np.uint8 else array


def conversion(said: Look) -> str:
    """What becoming 8-bit RGB changes about a picture, as words that follow its name; empty where it is nothing."""
    if said.mode in ("L", "1"):
        return GREY
    if said.mode not in ("RGB", "P"):
        return f"is {said.mode}: stored as red, green and blue alone"
    return BITS.format(bits=said.bits) if said.bits > 8 and said.mode == "RGB" else ""


def only_colour(frames: Iterable[Frames]) -> tuple[int, ...] | None:
    """The one colour that all pictures show throughout, else None. Ends at the first picture that shows another."""
    colour = None
    for frame in frames:
        if colour is None:
            colour = tuple(int(value) for value in frame[0, 0])
        if not (frame == np.array(colour, np.uint8)).all():
            return None
    return colour


def _opened(data: bytes, where: str) -> Image.Image:
    from PIL import Image

    try:
        return Image.open(io.BytesIO(data))
    except MemoryError:
        raise
    except Exception as error:
        raise _unreadable(data, where, error) from error


def _decoded(data: bytes, where: str, then: Callable[[Image.Image], Image.Image]) -> Image.Image:
    picture = _opened(data, where)
    try:
        picture.load()
        return then(picture)
    except MemoryError:
        raise
    # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more for bytes that are damaged.
    except Exception as error:
        raise _unreadable(data, where, error) from error


def _unreadable(data: bytes, where: str, error: Exception) -> SourceError:
    kind = "a damaged JPEG or PNG" if is_picture(data) else "not a JPEG or PNG"
    text = f"{where} has a picture that is {kind} ({len(data)} bytes): {type(error).__name__}: {error}"
    return SourceError("unreadable", text)

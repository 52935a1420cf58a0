"""Coded video, one picture per message: which messages decode, and to what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from megahour.episode.model import EpisodeError, Frames
from megahour.sources.mcap.decode import NoFieldError, UndecodableError, bytes_of, get

CODECS = {
    "h264": "h264",
    "avc": "h264",
    "h265": "hevc",
    "hevc": "hevc",
    "vp9": "vp9",
    "av1": "libdav1d",
}
START_CODE = re.compile(rb"\x00\x00\x01")
SLICE, KEY_SLICE, SPS, PPS = 1, 5, 7, 8
"""NAL unit types of ITU-T H.264, table 7-1."""
HIGH_PROFILES = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))
PLAIN_COLOURS = frozenset((2, 5, 6))
"""Matrices of ITU-T H.273 that a decoder of episodes takes a stream to have: not said, and the two of BT.601."""
LIMITED = frozenset((0, 1))

Decoded = tuple[int, Any]
"""The turn of the message that a picture came in, and the picture as an `av.VideoFrame`."""


def unit_of(message: Any) -> tuple[str, bytes]:
    """The format and the bytes of a message.

    Raises:
        UndecodableError: it has none, or is empty: an empty packet would end a decoder for ever.
    """
    try:
        name, data = str(get(message, "format")).lower(), bytes_of(get(message, "data"))
    except NoFieldError as error:
        raise UndecodableError(str(error)) from error
    if not data:
        raise UndecodableError("a message is empty")
    if name not in CODECS:
        raise UndecodableError(f"its format '{name}' is none of {', '.join(CODECS)}")
    return name, data


class Decoder:
    """A stream's decoder. Whatever follows damage waits for the next keyframe, so no picture is a wrong one."""

    def __init__(self, name: str) -> None:
        import av

        self.name = name
        self._codec: Any = av.CodecContext.create(CODECS[name], "r")
        self._codec.thread_count = 1
        self._codec.options = {"err_detect": "explode"}
        self._order = FrameOrder() if CODECS[name] == "h264" else None

    def push(self, turn: int, data: bytes) -> list[Decoded]:
        """Decode the next message; the pictures that are ready, in the order of presentation."""
        import av
        from av.error import FFmpegError

        ready: list[Decoded] = []
        if self._order is not None and self._order.is_lost_before(data):
            ready = self._restart()
        packet = av.Packet(data)
        packet.pts = turn
        try:
            frames = self._codec.decode(packet)
        except FFmpegError:
            return ready + self._restart()
        ready += self._sound(frames)
        if any(frame.is_corrupt for frame in frames):
            ready += self._restart()
        return ready

    def end(self) -> list[Decoded]:
        """The pictures that were held back, in the order of presentation."""
        from av.error import FFmpegError

        try:
            return self._sound(self._codec.decode(None))
        except FFmpegError:
            return []

    def _restart(self) -> list[Decoded]:
        ready = self.end()
        self._codec.flush_buffers()
        return ready

    @staticmethod
    def _sound(frames: list[Any]) -> list[Decoded]:
        return [(frame.pts, frame) for frame in frames if not frame.is_corrupt and frame.pts is not None]


class FrameOrder:
    """Whether messages of an H.264 stream are missing: decoders go on without a word, and show wrong pictures.

    The number of a picture is that of the reference before it, or one more (ITU-T H.264, 7.4.3).
    """

    def __init__(self) -> None:
        self._bits = self._last = 0
        self._has_planes = False

    def is_lost_before(self, data: bytes) -> bool:
        """Whether a reference is missing between the last message and this one."""
        try:
            return self._step(data)
        except IndexError:
            # Too short for its head: the decoder will say so.
            return False

    def _step(self, data: bytes) -> bool:
        for kind, reference, unit in nal_units(data):
            if kind == SPS:
                self._read_sps(Bits(unit))
            elif kind in (SLICE, KEY_SLICE) and self._bits:
                bits = Bits(unit)
                for _ in range(3):
                    bits.golomb()
                number = bits.take((2 if self._has_planes else 0) + self._bits) & ((1 << self._bits) - 1)
                lost = kind == SLICE and number not in (self._last, (self._last + 1) % (1 << self._bits))
                if reference or lost:
                    self._last = number
                return lost
        return False

    def _read_sps(self, bits: Bits) -> None:
        """The part of a sequence parameter set up to what a slice needs (ITU-T H.264, 7.3.2.1.1)."""
        profile = bits.take(8)
        bits.take(16)
        bits.golomb()
        self._has_planes = False
        if profile in HIGH_PROFILES:
            chroma = bits.golomb()
            if chroma == 3:
                self._has_planes = bool(bits.take(1))
            bits.golomb()
            bits.golomb()
            bits.take(1)
            if bits.take(1):
                for i in range(8 if chroma != 3 else 12):
                    if bits.take(1):
                        _skip_scaling_list(bits, 16 if i < 6 else 64)
        length = bits.golomb() + 4
        order = bits.golomb()
        if order == 0:
            bits.golomb()
        elif order == 1:
            bits.take(1)
            bits.golomb()
            bits.golomb()
            for _ in range(bits.golomb()):
                bits.golomb()
        bits.golomb()
        # Streams with layers leave numbers out on purpose.
        self._bits = 0 if bits.take(1) else length


def _skip_scaling_list(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            coded = bits.golomb()
            change = (coded + 1) // 2 if coded % 2 else -(coded // 2)
            following = (last + change) % 256
        last = following or last


class Bits:
    """The bits of a NAL unit's content, without the bytes that keep start codes out of it."""

    def __init__(self, unit: bytes) -> None:
        self._data = unit[:1024].replace(b"\x00\x00\x03", b"\x00\x00")
        self._at = 0

    def take(self, count: int) -> int:
        """The next bits as a number.

        Raises:
            IndexError: there are no more.
        """
        value = 0
        for _ in range(count):
            value = value << 1 | self._data[self._at >> 3] >> (7 - self._at % 8) & 1
            self._at += 1
        return value

    def golomb(self) -> int:
        """The next Exp-Golomb number."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)


def nal_units(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The NAL units of H.264 in Annex B: type, nal_ref_idc and content, of which long ones are cut."""
    starts = [match.end() for match in START_CODE.finditer(data)]
    for start, end in pairwise([*starts, len(data)]):
        if start < len(data):
            yield data[start] & 31, data[start] >> 5 & 3, data[start + 1 : min(end, start + 1025)]


def why_nothing(name: str, first: bytes) -> str:
    """What keeps a stream from decoding, of which `first` is the longest message seen."""
    if name in ("h264", "avc", "h265", "hevc") and not START_CODE.search(first[:64]):
        return "its messages are no Annex B stream: they do not begin with a start code"
    if name in ("h264", "avc"):
        kinds = {kind for kind, _, _ in nal_units(first)}
        if not {SPS, PPS} <= kinds:
            return "no keyframe of it carries its parameter sets (SPS and PPS)"
    return "it has no keyframe that decodes"


def is_storable(data: bytes) -> bool | None:
    """Whether a message of H.264 is a keyframe, if it can be stored as it is; else None."""
    from megahour.episode.h264 import is_keyframe

    try:
        return is_keyframe(data)
    except (EpisodeError, IndexError, ValueError):
        return None


def is_plain(frame: Any) -> bool:
    """Whether a decoded picture has the colours that a decoder of episodes takes it to have."""
    colours = int(frame.colorspace) in PLAIN_COLOURS and int(frame.color_range) in LIMITED
    return bool(frame.format.name == "yuv420p" and colours)


class ToRgb:
    """From decoded pictures to `(height, width, 3)` uint8 RGB."""

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        self._reformatter: Any = VideoReformatter()

    def __call__(self, frame: Any) -> Frames:
        from megahour.episode.h264 import FAITHFUL, pixels_of

        # The conversion that returns to the same YUV later: the stored pictures lose nothing on this way.
        return pixels_of(self._reformatter.reformat(frame, format="gbrp", interpolation=FAITHFUL, threads=1))

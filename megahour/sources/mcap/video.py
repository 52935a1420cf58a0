"""Coded video, one picture per message: which messages decode, and to what."""

from __future__ import annotations

from typing import Any

from megahour.episode.model import EpisodeError, Frames
from megahour.episode.nal import KEY_SLICE, PPS, SLICE, SPS, NalError, Watch, stream_units
from megahour.sources.mcap.decode import NoFieldError, UndecodableError, bytes_of, get

CODECS = {
    "h264": "h264",
    "avc": "h264",
    "h265": "hevc",
    "hevc": "hevc",
    "vp9": "vp9",
    "av1": "libdav1d",
}
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
        self._watch = Watch("h264", b"") if CODECS[name] == "h264" else None

    def push(self, turn: int, data: bytes) -> list[Decoded]:
        """Decode the next message; the pictures that are ready, in the order of presentation."""
        import av
        from av.error import FFmpegError

        ready: list[Decoded] = []
        # Parameter sets may come in a message of their own, of which a decoder complains.
        is_picture = self._watch is None or bool(_types(data) & {SLICE, KEY_SLICE})
        try:
            if self._watch is not None:
                self._watch.see(data)
        except NalError as error:
            if error.reason != "dropped_frames":
                return self._restart()
            ready = self._restart() if is_picture else []
        packet = av.Packet(data)
        packet.pts = turn
        try:
            frames = self._codec.decode(packet)
        except FFmpegError:
            return ready + (self._restart() if is_picture else [])
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


def _types(data: bytes) -> frozenset[int]:
    """The types of the H.264 NAL units in a message."""
    return frozenset(unit[0] & 31 for unit in stream_units(data))


def why_nothing(name: str, first: bytes) -> str:
    """What keeps a stream from decoding, of which `first` is the longest message seen."""
    if CODECS[name] in ("h264", "hevc") and not stream_units(first[:64]):
        return "its messages are no Annex B stream: they do not begin with a start code"
    if CODECS[name] == "h264" and not {SPS, PPS} <= _types(first):
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

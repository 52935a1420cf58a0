"""Videos of recordings: what they say of themselves, and their pictures in the order of presentation.

What is damaged is refused with a reason; what is merely odd is converted, and said in a note.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from av.sidedata.sidedata import Type as SideData
from av.video.reformatter import ColorPrimaries, ColorTrc, VideoReformatter
from numpy.typing import NDArray

from megahour.episode.h264 import FAITHFUL, pixels_of
from megahour.episode.model import Frames, Note
from megahour.episode.nal import NalError, Watch
from megahour.sources.cut import cut_short
from megahour.sources.frame_times import frame_times
from megahour.sources.model import SourceError
from megahour.sources.video_file import opened_video

WATCHED = ("h264", "hevc")
"""Codecs whose frames are looked at before they are decoded. Their decoders miss no frame that others build on."""
STRICT = {"err_detect": "crccheck+bitstream+buffer+careful+explode"}
"""A frame of which a decoder has to guess a part is an error."""
STRICTER = {
    # A CAVLC slice has to end where its bits do; the order of pictures is not guessed from the first few.
    "h264": {"err_detect": STRICT["err_detect"] + "+aggressive", "strict": "1"},
    # A frame's arithmetic code has to end where its bits do.
    "libdav1d": {"strict": "1"},
}
STRICTER_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""For 8-bit pictures: ffmpeg's own go on where a frame's bytes end too early, libvpx does not."""
ZEROS, ZEROLESS = bytes(64), frozenset(("vp8", "vp9"))
"""Arithmetic coding does not write so many zeros, and libvpx passes over them at a frame's end."""
MOST_PIXELS = 1 << 26
"""Twice an 8K picture. A header that claims more is damaged, and would take the machine's memory."""
SEEKABLE = frozenset(("mp4", "matroska"))
"""Containers with an index of keyframes by their decoding times."""

HDR = {int(ColorTrc.SMPTE2084): "PQ", int(ColorTrc.ARIB_STD_B67): "HLG"}
RESERVED_MATRIX, UNKNOWN_MATRIX = 3, 2
"""Of ITU-T H.273, table 4."""


@dataclass(frozen=True)
class VideoFacts:
    """A video file: `frames` pictures, `width` x `height` as they are shown.

    `times_s`, `(frames,)`, are the file's own; they strictly increase and may start anywhere. `stamps`, `(frames,)`,
    are the same in the file's units, as they stand there. `quarter_turns` counter-clockwise and then, if `mirrored`,
    a flip from left to right bring a coded picture upright. `entries`, `(n, 2)`, are the stamps, shown and
    decoding, of keyframes to begin at. `notes` says what was left out, converted, mended or guessed.
    """

    width: int
    height: int
    frames: int
    times_s: NDArray[np.float64]
    quarter_turns: int
    mirrored: bool
    stamps: NDArray[np.int64]
    entries: NDArray[np.int64]
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class _Packet:
    """A coded frame: its time in the file's units and that of its decoding.

    Of a `keyframe`, which may stand at the front of a video, not every one is an `entry`: a frame from which all that
    follows can be decoded.
    """

    stamp: int
    decoding_stamp: int | None
    keyframe: bool
    entry: bool
    shown: bool


def probe_video(path: Path, key: str) -> VideoFacts:
    """Count a video's frames, and look for damage without decoding them (the first one apart).

    Raises:
        SourceError: `truncated`, `unreadable`, `no_video`, `unsupported`, `empty`, `times`, `damaged_frame`,
            `dropped_frames`, `no_parameter_sets` or `no_keyframe`.
    """
    if cut := cut_short(path):
        raise SourceError("truncated", f"{key} {cut}. Copy it again from where it was recorded")
    notes: list[Note] = []
    with opened_video(path, key) as (container, stream):
        packets = list(_packets(container, stream, key))
        listed = stream.frames if "mp4" in _formats(container) else 0
        stamps = _shown_stamps(packets, listed, key, notes)
        times_s, odd_times = frame_times(stamps, float(stream.time_base), key)
        notes += odd_times
        _note_streams(container, stream, key, notes)
        if any(note.code == "gaps" for note in notes) and stream.codec_context.name not in WATCHED:
            _note_unproven(packets, stream, key, notes)
    entries = [(p.stamp, p.decoding_stamp) for p in packets if p.entry and p.decoding_stamp is not None]
    with opened_video(path, key) as (container, stream):
        # Its own decoder, because no other is told what the container says: which way up the pictures are.
        frames = _decoded(container, stream, _strict(stream.codec_context), key)
        first = next((frame for frame in frames if frame.pts is not None and frame.pts >= stamps[0]), None)
    if first is None:
        raise SourceError("damaged_frame", f"{key}: its first frame does not decode. Export it again")
    _note_frame(first, stream, key, notes)
    turns, mirrored = _upright(first, key, notes)
    height, width = _picture(VideoReformatter(), first, turns, mirrored, key).shape[:2]
    return VideoFacts(
        width,
        height,
        len(stamps),
        times_s,
        turns,
        mirrored,
        stamps,
        np.array(entries, np.int64).reshape(-1, 2),
        tuple(notes),
    )


def read_video(path: Path, key: str, facts: VideoFacts, frames: range | None = None) -> Iterator[Frames]:
    """The pictures of a video, `(height, width, 3)` uint8 RGB, as many as `facts` counted.

    Args:
        frames: numbers of consecutive frames to read alone; decoding starts at the keyframe before them.

    Raises:
        SourceError: `damaged_frame` at the first frame that does not decode, or not in its place; `frame_size` when
            the size changes on the way, `frame_count` when there are fewer frames.
    """
    wanted = range(facts.frames) if frames is None else frames
    if not wanted:
        return
    # Frames of one time can only be told apart from the first of them on.
    at = first = int(np.searchsorted(facts.stamps, facts.stamps[wanted.start]))
    reformatter = VideoReformatter()
    with opened_video(path, key) as (container, stream):
        _seek(container, stream, facts, at)
        decoded = _decoded(container, stream, _strictest_decoder(stream), key)
        for frame in decoded:
            if at == first and frame.pts is not None and frame.pts < facts.stamps[at]:
                continue
            place = f"frame {at} of {facts.frames} (at {facts.times_s[at]:.3f} s)"
            if frame.pts != facts.stamps[at]:
                if any(other.pts == facts.stamps[at] for other in decoded):
                    text = f"{key}: {place} comes behind frames of later times. Export it with times that increase"
                    raise SourceError("times", text)
                raise SourceError("damaged_frame", f"{key}: {place} does not decode. Export it again")
            if frame.is_corrupt:
                raise SourceError("damaged_frame", f"{key}: {place} is damaged. Export it again")
            picture = _picture(reformatter, frame, facts.quarter_turns, facts.mirrored, key)
            height, width = picture.shape[:2]
            if (height, width) != (facts.height, facts.width):
                text = f"{key}: {place} is {width}x{height}, and the video began with {facts.width}x{facts.height}"
                raise SourceError("frame_size", f"{text}. Export it with pictures of one size")
            if at in wanted:
                yield picture
            at += 1
            if at == wanted.stop:
                return
    raise SourceError(
        "frame_count", f"{key} holds {facts.frames} coded frames, and {at} of them decode. Export it again"
    )


def _packets(container: Any, stream: Any, key: str) -> Iterator[_Packet]:
    """A video's coded frames, in the order they are decoded."""
    codec = stream.codec_context.name
    watch = Watch(codec, stream.codec_context.extradata or b"") if codec in WATCHED else None
    count = 0
    for packet in container.demux(stream):
        data = bytes(packet)
        # An empty packet says that this was all. In VP8, one may be a picture that nobody sees (RFC 6386, 9.1).
        if not data or (codec == "vp8" and not data[0] & 0x10):
            continue
        if packet.pts is None:
            raise SourceError("times", f"{key}: frame {count} has no time. Export the video again, as MP4")
        place = f"{key}: frame {count}, at {float(packet.pts * packet.time_base):.3f} s,"
        if packet.is_corrupt:
            raise SourceError("damaged_frame", f"{place} is cut or damaged. Copy the file again, or export it again")
        if codec in ZEROLESS and ZEROS in data:
            raise SourceError("damaged_frame", f"{place} was overwritten with zeros. Copy the file again")
        entry = packet.is_keyframe
        if watch is not None:
            try:
                entry = watch.see(data)
            except NalError as error:
                raise SourceError(error.reason, f"{place} {error}. Export the video again") from error
        yield _Packet(packet.pts, packet.dts, packet.is_keyframe, entry and packet.is_keyframe, not packet.is_discard)
        count += 1


def _shown_stamps(packets: list[_Packet], listed: int, key: str, notes: list[Note]) -> NDArray[np.int64]:
    """The stamps of the frames that can be shown, in the order of presentation. The index has `listed` frames."""
    if not packets:
        raise SourceError("empty", f"{key} is a video without frames")
    start = next((i for i, packet in enumerate(packets) if packet.keyframe), None)
    if start is None:
        raise SourceError("no_keyframe", f"{key} has no keyframe: none of its {len(packets)} frames can be decoded")
    shown = [packet.stamp for packet in packets if packet.shown]
    if not shown:
        raise SourceError("empty", f"{key} is a video whose edit list shows none of its {len(packets)} frames")
    if (hidden := max(listed, len(packets)) - len(shown)) > 0:
        text = f"{key}: {hidden} frames are left out; its edit list does not show them, or they are empty"
        notes.append(Note("left_out", text))
    # What is stored behind the first keyframe and shown before it builds on frames that are not there.
    follow = next((i for i, packet in enumerate(packets) if i > start and packet.keyframe), len(packets))
    kept = [
        packet
        for i, packet in enumerate(packets)
        if i >= follow or (i >= start and packet.stamp >= packets[start].stamp)
    ]
    stamps = sorted(packet.stamp for packet in kept if packet.shown)
    if not stamps:
        raise SourceError("no_keyframe", f"{key} has no keyframe that its {len(shown)} frames could be decoded from")
    if (lost := len(shown) - len(stamps)) > 0:
        text = f"{key}: {lost} frames before its first keyframe are left out; they cannot be decoded"
        notes.append(Note("dropped", text))
    return np.array(stamps, np.int64)


def _note_streams(container: Any, stream: Any, key: str, notes: list[Note]) -> None:
    others = Counter(each.type for each in container.streams if each.index != stream.index)
    if others:
        text = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
        notes.append(Note("left_out", f"{key}: its other streams are left out: {text}"))


def _note_unproven(packets: list[_Packet], stream: Any, key: str, notes: list[Note]) -> None:
    if not all(packet.keyframe for packet in packets):
        text = f"{key}: if frames were cut out at its gaps, pictures behind them are wrong"
        notes.append(Note("unproven", f"{text}; {stream.codec.canonical_name} does not tell"))


def _note_frame(frame: Any, stream: Any, key: str, notes: list[Note]) -> None:
    """What becomes of a video's pictures, after the first of them."""
    bits = max(component.bits for component in frame.format.components)
    if frame.color_trc in HDR:
        text = f"{key}: {bits}-bit HDR pictures ({HDR[frame.color_trc]}) became 8-bit sRGB"
        notes.append(Note("converted", text))
    elif bits > 8:
        notes.append(Note("converted", f"{key}: {bits}-bit pictures became 8-bit"))
    if any(component.is_alpha for component in frame.format.components) or stream.metadata.get("alpha_mode") == "1":
        notes.append(Note("left_out", f"{key}: its alpha channel is left out"))
    if frame.colorspace == RESERVED_MATRIX:
        notes.append(Note("colours_guessed", f"{key}: its colour matrix is not a known one; BT.601 is taken"))
    if frame.interlaced_frame:
        text = f"{key}: its pictures are interlaced, and kept so: odd and even lines are of two times"
        notes.append(Note("interlaced", text))
    ratio = stream.sample_aspect_ratio
    if ratio and ratio != 1:
        notes.append(
            Note("pixel_aspect", f"{key}: its pixels are not square ({ratio} wide); pictures are kept as coded")
        )


def _upright(frame: Any, key: str, notes: list[Note]) -> tuple[int, bool]:
    """How a picture is brought upright: quarter turns counter-clockwise, then whether it is flipped left to right.

    The matrix turns a place (x, y) of the coded picture into one of the shown picture (ISO/IEC 14496-12, 8.3.2).
    """
    said = frame.side_data.get(SideData.DISPLAYMATRIX)
    if said is None:
        return 0, False
    a, b, _, c, d, _ = (int(number) for number in np.frombuffer(said, np.int32)[:6])
    mirrored = a * d - b * c < 0
    degrees = -math.degrees(math.atan2(b, -a if mirrored else a))
    turns = round(degrees / 90)
    if abs(degrees - 90 * turns) > 1:
        notes.append(Note("left_out", f"{key}: it is to be shown turned by {degrees:.0f} degrees; it is kept as coded"))
        return 0, False
    if turns % 4 or mirrored:
        how = [f"turned by {turns % 4 * 90} degrees counter-clockwise"] * bool(turns % 4) + ["mirrored"] * mirrored
        notes.append(Note("converted", f"{key}: brought upright as the file says: {' and '.join(how)}"))
    return turns % 4, mirrored


def _strict(decoder: Any) -> Any:
    decoder.options = {**STRICT, **STRICTER.get(decoder.name, {}), "max_pixels": str(MOST_PIXELS)}
    return decoder


def _strictest_decoder(stream: Any) -> Any:
    """A decoder that says as much as can be said about damage."""
    own = stream.codec_context
    name = STRICTER_DECODERS.get(own.name)
    if name not in av.codecs_available or own.format is None or own.format.components[0].bits > 8:
        return _strict(own)
    decoder: Any = av.CodecContext.create(name, "r")
    decoder.thread_count = 1
    return _strict(decoder)


def _seek(container: Any, stream: Any, facts: VideoFacts, frame: int) -> None:
    """Go to the last keyframe from which a frame can be decoded, where it is not the first one anyway."""
    earlier = facts.entries[facts.entries[:, 0] <= facts.stamps[frame]]
    if len(earlier) > 1 and SEEKABLE & _formats(container):
        container.seek(int(earlier[-1, 1]), stream=stream)


def _formats(container: Any) -> set[str]:
    return set(container.format.name.split(","))


def _decoded(container: Any, stream: Any, decoder: Any, key: str) -> Iterator[Any]:
    """Frames from the next keyframe on, as a decoder gives them."""
    begun = False
    for packet in container.demux(stream):
        begun = begun or packet.is_keyframe
        # An empty packet would end the decoder for ever.
        if packet.size and begun:
            try:
                frames = decoder.decode(packet)
            except FFmpegError as error:
                at_s = float(packet.pts * packet.time_base)
                text = f"{key}: the frame at {at_s:.3f} s does not decode: {error.strerror}. Export it again"
                raise _refusal(error, "damaged_frame", text) from None
            yield from frames
    try:
        frames = decoder.decode(None)
    except FFmpegError as error:
        text = f"{key}: its last frames do not decode: {error.strerror}. Export it again"
        raise _refusal(error, "damaged_frame", text) from None
    yield from frames


def _refusal(error: FFmpegError, reason: str, text: str) -> SourceError:
    """To be raised from None: what decoders call an I/O error is a fault of the bytes, and would seem the disk's."""
    if isinstance(error, MemoryError):
        raise MemoryError(text)
    return SourceError(reason, text)


def _picture(reformatter: VideoReformatter, frame: Any, turns: int, mirrored: bool, key: str) -> Frames:
    """An upright RGB picture: with the matrix and range the frame is tagged with, BT.601 where it is not."""
    if frame.colorspace == RESERVED_MATRIX:
        frame.colorspace = UNKNOWN_MATRIX
    hdr = frame.color_trc in HDR
    try:
        # The conversion that returns to the same YUV later: the stored pictures lose nothing on this way.
        converted: Any = reformatter.reformat(
            frame,
            format="gbrp",
            interpolation=FAITHFUL,
            dst_color_trc=ColorTrc.IEC61966_2_1 if hdr else None,
            dst_color_primaries=ColorPrimaries.BT709 if hdr else None,
            threads=1,
        )
    except FFmpegError as error:
        text = f"{key}: its colours cannot be converted ({frame.format.name}, matrix {frame.colorspace} of ITU-T H.273)"
        raise _refusal(error, "unsupported", f"{text}. Export it in BT.709") from None
    picture = pixels_of(converted)
    if not turns and not mirrored:
        return picture
    turned = np.rot90(picture, turns)
    return np.ascontiguousarray(turned[:, ::-1] if mirrored else turned)

"""Videos of tests: good ones in many codecs, and the ways to break them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from tests.samples import pictures

Pictures = NDArray[np.uint8]
X264 = "threads=1:scenecut=0:"
X265 = "log-level=none:pools=1:frame-threads=1:scenecut=0:"


@dataclass(frozen=True)
class Coding:
    """A codec of libav with its options."""

    codec: str
    options: dict[str, str]
    pixels: str = "yuv420p"


def x264(more: str = "", pixels: str = "yuv420p", **options: str) -> Coding:
    return Coding("libx264", {"g": "8", "bf": "0", **options, "x264-params": X264 + more}, pixels)


def x265(more: str = "", pixels: str = "yuv420p") -> Coding:
    return Coding("libx265", {"x265-params": X265 + "keyint=8:min-keyint=8:" + more}, pixels)


H264 = x264()
H264_B_FRAMES = x264(bf="2", g="12")
VP9 = Coding("libvpx-vp9", {"g": "8", "crf": "30", "b": "0", "threads": "1"})
AV1 = Coding("libsvtav1", {"g": "8", "crf": "30", "preset": "12", "svtav1-params": "lp=1"})


def noisy(frames: int = 24, height: int = 64, width: int = 96, seed: int = 0) -> Pictures:
    """Pictures with as much detail that every coded frame holds residuals."""
    noise = np.random.default_rng(seed).integers(-6, 7, (frames, height, width, 3))
    return (pictures(frames, height, width, seed) + noise).clip(0, 255).astype(np.uint8)


def write(
    path: Path,
    coding: Coding = H264,
    video: Pictures | None = None,
    stamps: Sequence[int] | None = None,
    prepare: Callable[[Any, Any], None] = lambda container, stream: None,
    retouch: Callable[[Any], None] = lambda frame: None,
    muxing: dict[str, str] | None = None,
) -> Path:
    """Encode pictures `(frames, height, width, 3 or 4)`, at 30 Hz or at `stamps` in thirtieths of a second.

    `prepare` sets up container and stream, `retouch` every frame.
    """
    video = noisy() if video is None else video
    with av.open(str(path), "w", options=muxing or {}) as container:
        stream: Any = container.add_stream(coding.codec, rate=30, options=dict(coding.options))
        stream.height, stream.width, stream.pix_fmt = *video.shape[1:3], coding.pixels
        stream.codec_context.thread_count = 1
        prepare(container, stream)
        for i, picture in enumerate(video):
            rgb = "rgb24" if picture.shape[-1] == 3 else "rgba"
            frame: Any = av.VideoFrame.from_ndarray(picture, format=rgb).reformat(format=coding.pixels)
            frame.pts, frame.time_base = stamps[i] if stamps else i, Fraction(1, 30)
            retouch(frame)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def rewrite(
    source: Path,
    target: Path,
    change: Callable[[int, bytes], Iterable[bytes]] = lambda i, data: (data,),
    restamp: Callable[[int, int], int] = lambda i, stamp: stamp,
    early: int = 0,
) -> Path:
    """Copy a video packet by packet: `change` gives what a packet becomes, `restamp` its time of presentation.

    No muxer takes a time of presentation before that of decoding: `early` moves the latter out of the way.
    """
    with av.open(str(source)) as reader, av.open(str(target), "w") as writer:
        given = reader.streams.video[0]
        stream = writer.add_stream_from_template(given, opaque=True)
        for i, packet in enumerate(packet for packet in reader.demux(given) if packet.size):
            for data in change(i, bytes(packet)):
                changed: Any = av.Packet(data)
                changed.pts, changed.duration = restamp(i, packet.pts or 0), packet.duration
                changed.dts = (packet.dts or 0) - early
                changed.time_base, changed.is_keyframe, changed.stream = packet.time_base, packet.is_keyframe, stream
                writer.mux(changed)
    return target


def without(source: Path, target: Path, *dropped: int) -> Path:
    """Copy a video without some of its packets."""
    return rewrite(source, target, lambda i, data: () if i in dropped else (data,))


def packet_places(path: Path) -> list[tuple[int, int]]:
    """Where in a file its packets lie: (position, size)."""
    with av.open(str(path)) as container:
        return [(packet.pos or 0, packet.size) for packet in container.demux(video=0) if packet.size]


def box(data: bytes | bytearray, kind: bytes) -> int:
    """Where the payload of an MP4 file's only box of a kind begins."""
    assert data.count(kind) == 1
    return data.index(kind) + 4


def empty_sample(path: Path, sample: int) -> None:
    """Give a sample of an MP4 file no bytes, as recorders write it for a frame that they lost."""
    position, size = packet_places(path)[sample]
    data = bytearray(path.read_bytes())
    sizes = box(data, b"stsz") + 12 + 4 * sample
    assert struct.unpack(">I", data[sizes : sizes + 4]) == (size,)
    data[sizes : sizes + 4] = bytes(4)
    mdat = box(data, b"mdat") - 8
    data[mdat : mdat + 4] = struct.pack(">I", struct.unpack(">I", data[mdat : mdat + 4])[0] - size)
    del data[position : position + size]
    path.write_bytes(data)

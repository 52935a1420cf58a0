"""Videos of recordings: what they say of themselves, and their pictures in the order of presentation."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from megahour.episode.h264 import FAITHFUL
from megahour.episode.model import Frames
from megahour.sources.model import SourceError


@dataclass(frozen=True)
class VideoFacts:
    """A video file. Width and height are as shown, after its `quarter_turns` counter-clockwise; `times_s` ascend."""

    width: int
    height: int
    frames: int
    times_s: NDArray[np.float64]
    quarter_turns: int


def probe_video(path: Path, key: str) -> VideoFacts:
    """Count a video's frames without decoding them (the first one apart).

    Raises:
        SourceError: `truncated`, `unreadable` or `empty`.
    """
    with _opened(path, key) as (container, stream):
        packets = [p for p in container.demux(stream) if p.size and not p.is_discard]
        times = sorted(float(p.pts * p.time_base) for p in packets if p.pts is not None)
    if not packets:
        raise SourceError("empty", f"{key} is a video without frames")
    if len(times) != len(packets) or any(packet.is_corrupt for packet in packets):
        raise SourceError("unreadable", f"{key} has frames that are damaged or have no time")
    first = next(_decoded(path, key))
    turns = round(first.rotation / 90) % 4
    height, width = (first.width, first.height) if turns % 2 else (first.height, first.width)
    return VideoFacts(width, height, len(packets), np.array(times), turns)


def read_video(path: Path, key: str, facts: VideoFacts) -> Iterator[Frames]:
    """The pictures of a video, `(height, width, 3)` uint8 RGB, as many as `facts` counted.

    Raises:
        SourceError: `unreadable` when a frame does not decode, `frame_count` when there are fewer or more.
    """
    reformatter = VideoReformatter()
    count = 0
    for frame in _decoded(path, key):
        # The conversion that returns to the same YUV later: the stored pictures lose nothing on this way.
        picture: Any = reformatter.reformat(frame, format="rgb24", interpolation=FAITHFUL, threads=1).to_ndarray()
        count += 1
        yield np.ascontiguousarray(np.rot90(picture, facts.quarter_turns)) if facts.quarter_turns else picture
    if count != facts.frames:
        raise SourceError(
            "frame_count", f"{key} holds {facts.frames} coded frames, and {count} of them decode. Export it again"
        )


def _decoded(path: Path, key: str) -> Iterator[Any]:
    with _opened(path, key) as (container, stream):
        yield from container.decode(stream)


@contextmanager
def _opened(path: Path, key: str) -> Iterator[tuple[Any, Any]]:
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise SourceError("unreadable", f"{key} has no video in it")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            yield container, stream
    except FFmpegError as error:
        if _is_cut_short(path):
            raise SourceError(
                "truncated",
                f"{key} is cut short: it has {path.stat().st_size} bytes, fewer than its own boxes say. "
                "Copy it again from where it was recorded",
            ) from error
        raise SourceError(
            "unreadable", f"{key} cannot be read as a video: {error.strerror}. Export it again"
        ) from error


def _is_cut_short(path: Path) -> bool:
    """Whether an MP4 file ends before its last top-level box does (ISO/IEC 14496-12, 4.2), or has no `moov` yet."""
    size, at, kinds = path.stat().st_size, 0, []
    with path.open("rb") as file:
        while at + 8 <= size:
            file.seek(at)
            length, kind = struct.unpack(">I4s", file.read(8))
            if length == 1:
                length = int.from_bytes(file.read(8), "big")
            if length == 0 or not kind.isalnum():
                break
            kinds.append(kind)
            at += max(length, 8)
    return size == 0 or at > size or (b"ftyp" in kinds and b"moov" not in kinds)

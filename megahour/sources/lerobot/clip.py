"""An episode's pictures in a video file that many episodes share: which frames they are, and those alone as a video."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from megahour.sources.lerobot.dataset import Span, Video
from megahour.sources.model import SourceError
from megahour.sources.video_file import ask_disk, opened_video, refusal

MOST_DRIFT_S = 0.1
"""How far the start of an episode may be from where the metadata says, where counting frames tells which it is."""
NEAR_FRAMES = 0.45
"""How far, in frames, where the time alone tells: halfway between two frames it would not."""


@dataclass(frozen=True)
class VideoIndex:
    """The packets of a video file, without their bytes, in the order they are decoded in.

    `pts` and `dts` count `tick_s`; `shown` are the places of those that are shown, in the order of presentation.
    `promised` is how many frames the file says it shows: more than there are when it is cut short.
    """

    pts: NDArray[np.int64]
    dts: NDArray[np.int64]
    keyframes: NDArray[np.bool_]
    shown: NDArray[np.int64]
    tick_s: float
    promised: int

    @property
    def times_s(self) -> NDArray[np.float64]:
        """Times of the frames as they are shown, from the first one."""
        pts = self.pts[self.shown]
        return np.asarray((pts - pts[0]) * self.tick_s, np.float64)


@dataclass(frozen=True)
class Clip:
    """The frames `start` to `start + frames` of a video file, in the order of presentation.

    `offset_s` is how much later than the metadata says they begin.
    """

    path: Path
    key: str
    start: int
    frames: int
    offset_s: float


def find_clip(path: Path, video: Video, frames: int) -> Clip:
    """The clip of an episode with so many rows.

    Raises:
        SourceError: `frame_count`, or as `index_video` and `start_of`.
    """
    key = video.key
    index = index_video(path, key)
    there = len(index.shown)
    if not video.spans:
        return Clip(path, key, 0, there, 0.0)
    span = Span(video.spans[video.mine].from_s, video.spans[video.mine].to_s, frames)
    spans = (*video.spans[: video.mine], span, *video.spans[video.mine + 1 :])
    start = start_of(index.times_s, index.promised, spans, video.mine, key)
    if start + frames > there and index.promised > there:
        raise SourceError(
            "truncated",
            f"{key} is cut short: it says that it has {index.promised} frames, {there} are there, and the episode "
            f"needs those up to {start + frames}. Copy it again from where it was recorded",
        )
    if start + frames > there:
        raise SourceError(
            "frame_count",
            f"{key} has {there - start} frames from {span.from_s:.3f} s on, and the episode there has {frames} rows: "
            "which frame belongs to which row cannot be known. Export the episode again",
        )
    return Clip(path, key, start, frames, float(index.times_s[start]) - span.from_s)


def start_of(times_s: NDArray[np.float64], promised: int, spans: Sequence[Span], mine: int, key: str) -> int:
    """The first frame of the episode whose claim is `spans[mine]`; `times_s` are those of the file's frames.

    Where the episodes' rows are as many as the frames that the file promises, they lie one after the other and
    counting finds the frame, however far the times have drifted. Else the time does, and all frames must be there.

    Raises:
        SourceError: `times` when claims and frames do not fit, `frame_count` when frames are missing.
    """
    span = spans[mine]
    if not (np.isfinite([span.from_s, span.to_s]).all() and 0 <= span.from_s < span.to_s):
        raise SourceError(
            "times",
            f"The metadata says that the episode lies in {key} from {span.from_s} s to {span.to_s} s, which is no part "
            "of a video",
        )
    if sum(each.frames for each in spans) == promised:
        order = sorted(range(len(spans)), key=lambda i: (spans[i].from_s, i))
        start = sum(spans[i].frames for i in order[: order.index(mine)])
        if start < len(times_s) and abs(times_s[start] - span.from_s) > MOST_DRIFT_S:
            raise SourceError(
                "times",
                f"The metadata says that the episode begins at {span.from_s:.3f} s of {key}, and by the lengths of the "
                f"episodes before it there it begins at {times_s[start]:.3f} s: which is right cannot be known",
            )
        return start
    return _by_time(times_s, promised, spans, mine, key)


def _by_time(times_s: NDArray[np.float64], promised: int, spans: Sequence[Span], mine: int, key: str) -> int:
    span = spans[mine]
    frame_s = float(np.median(np.diff(times_s))) if len(times_s) > 1 else span.to_s - span.from_s
    end_s = max(each.to_s for each in spans if np.isfinite(each.to_s))
    found_s = float(times_s[-1]) + frame_s
    if promised == len(times_s) and end_s - found_s > frame_s / 2:
        raise SourceError(
            "frame_count",
            f"{key} ends at {found_s:.3f} s, and its episodes claim {end_s:.3f} s of it: where frames are missing, and "
            "whose they were, cannot be known. Export the dataset again",
        )
    start = int(np.argmin(np.abs(times_s - span.from_s)))
    if abs(times_s[start] - span.from_s) > NEAR_FRAMES * frame_s:
        raise SourceError(
            "times",
            f"The metadata says that the episode begins at {span.from_s:.3f} s of {key}, and the nearest frame is at "
            f"{times_s[start]:.3f} s: which frame is meant cannot be known",
        )
    inside = int((times_s < span.to_s - frame_s / 2).sum()) - start
    if promised == len(times_s) and inside != span.frames:
        raise SourceError(
            "frame_count",
            f"{key} has {inside} frames from {span.from_s:.3f} s to {span.to_s:.3f} s, and the episode there has "
            f"{span.frames} rows: which frame belongs to which row cannot be known. Export the episode again",
        )
    return start


@contextmanager
def cut_out(clip: Clip) -> Iterator[tuple[Path, range]]:
    """A video file of an episode's own, for as long as this lasts, and which of its frames are the episode's.

    Nothing is coded anew, and damage in other episodes of the file is not met. Frames that the first ones build on come
    before them.

    Raises:
        SourceError: `unreadable`, or as `index_video`.
        OSError: the disk cannot be read or written.
    """
    with tempfile.TemporaryDirectory(prefix="megahour-clip-") as folder:
        own = Path(folder) / f"clip{clip.path.suffix}"
        index = index_video(clip.path, clip.key)
        first, _ = _needed(clip, index)
        before = int((np.sort(index.pts[first:]) < index.pts[index.shown[clip.start]]).sum())
        _copy(clip, own)
        yield own, range(before, before + clip.frames)


def packets(clip: Clip) -> Iterator[Any]:
    """The packets that a clip's frames are decoded from: from a keyframe on, in the order of decoding.

    Raises:
        SourceError: `unreadable`, or as `index_video`.
    """
    index = index_video(clip.path, clip.key)
    first, last = _needed(clip, index)
    needed = set(index.pts[first : last + 1].tolist())
    with opened_video(clip.path, clip.key) as (container, stream):
        container.seek(int(index.dts[first]), stream=stream)
        for packet in container.demux(stream):
            if packet.pts in needed and packet.size:
                needed.discard(packet.pts)
                yield packet
            if not needed:
                return
    raise SourceError(
        "unreadable", f"{clip.key}: {len(needed)} packets of the episode are not found again. Copy the file again"
    )


def index_video(path: Path, key: str) -> VideoIndex:
    """The index of a video file, made once as long as the file stays the same.

    Raises:
        SourceError: `empty` or `unreadable`, or as `opened_video`.
    """
    stat = path.stat()
    return _index(path, key, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=32)
def _index(path: Path, key: str, mtime_ns: int, size_bytes: int) -> VideoIndex:
    facts = []
    with opened_video(path, key) as (container, stream):
        promised, tick_s = int(stream.frames), float(stream.time_base)
        for packet in container.demux(stream):
            # Where a file is cut, its last packet is not whole.
            if packet.is_corrupt:
                break
            if packet.size:
                if packet.pts is None:
                    raise SourceError("unreadable", f"{key} has frames that have no time")
                decoded_at = packet.pts if packet.dts is None else packet.dts
                facts.append((packet.pts, decoded_at, packet.is_keyframe, not packet.is_discard))
    if not any(fact[3] for fact in facts):
        raise refusal(path, key, "empty", "is a video without frames")
    pts, dts = (np.array([fact[i] for fact in facts], np.int64) for i in (0, 1))
    keyframes, is_shown = (np.array([fact[i] for fact in facts], np.bool_) for i in (2, 3))
    order = np.argsort(pts, kind="stable")
    if (np.diff(pts[order]) <= 0).any():
        raise SourceError("unreadable", f"{key} has frames at the same time: which is which cannot be known")
    shown = order[is_shown[order]]
    return VideoIndex(pts, dts, keyframes, shown, tick_s, len(shown) + max(promised - len(facts), 0))


def _needed(clip: Clip, index: VideoIndex) -> tuple[int, int]:
    """The first and the last packet that a clip's frames are decoded from; the first is a keyframe."""
    wanted = index.shown[clip.start : clip.start + clip.frames]
    until = int(wanted.min()) + 1
    # A keyframe behind which frames are stored that are shown before it does not stand alone: they need others.
    first_shown = np.minimum.accumulate(index.pts[::-1])[::-1] == index.pts
    fit = (index.keyframes & first_shown)[:until]
    if not fit.any():
        raise SourceError(
            "unreadable", f"{clip.key} has no keyframe at or before its frame {clip.start}: it cannot be decoded"
        )
    return int(np.flatnonzero(fit)[-1]), int(wanted.max())


def _copy(clip: Clip, target: Path) -> None:
    zero, into = None, None
    try:
        with av.open(str(target), "w") as out:
            for packet in packets(clip):
                if zero is None:
                    into, zero = out.add_stream_from_template(packet.stream, opaque=True), packet.pts
                packet.pts -= zero
                packet.dts = None if packet.dts is None else packet.dts - zero
                packet.stream = into
                out.mux(packet)
    except (FFmpegError, ValueError) as error:
        if isinstance(error, FFmpegError):
            ask_disk(error, clip.path, target)
        raise SourceError(
            "unreadable", f"{clip.key}: the episode's part of it cannot be cut out: {error}. Export the dataset again"
        ) from None

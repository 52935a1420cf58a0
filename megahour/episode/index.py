"""The index of an episode: where every coded picture and every compressed chunk lies, in one attachment."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import zstandard
from numpy.typing import NDArray

from megahour.episode import zstd
from megahour.episode.model import EpisodeError, TimesNs

NAME = "megahour.index"
MEDIA_TYPE = "application/x-megahour-index"
METADATA = "megahour.episode"
VERSION = 2
MOST_PX = 65535
"""No JPEG and no H.264 is wider or higher."""
MOST_BYTES = 2**62
"""No file is so large; places below it can be added up."""


@dataclass(frozen=True)
class CameraIndex:
    """Where a camera's message records lie, frame by frame.

    A rendition is a camera whose name is in `rendition_of`, once more and smaller. `offsets` and `lengths` span the
    whole MCAP record, `crcs` are CRC-32 of it, `keyframes` says which pictures decode by themselves. All arrays are
    `(frames,)`.
    """

    name: str
    channel: int
    group: str
    width: int
    height: int
    codec: Literal["h264", "jpeg"]
    rendition_of: str
    times_ns: TimesNs
    offsets: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    crcs: NDArray[np.uint32]
    keyframes: NDArray[np.bool_]

    @property
    def size_bytes(self) -> int:
        """Memory that the arrays take."""
        return sum(int(getattr(self, name).nbytes) for name in _COLUMNS)


@dataclass(frozen=True)
class SeriesIndex:
    """A low-dimensional topic: `rows` messages of `len(names)` values that were `dtype` in the source.

    `period_ns` is the median time between two rows, 0 of a single one.
    """

    name: str
    channel: int
    group: str
    rows: int
    dtype: str
    names: tuple[str, ...]
    period_ns: int


@dataclass(frozen=True)
class TopicIndex:
    """A topic that is kept as it came, of `count` messages."""

    name: str
    channel: int
    group: str
    count: int


@dataclass(frozen=True, eq=False)
class ChunkIndex:
    """A zstd chunk: the byte range of its data in the file, its size unpacked, CRC-32 of the packed bytes.

    `channels` maps a channel to what the chunk holds of it: first message's number, how many, first and last time.
    """

    group: str
    offset: int
    size_bytes: int
    unpacked_bytes: int
    crc: int
    channels: dict[int, tuple[int, int, int, int]]


@dataclass(frozen=True)
class EpisodeIndex:
    """All of an episode's index. `metadata_crc` is the CRC-32 of the episode's metadata record."""

    cameras: tuple[CameraIndex, ...]
    series: tuple[SeriesIndex, ...]
    topics: tuple[TopicIndex, ...]
    chunks: tuple[ChunkIndex, ...]
    metadata_crc: int

    @property
    def by_channel(self) -> dict[int, CameraIndex | SeriesIndex | TopicIndex]:
        """All topics by the number of their channel."""
        found: dict[int, CameraIndex | SeriesIndex | TopicIndex] = {each.channel: each for each in self.cameras}
        found.update({each.channel: each for each in self.series})
        found.update({each.channel: each for each in self.topics})
        return found

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, nearly: arrays, names, and what Python needs to hold so many small values."""
        arrays = sum(camera.size_bytes + 1024 for camera in self.cameras)
        named = sum(512 + 64 * len(series.names) for series in self.series) + 512 * len(self.topics)
        return 4096 + arrays + named + sum(512 + 256 * len(chunk.channels) for chunk in self.chunks)


def said_crc(said: Mapping[str, str]) -> str:
    """The checksum that the metadata record carries of its own other entries, for the case that the index is lost."""
    return f"{zlib.crc32(json.dumps([[k, v] for k, v in sorted(said.items()) if k != 'crc32']).encode()):08x}"


_COLUMNS: dict[str, str] = {"times_ns": "<i8", "offsets": "<i8", "lengths": "<u4", "crcs": "<u4", "keyframes": "?"}
_DIFFERENCES = ("times_ns", "offsets")


def pack(index: EpisodeIndex) -> bytes:
    """The index as the attachment's data: zstd over a JSON head and the cameras' columns, differences where steady."""
    head = {
        "version": VERSION,
        "metadata_crc": index.metadata_crc,
        "cameras": [
            {
                "name": camera.name,
                "channel": camera.channel,
                "group": camera.group,
                "width": camera.width,
                "height": camera.height,
                "codec": camera.codec,
                "rendition_of": camera.rendition_of,
                "frames": len(camera.times_ns),
            }
            for camera in index.cameras
        ],
        "series": [{**vars(series), "names": list(series.names)} for series in index.series],
        "topics": [vars(topic) for topic in index.topics],
        "chunks": [
            [c.group, c.offset, c.size_bytes, c.unpacked_bytes, c.crc, [[k, *v] for k, v in c.channels.items()]]
            for c in index.chunks
        ],
    }
    text = json.dumps(head, separators=(",", ":"), sort_keys=True).encode()
    parts = [struct.pack("<I", len(text)), text]
    for camera in index.cameras:
        for name, dtype in _COLUMNS.items():
            column = getattr(camera, name)
            if name in _DIFFERENCES:
                column = np.diff(column, prepend=np.int64(0))
            parts.append(column.astype(dtype).tobytes())
    return zstandard.ZstdCompressor(level=9).compress(b"".join(parts))


def unpack(data: bytes) -> EpisodeIndex:
    """Read what `pack` wrote.

    Raises:
        EpisodeError: `corrupt` when it is not such an index, `version` when it is of another version.
    """
    try:
        raw = zstd.unpack(data)
        (length,) = struct.unpack_from("<I", raw)
        head: dict[str, Any] = json.loads(raw[4 : 4 + length])
        if head["version"] != VERSION:
            raise EpisodeError(
                "version", f"The episode's index has version {head['version']}, and this Megahour reads {VERSION}"
            )
        at = 4 + length
        cameras = []
        for facts in head["cameras"]:
            columns: dict[str, Any] = {}
            frames = facts.pop("frames")
            for name, dtype in _COLUMNS.items():
                column = np.frombuffer(raw, dtype, frames, at)
                at += column.nbytes
                columns[name] = np.cumsum(column) if name in _DIFFERENCES else column.copy()
            columns["times_ns"].flags.writeable = False
            cameras.append(CameraIndex(**facts, **columns))
        series = tuple(SeriesIndex(**{**facts, "names": tuple(facts["names"])}) for facts in head["series"])
        topics = tuple(TopicIndex(**facts) for facts in head["topics"])
        chunks = tuple(
            ChunkIndex(group, offset, size, unpacked, crc, {each[0]: tuple(each[1:]) for each in channels})
            for group, offset, size, unpacked, crc, channels in head["chunks"]
        )
        index = EpisodeIndex(tuple(cameras), series, topics, chunks, head["metadata_crc"])
        if fault := _fault(index):
            raise ValueError(fault)
        return index
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EpisodeError("corrupt", f"The episode's index cannot be read: {error}") from error


def _fault(index: EpisodeIndex) -> str:
    """Why a reader could not work with an index, or nothing."""
    for camera in index.cameras:
        if camera.codec not in ("h264", "jpeg") or not (0 < camera.width <= MOST_PX and 0 < camera.height <= MOST_PX):
            return f"camera '{camera.name}' is {camera.codec} of {camera.width}x{camera.height}"
        if not len(camera.times_ns) or not camera.keyframes[0]:
            return f"camera '{camera.name}' does not begin with a keyframe"
        placed = camera.offsets.min() >= 0 and camera.offsets.max() < MOST_BYTES
        if camera.times_ns[0] < 0 or (camera.times_ns[1:] <= camera.times_ns[:-1]).any() or not placed:
            return f"camera '{camera.name}' has times that do not increase, or places that cannot be"
    held = {channel for chunk in index.chunks for channel in chunk.channels}
    for series in index.series:
        if series.dtype not in ("float32", "float64") or not series.names or series.channel not in held:
            return f"'{series.name}' has {len(series.names)} columns of {series.dtype}, or no chunk"
    for chunk in index.chunks:
        if chunk.offset < 0 or chunk.size_bytes < 0 or any(len(each) != 4 for each in chunk.channels.values()):
            return f"a chunk of '{chunk.group}' has a place that cannot be"
    return ""

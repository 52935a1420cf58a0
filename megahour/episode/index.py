"""The index of an episode: where every coded picture and every compressed chunk lies, in one attachment."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from megahour.episode.model import EpisodeError, TimesNs

NAME = "megahour.index"
MEDIA_TYPE = "application/x-megahour-index"
METADATA = "megahour.episode"
VERSION = 1


@dataclass(frozen=True)
class CameraIndex:
    """Where a camera's message records lie, frame by frame.

    `offsets` and `lengths` span the whole MCAP record, `crcs` are CRC-32 of it, `keyframes` says which pictures decode
    by themselves. All arrays are `(frames,)`.
    """

    name: str
    channel: int
    group: str
    width: int
    height: int
    times_ns: TimesNs
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32]
    keyframes: NDArray[np.bool_]


@dataclass(frozen=True)
class SeriesIndex:
    """A low-dimensional topic: `rows` messages of `len(names)` values that were `dtype` in the source."""

    name: str
    channel: int
    group: str
    rows: int
    dtype: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class ChunkIndex:
    """The data of a zstd chunk: its byte range in the file, its size when unpacked, CRC-32 of the packed bytes."""

    group: str
    offset: int
    size_bytes: int
    unpacked_bytes: int
    crc: int


@dataclass(frozen=True)
class EpisodeIndex:
    """All of an episode's index. `metadata_crc` is the CRC-32 of the episode's metadata record."""

    cameras: tuple[CameraIndex, ...]
    series: tuple[SeriesIndex, ...]
    chunks: tuple[ChunkIndex, ...]
    metadata_crc: int


_COLUMNS: dict[str, str] = {"times_ns": "<i8", "offsets": "<i8", "lengths": "<i8", "crcs": "<u4", "keyframes": "?"}
_DIFFERENCES = ("times_ns", "offsets")


def pack(index: EpisodeIndex) -> bytes:
    """The index as bytes: a JSON head, then each camera's columns; times and offsets as differences; all zstd."""
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
                "frames": len(camera.times_ns),
            }
            for camera in index.cameras
        ],
        "series": [
            {
                "name": series.name,
                "channel": series.channel,
                "group": series.group,
                "rows": series.rows,
                "dtype": series.dtype,
                "names": list(series.names),
            }
            for series in index.series
        ],
        "chunks": [[c.group, c.offset, c.size_bytes, c.unpacked_bytes, c.crc] for c in index.chunks],
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
        EpisodeError: `corrupt` when it is not such an index, `version` when it is a newer one.
    """
    try:
        raw = zstandard.ZstdDecompressor().decompress(data)
        (length,) = struct.unpack_from("<I", raw)
        head: dict[str, Any] = json.loads(raw[4 : 4 + length])
        if head["version"] > VERSION:
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
                columns[name] = np.cumsum(column) if name in _DIFFERENCES else column
            columns["times_ns"].flags.writeable = False
            cameras.append(CameraIndex(**facts, **columns))
        series = tuple(replace(SeriesIndex(**facts), names=tuple(facts["names"])) for facts in head["series"])
        chunks = tuple(ChunkIndex(*fields) for fields in head["chunks"])
        return EpisodeIndex(tuple(cameras), series, chunks, head["metadata_crc"])
    except (zstandard.ZstdError, struct.error, ValueError, KeyError, TypeError) as error:
        raise EpisodeError("corrupt", f"The episode's index cannot be read: {error}") from error

"""Read an episode: pictures by byte range, series whole, every byte that is used checked."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from google.protobuf.message import DecodeError
from mcap.opcode import Opcode

from megahour.episode import index as idx
from megahour.episode.container import MESSAGE_HEAD, RECORD_HEAD
from megahour.episode.h264 import Decoder
from megahour.episode.joints import from_messages
from megahour.episode.model import EpisodeError, EpisodeFacts, Frames, Series, TimesNs
from megahour.episode.ranges import ByteSource, FileBytes, LakeBytes
from megahour.episode.tail import AGAIN, Run, open_tail, read_exactly
from megahour.storage import Lake

__all__ = ["CameraInfo", "EpisodeError", "EpisodeReader", "open_episode", "open_episode_file"]

GAP_BYTES = 512 * 1024
"""Wanted bytes further apart than this are separate ranges of one request."""
MOST_HELD_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class CameraInfo:
    """A camera of an episode. `times_ns` is `(frames,)`."""

    width: int
    height: int
    frames: int
    times_ns: TimesNs


def open_episode(lake: Lake, key: str, size_bytes: int | None = None) -> EpisodeReader:
    """Open an episode of the lake with one read of its tail; without its size, one question for that before.

    Raises:
        EpisodeError: `missing`, `truncated`, `corrupt` or `version`.
    """
    return EpisodeReader(LakeBytes(lake, key, size_bytes))


def open_episode_file(path: Path) -> EpisodeReader:
    """Open an episode that is a file on this machine.

    Raises:
        EpisodeError: `missing`, `truncated`, `corrupt` or `version`.
    """
    return EpisodeReader(FileBytes(path))


class EpisodeReader:
    """An open episode. It keeps its index, its decoders and the last bytes it fetched; not to be shared by threads.

    `facts` is what the metadata record says, `cameras` and `series_names` what there is, `profile` how it is laid out,
    `notes` what its source had and it lacks.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.size_bytes = source.size_bytes()
        tail = open_tail(source, self.size_bytes)
        self.facts: EpisodeFacts = tail.facts
        self.profile, self.container_version, self.notes = tail.profile, tail.container_version, tail.notes
        self.index = tail.index
        self.cameras = {
            camera.name: CameraInfo(camera.width, camera.height, len(camera.times_ns), camera.times_ns)
            for camera in self.index.cameras
        }
        self._cameras = {camera.name: camera for camera in self.index.cameras}
        self._decoders: dict[str, Decoder] = {}
        self._series: dict[str, Series] = {}
        self._held = tail.read

    @property
    def series_names(self) -> tuple[str, ...]:
        """Names of the low-dimensional topics."""
        return tuple(series.name for series in self.index.series)

    def frames(self, camera: str, indices: Sequence[int], size: tuple[int, int] | None = None) -> Frames:
        """The pictures of `camera` at `indices`, in that order, `(n, height, width, 3)` uint8 RGB.

        `size` is (height, width): pictures are scaled by area averaging while they are converted from YUV. One request
        fetches the bytes from the keyframe before the first picture to the last one, of all cameras of the group:
        asking the next camera for the same moments reads nothing.

        Raises:
            EpisodeError: `no_topic`, `out_of_range`, `missing`, `truncated` or `corrupt`.
        """
        found = self._camera(camera)
        wanted = np.asarray(indices, np.int64).reshape(-1)
        count = len(found.times_ns)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= count):
            raise self._error(
                "out_of_range",
                f"camera '{camera}' has the pictures 0 to {count - 1}, and {wanted.min()} to {wanted.max()} were asked",
            )
        unique, back = np.unique(wanted, return_inverse=True)
        pictures = np.empty((len(unique), *(size or (found.height, found.width)), 3), np.uint8)
        if len(unique):
            keys = np.flatnonzero(found.keyframes)
            starts = keys[np.searchsorted(keys, unique, side="right") - 1]
            runs = [(int(start), unique[starts == start]) for start in np.unique(starts)]
            fetched = self._fetch(found, [(start, int(members[-1])) for start, members in runs])
            self._decode(found, runs, fetched, pictures)
        in_order = len(unique) == len(wanted) and bool((back == np.arange(len(unique))).all())
        return pictures if in_order else pictures[back]

    def series(self, name: str) -> Series:
        """A low-dimensional topic, whole. It is kept decoded, and its arrays are read-only.

        Raises:
            EpisodeError: `no_topic`, `missing`, `truncated` or `corrupt`.
        """
        if name not in self._series:
            group = next((series.group for series in self.index.series if series.name == name), None)
            if group is None:
                raise self._error("no_topic", f"there is no series '{name}', only {', '.join(self.series_names)}")
            self._series.update(self._read_series(group))
        return self._series[name]

    def coded(self, camera: str, start: int, end: int) -> list[bytes]:
        """The coded pictures `start` to `end` (exclusive) of a camera, as H.264 access units.

        Raises:
            EpisodeError: `no_topic`, `missing`, `truncated` or `corrupt`.
        """
        return self._fetch(self._camera(camera), [(start, end - 1)])[0] if end > start else []

    def _camera(self, name: str) -> idx.CameraIndex:
        if name not in self._cameras:
            raise self._error("no_topic", f"there is no camera '{name}', only {', '.join(self._cameras) or 'none'}")
        return self._cameras[name]

    def _error(self, reason: str, text: str) -> EpisodeError:
        return EpisodeError(reason, f"{self._source.name}: {text}")

    def _decode(
        self, camera: idx.CameraIndex, runs: list[tuple[int, Any]], fetched: list[list[bytes]], out: Frames
    ) -> None:
        decoder = self._decoders.get(camera.name)
        if decoder is None:
            decoder = self._decoders[camera.name] = Decoder((camera.height, camera.width))
        done = 0
        for (start, members), units in zip(runs, fetched, strict=True):
            wanted = np.isin(np.arange(start, int(members[-1]) + 1), members)
            try:
                decoder.decode(units, wanted.tolist(), out[done : done + len(members)])
            except EpisodeError as error:
                text = f"camera '{camera.name}', pictures from {start} on: {error}. {AGAIN}"
                raise self._error(error.reason, text) from error
            done += len(members)

    def _fetch(self, camera: idx.CameraIndex, runs: Sequence[tuple[int, int]]) -> list[list[bytes]]:
        """Coded pictures of ascending runs (first, last) of a camera, each run's as a list, with one request."""
        ranges: list[tuple[int, int]] = []
        for first, last in runs:
            start, end = self._group_range(camera, first, last)
            if ranges and start - ranges[-1][1] <= GAP_BYTES:
                ranges[-1] = (min(start, ranges[-1][0]), max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        held = self._held.cut(*ranges[0]) if len(ranges) == 1 else None
        if held is not None:
            read = [Run(ranges[0][0], held)]
        else:
            parts = read_exactly(self._source, [s for s, _ in ranges], [e for _, e in ranges])
            read = [Run(start, part) for (start, _), part in zip(ranges, parts, strict=True)]
            if len(read) == 1 and len(read[0].data) <= MOST_HELD_BYTES:
                self._held = read[0]
        return [[self._coded(camera, i, read) for i in range(first, last + 1)] for first, last in runs]

    def _group_range(self, camera: idx.CameraIndex, first: int, last: int) -> tuple[int, int]:
        """The bytes from a camera's picture `first` to `last`, widened to what its group holds of the same time."""
        start, end = int(camera.offsets[first]), int(camera.offsets[last] + camera.lengths[last])
        for other in self.index.cameras:
            if other is camera or other.group != camera.group:
                continue
            since = int(np.searchsorted(other.times_ns, camera.times_ns[first], side="right")) - 1
            upto = int(np.searchsorted(other.times_ns, camera.times_ns[last], side="right")) - 1
            keys = np.flatnonzero(other.keyframes[: since + 1])
            if len(keys):
                start = min(start, int(other.offsets[keys[-1]]))
                end = max(end, int(other.offsets[upto] + other.lengths[upto]))
        return start, end

    def _coded(self, camera: idx.CameraIndex, i: int, read: Sequence[Run]) -> bytes:
        start, end = int(camera.offsets[i]), int(camera.offsets[i] + camera.lengths[i])
        record = next((part for run in read if (part := run.cut(start, end)) is not None), b"")
        if zlib.crc32(record) != camera.crcs[i]:
            raise self._error("corrupt", f"the checksum of picture {i} of camera '{camera.name}' is wrong. {AGAIN}")
        try:
            video: Any = CompressedVideo.FromString(record[MESSAGE_HEAD:])
        except DecodeError as error:
            raise self._error("corrupt", f"picture {i} of camera '{camera.name}' is no message: {error}") from error
        return bytes(video.data)

    def _read_series(self, group: str) -> dict[str, Series]:
        chunks = [chunk for chunk in self.index.chunks if chunk.group == group]
        start, end = min(c.offset for c in chunks), max(c.offset + c.size_bytes for c in chunks)
        held = self._held.cut(start, end)
        run = Run(start, read_exactly(self._source, [start], [end])[0] if held is None else held)
        messages: dict[int, list[tuple[int, bytes]]] = {}
        for chunk in chunks:
            packed = run.cut(chunk.offset, chunk.offset + chunk.size_bytes) or b""
            if zlib.crc32(packed) != chunk.crc:
                raise self._error("corrupt", f"the checksum of the topics '{group}' is wrong. {AGAIN}")
            data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=chunk.unpacked_bytes)
            for channel, time_ns, payload in chunk_messages(data):
                messages.setdefault(channel, []).append((time_ns, payload))
        members = [series for series in self.index.series if series.group == group]
        return {series.name: self._one_series(series, messages.get(series.channel, [])) for series in members}

    def _one_series(self, series: idx.SeriesIndex, rows: list[tuple[int, bytes]]) -> Series:
        if len(rows) != series.rows:
            raise self._error("corrupt", f"'{series.name}' has {len(rows)} rows, and its index says {series.rows}")
        values = from_messages(series.names, [payload for _, payload in rows]).astype(series.dtype)
        times_ns = np.array([time_ns for time_ns, _ in rows], np.int64)
        values.flags.writeable = times_ns.flags.writeable = False
        return Series(series.name, times_ns, values, series.names)


def chunk_messages(data: bytes) -> list[tuple[int, int, bytes]]:
    """The messages of an unpacked chunk: (channel, log time in ns, payload)."""
    found, at = [], 0
    while at < len(data):
        opcode, length = struct.unpack_from("<BQ", data, at)
        if opcode == Opcode.MESSAGE:
            channel, _, time_ns, _ = struct.unpack_from("<HIQQ", data, at + RECORD_HEAD)
            found.append((channel, time_ns, data[at + MESSAGE_HEAD : at + RECORD_HEAD + length]))
        at += RECORD_HEAD + length
    return found

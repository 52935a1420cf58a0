"""Read an episode: samples by byte range, all requests of one in one call, every byte that is used checked."""

from __future__ import annotations

import itertools
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from megahour.episode import decoding
from megahour.episode import index as idx
from megahour.episode.cache import Cache
from megahour.episode.chunks import ChunkMessages, chunk_messages
from megahour.episode.container import MESSAGE_HEAD, picture_class
from megahour.episode.decoding import Threads
from megahour.episode.joints import from_messages
from megahour.episode.model import Chroma, EpisodeError, EpisodeFacts, ExtraMessage, Frames, Series, TimesNs
from megahour.episode.ranges import Buffer, ByteSource, FileBytes, MappedBytes, lake_bytes
from megahour.episode.sample import (
    Pictures,
    Query,
    Sample,
    SeriesQuery,
    check_choice,
    last,
    near_enough,
    nearest,
    rows_at,
)
from megahour.episode.tail import AGAIN, Run, open_tail, read_exactly
from megahour.episode.zstd import unpack
from megahour.storage import Lake

__all__ = ["CameraInfo", "EpisodeError", "EpisodeReader", "map_episode_file", "open_episode", "open_episode_file"]

GAP_BYTES = 512 * 1024
"""Wanted bytes further apart than this are separate requests."""
BUDGET_BYTES = 64 * 2**20

_numbers = itertools.count()
Span = tuple[int, int]
_Channels = dict[int, tuple[TimesNs, NDArray[np.floating]]]
"""Times and values of series, by their channel."""


@dataclass(frozen=True)
class CameraInfo:
    """A camera of an episode. `times_ns` is `(frames,)`; `renditions` are smaller (height, width) it is stored in."""

    width: int
    height: int
    frames: int
    times_ns: TimesNs
    renditions: tuple[tuple[int, int], ...] = ()


def open_episode(lake: Lake, key: str, size_bytes: int | None = None) -> EpisodeReader:
    """Open an episode of the lake with one read of its tail; `size_bytes` is checked where it is known.

    Raises:
        EpisodeError: `missing`, `truncated`, `corrupt` or `version`.
    """
    return EpisodeReader(lake_bytes(lake, key), size_bytes)


def open_episode_file(path: Path) -> EpisodeReader:
    """Open an episode that is a file on this machine.

    Raises:
        EpisodeError: `missing`, `truncated`, `corrupt` or `version`.
    """
    return EpisodeReader(FileBytes(path))


def map_episode_file(path: Path) -> EpisodeReader:
    """Open an episode that is a file on this machine, mapped into memory; nobody may cut it short meanwhile.

    Raises:
        EpisodeError: `missing`, `truncated`, `corrupt` or `version`.
    """
    return EpisodeReader(MappedBytes(path))


class EpisodeReader:
    """An open episode. Not to be shared by threads; it can be pickled, and serves in a forked process.

    `facts` is what the metadata record says, `cameras`, `series_names` and `extras` what there is, `profile` how it is
    laid out, `notes` what was lost or mended on its way in. What it read and decoded it keeps in `cache`, which other
    episodes may share, up to that one's budget.
    """

    def __init__(
        self,
        source: ByteSource,
        size_bytes: int | None = None,
        cache: Cache | None = None,
        threads: Threads | None = None,
    ) -> None:
        self._source = source
        self._cache = Cache(BUDGET_BYTES) if cache is None else cache
        self._threads = threads or Threads()
        self._number = next(_numbers)
        tail = open_tail(source, size_bytes)
        self.size_bytes = tail.size_bytes
        self.facts: EpisodeFacts = tail.facts
        self.profile, self.container_version, self.notes = tail.profile, tail.container_version, tail.notes
        self.index, self.extras = tail.index, tail.extras
        self._full = {camera.name: camera for camera in self.index.cameras if not camera.rendition_of}
        self._small = [camera for camera in self.index.cameras if camera.rendition_of]
        self.cameras = {name: self._info(camera) for name, camera in self._full.items()}
        self._periods: dict[str, float] = {}
        self._chunks: dict[str, _Chunks] = {}
        self._hold("tail", tail.read)

    def __reduce__(self) -> tuple[type[EpisodeReader], tuple[ByteSource, int, None, Threads]]:
        return EpisodeReader, (self._source, self.size_bytes, None, self._threads)

    @property
    def series_names(self) -> tuple[str, ...]:
        """Names of the low-dimensional topics."""
        return tuple(series.name for series in self.index.series)

    def sample(self, moment_ns: int, query: Query) -> Sample:
        """Pictures and values around a moment, fetched with one call.

        That is one request per group of topics that holds some of them; where more than `GAP_BYTES` that nobody wants
        lie between them, it is one for each side.

        Raises:
            EpisodeError: `no_topic`, `missing`, `truncated` or `corrupt`.
        """
        return self.samples([moment_ns], query)[0]

    def samples(self, moments_ns: Sequence[int], query: Query) -> list[Sample]:
        """The samples of several moments, in their order, fetched with one call.

        A picture that several need is fetched and decoded once.

        Raises:
            EpisodeError: `no_topic`, `missing`, `truncated` or `corrupt`.
        """
        moments = np.asarray(moments_ns, np.int64).reshape(-1)
        if not len(moments):
            return []
        found = {name: self._moments(name, moments, offsets, query.pick) for name, offsets in query.cameras.items()}
        looks = [
            self._plan(self._stored(name, query.size), frames, query.size, query.chroma)
            for name, (frames, _) in found.items()
        ]
        values = {name: self._plan_rows(name, moments, wanted) for name, wanted in query.series.items()}
        read = self._fetch(_spans([*looks, *values.values()]))
        self._decode(looks, read)
        self._unpack(list(values.values()), read)
        pictures = {
            name: (look.at(frames), self._full[name].times_ns[frames], valid)
            for (name, (frames, valid)), look in zip(found.items(), looks, strict=True)
        }
        rows = {name: (*look.rows(), look.series.period_ns) for name, look in values.items()}
        return [
            Sample(
                int(moment),
                {name: Pictures(*(each[i] for each in columns)) for name, columns in pictures.items()},
                {
                    name: rows_at(rows[name], moment + np.asarray(wanted.offsets_ns, np.int64), wanted.how)
                    for name, wanted in query.series.items()
                },
            )
            for i, moment in enumerate(moments)
        ]

    def frames(
        self,
        camera: str,
        indices: Sequence[int],
        size: tuple[int, int] | None = None,
        chroma: Chroma = "nearest",
    ) -> Frames:
        """The pictures of `camera` at `indices`, in that order, `(n, height, width, 3)` uint8 RGB.

        `size` is (height, width): pictures are scaled by area averaging while they are converted from YUV, out of a
        rendition that is no smaller, where there is one. `chroma` matters where they are not scaled. One call fetches
        the bytes from the keyframe before the first picture to the last one, without gaps of more than `GAP_BYTES`, of
        all cameras of the group: asking the next camera for the same moments reads nothing, while that is kept.

        Raises:
            EpisodeError: `no_topic`, `out_of_range`, `missing`, `truncated` or `corrupt`.
            ValueError: there is no such `chroma`.
        """
        check_choice("chroma", chroma, Chroma)
        stored = self._stored(camera, size)
        wanted = self._numbered(stored, indices)
        look = self._plan(stored, wanted, size, chroma)
        read = self._fetch(_merged(self._group_spans(stored, look.runs)))
        self._decode([look], read)
        return look.at(wanted)

    def series(self, name: str) -> Series:
        """A low-dimensional topic, whole. Its arrays are read-only.

        Raises:
            EpisodeError: `no_topic`, `missing`, `truncated` or `corrupt`.
        """
        key = self._number, "series", name
        found: Series | None = self._cache.get(key)
        if found is None:
            series = self._series(name)
            look = self._plan_chunks(series, range(len(self._chunks_of(series).all)))
            self._unpack([look], self._fetch(_spans([look])))
            times_ns, values = look.rows()
            found = Series(name, times_ns, values, look.series.names)
            self._cache.put(key, found, values.nbytes + times_ns.nbytes)
        return found

    def messages(self, topic: str) -> Iterator[ExtraMessage]:
        """The messages of an extra topic, as they came. One request per chunk.

        Raises:
            EpisodeError: `no_topic`, `missing`, `truncated` or `corrupt`.
        """
        found = next((each for each in self.index.topics if each.name == topic), None)
        if found is None:
            raise self._error(
                "no_topic", f"there is no topic '{topic}', only {self._listed(e.name for e in self.extras)}"
            )
        for chunk in self.index.chunks:
            if found.channel in chunk.channels:
                read = self._fetch([(chunk.offset, chunk.offset + chunk.size_bytes)])
                data, messages = self._unpacked(chunk, read)
                own = np.flatnonzero(messages.channels == found.channel)
                if len(own) != chunk.channels[found.channel][1]:
                    raise self._error("corrupt", f"a chunk has not all messages of '{topic}'. {AGAIN}")
                for i in own:
                    payload = data[messages.starts[i] : messages.ends[i]]
                    yield ExtraMessage(topic, int(messages.times_ns[i]), payload)

    def coded(self, camera: str, start: int, end: int) -> list[bytes]:
        """The coded pictures `start` to `end` (exclusive) of a camera: H.264 access units, or JPEG files.

        Raises:
            EpisodeError: `no_topic`, `out_of_range`, `missing`, `truncated` or `corrupt`.
        """
        stored = self._stored(camera, None)
        if end <= start:
            return []
        self._numbered(stored, [start, end - 1])
        read = self._fetch(self._group_spans(stored, [(start, end - 1)]))
        return [self._coded(stored, i, read) for i in range(start, end)]

    # topics

    def _info(self, camera: idx.CameraIndex) -> CameraInfo:
        small = tuple((each.height, each.width) for each in self._small if each.rendition_of == camera.name)
        return CameraInfo(camera.width, camera.height, len(camera.times_ns), camera.times_ns, small)

    def _stored(self, name: str, size: tuple[int, int] | None) -> idx.CameraIndex:
        """A camera as it is stored for pictures of this size."""
        if name not in self._full:
            raise self._error("no_topic", f"there is no camera '{name}', only {self._listed(self._full)}")
        if size is not None:
            if min(size) < 1:
                raise self._error("out_of_range", f"pictures of {size[1]}x{size[0]} pixels cannot be made")
            for each in self._small:
                if each.rendition_of == name and each.height >= size[0] and each.width >= size[1]:
                    return each
        return self._full[name]

    def _numbered(self, camera: idx.CameraIndex, numbers: Sequence[int]) -> NDArray[np.int64]:
        """The numbers of pictures of a camera, `(n,)`, all of which it has."""
        wanted, count = np.asarray(numbers, np.int64).reshape(-1), len(camera.times_ns)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= count):
            asked = f"{wanted.min()} to {wanted.max()} were asked"
            raise self._error("out_of_range", f"camera '{camera.name}' has the pictures 0 to {count - 1}, and {asked}")
        return wanted

    def _series(self, name: str) -> idx.SeriesIndex:
        for series in self.index.series:
            if series.name == name:
                return series
        raise self._error("no_topic", f"there is no series '{name}', only {self._listed(self.series_names)}")

    def _listed(self, names: Any) -> str:
        return ", ".join(names) or "none"

    def _error(self, reason: str, text: str) -> EpisodeError:
        return EpisodeError(reason, f"{self._source.name}: {text}")

    # pictures

    def _moments(
        self, name: str, moments: NDArray[np.int64], offsets_ns: Sequence[int], pick: str
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Which pictures stand for the wanted times `(moments, offsets)`, and whether they may."""
        times = self._stored(name, None).times_ns
        if name not in self._periods:
            self._periods[name] = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        wanted = moments[:, None] + np.asarray(offsets_ns, np.int64)
        frames = (nearest if pick == "nearest" else last)(times, wanted)
        valid = near_enough(times, frames, wanted, self._periods[name])
        return frames, valid if pick == "nearest" else valid & (times[frames] <= wanted)

    def _plan(
        self, stored: idx.CameraIndex, frames: NDArray[np.int64], size: tuple[int, int] | None, chroma: Chroma
    ) -> _Look:
        """What to fetch and decode for these pictures, and those that are kept already."""
        look = _Look(stored, size or (stored.height, stored.width), chroma, np.unique(frames))
        absent = []
        for place, frame in enumerate(look.unique.tolist()):
            kept = self._cache.get((self._number, *look.key, frame))
            if kept is None:
                absent.append((place, frame))
            else:
                look.pictures[place] = kept
        if absent:
            keys = np.flatnonzero(stored.keyframes)
            starts = keys[np.searchsorted(keys, [frame for _, frame in absent], side="right") - 1]
            for start, each in zip(starts.tolist(), absent, strict=True):
                look.wanted.setdefault(start, []).append(each)
        return look

    def _decode(self, looks: Sequence[_Look], read: Sequence[Run]) -> None:
        """Fill in the pictures that are not kept, out of what was read."""
        runs = []
        for look in looks:
            stored = look.stored
            for first, members in look.wanted.items():
                inside = {frame for _, frame in members}
                through = range(first, members[-1][1] + 1)
                runs.append(
                    decoding.Run(
                        stored.codec,
                        (stored.height, stored.width),
                        [self._coded(stored, i, read) for i in through],
                        [i in inside for i in through],
                        look.size,
                        look.chroma,
                        [look.pictures[place] for place, _ in members],
                    )
                )
        try:
            if runs:
                self._threads.decode(runs)
        except EpisodeError as error:
            names = self._listed(sorted({look.stored.name for look in looks if look.wanted}))
            raise self._error(error.reason, f"pictures of {names}: {error}. {AGAIN}") from error
        self._keep(looks)

    def _keep(self, looks: Sequence[_Look]) -> None:
        """Keep the pictures that were decoded, where they are few."""
        fresh = [(look, *each) for look in looks for members in look.wanted.values() for each in members]
        if self._cache.takes_together(sum(look.pictures[place].nbytes for look, place, _ in fresh)):
            for look, place, frame in fresh:
                # A copy: a view would keep the pictures of the whole sample.
                picture = look.pictures[place].copy()
                self._cache.put((self._number, *look.key, frame), picture, picture.nbytes)

    def _coded(self, camera: idx.CameraIndex, i: int, read: Sequence[Run]) -> bytes:
        start, end = int(camera.offsets[i]), int(camera.offsets[i]) + int(camera.lengths[i])
        record = _cut(read, start, end)
        if zlib.crc32(record) != camera.crcs[i]:
            raise self._error("corrupt", f"the checksum of picture {i} of camera '{camera.name}' is wrong. {AGAIN}")
        try:
            return bytes(picture_class(camera.codec).FromString(bytes(record[MESSAGE_HEAD:])).data)
        except DecodeError as error:
            raise self._error("corrupt", f"picture {i} of camera '{camera.name}' is no message: {error}") from error

    # values

    def _plan_rows(self, name: str, moments: NDArray[np.int64], wanted: SeriesQuery) -> _Values:
        """The chunks around each moment: with the row before its first wanted time and the one after its last."""
        series = self._series(name)
        if not wanted.offsets_ns:
            raise self._error("out_of_range", f"a query of '{name}' asks for no times")
        chunks = self._chunks_of(series)
        first = np.searchsorted(chunks.starts_ns, moments + min(wanted.offsets_ns), side="right") - 1
        last_chunk = np.searchsorted(chunks.ends_ns, moments + max(wanted.offsets_ns))
        # Outside of the series both are the chunk at its edge.
        first, last_chunk = first.clip(0), last_chunk.clip(max=len(chunks.all) - 1)
        spans = zip(np.minimum(first, last_chunk).tolist(), np.maximum(first, last_chunk).tolist(), strict=True)
        return self._plan_chunks(series, sorted({i for low, high in spans for i in range(low, high + 1)}))

    def _plan_chunks(self, series: idx.SeriesIndex, which: Sequence[int]) -> _Values:
        chunks = [self._chunks_of(series).all[i] for i in which]
        return _Values(series, {chunk: self._cache.get((self._number, "chunk", chunk.offset)) for chunk in chunks})

    def _chunks_of(self, series: idx.SeriesIndex) -> _Chunks:
        if series.name not in self._chunks:
            chunks = [chunk for chunk in self.index.chunks if series.channel in chunk.channels]
            spans = np.array([chunk.channels[series.channel][2:] for chunk in chunks], np.int64)
            self._chunks[series.name] = _Chunks(chunks, spans[:, 0], spans[:, 1])
        return self._chunks[series.name]

    def _unpack(self, looks: Sequence[_Values], read: Sequence[Run]) -> None:
        """Fill in the chunks that are not kept, out of what was read; keep them whole where they are few."""
        absent = dict.fromkeys(chunk for look in looks for chunk, kept in look.chunks.items() if kept is None)
        sizes = {chunk: self._values_bytes(chunk) for chunk in absent}
        keep = self._cache.takes_together(sum(sizes.values()))
        for chunk in absent:
            asking = [look for look in looks if chunk in look.chunks]
            wanted = chunk.channels.keys() if keep else {look.series.channel for look in asking}
            values = self._values(chunk, wanted, read)
            for look in asking:
                look.chunks[chunk] = values
            if keep:
                self._cache.put((self._number, "chunk", chunk.offset), values, sizes[chunk])

    def _values_bytes(self, chunk: idx.ChunkIndex) -> int:
        """Memory that the times and values of all series of a chunk take."""
        return sum(
            chunk.channels[series.channel][1] * (8 + len(series.names) * np.dtype(series.dtype).itemsize)
            for series in self.index.series
            if series.channel in chunk.channels
        )

    def _values(self, chunk: idx.ChunkIndex, wanted: Collection[int], read: Sequence[Run]) -> _Channels:
        """Series of a chunk, those of the `wanted` channels."""
        data, messages = self._unpacked(chunk, read)
        found: _Channels = {}
        for series in self.index.series:
            if series.channel in wanted:
                own = messages.channels == series.channel
                if np.count_nonzero(own) != chunk.channels[series.channel][1]:
                    raise self._error("corrupt", f"a chunk has not all rows of '{series.name}'. {AGAIN}")
                try:
                    values = from_messages(series.names, data, messages.starts[own], messages.ends[own])
                except EpisodeError as error:
                    raise self._error(error.reason, f"rows of '{series.name}': {error}. {AGAIN}") from error
                values, times_ns = values.astype(series.dtype), messages.times_ns[own]
                values.flags.writeable = times_ns.flags.writeable = False
                found[series.channel] = times_ns, values
        return found

    def _unpacked(self, chunk: idx.ChunkIndex, read: Sequence[Run]) -> tuple[bytes, ChunkMessages]:
        start, end = chunk.offset, chunk.offset + chunk.size_bytes
        packed = _cut(read, start, end)
        if zlib.crc32(packed) != chunk.crc:
            raise self._error("corrupt", f"the checksum of a chunk of '{chunk.group}' is wrong. {AGAIN}")
        try:
            data = unpack(packed, chunk.unpacked_bytes)
            return data, chunk_messages(data)
        except EpisodeError as error:
            raise self._error(error.reason, f"{error}. {AGAIN}") from error

    # bytes

    def _group_spans(self, camera: idx.CameraIndex, runs: Sequence[tuple[int, int]]) -> list[Span]:
        """The bytes of runs of a camera, first to last picture, widened to what its group holds of the same time."""
        firsts, ends = np.array(runs, np.int64).reshape(-1, 2).T
        lows, highs = camera.offsets[firsts], camera.offsets[ends] + camera.lengths[ends]
        for other in self.index.cameras:
            if other is camera or other.group != camera.group:
                continue
            since, upto = last(other.times_ns, camera.times_ns[firsts]), last(other.times_ns, camera.times_ns[ends])
            keys, begun = np.flatnonzero(other.keyframes), other.times_ns[0] <= camera.times_ns[firsts]
            low, high = other.offsets[keys[last(keys, since)]], other.offsets[upto] + other.lengths[upto]
            lows = np.where(begun, np.minimum(lows, low), lows)
            highs = np.where(begun, np.maximum(highs, high), highs)
        return list(zip(lows.tolist(), highs.tolist(), strict=True))

    def _fetch(self, spans: Sequence[Span]) -> list[Run]:
        """Runs of bytes that hold all spans, in order of their start: what is held, the rest with one call."""
        held: list[Run] = [run for key in ("tail", "last") if (run := self._cache.get((self._number, key))) is not None]
        absent = [span for span in spans if all(run.cut(*span) is None for run in held)]
        if not absent:
            return sorted(held, key=_start)
        if any(end > self.size_bytes for _, end in absent):
            raise self._error("corrupt", f"its index points beyond its {self.size_bytes} bytes. {AGAIN}")
        parts = read_exactly(self._source, [start for start, _ in absent], [end for _, end in absent])
        read = [Run(start, part) for (start, _), part in zip(absent, parts, strict=True)]
        self._hold("last", max(read, key=lambda run: len(run.data)))
        return sorted([*read, *held], key=_start)

    def _hold(self, what: str, run: Run) -> None:
        self._cache.put((self._number, what), run, len(run.data))


class _Look:
    """Pictures of one stored camera at one size: room for each, and those to decode, by their keyframe.

    `wanted` holds pairs: a picture's place in `pictures`, its number in the camera.
    """

    def __init__(
        self, stored: idx.CameraIndex, size: tuple[int, int], chroma: Chroma, unique: NDArray[np.int64]
    ) -> None:
        self.stored = stored
        self.size = size
        self.chroma = chroma
        self.unique = unique
        self.pictures = np.empty((len(unique), *size, 3), np.uint8)
        self.wanted: dict[int, list[tuple[int, int]]] = {}

    @property
    def group(self) -> str:
        return self.stored.group

    @property
    def key(self) -> tuple[int, tuple[int, int], Chroma]:
        """What makes two pictures of one number the same."""
        return self.stored.channel, self.size, self.chroma

    @property
    def runs(self) -> list[tuple[int, int]]:
        """First and last picture of what is to be decoded."""
        return [(first, members[-1][1]) for first, members in self.wanted.items()]

    @property
    def spans(self) -> list[Span]:
        offsets, lengths = self.stored.offsets, self.stored.lengths
        return [(int(offsets[first]), int(offsets[end]) + int(lengths[end])) for first, end in self.runs]

    def at(self, frames: NDArray[np.int64]) -> Frames:
        """The pictures of these numbers, `(*frames.shape, height, width, 3)`."""
        flat = frames.ravel()
        in_order = len(flat) == len(self.unique) and bool((flat == self.unique).all())
        pictures = self.pictures if in_order else self.pictures[np.searchsorted(self.unique, flat)]
        return pictures.reshape(*frames.shape, *self.size, 3)


@dataclass(frozen=True)
class _Chunks:
    """The chunks of one series in order, and the times of its first and last row in each, `(n,)`."""

    all: list[idx.ChunkIndex]
    starts_ns: TimesNs
    ends_ns: TimesNs


@dataclass(frozen=True)
class _Values:
    """Chunks of one series in order, each with what is kept of it."""

    series: idx.SeriesIndex
    chunks: dict[idx.ChunkIndex, _Channels | None]

    @property
    def group(self) -> str:
        return self.series.group

    def rows(self) -> tuple[TimesNs, NDArray[np.floating]]:
        """Times and values, when all chunks are there."""
        parts = [chunk[self.series.channel] for chunk in self.chunks.values() if chunk is not None]
        if len(parts) == 1:
            return parts[0]
        times_ns, values = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        values.flags.writeable = times_ns.flags.writeable = False
        return times_ns, values

    @property
    def spans(self) -> list[Span]:
        return [(chunk.offset, chunk.offset + chunk.size_bytes) for chunk, kept in self.chunks.items() if kept is None]


def _start(run: Run) -> int:
    return run.start


def _cut(runs: Sequence[Run], start: int, end: int) -> Buffer:
    """The bytes `start` to `end` of a file out of runs in order of their start; none where no run holds them."""
    for i in range(bisect_right(runs, start, key=_start) - 1, -1, -1):
        if (part := runs[i].cut(start, end)) is not None:
            return part
    return b""


def _spans(looks: Sequence[_Look | _Values]) -> list[Span]:
    """The bytes to fetch: as few spans per group as gaps allow."""
    by_group: dict[str, list[Span]] = {}
    for look in looks:
        by_group.setdefault(look.group, []).extend(look.spans)
    return [span for spans in by_group.values() for span in _merged(spans)]


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Spans in order, those with small gaps between them as one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] <= GAP_BYTES:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged

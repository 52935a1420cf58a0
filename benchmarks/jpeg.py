"""What most recordings are today: one JPEG per picture in an MCAP file, and the stock reader over it.

The writer has its default settings (chunks of 1 MiB with all topics in them, zstd). The reader gets every help that
leaves it the stock reader: its summary stays in memory, each chunk costs one request and no byte is read twice, the
query knows the exact times, one pass serves all topics, and messages become numbers and pictures by Megahour's own fast
paths.
"""

from __future__ import annotations

import heapq
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from foxglove_schemas_protobuf.CompressedImage_pb2 import CompressedImage
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from mcap.reader import SeekingReader
from mcap.writer import Writer
from mcap_protobuf.schema import register_schema
from numpy.typing import NDArray
from PIL import Image

from megahour.episode.h264 import FAITHFUL, TO_SMALLER_RGB, planar_rgb
from megahour.episode.joints import from_messages, timestamp, to_messages
from megahour.episode.model import Camera, Coded, Frames, RawEpisode, Series
from megahour.episode.ranges import ByteSource

QUALITY = 90
TAIL_BYTES = 256 * 1024


@dataclass(frozen=True)
class Window:
    """What a sample holds, by exact times: of each camera these pictures, of each series the rows from first to last.

    `size` is the pictures' (height, width), their own without.
    """

    pictures: dict[str, tuple[int, ...]]
    rows: dict[str, tuple[int, int]]
    size: tuple[int, int] | None = None

    @property
    def span(self) -> tuple[int, int]:
        """Its first and last time."""
        times = [time for each in self.pictures.values() for time in each]
        times += [time for each in self.rows.values() for time in each]
        return min(times), max(times)


@dataclass(frozen=True)
class Found:
    """Pictures `(n, height, width, 3)` uint8 RGB by camera, and rows `(n, d)` by series."""

    pictures: dict[str, Frames]
    rows: dict[str, NDArray[np.floating]]


def encode(picture: Frames, quality: int = QUALITY) -> bytes:
    """A picture as a JPEG file: Pillow's defaults, so baseline with 4:2:0 chroma."""
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "JPEG", quality=quality)
    return out.getvalue()


def as_jpeg(episode: RawEpisode) -> RawEpisode:
    """The same episode as if its cameras had delivered JPEG."""

    def coded(camera: Camera) -> Camera:
        units = [encode(picture) for picture in camera.frames()]
        return replace(camera, coded=Coded("jpeg", lambda: iter(units)))

    return replace(episode, cameras=tuple(coded(camera) for camera in episode.cameras))


def write_default(path: Path, episode: RawEpisode) -> int:
    """Write an episode of `as_jpeg` as the stock writer does by default, messages in order of time; its size in bytes.

    Topics are `/camera/<name>` and `/<series>`.
    """
    with path.open("wb") as out:
        writer: Any = Writer(out)
        writer.start()
        image, joints = register_schema(writer, CompressedImage), register_schema(writer, JointStates)
        streams = []
        for camera in episode.cameras:
            channel = writer.register_channel(f"/camera/{camera.name}", "protobuf", image)
            streams.append(_pictures(camera, channel))
        for series in episode.series:
            channel = writer.register_channel(f"/{series.name}", "protobuf", joints)
            streams.append(_rows(series, channel))
        for time_ns, channel, number, payload in heapq.merge(*streams):
            writer.add_message(channel, time_ns, payload, time_ns, number)
        writer.finish()
    return path.stat().st_size


def _pictures(camera: Camera, channel: int) -> Iterator[tuple[int, int, int, bytes]]:
    assert camera.coded is not None
    for i, data in enumerate(camera.coded.units()):
        time_ns = int(camera.times_ns[i])
        message = CompressedImage(timestamp=timestamp(time_ns), frame_id=camera.name, data=data, format="jpeg")
        yield time_ns, channel, i, message.SerializeToString()


def _rows(series: Series, channel: int) -> Iterator[tuple[int, int, int, bytes]]:
    for i, payload in enumerate(to_messages(series.names, series.times_ns, series.values)):
        yield int(series.times_ns[i]), channel, i, payload


class RangeFile:
    """A file over byte ranges, as the stock reader wants one.

    Each extent that `know` was told of is fetched whole, with one request. Where none is known, at least `TAIL_BYTES`
    are. The bytes fetched last are kept, and all until extents are known.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        held, self._size = source.tail(TAIL_BYTES)
        self._runs = [(self._size - len(held), bytes(held))]
        self._extents: dict[int, int] = {}
        self._starts = np.zeros(0, np.int64)
        self._at = 0
        self.requests = 0

    def know(self, extents: Sequence[tuple[int, int]]) -> None:
        """Records that begin and end there will be read whole."""
        self._extents = dict(extents)
        self._starts = np.array(sorted(self._extents), np.int64)

    def fetch(self, extents: Sequence[tuple[int, int]]) -> None:
        """Read ahead: all of these at once, kept until the next fetch."""
        parts = self._source.read([start for start, _ in extents], [end for _, end in extents])
        self.requests += 1
        fetched = [(start, bytes(part)) for (start, _), part in zip(extents, parts, strict=True)]
        # Until the extents are known the file is being opened: its end is wanted again.
        self._runs = fetched if self._extents else fetched + self._runs

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = self._size - self._at
        size = left if size is None or size < 0 else min(size, left)
        for _ in range(2):
            for start, data in self._runs:
                if start <= self._at and self._at + size <= start + len(data):
                    part = data[self._at - start : self._at - start + size]
                    self._at += size
                    return part
            self.fetch([self._extent(size)])
        raise EOFError(f"{self._source.name} has no bytes {self._at} to {self._at + size}")

    def _extent(self, size: int) -> tuple[int, int]:
        place = int(np.searchsorted(self._starts, self._at, side="right")) - 1
        if place >= 0:
            start = int(self._starts[place])
            if self._at + size <= self._extents[start]:
                return start, self._extents[start]
        return self._at, min(self._size, self._at + max(size, TAIL_BYTES))


class StockReader:
    """An episode of `write_default`, open in the stock reader.

    With `read_ahead` the file under it is told which window comes, and fetches all its chunks at once; the stock reader
    itself asks for them one after the other.
    """

    def __init__(self, source: ByteSource, episode: RawEpisode, read_ahead: bool = False) -> None:
        self._file = RangeFile(source)
        stream: Any = self._file
        self._reader: Any = SeekingReader(stream)
        summary: Any = self._reader.get_summary()
        self._chunks = summary.chunk_indexes
        # The reader begins behind a chunk's opcode and length; what it reads ends with the chunk.
        self._file.know([(c.chunk_start_offset, c.chunk_start_offset + c.chunk_length) for c in self._chunks])
        self._names = {f"/{series.name}": series.names for series in episode.series}
        self._decoder = JpegDecoder()
        self._read_ahead = read_ahead

    def sample(self, window: Window) -> Found:
        """What lies in the window, in one pass over its chunks."""
        first, last = window.span
        if self._read_ahead:
            chunks = [c for c in self._chunks if c.message_start_time <= last and c.message_end_time >= first]
            self._file.fetch([(c.chunk_start_offset, c.chunk_start_offset + c.chunk_length) for c in chunks])
        wanted = {f"/camera/{name}": frozenset(times) for name, times in window.pictures.items()}
        between = {f"/{name}": span for name, span in window.rows.items()}
        pictures: dict[str, list[Frames]] = {topic: [] for topic in wanted}
        rows: dict[str, list[bytes]] = {topic: [] for topic in between}
        for _, channel, message in self._reader.iter_messages([*wanted, *between], starting_at=first, ending_at=last):
            topic = channel.topic
            if topic in wanted:
                if message.log_time in wanted[topic]:
                    data = CompressedImage.FromString(message.data).data
                    pictures[topic].append(self._decoder.decode(data, window.size))
            elif between[topic][0] <= message.log_time <= between[topic][1]:
                rows[topic].append(message.data)
        return Found(
            {name: np.stack(pictures[f"/camera/{name}"]) for name in window.pictures},
            {name: _values(self._names[f"/{name}"], rows[f"/{name}"]) for name in window.rows},
        )


def _values(names: tuple[str, ...], payloads: list[bytes]) -> NDArray[np.floating]:
    ends = np.cumsum([len(payload) for payload in payloads], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return from_messages(names, b"".join(payloads), starts, ends)


class JpegDecoder:
    """FFmpeg's JPEG decoder, and Megahour's own scaler straight to the wanted size: the fastest here of `WAYS`."""

    def __init__(self) -> None:
        self._codec: Any = av.CodecContext.create("mjpeg", "r")
        self._codec.thread_count = 1
        self._reformatter = VideoReformatter()

    def decode(self, data: bytes, size: tuple[int, int] | None) -> Frames:
        """A picture of this (height, width), or its own."""
        (frame,) = self._codec.decode(av.Packet(data))
        return planar_rgb(self._reformatter, frame, size, TO_SMALLER_RGB if size else FAITHFUL)


def _pillow() -> Way:
    """Decoded whole, then averaged."""

    def decode(data: bytes, size: tuple[int, int] | None) -> Frames:
        image: Any = Image.open(io.BytesIO(data)).convert("RGB")
        return np.asarray(image.resize(size[::-1], Image.Resampling.BOX) if size else image)

    return decode


def _pillow_half() -> Way:
    """Decoded at half the size where that is enough, then averaged."""

    def decode(data: bytes, size: tuple[int, int] | None) -> Frames:
        image: Any = Image.open(io.BytesIO(data))
        if size:
            image.draft("RGB", size[::-1])
            image = image.resize(size[::-1], Image.Resampling.BOX)
        return np.asarray(image)

    return decode


Way = Callable[[bytes, tuple[int, int] | None], Frames]
"""From a JPEG file to a picture of this (height, width), or its own."""

WAYS: dict[str, Callable[[], Way]] = {
    "FFmpeg, scaled in one step": lambda: JpegDecoder().decode,
    "Pillow": _pillow,
    "Pillow, half size": _pillow_half,
}

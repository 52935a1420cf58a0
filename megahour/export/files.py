"""Many episodes in a file: Parquet and MP4 files that a new one follows when they are full."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

MOST_VIDEO_S = 1024.0
"""LeRobot asks for a picture by its seconds as float32, to within 1e-4. From here on these are coarser than that: an
episode that ends later has all its pictures found only where its first row is the first picture of the file, for then
what is asked and what is there are rounded alike."""


@dataclass(frozen=True)
class Limits:
    """A file is followed by a new one before an episode would make it larger; these are LeRobot's own limits, whose
    megabytes are 2^20 bytes."""

    data_mib: int = 100
    video_mib: int = 200
    files_per_chunk: int = 1000


@dataclass(frozen=True)
class Place:
    """Where a file lies: `chunk-000/file-000`."""

    chunk: int = 0
    file: int = 0

    def following(self, limits: Limits) -> Place:
        full = self.file + 1 >= limits.files_per_chunk
        return Place(self.chunk + 1, 0) if full else Place(self.chunk, self.file + 1)

    def under(self, folder: Path, suffix: str) -> Path:
        path = folder / f"chunk-{self.chunk:03d}" / f"file-{self.file:03d}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class ParquetFiles:
    """Rows of one schema below `folder`. What is handed over together is a row group, or `group_rows` together are."""

    def __init__(self, folder: Path, schema: pa.Schema, limits: Limits, group_rows: int = 1) -> None:
        self._folder, self._schema, self._limits, self._group_rows = folder, schema, limits, group_rows
        self._place: Place | None = None
        self._out: IO[bytes] | None = None
        self._writer: Any = None
        self._waiting: list[pa.Table] = []

    def place(self, size_bytes: int) -> Place:
        """Where the next rows of about `size_bytes` go."""
        if self._place is None:
            self._place = Place()
        elif self._out is not None and self._out.tell() + size_bytes > self._limits.data_mib * 2**20:
            self.close()
            self._place = self._place.following(self._limits)
        return self._place

    def write(self, rows: pa.Table) -> None:
        """Write rows to where `place` said."""
        self._waiting.append(rows)
        if sum(table.num_rows for table in self._waiting) >= self._group_rows:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return
        if self._writer is None:
            self._out = (self._place or Place()).under(self._folder, ".parquet").open("wb")
            self._writer = pq.ParquetWriter(self._out, self._schema, compression="snappy")
        self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []

    def close(self) -> None:
        """End the file that is open."""
        self._flush()
        if self._writer is not None:
            self._writer.close()
        if self._out is not None:
            self._out.close()
        self._writer = self._out = None


class VideoFiles:
    """A camera's coded pictures below `folder`, as they are: one MP4 after another, a picture every 1/`fps` s.

    `pix_fmt` is FFmpeg's name of what they decode to, known when the first is written.
    """

    def __init__(self, folder: Path, fps: int, limits: Limits) -> None:
        self._folder, self._fps, self._limits = folder, fps, limits
        self._place: Place | None = None
        self._container: Any = None
        self._stream: Any = None
        self._size_bytes = self._pictures = 0
        self.pix_fmt = ""

    def begin(self, size_bytes: int, pictures: int) -> tuple[Place, int]:
        """Where an episode of so many pictures goes, and how many are before it in that file."""
        if self._place is None:
            self._place = Place()
        elif (
            self._size_bytes + size_bytes > self._limits.video_mib * 2**20
            or self._pictures + pictures > MOST_VIDEO_S * self._fps
        ):
            self.close()
            self._place = self._place.following(self._limits)
        return self._place, self._pictures

    def write(self, units: Sequence[bytes], keyframes: Sequence[bool]) -> None:
        """Append access units (Annex B, in the order they are shown); the first one of a file is a keyframe."""
        import av

        for unit, keyframe in zip(units, keyframes, strict=True):
            if self._container is None:
                self._open(unit)
            packet: Any = av.Packet(unit)
            packet.stream, packet.time_base = self._stream, Fraction(1, self._fps)
            packet.pts = packet.dts = self._pictures
            packet.duration, packet.is_keyframe = 1, keyframe
            self._container.mux(packet)
            self._pictures += 1
            self._size_bytes += len(unit)

    def _open(self, keyframe: bytes) -> None:
        import av

        path = (self._place or Place()).under(self._folder, ".mp4")
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"})
        # The stream's own parameter sets say its size and colours; the muxer takes them from there.
        with av.open(io.BytesIO(keyframe), format="h264") as source:
            template: Any = source.streams.video[0]
            self.pix_fmt = self.pix_fmt or template.codec_context.pix_fmt
            self._stream = self._container.add_stream_from_template(template, opaque=True)
        self._stream.time_base = Fraction(1, self._fps)

    def close(self) -> None:
        """End the file that is open."""
        if self._container is not None:
            self._container.close()
        self._container = self._stream = None
        self._size_bytes = self._pictures = 0

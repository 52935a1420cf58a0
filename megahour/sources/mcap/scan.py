"""What an MCAP file holds and where each message lies, found record by record, in whole files and in broken ones.

The format: https://mcap.dev/spec. A file is gone through once from its start to its end; its indexes are not needed, so
a file that never got them reads as well as any. Nothing larger than one block is in memory at a time.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from mcap.opcode import Opcode
from mcap.records import Channel, Metadata, Schema
from numpy.typing import NDArray

from megahour.episode.model import Note
from megahour.sources.model import SourceError

MAGIC = b"\x89MCAP0\r\n"
RECORD_HEAD = struct.Struct("<BQ")
MESSAGE_HEAD = struct.Struct("<HIQQ")
COMPRESSIONS = (b"", b"zstd", b"lz4")
BLOCK_BYTES = 1 << 20
MOST_BYTES = 1 << 40
"""No record is as long as this: a length that says so is damaged."""
MOST_DEFINITION_BYTES = 1 << 26
"""No schema, channel or metadata record is longer: they are read whole."""
LAST_NS = 2**63 - 1

CANDIDATE = re.compile(rb"[\x01-\x0f](?=.{5}\x00{3})", re.DOTALL)
"""Where a record may begin: a known opcode, and a length below `MOST_BYTES`."""
PRIVATE = 0x80
"""From this opcode on records are of no kind that the format knows."""
IN_CHUNKS = (Opcode.CHUNK, Opcode.ATTACHMENT, Opcode.METADATA, Opcode.DATA_END, Opcode.FOOTER)
PLAIN = (*IN_CHUNKS, Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE)


class DamagedError(Exception):
    """A record is not what its head says; the text says how."""


@dataclass(frozen=True)
class Packed:
    """A compressed chunk: where its data lie in the file, and what it takes to read them."""

    start: int
    size_bytes: int
    compression: bytes
    unpacked_bytes: int


@dataclass(frozen=True)
class Scan:
    """A file's messages, in the order of the file.

    Of message i, `channel[i]` is its channel's id, `time_ns[i]` its log time, `publish_ns[i]` when it was sent,
    `sequence[i]` its number, `size_bytes[i]` those of its payload, which begins at `offset[i]`: of the unpacked chunk
    `packed[chunk[i]]`, or of the file where `chunk[i]` is -1. `header` is what the file says of itself, `attachments`
    are names and sizes. `notes` say what is lost or doubtful.
    """

    path: Path
    key: str
    schemas: dict[int, Schema]
    channels: dict[int, Channel]
    header: dict[str, str]
    metadata: tuple[Metadata, ...]
    attachments: tuple[tuple[str, int], ...]
    packed: tuple[Packed, ...]
    channel: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    publish_ns: NDArray[np.int64]
    sequence: NDArray[np.int64]
    chunk: NDArray[np.int64]
    offset: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    notes: tuple[Note, ...]


def scan(path: Path, key: str) -> Scan:
    """Go through a file. `key` names it in messages.

    Raises:
        SourceError: `truncated` or `corrupt` when it is broken and no message is left, `unreadable` when it is no MCAP
            file or compressed in an unknown way, `empty` when it holds no message.
    """
    size = path.stat().st_size
    if not size:
        raise SourceError("truncated", f"{key} is an empty file. Copy it again from where it was recorded")
    with path.open("rb", buffering=BLOCK_BYTES) as file:
        start = file.read(len(MAGIC))
        if start != MAGIC:
            reason = "truncated" if MAGIC.startswith(start) else "unreadable"
            raise SourceError(reason, f"{key} is no MCAP file: it begins with {start!r}, not with {MAGIC!r}")
        walk = _Walk(file, size)
        walk.go()
        doubtful = walk.is_doubtful()
    return _result(walk, path, key, doubtful)


@dataclass
class _Places:
    """Places of messages, column by column."""

    channel: array[int] = field(default_factory=lambda: array("q"))
    time_ns: array[int] = field(default_factory=lambda: array("Q"))
    publish_ns: array[int] = field(default_factory=lambda: array("Q"))
    sequence: array[int] = field(default_factory=lambda: array("I"))
    chunk: array[int] = field(default_factory=lambda: array("q"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    size_bytes: array[int] = field(default_factory=lambda: array("q"))

    def add(self, head: bytes, chunk: int, offset: int, size_bytes: int) -> None:
        """Add a message whose record begins with `head`, and whose payload lies at `offset`."""
        channel, sequence, time_ns, publish_ns = MESSAGE_HEAD.unpack(head)
        self.channel.append(channel)
        self.time_ns.append(time_ns)
        self.publish_ns.append(publish_ns)
        self.sequence.append(sequence)
        self.chunk.append(chunk)
        self.offset.append(offset)
        self.size_bytes.append(size_bytes)

    def extend(self, other: _Places) -> None:
        for name, column in vars(other).items():
            getattr(self, name).extend(column)

    def pop(self) -> None:
        for column in vars(self).values():
            column.pop()


@dataclass
class _Contents:
    """What a stretch of records holds."""

    places: _Places = field(default_factory=_Places)
    schemas: dict[int, Schema] = field(default_factory=dict)
    channels: dict[int, Channel] = field(default_factory=dict)

    def define(self, opcode: int, data: bytes) -> None:
        # The first definition of an id holds: the format allows no other.
        body = _Body(data)
        number = body.number("<H")
        if opcode == Opcode.SCHEMA:
            schema = Schema(id=number, name=body.text(), encoding=body.text(), data=body.take(body.number("<I")))
            self.schemas.setdefault(number, schema)
        else:
            schema_id, topic, encoding = body.number("<H"), body.text(), body.text()
            self.channels.setdefault(number, Channel(number, topic, encoding, body.texts(), schema_id))

    def extend(self, other: _Contents) -> None:
        self.places.extend(other.places)
        self.schemas = {**other.schemas, **self.schemas}
        self.channels = {**other.channels, **self.channels}


class _Walk:
    """One way through a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size
        self.data, self.summary = _Contents(), _Contents()
        self.header: dict[str, str] = {}
        self.metadata: list[Metadata] = []
        self.attachments: list[tuple[str, int]] = []
        self.packed: list[Packed] = []
        self.private: list[int] = []
        self.damages: list[str] = []
        self.lost_bytes = 0
        self.cut_at: int | None = None
        self.unknown: set[str] = set()
        self.counted: int | None = None
        self._has_chunks = self._is_over = self._is_unchecked = False
        self._data_end, self._data_crc = size, 0

    def go(self) -> None:
        at = last = len(MAGIC)
        while at < self._size:
            head = self._read(at, RECORD_HEAD.size)
            if self._is_over and head[: len(MAGIC)] == MAGIC:
                return
            opcode, length = RECORD_HEAD.unpack(head) if len(head) == RECORD_HEAD.size else (0, 0)
            start, end = at + RECORD_HEAD.size, at + RECORD_HEAD.size + length
            if not _is_opcode(opcode) or end > self._size:
                found = self._next_record(last + 1)
                if found is None:
                    self._cut(at, opcode, start)
                    return
                # What stands before a break may be what lied about its own length.
                if last < at:
                    self._forget(last)
                self._damage(last if last < at else at, found, "is damaged")
                at = last = found
                continue
            checked = self._take(opcode, at, start, length)
            last, at = end if checked else at, end
        if not self._is_over:
            self.cut_at = self._size

    def is_doubtful(self) -> bool:
        """Whether the checksum over all data is wrong, and no damage found explains it."""
        if not self._data_crc or not self._is_unchecked or self.damages:
            return False
        crc, left = 0, self._data_end
        self._file.seek(0)
        while left and (block := self._file.read(min(left, BLOCK_BYTES))):
            crc, left = zlib.crc32(block, crc), left - len(block)
        return crc != self._data_crc

    def _read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size)

    def _take(self, opcode: int, at: int, start: int, length: int) -> bool:
        """Take a record in. Returns whether its length is known to be right."""
        try:
            if opcode == Opcode.CHUNK:
                self._has_chunks = True
                self._chunk(start, length)
                return True
            if opcode == Opcode.MESSAGE:
                self._message(start, length)
            elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
                target = self.summary if self._is_over else self.data
                target.define(opcode, self._definition(start, length))
            elif opcode == Opcode.HEADER and at == len(MAGIC):
                body = _Body(self._definition(start, length))
                self.header = {"profile": body.text(), "library": body.text()}
            elif opcode == Opcode.METADATA:
                body = _Body(self._definition(start, length))
                self.metadata.append(Metadata(name=body.text(), metadata=body.texts()))
                self._is_unchecked = True
            elif opcode == Opcode.ATTACHMENT:
                self.attachments.append(self._attachment(start, length))
            elif opcode == Opcode.MESSAGE_INDEX:
                if length < 6 or length != 6 + _Body(self._read(start + 2, 4)).number("<I"):
                    raise DamagedError("is damaged")
            elif opcode in (Opcode.DATA_END, Opcode.FOOTER):
                self._end_data(opcode, at, start, length)
            elif opcode >= PRIVATE:
                self.private.append(length)
            elif opcode == Opcode.STATISTICS and self._is_over:
                self.counted = _Body(self._read(start, 8)).number("<Q")
            elif not self._is_over and at > len(MAGIC):
                # Indexes stand behind the data, and a header before it: another record lost its opcode.
                raise DamagedError("is damaged")
        except DamagedError as error:
            self._damage(at, start + length, str(error))
        return False

    def _end_data(self, opcode: int, at: int, start: int, length: int) -> None:
        if length != (4 if opcode == Opcode.DATA_END else 20):
            raise DamagedError("is damaged")
        if opcode == Opcode.DATA_END:
            self._data_end, self._data_crc = at, _Body(self._read(start, 4)).number("<I")
        self._is_over = True

    def _definition(self, start: int, length: int) -> bytes:
        if length > MOST_DEFINITION_BYTES:
            raise DamagedError("is damaged")
        return self._read(start, length)

    def _message(self, start: int, length: int) -> None:
        if length < MESSAGE_HEAD.size:
            raise DamagedError("is damaged")
        head = self._read(start, MESSAGE_HEAD.size)
        self._is_unchecked = True
        self.data.places.add(head, -1, start + MESSAGE_HEAD.size, length - MESSAGE_HEAD.size)

    def _forget(self, at: int) -> None:
        """Take back the message whose record begins at `at`, if it is one."""
        places = self.data.places
        payload_at = at + RECORD_HEAD.size + MESSAGE_HEAD.size
        if places.offset and places.chunk[-1] == -1 and places.offset[-1] == payload_at:
            places.pop()

    def _attachment(self, start: int, length: int) -> tuple[str, int]:
        head = _Body(self._read(start, min(length, BLOCK_BYTES)))
        head.take(16)
        name, media_type, size = head.text(), head.text(), head.number("<Q")
        if 36 + len(name.encode()) + len(media_type.encode()) + size > length:
            raise DamagedError("is damaged")
        return name, size

    def _chunk(self, start: int, length: int) -> None:
        chunk, begin_ns, end_ns, crc = self._chunk_head(start, length)
        raw = self._unpacked(chunk)
        contents = _Contents()
        try:
            if raw is None:
                raise DamagedError(f"is compressed with '{chunk.compression.decode(errors='replace')}'")
            number = -1 if not chunk.compression else len(self.packed)
            base = 0 if chunk.compression else chunk.start
            _go_through(raw, chunk.unpacked_bytes, contents, number, base)
            if crc and raw.crc != crc:
                raise DamagedError("has a wrong checksum")
            times = contents.places.time_ns
            # Without a checksum, damage shows where times lie outside those that the chunk says.
            if not crc and (begin_ns or end_ns) and times and not begin_ns <= min(times) <= max(times) <= end_ns:
                raise DamagedError("holds messages of other times than it says")
        except DamagedError as error:
            span = f", of {_seconds(begin_ns)} to {_seconds(end_ns)}" if begin_ns <= end_ns <= LAST_NS else ""
            raise DamagedError(f"{error}{span}") from error
        self._is_unchecked |= not crc
        self.data.extend(contents)
        if chunk.compression:
            self.packed.append(chunk)

    def _chunk_head(self, start: int, length: int, is_cut: bool = False) -> tuple[Packed, int, int, int]:
        head = _Body(self._read(start, min(length, 64)))
        begin_ns, end_ns, unpacked_bytes = head.number("<Q"), head.number("<Q"), head.number("<Q")
        crc, compression, size = head.number("<I"), head.take(head.number("<I")), head.number("<Q")
        before = 40 + len(compression)
        if before + size != length and not is_cut:
            raise DamagedError("is damaged")
        chunk = Packed(start + before, size, compression, unpacked_bytes)
        if not compression and unpacked_bytes != size:
            raise DamagedError("is damaged")
        return chunk, begin_ns, end_ns, crc

    def _unpacked(self, chunk: Packed) -> Checked | None:
        if chunk.compression not in COMPRESSIONS:
            self.unknown.add(chunk.compression.decode(errors="replace"))
            return None
        return unpacked(self._file, chunk)

    def _damage(self, start: int, end: int, text: str) -> None:
        self.lost_bytes += end - start
        if not self._is_over:
            self.damages.append(f"what lies at byte {start} ({end - start} bytes) {text}")

    def _cut(self, at: int, opcode: int, start: int) -> None:
        """The file ends in a record: keep the whole messages of a chunk that ends with it."""
        self.cut_at = None if self._is_over else at
        if opcode != Opcode.CHUNK:
            return
        try:
            chunk, *_ = self._chunk_head(start, MOST_BYTES, is_cut=True)
        except DamagedError:
            return
        raw, contents = self._unpacked(chunk), _Contents()
        if raw is None:
            return
        packed = bool(chunk.compression)
        number, base = (len(self.packed), 0) if packed else (-1, chunk.start)
        with suppress(DamagedError):
            _go_through(raw, chunk.unpacked_bytes, contents, number, base)
        self._is_unchecked = True
        self.data.extend(contents)
        if packed:
            self.packed.append(chunk)

    def _next_record(self, at: int) -> int | None:
        """Where the next record begins that is surely one.

        What lies in chunks is not looked for where a file has chunks: its checksum would be unknown.
        """
        allowed = IN_CHUNKS if self._has_chunks else PLAIN
        while at < self._size:
            block = self._read(at, BLOCK_BYTES)
            for match in CANDIDATE.finditer(block):
                if match[0][0] in allowed and self._is_record(at + match.start()):
                    return at + match.start()
            if len(block) < BLOCK_BYTES:
                return None
            at += BLOCK_BYTES - RECORD_HEAD.size
        return None

    def _is_record(self, at: int) -> bool:
        opcode, length = RECORD_HEAD.unpack(self._read(at, RECORD_HEAD.size))
        start, end = at + RECORD_HEAD.size, at + RECORD_HEAD.size + length
        if end > self._size:
            return False
        if opcode == Opcode.CHUNK:
            try:
                chunk, *_ = self._chunk_head(start, length)
            except DamagedError:
                return False
            return chunk.compression in COMPRESSIONS
        if opcode in (Opcode.DATA_END, Opcode.FOOTER):
            return bool(length == (4 if opcode == Opcode.DATA_END else 20))
        after = self._read(end, RECORD_HEAD.size)
        if len(after) < RECORD_HEAD.size:
            return False
        following, length = RECORD_HEAD.unpack(after)
        return _is_opcode(following) and length < MOST_BYTES


def _is_opcode(opcode: int) -> bool:
    """Whether a record may have this opcode: 0 is none, and from 128 on they are private."""
    return 0 < opcode <= Opcode.DATA_END or opcode >= PRIVATE


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e9:.3f} s"


class _Body:
    """The content of a record, field by field. What ends too early, or is no text, is damage."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) != size:
            raise DamagedError("is damaged")
        self._at += size
        return part

    def number(self, kind: str) -> int:
        (value,) = struct.unpack(kind, self.take(struct.calcsize(kind)))
        return int(value)

    def text(self) -> str:
        try:
            return self.take(self.number("<I")).decode()
        except UnicodeDecodeError as error:
            raise DamagedError("is damaged") from error

    def texts(self) -> dict[str, str]:
        inner, found = _Body(self.take(self.number("<I"))), {}
        while inner._at < len(inner._data):
            key = inner.text()
            found[key] = inner.text()
        return found


class Checked(io.RawIOBase):
    """A chunk's unpacked bytes as they are read, and their checksum so far."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.crc = inner, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = int(self._inner.readinto(buffer))
        except (MemoryError, OSError):
            # The machine's fault, not the file's.
            raise
        # zstandard and lz4 raise errors of their own, RuntimeError, EOFError and more.
        except Exception as error:
            raise DamagedError("does not unpack") from error
        self.crc = zlib.crc32(memoryview(buffer)[:count], self.crc)
        return count


class _Section(io.RawIOBase):
    """A stretch of a file."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self._file, self._at, self._end = file, start, start + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        data = self._file.read(min(len(buffer), self._end - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def unpacked(file: IO[bytes], chunk: Packed) -> Checked:
    """A chunk's content, unpacked as it is read: a chunk of any size takes little memory."""
    section = io.BufferedReader(_Section(file, chunk.start, chunk.size_bytes), 1 << 17)
    if chunk.compression == b"zstd":
        import zstandard

        return Checked(zstandard.ZstdDecompressor().stream_reader(section, read_across_frames=True))
    if chunk.compression == b"lz4":
        import lz4.frame

        return Checked(lz4.frame.open(section))
    return Checked(section)


def _go_through(raw: Checked, size: int, contents: _Contents, chunk: int, base: int) -> None:
    """Add what a chunk's records hold to `contents`, all of them before the damage where it is damaged."""
    stream = io.BufferedReader(raw, 1 << 16)
    at, add = 0, contents.places.add
    while head := stream.read(RECORD_HEAD.size):
        if len(head) < RECORD_HEAD.size:
            raise DamagedError("ends in a record")
        opcode, length = RECORD_HEAD.unpack(head)
        at += RECORD_HEAD.size
        if at + length > size:
            raise DamagedError("holds a record that is longer than itself")
        if opcode == Opcode.MESSAGE and length >= MESSAGE_HEAD.size:
            head = _exactly(stream, MESSAGE_HEAD.size)
            skip(stream, length - MESSAGE_HEAD.size)
            add(head, chunk, base + at + MESSAGE_HEAD.size, length - MESSAGE_HEAD.size)
        elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL) and length <= MOST_DEFINITION_BYTES:
            contents.define(opcode, _exactly(stream, length))
        elif opcode == Opcode.MESSAGE or not _is_opcode(opcode):
            raise DamagedError("holds a damaged record")
        else:
            skip(stream, length)
        at += length
    if at != size:
        raise DamagedError(f"unpacks to {at} bytes instead of {size}")


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise DamagedError("ends in a record")
    return data


def skip(stream: IO[bytes], size: int) -> None:
    """Read over `size` bytes.

    Raises:
        DamagedError: there are fewer.
    """
    while size:
        size -= len(_exactly(stream, min(size, BLOCK_BYTES)))


def _result(walk: _Walk, path: Path, key: str, doubtful: bool) -> Scan:
    places = walk.data.places
    walk.data.extend(walk.summary)
    channel = np.frombuffer(places.channel, np.int64)
    time_ns = np.frombuffer(places.time_ns, np.uint64)
    known = np.isin(channel, list(walk.data.channels))
    kept = known & (time_ns <= LAST_NS)
    if not kept.any():
        raise _nothing(walk, key, len(channel))
    notes = [*_damage_notes(walk, int(kept.sum())), *_message_notes(channel, known, kept)]
    if doubtful:
        text = "the checksum of the file is wrong: bytes changed somewhere, and values may be others than recorded"
        notes.append(Note("checksum", text))
    return Scan(
        path=path,
        key=key,
        schemas=walk.data.schemas,
        channels=walk.data.channels,
        header=walk.header,
        metadata=tuple(walk.metadata),
        attachments=tuple(walk.attachments),
        packed=tuple(walk.packed),
        channel=channel[kept],
        time_ns=time_ns[kept].astype(np.int64),
        publish_ns=np.minimum(np.frombuffer(places.publish_ns, np.uint64)[kept], LAST_NS).astype(np.int64),
        sequence=np.frombuffer(places.sequence, np.uint32)[kept].astype(np.int64),
        chunk=np.frombuffer(places.chunk, np.int64)[kept],
        offset=np.frombuffer(places.offset, np.int64)[kept],
        size_bytes=np.frombuffer(places.size_bytes, np.int64)[kept],
        notes=tuple(notes),
    )


def _nothing(walk: _Walk, key: str, found: int) -> SourceError:
    if walk.unknown:
        text = f"{key} is compressed with {', '.join(sorted(walk.unknown))}; zstd, lz4 and none can be read"
        return SourceError("unreadable", text)
    if walk.damages or found:
        what = walk.damages[0] if walk.damages else "the channels of its messages are lost"
        return SourceError("corrupt", f"{key} is damaged and no message is left: {what}. Copy it again")
    if walk.cut_at is not None:
        text = f"{key} is cut short after {walk.cut_at} bytes, before its first whole message. Copy it again"
        return SourceError("truncated", text)
    return SourceError("empty", f"{key} holds no message: nothing was recorded")


def _damage_notes(walk: _Walk, kept: int) -> Iterator[Note]:
    if walk.private:
        text = f"{len(walk.private)} records of a private kind left out, {sum(walk.private)} bytes"
        yield Note("left_out", text)
    lost = "" if walk.counted is None or walk.counted <= kept else f"; {walk.counted - kept} messages are lost"
    if walk.damages:
        shown = "; ".join(walk.damages[:3]) + (" and others" if len(walk.damages) > 3 else "")
        text = f"{len(walk.damages)} damaged places are left out, {walk.lost_bytes} bytes{lost}: {shown}"
        yield Note("dropped", text)
    if walk.cut_at is not None:
        yield Note(
            "truncated", f"the file is cut short after {walk.cut_at} bytes: {kept} whole messages are kept{lost}"
        )


def _message_notes(channel: NDArray[np.int64], known: NDArray[np.bool_], kept: NDArray[np.bool_]) -> Iterator[Note]:
    for number, count in sorted(Counter(channel[~known].tolist()).items()):
        yield Note("dropped", f"{count} messages of channel {number} left out: what the channel is, is lost")
    if late := int((known & ~kept).sum()):
        yield Note("dropped", f"{late} messages left out: their times are no times")

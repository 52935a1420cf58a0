"""Walk all bytes of an episode's file, good or damaged: its whole records in order, and where there are none."""

from __future__ import annotations

import re
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from mcap import records
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from numpy.typing import NDArray

from megahour.episode.chunks import ChunkMessages, chunk_messages, records_in
from megahour.episode.container import MAGIC, RECORD_HEAD
from megahour.episode.model import EpisodeError
from megahour.episode.ranges import MemoryBytes
from megahour.episode.tail import FOOTER_BYTES, UNREADABLE, Ending, open_ending
from megahour.episode.zstd import unpack

CHUNK_HEAD = RECORD_HEAD + 8 + 8 + 8 + 4
"""Bytes of a chunk's record before its compression's name: head, start time, end time, size unpacked, CRC."""
_AGAIN = re.compile(rb"[\x06\x09\x0c].{5}\x00\x00\x00", re.DOTALL)
"""How the record of a chunk, an attachment or metadata begins: its opcode and a length below 2^40."""
_FIELDS: dict[int, tuple[int, tuple[int, ...], int]] = {
    Opcode.HEADER: (0, (4, 4), 0),
    Opcode.CHUNK: (8 + 8 + 8 + 4, (4, 8), 0),
    Opcode.MESSAGE_INDEX: (2, (4,), 0),
    Opcode.ATTACHMENT: (8 + 8, (4, 4, 8), 4),
    Opcode.METADATA: (0, (4, 4), 0),
}
"""How the records that lie among the data are made up: bytes of fixed fields, bytes of the length before each of the
others, and bytes of a checksum behind them."""


@dataclass(frozen=True)
class Chunk:
    """A chunk whose checksum is right. Its data lies from `data_at` to `end` in the file, `content` is it unpacked."""

    start: int
    data_at: int
    end: int
    compression: str
    start_ns: int
    end_ns: int
    packed_crc: int
    content: bytes
    messages: ChunkMessages


@dataclass(frozen=True)
class MessageIndexes:
    """The message indexes behind a chunk: by channel the place of the record, and times and offsets `(n, 2)`."""

    start: int
    end: int
    places: dict[int, int]
    entries: dict[int, NDArray[np.uint64]]


@dataclass
class Scan:
    """What a file's bytes hold, wherever it lies.

    `lost` are ranges that are no whole record. `indexes` are by the start of their chunk. `ending` is the summary where
    its checksum is right, `summary` the same wherever it lies now. `data_end` is the place of the record that ends the
    data, and says their checksum.
    """

    chunks: list[Chunk] = field(default_factory=list)
    indexes: dict[int, MessageIndexes] = field(default_factory=dict)
    attachments: list[tuple[int, bytes]] = field(default_factory=list)
    metadata: list[tuple[int, bytes]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    ending: Ending | None = None
    summary: bytes | None = None
    data_end: int | None = None
    data_crc_wrong: bool = False


def scan(name: str, data: bytes) -> Scan:
    """Everything whole in `data`; `name` is the file's, for messages. It raises nothing, whatever the bytes."""
    found = Scan()
    with suppress(EpisodeError):
        found.ending = open_ending(MemoryBytes(name, data))
        found.summary = found.ending.summary
    view = memoryview(data)
    at = len(MAGIC) if data.startswith(MAGIC) else 0
    while at < len(data):
        opcode, length = struct.unpack_from("<BQ", data, at) if at + RECORD_HEAD <= len(data) else (0, 0)
        end = at + RECORD_HEAD + length
        if opcode == Opcode.DATA_END and length == 4 and end <= len(data):
            found.data_end = at
            found.data_crc_wrong = zlib.crc32(view[:at]) != int.from_bytes(view[end - 4 : end], "little")
            found.summary = found.summary or _summary_behind(data, end)
            break
        if end <= len(data) and _adds_up(opcode, view[at:end]) and _take(found, opcode, at, view[at:end]):
            at = end
        else:
            following = _AGAIN.search(data, at + 1)
            beyond = len(data) if following is None else following.start()
            if found.lost and found.lost[-1][1] == at:
                found.lost[-1] = found.lost[-1][0], beyond
            else:
                found.lost.append((at, beyond))
            at = beyond
    return found


def _summary_behind(data: bytes, start: int) -> bytes | None:
    """The summary that begins at `start`, where bytes before it are missing or too many: its checksum is as it was."""
    summary, footer = data[start:-FOOTER_BYTES], data[-FOOTER_BYTES:]
    said = int.from_bytes(footer[25:29], "little")
    if len(data) < start + FOOTER_BYTES or zlib.crc32(footer[:25], zlib.crc32(summary)) != said:
        return None
    return summary


def _adds_up(opcode: int, record: memoryview) -> bool:
    """Whether the lengths inside a record fill it.

    Bytes that only look like a record's head may claim most of the file: they cost no more than this.
    """
    if opcode not in _FIELDS:
        return False
    fixed, lengths, behind = _FIELDS[opcode]
    at = RECORD_HEAD + fixed
    for width in lengths:
        at += width + int.from_bytes(record[at : at + width], "little")
    return at + behind == len(record)


def _take(found: Scan, opcode: int, at: int, record: memoryview) -> bool:
    """Take a record whose lengths add up into account if it is whole."""
    if opcode == Opcode.CHUNK:
        chunk = _chunk(at, record)
        if chunk is not None:
            found.chunks.append(chunk)
        return chunk is not None
    if opcode == Opcode.MESSAGE_INDEX:
        return _take_message_index(found, at, record)
    if opcode == Opcode.ATTACHMENT:
        whole = zlib.crc32(record[RECORD_HEAD:-4]) == int.from_bytes(record[-4:], "little")
        if whole:
            found.attachments.append((at, bytes(record)))
        return whole
    if opcode == Opcode.METADATA and read_record(records.Metadata, bytes(record[RECORD_HEAD:])) is not None:
        found.metadata.append((at, bytes(record)))
        return True
    return opcode == Opcode.HEADER and read_record(records.Header, bytes(record[RECORD_HEAD:])) is not None


def _chunk(at: int, record: memoryview) -> Chunk | None:
    start_ns, end_ns, size, crc, length = struct.unpack_from("<QQQII", record, RECORD_HEAD)
    data_at = CHUNK_HEAD + 4 + length + 8
    compression, packed = bytes(record[CHUNK_HEAD + 4 : data_at - 8]), record[data_at:]
    if compression not in (b"", b"zstd") or (not compression and size != len(packed)):
        return None
    try:
        content = unpack(packed, size) if compression else bytes(packed)
        if zlib.crc32(content) != crc:
            return None
        messages = chunk_messages(content)
    except EpisodeError:
        return None
    kind, packed_crc = compression.decode(), zlib.crc32(packed) if compression else crc
    return Chunk(at, at + data_at, at + len(record), kind, start_ns, end_ns, packed_crc, content, messages)


def _take_message_index(found: Scan, at: int, record: memoryview) -> bool:
    body = record[RECORD_HEAD:]
    if len(body) % 16 != 6:
        return False
    if not found.chunks or (found.lost and found.lost[-1][1] > found.chunks[-1].end):
        # Whose chunk is not whole.
        return True
    chunk = found.chunks[-1]
    known = found.indexes.setdefault(chunk.start, MessageIndexes(at, at, {}, {}))
    (channel,) = struct.unpack_from("<H", body)
    known.places[channel] = at
    known.entries[channel] = np.frombuffer(body, "<u8", offset=6).reshape(-1, 2)
    found.indexes[chunk.start] = MessageIndexes(known.start, at + len(record), known.places, known.entries)
    return True


def read_record(kind: Any, body: bytes) -> Any:
    """A record of this class of `mcap.records`, or None when the body is not exactly one."""
    stream = ReadDataStream(BytesIO(body))
    try:
        record = kind.read(stream)
    except UNREADABLE:
        return None
    return record if stream.count == len(body) else None


def definitions(content: bytes) -> tuple[dict[int, records.Schema], dict[int, records.Channel]]:
    """The schemas and channels among the records of a chunk or a summary whose checksum is right, by their numbers."""
    schemas: dict[int, records.Schema] = {}
    channels: dict[int, records.Channel] = {}
    for opcode, start, end in records_in(content):
        if opcode == Opcode.SCHEMA and (schema := read_record(records.Schema, content[start:end])) is not None:
            schemas[schema.id] = schema
        elif opcode == Opcode.CHANNEL and (channel := read_record(records.Channel, content[start:end])) is not None:
            channels[channel.id] = channel
    return schemas, channels

"""Open an episode by its tail: the footer, the summary, and in one read with them the index and the metadata."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

from mcap import records
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode

from megahour.episode import index as idx
from megahour.episode.chunks import records_in
from megahour.episode.container import MAGIC, RECORD_HEAD
from megahour.episode.model import EpisodeError, EpisodeFacts, ExtraTopic, Note
from megahour.episode.profile import CONTAINER_VERSION
from megahour.episode.ranges import Buffer, ByteSource

FOOTER_BYTES = RECORD_HEAD + 20 + len(MAGIC)
TAIL_BYTES, MOST_TAIL_BYTES = 64 * 1024, 4 * 1024 * 1024
TAIL_SHARE = 64
"""A tail read takes 1/64 of the file within these bounds, 64 KiB where its size is not known: it then nearly always
holds the index, and often the low-dimensional topics, which lie before it."""
MOST_END_BYTES = 256 * 1024 * 1024
"""No summary or index is so large: one that claims it is damaged, and is not read."""
ATTACHMENT_HEAD = RECORD_HEAD + 8 + 8 + 4 + 4 + 8 + 4
"""Bytes of an attachment's record without its names and data."""
AGAIN = "Ingest its recording again"
UNREADABLE = (McapError, struct.error, ValueError, KeyError, TypeError, OverflowError)
"""What reading a record of nonsense raises."""


@dataclass(frozen=True)
class Run:
    """Bytes of a file from `start` on."""

    start: int
    data: Buffer

    def cut(self, start: int, end: int) -> Buffer | None:
        """The bytes `start` to `end` of the file, or None when they are not all here."""
        if start < self.start or end > self.start + len(self.data):
            return None
        return self.data[start - self.start : end - self.start]


@dataclass(frozen=True)
class Tail:
    """What an episode says of itself, and the bytes that were read to learn it."""

    facts: EpisodeFacts
    profile: str
    container_version: int
    notes: tuple[Note, ...]
    index: idx.EpisodeIndex
    extras: tuple[ExtraTopic, ...]
    size_bytes: int
    read: Run


@dataclass(frozen=True)
class Ending:
    """A file's summary, its records as they lie from `summary_start` to the footer, and the bytes that were read."""

    summary: bytes
    summary_start: int
    size_bytes: int
    read: Run


def read_exactly(source: ByteSource, starts: Sequence[int], ends: Sequence[int]) -> list[Buffer]:
    """Ranges of a file, all of them whole.

    Raises:
        EpisodeError: `missing`, or `truncated` when the file ends before one of them does.
    """
    parts = source.read(starts, ends)
    for part, start, end in zip(parts, starts, ends, strict=True):
        if len(part) != end - start:
            raise EpisodeError("truncated", f"{source.name}: bytes {start} to {end} are not there. {AGAIN}")
    return parts


def open_tail(source: ByteSource, size_bytes: int | None = None) -> Tail:
    """Read and check the end of an episode; one read, a second when the index is unusually large.

    `size_bytes` is its size where that is known already: another one is an error.

    Raises:
        EpisodeError: `missing`, `truncated`, `corrupt` or `version`.
    """
    name = source.name
    ending = open_ending(source, size_bytes)
    try:
        attachment, metadata = _find(ending.summary)
        if attachment is None or metadata is None:
            raise EpisodeError("corrupt", f"{name} is an MCAP file, but no episode of Megahour: it has no index")
        run = _reach(source, ending.read, min(attachment.offset, metadata.offset), ending.summary_start)
        index = attached_index(run.cut(attachment.offset, attachment.offset + attachment.length))
        said = bytes(run.cut(metadata.offset, metadata.offset + metadata.length) or b"")
        if zlib.crc32(said) != index.metadata_crc:
            raise EpisodeError("corrupt", f"the checksum of its metadata is wrong. {AGAIN}")
        facts, profile, notes = read_metadata(said)
        extras = _extras(ending.summary, index) if index.topics else ()
        return Tail(facts, profile, CONTAINER_VERSION, notes, index, extras, ending.size_bytes, run)
    except EpisodeError as error:
        raise EpisodeError(error.reason, f"{name}: {error}") from error
    except UNREADABLE as error:
        raise EpisodeError("corrupt", f"{name}: its summary or metadata cannot be read: {error}. {AGAIN}") from error


def open_ending(source: ByteSource, size_bytes: int | None = None) -> Ending:
    """Read and check a file's footer and summary; one read, a second when the summary is unusually large.

    Raises:
        EpisodeError: `missing`, `truncated` or `corrupt`.
    """
    name = source.name
    asked = max(TAIL_BYTES, min((size_bytes or 0) // TAIL_SHARE, MOST_TAIL_BYTES))
    data, size = source.tail(asked)
    if size < len(MAGIC) + FOOTER_BYTES:
        raise EpisodeError("truncated", f"{name} has only {size} bytes. {AGAIN}")
    if size_bytes is not None and size != size_bytes:
        raise EpisodeError("truncated", f"{name} has {size} bytes, and {size_bytes} were stored. {AGAIN}")
    if len(data) != min(asked, size):
        raise EpisodeError("truncated", f"{name}: its last {min(asked, size)} bytes are not there. {AGAIN}")
    run = Run(size - len(data), data)
    footer = bytes(run.data[-FOOTER_BYTES:])
    opcode, body, summary_start, _, crc = struct.unpack_from("<BQQQI", footer)
    if footer[-len(MAGIC) :] != MAGIC or (opcode, body) != (Opcode.FOOTER, 20):
        raise EpisodeError("truncated", f"{name} does not end like an MCAP file: it is cut short. {AGAIN}")
    end = size - FOOTER_BYTES
    run = _reach(source, run, summary_start, end)
    summary = bytes(run.cut(summary_start, end) or b"")
    if crc != zlib.crc32(footer[:25], zlib.crc32(summary)):
        raise EpisodeError("corrupt", f"{name}: the checksum of its summary is wrong. {AGAIN}")
    return Ending(summary, summary_start, size, run)


def _reach(source: ByteSource, run: Run, start: int, end: int) -> Run:
    """The run grown downwards until it holds `start`."""
    if not len(MAGIC) <= start <= end:
        raise EpisodeError("corrupt", f"{source.name}: its footer or summary points outside the file. {AGAIN}")
    if start >= run.start:
        return run
    if end - start > MOST_END_BYTES:
        raise EpisodeError("corrupt", f"{source.name}: its footer or summary claims {end - start} bytes. {AGAIN}")
    return Run(start, b"".join((read_exactly(source, [start], [run.start])[0], run.data)))


def attached_index(record: Buffer | None) -> idx.EpisodeIndex:
    """The index in its attachment's record.

    Raises:
        EpisodeError: `corrupt` or `version`.
    """
    record = record or b""
    said = int.from_bytes(record[-4:], "little")
    if len(record) < ATTACHMENT_HEAD or zlib.crc32(record[RECORD_HEAD:-4]) != said:
        raise EpisodeError("corrupt", f"the checksum of its index is wrong. {AGAIN}")
    try:
        attachment = records.Attachment.read(_stream(bytes(record[RECORD_HEAD:])))
    except UNREADABLE as error:
        raise EpisodeError("corrupt", f"the attachment of its index cannot be read: {error}. {AGAIN}") from error
    return idx.unpack(attachment.data)


def read_metadata(record: bytes) -> tuple[EpisodeFacts, str, tuple[Note, ...]]:
    """What an episode's metadata record says: its facts, the name of its profile, its notes.

    Raises:
        EpisodeError: `corrupt` or `version`.
    """
    try:
        said = records.Metadata.read(_stream(record[RECORD_HEAD:])).metadata
        if said["crc32"] != idx.said_crc(said):
            raise EpisodeError("corrupt", f"the checksum of its metadata is wrong. {AGAIN}")
        return _said(said)
    except UNREADABLE as error:
        raise EpisodeError("corrupt", f"its metadata cannot be read: {error}. {AGAIN}") from error


def _said(said: dict[str, str]) -> tuple[EpisodeFacts, str, tuple[Note, ...]]:
    version = int(said["container_version"])
    if version != CONTAINER_VERSION:
        raise EpisodeError(
            "version", f"its container has version {version}, and this Megahour reads {CONTAINER_VERSION}"
        )
    facts = EpisodeFacts(
        episode_id=said["episode_id"],
        robot=said["robot"],
        task=said["task"],
        source=said["source"],
        format=said["format"],
        rate_hz=float(said["rate_hz"]),
        success={"": None, "true": True, "false": False}[said["success"]],
        attributes=json.loads(said["attributes"]),
    )
    return facts, said["profile"], tuple(Note(*each) for each in json.loads(said["notes"]))


def _stream(data: bytes) -> ReadDataStream:
    return ReadDataStream(BytesIO(data))


def summary_records(summary: bytes) -> Iterator[tuple[int, bytes]]:
    """The summary's records: opcode and body."""
    for opcode, start, end in records_in(summary):
        yield opcode, summary[start:end]


def _find(summary: bytes) -> tuple[records.AttachmentIndex | None, records.MetadataIndex | None]:
    attachment, metadata = None, None
    for opcode, body in summary_records(summary):
        if opcode == Opcode.ATTACHMENT_INDEX:
            found = records.AttachmentIndex.read(_stream(body))
            attachment = found if found.name == idx.NAME else attachment
        elif opcode == Opcode.METADATA_INDEX:
            named = records.MetadataIndex.read(_stream(body))
            metadata = named if named.name == idx.METADATA else metadata
    return attachment, metadata


def _extras(summary: bytes, index: idx.EpisodeIndex) -> tuple[ExtraTopic, ...]:
    schemas: dict[int, records.Schema] = {}
    channels: dict[int, records.Channel] = {}
    for opcode, body in summary_records(summary):
        if opcode == Opcode.SCHEMA:
            schema = records.Schema.read(_stream(body))
            schemas[schema.id] = schema
        elif opcode == Opcode.CHANNEL:
            channel = records.Channel.read(_stream(body))
            channels[channel.id] = channel
    found = []
    for topic in index.topics:
        channel = channels[topic.channel]
        schema = schemas.get(channel.schema_id) or records.Schema(0, b"", "", "")
        found.append(ExtraTopic(topic.name, channel.message_encoding, schema.name, schema.encoding, schema.data))
    return tuple(found)

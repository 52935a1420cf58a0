"""An MCAP file being written, group by group: per-group compression, chunks cut anywhere, the summary at its end."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Any

import zstandard
from foxglove_schemas_protobuf.CompressedImage_pb2 import CompressedImage
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from mcap import records
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap_protobuf.schema import build_file_descriptor_set

from megahour.episode import index as idx
from megahour.episode.model import ExtraTopic
from megahour.episode.profile import CONTAINER_VERSION

MAGIC = b"\x89MCAP0\r\n"
RECORD_HEAD = 1 + 8
MESSAGE_HEAD = RECORD_HEAD + 2 + 4 + 8 + 8
"""Bytes of a message record before its payload: opcode, length, channel, sequence, log time, publish time."""


@dataclass(frozen=True, order=True)
class Message:
    """A message on its way into a file; they sort by time. `segment` counts the cameras' common new starts."""

    time_ns: int
    channel: int
    sequence: int
    payload: bytes = field(compare=False)
    keyframe: bool = field(default=False, compare=False)
    segment: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Place:
    """Where a message record lies in the file, how long it is, its CRC-32, and whether it decodes by itself."""

    offset: int
    length: int
    crc: int
    keyframe: bool


def protobuf_topic(name: str, message: Any) -> ExtraTopic:
    """The topic `name` of messages of this protobuf class."""
    schema = build_file_descriptor_set(message).SerializeToString(deterministic=True)
    return ExtraTopic(name, "protobuf", message.DESCRIPTOR.full_name, "protobuf", schema)


def picture_class(codec: str) -> Any:
    """The protobuf class of the messages of a camera whose pictures are coded so, `jpeg` or `h264`."""
    return CompressedImage if codec == "jpeg" else CompressedVideo


def record_bytes(record: records.McapRecord) -> bytes:
    """A record as it lies in a file."""
    builder: Any = RecordBuilder()
    record.write(builder)
    data: bytes = builder.end()
    return data


class Container:
    """The file being written: its position, its running checksum, and what the summary at its end will say."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._crc = 0
        self.offset = 0
        self._schemas: dict[tuple[str, str, bytes], records.Schema] = {}
        self._channels: dict[int, records.Channel] = {}
        self._chunks: list[records.ChunkIndex] = []
        self._counts: Counter[int] = Counter()
        self._span: list[int] = []
        self.places: dict[int, list[Place]] = {}
        self.packed_chunks: list[idx.ChunkIndex] = []
        self.write(MAGIC)
        self.write(record_bytes(records.Header(profile="", library=f"megahour/{CONTAINER_VERSION}")))

    def write(self, data: bytes) -> None:
        self._out.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self.offset += len(data)

    def add_channel(self, topic: ExtraTopic, metadata: dict[str, str] | None = None) -> int:
        """Declare a topic, `name` without its slash; returns the number of its channel."""
        schema = 0
        if topic.schema_name or topic.schema:
            key = topic.schema_name, topic.schema_encoding, topic.schema
            if key not in self._schemas:
                self._schemas[key] = records.Schema(
                    id=len(self._schemas) + 1, data=topic.schema, encoding=topic.schema_encoding, name=topic.schema_name
                )
            schema = self._schemas[key].id
        channel = records.Channel(
            id=len(self._channels) + 1,
            topic=f"/{topic.name}",
            message_encoding=topic.encoding,
            metadata=metadata or {},
            schema_id=schema,
        )
        self._channels[channel.id] = channel
        return channel.id

    def definitions(self, channel: int) -> list[bytes]:
        """The schema and channel records that make a channel's messages readable."""
        found = self._channels[channel]
        schemas = [record_bytes(schema) for schema in self._schemas.values() if schema.id == found.schema_id]
        return [*schemas, record_bytes(found)]

    def write_chunk(self, name: str, data: bytes, messages: list[tuple[Message, int, int]], compressed: bool) -> None:
        """Write one chunk and its message indexes. `messages` are each with offset and length inside `data`."""
        times = [message.time_ns for message, _, _ in messages]
        packed = zstandard.ZstdCompressor(level=9).compress(data) if compressed else data
        chunk = records.Chunk(
            compression="zstd" if compressed else "",
            data=packed,
            message_start_time=min(times),
            message_end_time=max(times),
            uncompressed_crc=zlib.crc32(data),
            uncompressed_size=len(data),
        )
        start = self.offset
        self.write(record_bytes(chunk))
        length = self.offset - start
        data_at = self.offset - len(packed)
        by_channel: dict[int, list[tuple[int, int]]] = {}
        for message, at, size in messages:
            by_channel.setdefault(message.channel, []).append((message.time_ns, at))
            if not compressed:
                place = Place(data_at + at, size, zlib.crc32(data[at : at + size]), message.keyframe)
                self.places.setdefault(message.channel, []).append(place)
        if compressed:
            held = {
                channel: (self._counts[channel], len(entries), entries[0][0], entries[-1][0])
                for channel, entries in sorted(by_channel.items())
            }
            packed_crc = zlib.crc32(packed)
            self.packed_chunks.append(idx.ChunkIndex(name, data_at, len(packed), len(data), packed_crc, held))
        index_start, offsets = self.offset, {}
        for channel, entries in sorted(by_channel.items()):
            offsets[channel] = self.offset
            self.write(record_bytes(records.MessageIndex(channel, entries)))
            self._counts[channel] += len(entries)
        self._span += [min(times), max(times)]
        self._chunks.append(
            records.ChunkIndex(
                chunk_length=length,
                chunk_start_offset=start,
                compression=chunk.compression,
                compressed_size=len(packed),
                message_end_time=chunk.message_end_time,
                message_index_length=self.offset - index_start,
                message_index_offsets=offsets,
                message_start_time=chunk.message_start_time,
                uncompressed_size=len(data),
            )
        )

    def finish(self, index: bytes, metadata: bytes) -> int:
        """Write the attachment, the metadata record and the summary; returns the file's size in bytes."""
        attachment_at = self.offset
        self.write(record_bytes(records.Attachment(0, 0, idx.NAME, idx.MEDIA_TYPE, index)))
        metadata_at = self.offset
        self.write(metadata)
        metadata_end = self.offset
        self.write(record_bytes(records.DataEnd(self._crc)))
        groups: list[tuple[Opcode, list[records.McapRecord]]] = [
            (Opcode.SCHEMA, list(self._schemas.values())),
            (Opcode.CHANNEL, list(self._channels.values())),
            (
                Opcode.STATISTICS,
                [
                    records.Statistics(
                        attachment_count=1,
                        channel_count=len(self._channels),
                        channel_message_counts=dict(sorted(self._counts.items())),
                        chunk_count=len(self._chunks),
                        message_count=sum(self._counts.values()),
                        message_end_time=max(self._span, default=0),
                        message_start_time=min(self._span, default=0),
                        metadata_count=1,
                        schema_count=len(self._schemas),
                    )
                ],
            ),
            (Opcode.CHUNK_INDEX, list(self._chunks)),
            (
                Opcode.ATTACHMENT_INDEX,
                [
                    records.AttachmentIndex(
                        offset=attachment_at,
                        length=metadata_at - attachment_at,
                        log_time=0,
                        create_time=0,
                        data_size=len(index),
                        name=idx.NAME,
                        media_type=idx.MEDIA_TYPE,
                    )
                ],
            ),
            (Opcode.METADATA_INDEX, [records.MetadataIndex(metadata_at, metadata_end - metadata_at, idx.METADATA)]),
        ]
        summary_start = self.offset
        summary, places = b"", []
        for opcode, members in groups:
            start = len(summary)
            summary += b"".join(record_bytes(member) for member in members)
            if members:
                places.append(records.SummaryOffset(opcode, summary_start + start, len(summary) - start))
        offsets_start = summary_start + len(summary)
        summary += b"".join(record_bytes(place) for place in places)
        head = struct.pack("<BQQQ", Opcode.FOOTER, 20, summary_start, offsets_start)
        footer = records.Footer(summary_start, offsets_start, zlib.crc32(head, zlib.crc32(summary)))
        self.write(summary + record_bytes(footer) + MAGIC)
        return self.offset


class Group:
    """Messages of topics that are read together, gathered into chunks that hold nothing else."""

    def __init__(self, file: Container, name: str, compressed: bool) -> None:
        self._file = file
        self._name = name
        self._compressed = compressed
        self._known: set[int] = set()
        self._parts: list[bytes] = []
        self._messages: list[tuple[Message, int, int]] = []
        self.size = 0

    def add(self, message: Message) -> None:
        if message.channel not in self._known:
            self._known.add(message.channel)
            for definition in self._file.definitions(message.channel):
                self._append(definition)
        head = struct.pack(
            "<BQHIQQ",
            Opcode.MESSAGE,
            MESSAGE_HEAD - RECORD_HEAD + len(message.payload),
            message.channel,
            message.sequence,
            message.time_ns,
            message.time_ns,
        )
        self._messages.append((message, self.size, len(head) + len(message.payload)))
        self._append(head)
        self._append(message.payload)

    def _append(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def end_chunk(self) -> None:
        if self._messages:
            self._file.write_chunk(self._name, b"".join(self._parts), self._messages, self._compressed)
        self._parts, self._messages, self.size = [], [], 0

"""An MCAP file being written, group by group: per-group compression, chunks cut anywhere, the summary at its end."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import zstandard
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from mcap import records
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap_protobuf.schema import build_file_descriptor_set

from megahour.episode import index as idx
from megahour.episode.model import Camera, Series
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
        self._schemas: dict[str, records.Schema] = {}
        self._channels: dict[int, records.Channel] = {}
        self._chunks: list[records.ChunkIndex] = []
        self._counts: Counter[int] = Counter()
        self._span: list[int] = []
        self._places: dict[int, list[tuple[int, int, int, bool]]] = {}
        self.packed_chunks: list[idx.ChunkIndex] = []
        self.write(MAGIC)
        self.write(record_bytes(records.Header(profile="", library=f"megahour/{CONTAINER_VERSION}")))

    def write(self, data: bytes) -> None:
        self._out.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self.offset += len(data)

    def add_channel(self, topic: Camera | Series) -> records.Channel:
        message: Any = CompressedVideo if isinstance(topic, Camera) else JointStates
        name = message.DESCRIPTOR.full_name
        if name not in self._schemas:
            data = build_file_descriptor_set(message).SerializeToString(deterministic=True)
            self._schemas[name] = records.Schema(id=len(self._schemas) + 1, data=data, encoding="protobuf", name=name)
        channel = records.Channel(
            id=len(self._channels) + 1,
            topic=f"/camera/{topic.name}" if isinstance(topic, Camera) else f"/{topic.name}",
            message_encoding="protobuf",
            metadata={} if isinstance(topic, Camera) else {"dtype": topic.values.dtype.name},
            schema_id=self._schemas[name].id,
        )
        self._channels[channel.id] = channel
        return channel

    def definitions(self, channel: int) -> list[bytes]:
        """The schema and channel records that make a channel's messages readable."""
        found = self._channels[channel]
        schema = next(s for s in self._schemas.values() if s.id == found.schema_id)
        return [record_bytes(schema), record_bytes(found)]

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
        if compressed:
            self.packed_chunks.append(idx.ChunkIndex(name, data_at, len(packed), len(data), zlib.crc32(packed)))
        by_channel: dict[int, list[tuple[int, int]]] = {}
        for message, at, size in messages:
            by_channel.setdefault(message.channel, []).append((message.time_ns, at))
            crc = zlib.crc32(data[at : at + size])
            self._places.setdefault(message.channel, []).append((data_at + at, size, crc, message.keyframe))
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

    def camera_index(self, camera: Camera, channel: int, group: str) -> idx.CameraIndex:
        places = self._places[channel]
        return idx.CameraIndex(
            name=camera.name,
            channel=channel,
            group=group,
            width=camera.width,
            height=camera.height,
            times_ns=np.asarray(camera.times_ns, np.int64),
            offsets=np.array([place[0] for place in places], np.int64),
            lengths=np.array([place[1] for place in places], np.int64),
            crcs=np.array([place[2] for place in places], np.uint32),
            keyframes=np.array([place[3] for place in places], np.bool_),
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
                        message_end_time=max(self._span),
                        message_start_time=min(self._span),
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

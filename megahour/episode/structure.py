"""Whether an episode's file is well-formed MCAP: every byte in a record, and a summary that is true of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from mcap import records
from mcap.opcode import Opcode

from megahour.episode import index as idx
from megahour.episode.container import MAGIC, MESSAGE_HEAD, RECORD_HEAD, picture_class
from megahour.episode.scan import Chunk, MessageIndexes, Scan, definitions, read_record
from megahour.episode.tail import summary_records

DATA_END_BYTES = RECORD_HEAD + 4
SUMMARY: dict[int, Any] = {
    Opcode.SCHEMA: records.Schema,
    Opcode.CHANNEL: records.Channel,
    Opcode.STATISTICS: records.Statistics,
    Opcode.CHUNK_INDEX: records.ChunkIndex,
    Opcode.ATTACHMENT_INDEX: records.AttachmentIndex,
    Opcode.METADATA_INDEX: records.MetadataIndex,
    Opcode.SUMMARY_OFFSET: records.SummaryOffset,
}
"""What may stand in a summary."""


def structure_faults(found: Scan, data: bytes) -> Iterator[str]:
    """What is wrong with the records of a file, as sentences."""
    if not data.startswith(MAGIC):
        yield "it does not begin like an MCAP file"
    for start, end in found.lost:
        yield f"bytes {start} to {end} are no whole record, or its checksum is wrong"
    if found.data_end is None:
        yield "its data has no end"
    elif found.data_crc_wrong:
        yield "the checksum of all of its data is wrong"
    for chunk in found.chunks:
        yield from _chunk_faults(chunk, found.indexes.get(chunk.start))
    if found.ending is None or found.data_end is None:
        return
    if found.ending.summary_start != found.data_end + DATA_END_BYTES:
        yield f"its summary does not follow on its data, which ends at byte {found.data_end}"
    if not found.lost:
        yield from _summary_faults(found, found.ending.summary, found.ending.summary_start)


def _chunk_faults(chunk: Chunk, indexes: MessageIndexes | None) -> Iterator[str]:
    """What is wrong with what a chunk and the message indexes behind it say of its messages."""
    start, messages = chunk.start, chunk.messages
    times = messages.times_ns
    if not len(times) or (chunk.start_ns, chunk.end_ns) != (times.min(), times.max()):
        yield f"the chunk at byte {start} says other times than its messages have"
    published = np.frombuffer(chunk.content, np.uint8)[messages.starts[:, None] + np.arange(-8, 0)]
    if not np.array_equal(np.ascontiguousarray(published).view("<i8")[:, 0], times):
        yield f"messages of the chunk at byte {start} were published at another time than they were logged"
    expected = {}
    for channel in np.unique(messages.channels).tolist():
        own = messages.channels == channel
        expected[channel] = np.stack([times[own], messages.starts[own] - MESSAGE_HEAD], axis=1).astype(np.uint64)
    entries = {} if indexes is None else indexes.entries
    if entries.keys() != expected.keys() or any(not np.array_equal(entries[c], expected[c]) for c in expected):
        yield f"the message indexes behind the chunk at byte {start} are not those of its messages"


def _summary_faults(found: Scan, summary: bytes, summary_start: int) -> Iterator[str]:
    said: dict[int, list[Any]] = {opcode: [] for opcode in SUMMARY}
    places: dict[int, tuple[int, int]] = {}
    at = summary_start
    for opcode, body in summary_records(summary):
        record = read_record(SUMMARY[opcode], body) if opcode in SUMMARY else None
        if record is None:
            yield f"its summary holds a record that is none, at byte {at}"
            return
        said[opcode].append(record)
        start, length = places.get(opcode, (at, 0))
        places[opcode] = start, length + RECORD_HEAD + len(body)
        at += RECORD_HEAD + len(body)
    expected = {
        Opcode.STATISTICS: [_statistics(found, said)],
        Opcode.CHUNK_INDEX: [_chunk_index(found, i) for i in range(len(found.chunks))],
        Opcode.ATTACHMENT_INDEX: [_attachment_index(*each) for each in found.attachments],
        Opcode.METADATA_INDEX: [_metadata_index(*each) for each in found.metadata],
        Opcode.SUMMARY_OFFSET: [
            records.SummaryOffset(opcode, *place) for opcode, place in places.items() if opcode != Opcode.SUMMARY_OFFSET
        ],
    }
    for opcode, members in expected.items():
        if said[opcode] != members:
            yield f"its summary is wrong about the {opcode.name.lower().replace('_', ' ')} records of the file"
    schemas = {schema.id: schema for schema in said[Opcode.SCHEMA]}
    channels = {channel.id: channel for channel in said[Opcode.CHANNEL]}
    described: set[int] = set()
    for chunk in found.chunks:
        own_schemas, own_channels = definitions(chunk.content)
        described |= own_channels.keys()
        if any(schemas.get(number) != schema for number, schema in own_schemas.items()) or any(
            channels.get(number) != channel for number, channel in own_channels.items()
        ):
            yield f"the chunk at byte {chunk.start} and the summary describe topics differently"
        if set(np.unique(chunk.messages.channels).tolist()) - described:
            yield f"the chunk at byte {chunk.start} holds messages of a topic that was not described before"


def _statistics(found: Scan, said: dict[int, list[Any]]) -> records.Statistics:
    counts = Counter(channel for chunk in found.chunks for channel in chunk.messages.channels.tolist())
    return records.Statistics(
        attachment_count=len(found.attachments),
        channel_count=len(said[Opcode.CHANNEL]),
        channel_message_counts=dict(sorted(counts.items())),
        chunk_count=len(found.chunks),
        message_count=sum(counts.values()),
        message_end_time=max((chunk.end_ns for chunk in found.chunks), default=0),
        message_start_time=min((chunk.start_ns for chunk in found.chunks), default=0),
        metadata_count=len(found.metadata),
        schema_count=len(said[Opcode.SCHEMA]),
    )


def _chunk_index(found: Scan, i: int) -> records.ChunkIndex:
    chunk = found.chunks[i]
    indexes = found.indexes.get(chunk.start)
    return records.ChunkIndex(
        chunk_length=chunk.end - chunk.start,
        chunk_start_offset=chunk.start,
        compression=chunk.compression,
        compressed_size=chunk.end - chunk.data_at,
        message_end_time=chunk.end_ns,
        message_index_length=0 if indexes is None else indexes.end - indexes.start,
        message_index_offsets={} if indexes is None else indexes.places,
        message_start_time=chunk.start_ns,
        uncompressed_size=len(chunk.content),
    )


def _attachment_index(at: int, record: bytes) -> records.AttachmentIndex | None:
    said = read_record(records.Attachment, record[RECORD_HEAD:])
    return said and records.AttachmentIndex(
        at, len(record), said.log_time, said.create_time, len(said.data), said.name, said.media_type
    )


def _metadata_index(at: int, record: bytes) -> records.MetadataIndex:
    return records.MetadataIndex(at, len(record), read_record(records.Metadata, record[RECORD_HEAD:]).name)


def channel_faults(index: idx.EpisodeIndex, found: Scan) -> Iterator[str]:
    """Where the summary describes channels otherwise than an episode's index."""
    assert found.ending is not None
    schemas, channels = definitions(found.ending.summary)
    topics = index.by_channel
    if channels.keys() != topics.keys():
        yield "its index and its summary know other topics"
        return
    for number, channel in channels.items():
        schema = schemas[channel.schema_id].name if channel.schema_id in schemas else ""
        said = channel.topic, channel.metadata, schema
        if said != _described(topics[number], schema) or channel.schema_id not in {0, *schemas}:
            yield f"its index and its summary say different things of {channel.topic}"


def _described(
    topic: idx.CameraIndex | idx.SeriesIndex | idx.TopicIndex, schema: str
) -> tuple[str, dict[str, str], str]:
    """A channel's name, metadata and schema, as this writer sets them for a topic of the index."""
    if isinstance(topic, idx.CameraIndex):
        said = {"height": str(topic.height), "width": str(topic.width)}
        kind = picture_class(topic.codec).DESCRIPTOR.full_name
        return f"/{'rendition' if topic.rendition_of else 'camera'}/{topic.name}", said, kind
    if isinstance(topic, idx.SeriesIndex):
        return f"/{topic.name}", {"dtype": topic.dtype}, JointStates.DESCRIPTOR.full_name
    return f"/{topic.name}", {}, schema

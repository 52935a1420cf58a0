"""What can be saved of a damaged episode: every picture, row and message whose own checksum is right."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import zstandard
from foxglove_schemas_protobuf.CompressedImage_pb2 import CompressedImage
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from google.protobuf.message import DecodeError
from mcap import records
from mcap.opcode import Opcode

from megahour.episode.container import MAGIC, RECORD_HEAD
from megahour.episode.decoding import Run, decode
from megahour.episode.h264 import is_keyframe
from megahour.episode.model import (
    Camera,
    Coded,
    EpisodeError,
    EpisodeFacts,
    ExtraMessage,
    ExtraTopic,
    Frames,
    Note,
    RawEpisode,
    Series,
)
from megahour.episode.ranges import MemoryBytes
from megahour.episode.reader import chunk_messages
from megahour.episode.tail import Tail, open_tail

CHUNK_HEAD = 8 + 8 + 8 + 4
"""Bytes of a chunk record before its compression's name: start time, end time, size unpacked, CRC."""
_CHUNK = re.compile(rb"\x06.{5}\x00\x00\x00", re.DOTALL)
"""How a chunk record begins: its opcode and a length below 2^40."""


@dataclass(frozen=True)
class Salvaged:
    """What was saved, as an episode to write anew, and what it says of itself."""

    episode: RawEpisode
    facts: EpisodeFacts


@dataclass
class _Found:
    """Messages by the topic's name: number in its topic, time, payload. And what describes the topics."""

    channels: dict[int, records.Channel] = field(default_factory=dict)
    schemas: dict[int, records.Schema] = field(default_factory=dict)
    messages: dict[int, dict[int, tuple[int, bytes]]] = field(default_factory=dict)
    lost_bytes: int = 0

    def add(self, channel: int, number: int, time_ns: int, payload: bytes) -> None:
        self.messages.setdefault(channel, {})[number] = time_ns, payload


def salvage(name: str, data: bytes, known: EpisodeFacts) -> Salvaged:
    """Save what is whole of a damaged episode.

    Args:
        name: the file's, for messages.
        known: what is known of the episode from elsewhere, for a file whose own metadata is gone.

    Raises:
        EpisodeError: `corrupt` when nothing is left.
    """
    found = _scan(data)
    tail = _tail(name, data)
    if tail is not None:
        _pick_pictures(found, tail, data)
    cameras, losses = _cameras(found)
    series = tuple(_series(found))
    extras = _extras(found)
    if not cameras and not series and not extras:
        raise EpisodeError("corrupt", f"Nothing of {name} can be saved: no picture, row or message in it is whole")
    if found.lost_bytes:
        losses.append(f"{found.lost_bytes} bytes could not be read")
    facts = known if tail is None else tail.facts
    text = "; ".join(losses) or "everything was saved, and the index made anew"
    episode = RawEpisode(
        index=0,
        robot=facts.robot,
        task=facts.task,
        rate_hz=facts.rate_hz,
        success=facts.success,
        cameras=cameras,
        series=series,
        attributes=facts.attributes,
        notes=(*(() if tail is None else tail.notes), Note("repaired", f"saved from a damaged file: {text}")),
        extras=tuple(topic for topic, _ in extras),
        extra_messages=partial(_in_order, extras),
    )
    return Salvaged(episode, replace(facts, episode_id=known.episode_id))


def _tail(name: str, data: bytes) -> Tail | None:
    try:
        return open_tail(MemoryBytes(name, data))
    except EpisodeError:
        return None


def _scan(data: bytes) -> _Found:
    """All chunks with a right checksum, wherever they lie."""
    found, at = _Found(), len(MAGIC) if data.startswith(MAGIC) else 0
    while at + RECORD_HEAD <= len(data):
        opcode, length = struct.unpack_from("<BQ", data, at)
        end = at + RECORD_HEAD + length
        inside = end <= len(data)
        passed = opcode in (Opcode.HEADER, Opcode.MESSAGE_INDEX, Opcode.ATTACHMENT, Opcode.METADATA)
        if inside and (passed or (opcode == Opcode.CHUNK and _take_chunk(found, data[at + RECORD_HEAD : end]))):
            at = end
        elif opcode == Opcode.DATA_END and length == 4:
            _take_definitions(found, data[end:])
            break
        else:
            following = _CHUNK.search(data, at + 1)
            beyond = len(data) if following is None else following.start()
            found.lost_bytes += beyond - at
            at = beyond
    return found


def _take_chunk(found: _Found, body: bytes) -> bool:
    """Take the messages of a chunk, if its checksum is right."""
    try:
        unpacked_bytes, crc, name_bytes = struct.unpack_from("<QII", body, 16)
        compression = body[CHUNK_HEAD + 4 : CHUNK_HEAD + 4 + name_bytes]
        packed = body[CHUNK_HEAD + 4 + name_bytes + 8 :]
        if compression not in (b"", b"zstd") or unpacked_bytes > 2**31:
            return False
        unpack = zstandard.ZstdDecompressor().decompress
        content = unpack(packed, max_output_size=unpacked_bytes) if compression else packed
        if len(content) != unpacked_bytes or zlib.crc32(content) != crc:
            return False
    except (struct.error, zstandard.ZstdError):
        return False
    _take_definitions(found, content)
    messages = chunk_messages(content)
    for channel, number, time_ns, start, end in zip(
        messages.channels.tolist(),
        messages.sequences.tolist(),
        messages.times_ns.tolist(),
        messages.starts.tolist(),
        messages.ends.tolist(),
        strict=True,
    ):
        found.add(channel, number, time_ns, content[start:end])
    return True


def _take_definitions(found: _Found, content: bytes) -> None:
    """Take the schemas and channels among records; it ends where they stop making sense."""
    from io import BytesIO

    from mcap.data_stream import ReadDataStream

    at = 0
    while at + RECORD_HEAD <= len(content):
        opcode, length = struct.unpack_from("<BQ", content, at)
        body = content[at + RECORD_HEAD : at + RECORD_HEAD + length]
        try:
            if opcode == Opcode.SCHEMA:
                schema = records.Schema.read(ReadDataStream(BytesIO(body)))
                found.schemas.setdefault(schema.id, schema)
            elif opcode == Opcode.CHANNEL:
                channel = records.Channel.read(ReadDataStream(BytesIO(body)))
                found.channels.setdefault(channel.id, channel)
        except Exception:  # a damaged record: whatever comes out of it is nothing to build on
            return
        at += RECORD_HEAD + length


def _pick_pictures(found: _Found, tail: Tail, data: bytes) -> None:
    """Take the pictures whose own checksum is right out of chunks whose checksum is wrong."""
    for camera in tail.index.cameras:
        known = found.messages.get(camera.channel, {})
        for i, (offset, length) in enumerate(zip(camera.offsets.tolist(), camera.lengths.tolist(), strict=True)):
            record = data[offset : offset + length]
            if i not in known and zlib.crc32(record) == camera.crcs[i]:
                found.add(camera.channel, i, int(camera.times_ns[i]), record[RECORD_HEAD + 22 :])


def _named(found: _Found, message: Any) -> Iterator[tuple[records.Channel, dict[int, tuple[int, bytes]]]]:
    for number, messages in found.messages.items():
        channel = found.channels.get(number)
        schema = None if channel is None else found.schemas.get(channel.schema_id)
        if channel is not None and schema is not None and schema.name == message.DESCRIPTOR.full_name:
            yield channel, messages


def _cameras(found: _Found) -> tuple[tuple[Camera, ...], list[str]]:
    cameras, losses = [], []
    codecs: tuple[tuple[Any, Literal["h264", "jpeg"]], ...] = ((CompressedVideo, "h264"), (CompressedImage, "jpeg"))
    for kind, codec in codecs:
        for channel, messages in _named(found, kind):
            if not channel.topic.startswith("/camera/"):
                continue
            name = channel.topic.removeprefix("/camera/")
            size = int(channel.metadata["height"]), int(channel.metadata["width"])
            kept = list(_whole(kind, codec, size, messages))
            lost = max(messages) + 1 - len(kept)
            if lost:
                losses.append(f"{lost} pictures of '{name}' were lost")
            if kept:
                times_ns = np.array([time_ns for time_ns, _ in kept], np.int64)
                units = [unit for _, unit in kept]
                coded = Coded(codec, partial(iter, units))
                cameras.append(Camera(name, size[1], size[0], times_ns, partial(_decoded, codec, size, units), coded))
    return tuple(sorted(cameras, key=lambda camera: camera.name)), losses


def _whole(
    kind: Any, codec: Literal["h264", "jpeg"], size: tuple[int, int], messages: dict[int, tuple[int, bytes]]
) -> Iterator[tuple[int, bytes]]:
    """Times and coded pictures that decode: of a GOP those before the first that is missing or damaged."""
    gop: list[tuple[int, bytes]] = []
    before = -1
    for number in sorted(messages):
        time_ns, payload = messages[number]
        try:
            unit = bytes(kind.FromString(payload).data)
            starts = codec == "jpeg" or is_keyframe(unit)
        except (DecodeError, EpisodeError):
            continue
        if starts:
            yield from _decodable(codec, size, gop)
            gop = [(time_ns, unit)]
        elif gop and before == number - 1:
            gop.append((time_ns, unit))
        before = number if starts or (gop and gop[-1][0] == time_ns) else -1
    yield from _decodable(codec, size, gop)


def _decodable(
    codec: Literal["h264", "jpeg"], size: tuple[int, int], gop: list[tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    while gop:
        try:
            decode(Run(codec, size, [unit for _, unit in gop], [False] * len(gop), size))
            return gop
        except EpisodeError:
            gop = gop[:-1]
    return gop


def _decoded(codec: Literal["h264", "jpeg"], size: tuple[int, int], units: list[bytes]) -> Iterator[Frames]:
    run: list[bytes] = []
    for unit in units:
        if run and (codec == "jpeg" or is_keyframe(unit)):
            yield from decode(Run(codec, size, run, [True] * len(run), size))
            run = []
        run.append(unit)
    yield from decode(Run(codec, size, run, [True] * len(run), size))


def _series(found: _Found) -> Iterator[Series]:
    for channel, messages in sorted(_named(found, JointStates), key=lambda each: each[0].topic):
        if "dtype" not in channel.metadata:
            continue
        rows = [(time_ns, JointStates.FromString(payload)) for _, (time_ns, payload) in sorted(messages.items())]
        names = tuple(joint.name for joint in rows[0][1].joints)
        values = np.array([[joint.position for joint in row.joints] for _, row in rows], channel.metadata["dtype"])
        yield Series(channel.topic[1:], np.array([time_ns for time_ns, _ in rows], np.int64), values, names)


def _extras(found: _Found) -> list[tuple[ExtraTopic, list[ExtraMessage]]]:
    extras = []
    for number, messages in sorted(found.messages.items()):
        channel = found.channels.get(number)
        if channel is None or channel.topic.startswith(("/camera/", "/rendition/")) or "dtype" in channel.metadata:
            continue
        schema = found.schemas.get(channel.schema_id) or records.Schema(0, b"", "", "")
        name = channel.topic[1:]
        topic = ExtraTopic(name, channel.message_encoding, schema.name, schema.encoding, schema.data)
        kept = [ExtraMessage(name, time_ns, payload) for _, (time_ns, payload) in sorted(messages.items())]
        extras.append((topic, kept))
    return extras


def _in_order(extras: list[tuple[ExtraTopic, list[ExtraMessage]]]) -> Iterator[ExtraMessage]:
    yield from sorted((m for _, messages in extras for m in messages), key=lambda message: message.time_ns)

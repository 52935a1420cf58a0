"""What can be saved of a damaged episode: every picture, row and message whose own checksum is right."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from glob import escape
from typing import Literal

import numpy as np
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from google.protobuf.message import DecodeError
from mcap import records
from mcap.opcode import Opcode

from megahour.episode import index as idx
from megahour.episode.chunks import ChunkMessages, chunk_messages
from megahour.episode.container import MESSAGE_HEAD, picture_class
from megahour.episode.decoding import Run, decode
from megahour.episode.h264 import Size, is_keyframe
from megahour.episode.joints import from_messages
from megahour.episode.jpeg import jpeg_size
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
from megahour.episode.nal import NalError, Watch
from megahour.episode.profile import GROUPS, MESSAGES
from megahour.episode.scan import Scan, definitions, read_record, scan
from megahour.episode.tail import attached_index, read_metadata, summary_records
from megahour.episode.zstd import unpack

Messages = dict[int, tuple[int, bytes]]
"""Messages of one topic: number to time and payload."""


@dataclass(frozen=True)
class Salvaged:
    """What was saved, as an episode to write anew, what it says of itself, and the groups it lay in."""

    episode: RawEpisode
    facts: EpisodeFacts
    groups: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Camera:
    name: str
    channel: int
    count: int | None
    codec: Literal["h264", "jpeg"]
    size: Size


@dataclass(frozen=True)
class _Series:
    """`names` is empty where only the rows themselves say them."""

    name: str
    channel: int
    count: int | None
    dtype: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Extra:
    """`topic` is None where nothing says what its messages are."""

    name: str
    channel: int
    count: int | None
    topic: ExtraTopic | None


@dataclass
class _Topics:
    """What there was, as far as is known. A topic's `count` says how many messages it had, None where nothing does.

    `known` are all channels, those of renditions too.
    """

    known: set[int]
    cameras: list[_Camera] = field(default_factory=list)
    series: list[_Series] = field(default_factory=list)
    extras: list[_Extra] = field(default_factory=list)
    renditions: bool = False


def salvage(name: str, data: bytes, known: EpisodeFacts, note_codes: Sequence[str] = ()) -> Salvaged:
    """Save what is whole of a damaged episode.

    Pictures, rows and chunks are known by their checksums in the index, wherever they lie now. Where the index itself
    is damaged, what every chunk with a right checksum holds is taken.

    Args:
        name: the file's, for messages.
        known: what is known of the episode from elsewhere, for a file whose own metadata is gone.
        note_codes: codes of the notes it had, for the same case.

    Raises:
        EpisodeError: `corrupt` when nothing is left, `replaced` when it is another episode's file.
    """
    found = scan(name, data)
    index = _index(found)
    said = _said(found, index)
    if said is not None and said[0].episode_id != known.episode_id:
        raise EpisodeError(
            "replaced",
            f"{name} is the damaged file of another episode, {said[0].episode_id}: put the right one back, or ingest "
            "its recording again",
        )
    schemas, channels = _definitions(found)
    if index is None:
        topics, messages = _defined(schemas, channels, found), _scanned(found)
    else:
        topics, messages = _indexed(index, schemas, channels), _checked(found, index, data)
    losses = []
    if index is None:
        losses.append("its index is gone")
        if found.summary is None:
            losses.append("its summary is gone: what else it held is not known")
    cameras = tuple(seen for camera in topics.cameras if (seen := _camera(camera, messages, losses)))
    series = tuple(rows for one in topics.series if (rows := _one_series(one, messages, losses)))
    extras = [kept for extra in topics.extras if (kept := _extra(extra, messages, losses))]
    if strangers := sum(len(own) for channel, own in messages.items() if channel not in topics.known):
        losses.append(f"{strangers} messages were lost whose topics nothing describes any more")
    if not cameras and not series and not any(kept for _, kept in extras):
        raise EpisodeError(
            "corrupt",
            f"Nothing of {name} can be saved: no picture, row or message in it is whole. Ingest its recording again",
        )
    if topics.renditions:
        losses.append("its renditions were left out")
    if said is None:
        losses.append("its metadata is gone: facts are those of the table, attributes and texts of notes are lost")
        said = known, "", tuple(Note(code, "its text was lost with the file's metadata") for code in note_codes)
    facts, _, notes = said
    text = "; ".join(losses) or "nothing was lost"
    episode = RawEpisode(
        index=0,
        robot=facts.robot,
        task=facts.task,
        rate_hz=facts.rate_hz,
        success=facts.success,
        cameras=cameras,
        series=series,
        attributes=facts.attributes,
        notes=(*notes, Note("repaired", f"saved from a damaged file: {text}")),
        extras=tuple(topic for topic, _ in extras),
        extra_messages=partial(_in_order, extras),
    )
    return Salvaged(episode, facts, _groups(episode, index))


def _index(found: Scan) -> idx.EpisodeIndex | None:
    for _, record in found.attachments:
        try:
            return attached_index(record)
        except EpisodeError:
            continue
    return None


def _said(found: Scan, index: idx.EpisodeIndex | None) -> tuple[EpisodeFacts, str, tuple[Note, ...]] | None:
    """What the metadata record says, where the index or its own checksum vouches for it."""
    for _, record in found.metadata:
        if index is not None and zlib.crc32(record) != index.metadata_crc:
            continue
        try:
            return read_metadata(record)
        except EpisodeError:
            continue
    return None


def _definitions(found: Scan) -> tuple[dict[int, records.Schema], dict[int, records.Channel]]:
    """Schemas and channels: those of the chunks, and of the summary where a chunk that had some is damaged."""
    schemas: dict[int, records.Schema] = {}
    channels: dict[int, records.Channel] = {}
    for content in [found.summary or b"", *(chunk.content for chunk in found.chunks)]:
        own_schemas, own_channels = definitions(content)
        schemas, channels = {**own_schemas, **schemas}, {**own_channels, **channels}
    return schemas, channels


def _indexed(
    index: idx.EpisodeIndex, schemas: dict[int, records.Schema], channels: dict[int, records.Channel]
) -> _Topics:
    return _Topics(
        known=set(index.by_channel),
        cameras=[
            _Camera(each.name, each.channel, len(each.times_ns), each.codec, (each.height, each.width))
            for each in index.cameras
            if not each.rendition_of
        ],
        series=[_Series(each.name, each.channel, each.rows, each.dtype, each.names) for each in index.series],
        extras=[
            _Extra(each.name, each.channel, each.count, _topic(channels.get(each.channel), schemas))
            for each in index.topics
        ],
        renditions=any(each.rendition_of for each in index.cameras),
    )


def _defined(schemas: dict[int, records.Schema], channels: dict[int, records.Channel], found: Scan) -> _Topics:
    """The topics as the file's channels describe them: only cameras and series have metadata there."""
    topics, counts = _Topics(set(channels)), _counts(found)
    for number, channel in sorted(channels.items()):
        name, said, count = channel.topic.removeprefix("/"), channel.metadata, counts.get(number)
        kind = schemas[channel.schema_id].name if channel.schema_id in schemas else ""
        if "height" in said and "width" in said:
            size = int(said["height"]), int(said["width"])
            codec: Literal["h264", "jpeg"] = "jpeg" if kind == picture_class("jpeg").DESCRIPTOR.full_name else "h264"
            if name.startswith("rendition/"):
                topics.renditions = True
            else:
                topics.cameras.append(_Camera(name.removeprefix("camera/"), number, count, codec, size))
        elif "dtype" in said:
            topics.series.append(_Series(name, number, count, said["dtype"], ()))
        else:
            topics.extras.append(_Extra(name, number, count, _topic(channel, schemas)))
    return topics


def _topic(channel: records.Channel | None, schemas: dict[int, records.Schema]) -> ExtraTopic | None:
    if channel is None or (channel.schema_id and channel.schema_id not in schemas):
        return None
    schema = schemas.get(channel.schema_id) or records.Schema(0, b"", "", "")
    name = channel.topic.removeprefix("/")
    return ExtraTopic(name, channel.message_encoding, schema.name, schema.encoding, schema.data)


def _counts(found: Scan) -> dict[int, int]:
    for opcode, body in summary_records(found.summary or b""):
        if opcode == Opcode.STATISTICS:
            counts: dict[int, int] = read_record(records.Statistics, body).channel_message_counts
            return counts
    return {}


def _scanned(found: Scan) -> dict[int, Messages]:
    """All messages of whole chunks, by channel."""
    taken: dict[int, Messages] = {}
    for chunk in found.chunks:
        _take(taken, chunk.content, chunk.messages)
    return taken


def _checked(found: Scan, index: idx.EpisodeIndex, data: bytes) -> dict[int, Messages]:
    """The messages that the index knows, by channel: where it says, or wherever a whole chunk has them now."""
    taken: dict[int, Messages] = {each.channel: {} for each in index.cameras if not each.rendition_of}
    crcs = {each.channel: each.crcs.tolist() for each in index.cameras if not each.rendition_of}
    for camera in index.cameras:
        own = taken.get(camera.channel, {})
        places = zip(camera.offsets.tolist(), camera.lengths.tolist(), crcs.get(camera.channel, ()), strict=False)
        for i, (offset, length, crc) in enumerate(places):
            record = data[offset : offset + length]
            if zlib.crc32(record) == crc:
                own[i] = int(camera.times_ns[i]), record[MESSAGE_HEAD:]
    packed = {}
    for chunk in found.chunks:
        if chunk.compression:
            packed[chunk.packed_crc] = chunk.content, chunk.messages
        else:
            _take(taken, chunk.content, chunk.messages, crcs)
    for each in index.chunks:
        whole = data[each.offset : each.offset + each.size_bytes]
        if zlib.crc32(whole) == each.crc:
            content = unpack(whole, each.unpacked_bytes)
            _take(taken, content, chunk_messages(content))
        elif each.crc in packed:
            _take(taken, *packed[each.crc])
    return taken


def _take(
    taken: dict[int, Messages], content: bytes, messages: ChunkMessages, crcs: dict[int, list[int]] | None = None
) -> None:
    """Take a chunk's messages that are not taken yet; with `crcs` of records by channel and number, those that fit."""
    for channel, number, time_ns, start, end in zip(
        messages.channels.tolist(),
        messages.sequences.tolist(),
        messages.times_ns.tolist(),
        messages.starts.tolist(),
        messages.ends.tolist(),
        strict=True,
    ):
        if crcs is not None:
            own = crcs.get(channel, [])
            if number >= len(own) or zlib.crc32(content[start - MESSAGE_HEAD : end]) != own[number]:
                continue
        taken.setdefault(channel, {}).setdefault(number, (time_ns, content[start:end]))


def _camera(camera: _Camera, messages: dict[int, Messages], losses: list[str]) -> Camera | None:
    own = messages.get(camera.channel, {})
    kept = list(_pictures(camera, own))
    _count_lost(losses, f"pictures of '{camera.name}'", camera.count, own, len(kept))
    if not kept:
        return None
    times_ns = np.array([time_ns for time_ns, _ in kept], np.int64)
    units = [unit for _, unit in kept]
    coded = Coded(camera.codec, partial(iter, units))
    return Camera(camera.name, camera.size[1], camera.size[0], times_ns, partial(_decoded, camera, units), coded)


def _pictures(camera: _Camera, messages: Messages) -> Iterator[tuple[int, bytes]]:
    """Times and coded pictures that decode: of a GOP those before the first that is missing or damaged."""
    kind = picture_class(camera.codec)
    gop: list[tuple[int, bytes]] = []
    watch, expected, last_ns = Watch("h264", b""), -1, -1
    for number in sorted(messages):
        time_ns, payload = messages[number]
        try:
            unit = bytes(kind.FromString(payload).data)
            starts = _starts(camera, unit)
            whole = time_ns > last_ns and (starts or number == expected)
            if whole and camera.codec == "h264":
                watch.see(unit)
        except (DecodeError, EpisodeError, NalError):
            whole = False
        if not whole:
            # Nor is what builds on it, until the next keyframe.
            expected = -1
            continue
        if starts:
            yield from _decodable(camera, gop)
            gop = []
        gop.append((time_ns, unit))
        expected, last_ns = number + 1, time_ns
    yield from _decodable(camera, gop)


def _starts(camera: _Camera, unit: bytes) -> bool:
    """Whether a picture stands alone.

    Raises:
        EpisodeError: it is no picture of this camera.
    """
    if camera.codec == "h264":
        return is_keyframe(unit)
    if jpeg_size(unit) != camera.size:
        raise EpisodeError("corrupt", "A JPEG file has another size than its camera")
    return True


def _decodable(camera: _Camera, gop: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    while gop:
        try:
            wanted = [i == 0 for i in range(len(gop))]
            decode(Run(camera.codec, camera.size, [unit for _, unit in gop], wanted, camera.size))
            return gop
        except EpisodeError:
            gop = gop[:-1]
    return gop


def _decoded(camera: _Camera, units: list[bytes]) -> Iterator[Frames]:
    run: list[bytes] = []
    for unit in [*units, b""]:
        if run and (not unit or camera.codec == "jpeg" or is_keyframe(unit)):
            yield from decode(Run(camera.codec, camera.size, run, [True] * len(run), camera.size, "smooth"))
            run = []
        run.append(unit)


def _one_series(series: _Series, messages: dict[int, Messages], losses: list[str]) -> Series | None:
    own = messages.get(series.channel, {})
    kept = [own[number] for number in sorted(own)]
    found = None
    if kept:
        payloads = [payload for _, payload in kept]
        try:
            names = series.names or tuple(joint.name for joint in JointStates.FromString(payloads[0]).joints)
            ends = np.cumsum([len(payload) for payload in payloads])
            starts = ends - [len(payload) for payload in payloads]
            values = from_messages(names, b"".join(payloads), starts, ends).astype(series.dtype)
            found = Series(series.name, np.array([time_ns for time_ns, _ in kept], np.int64), values, names)
        except (DecodeError, EpisodeError):
            kept = []
    _count_lost(losses, f"rows of '{series.name}'", series.count, own, len(kept))
    return found


def _extra(
    extra: _Extra, messages: dict[int, Messages], losses: list[str]
) -> tuple[ExtraTopic, list[ExtraMessage]] | None:
    own = messages.get(extra.channel, {})
    kept = [ExtraMessage(extra.name, *own[number]) for number in sorted(own)] if extra.topic else []
    _count_lost(losses, f"messages of '{extra.name}'", extra.count, own, len(kept))
    return None if extra.topic is None else (extra.topic, kept)


def _count_lost(losses: list[str], what: str, count: int | None, messages: Messages, kept: int) -> None:
    known = max(messages, default=-1) + 1 if count is None else count
    if kept < known:
        least = "at least " if count is None else ""
        losses.append(f"{least}{known - kept} of {least}{known} {what} were lost")


def _in_order(extras: list[tuple[ExtraTopic, list[ExtraMessage]]]) -> Iterator[ExtraMessage]:
    yield from sorted((m for _, messages in extras for m in messages), key=lambda message: message.time_ns)


def _groups(episode: RawEpisode, index: idx.EpisodeIndex | None) -> Mapping[str, tuple[str, ...]]:
    """The groups that the topics lay in, in the order of a profile: cameras, then the series that lie last first."""
    if index is None:
        cameras = tuple(f"/camera/{escape(camera.name)}" for camera in episode.cameras)
        return {"cameras": cameras, "control": GROUPS["control"], "rest": ("*",)}
    groups: dict[str, list[str]] = {}
    for camera in index.cameras:
        if not camera.rendition_of:
            groups.setdefault(camera.group, []).append(f"/camera/{escape(camera.name)}")
    packed = dict.fromkeys(chunk.group for chunk in index.chunks if chunk.group != MESSAGES)
    for group in reversed(packed):
        groups[group] = [f"/{escape(series.name)}" for series in index.series if series.group == group]
    return {group: tuple(patterns) for group, patterns in groups.items()}

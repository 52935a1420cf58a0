"""Check an episode from end to end: its bytes, its index against its content, each picture, and the stock reader."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby

import numpy as np
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from google.protobuf.message import DecodeError
from mcap.opcode import Opcode
from mcap.reader import make_reader

from megahour.episode import index as idx
from megahour.episode.chunks import chunk_messages
from megahour.episode.container import MESSAGE_HEAD, picture_class
from megahour.episode.decoding import Run, decode
from megahour.episode.h264 import is_keyframe
from megahour.episode.joints import timestamp
from megahour.episode.jpeg import jpeg_size
from megahour.episode.model import EpisodeError
from megahour.episode.nal import NalError, Watch
from megahour.episode.ranges import MemoryBytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.scan import Scan, scan
from megahour.episode.structure import channel_faults, structure_faults
from megahour.episode.zstd import unpack
from megahour.storage import Lake, read_bytes

SHOWN_NUMBERS = 5
"""So many ranges of pictures or rows are named in one sentence."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an episode: a code and a sentence.

    Codes: `missing`, `replaced`, `truncated`, `version`, `corrupt` (bytes, or what they say of each other), `times`,
    and of coded pictures `damaged_frame`, `dropped_frames`, `no_parameter_sets`.
    """

    reason: str
    message: str


def check_episode(lake: Lake, key: str, sha256: str = "") -> list[Problem]:
    """Everything that is wrong with an episode of the lake; empty when it is good. Reads it whole, into memory.

    Args:
        sha256: what the table says its bytes hash to, to find another episode in its place.
    """
    try:
        data = read_bytes(lake, key)
    except FileNotFoundError:
        return [Problem("missing", f"There is no episode {key} in {lake.uri}")]
    problems = check_bytes(key, data)
    if sha256 and not problems and (found := hashlib.sha256(data).hexdigest()) != sha256:
        problems.append(Problem("replaced", f"{key} is not what was ingested: its sha256 is {found}, not {sha256}"))
    return problems


def check_bytes(name: str, data: bytes) -> list[Problem]:
    """The same for a file that was read already. It raises nothing, whatever the bytes."""
    found = scan(name, data)
    problems = [Problem("corrupt", f"{name}: {fault}") for fault in structure_faults(found, data)]
    try:
        reader = EpisodeReader(MemoryBytes(name, data))
    except EpisodeError as error:
        return [Problem(error.reason, str(error)), *problems]
    index, whole = reader.index, not problems
    faults = [fault for camera in index.cameras for fault in _camera_faults(camera, index, data)]
    faults += _chunk_faults(index, data)
    for series in index.series:
        faults += _series_faults(reader, series)
    if whole:
        faults += _agreement_faults(index, found)
        faults += _stock_faults(reader, found, data)
    return [*problems, *(Problem(reason, f"{name}: {text}") for reason, text in faults)]


Fault = tuple[str, str]
"""Reason and sentence."""


def _camera_faults(camera: idx.CameraIndex, index: idx.EpisodeIndex, data: bytes) -> Iterator[Fault]:
    """What is wrong with the pictures of a camera or rendition, each by itself and in their GOPs."""
    faults: dict[Fault, list[int]] = {}
    watch, gop = Watch("h264", b""), list[bytes]()
    label = f"the rendition of '{camera.name}'" if camera.rendition_of else f"'{camera.name}'"
    for i in range(len(camera.times_ns) + 1):
        unit, keyframe = b"", True
        if i < len(camera.times_ns):
            try:
                unit, keyframe = _picture(camera, i, data)
                if (keyframe or gop) and camera.codec == "h264":
                    watch.see(unit)
            except (EpisodeError, NalError) as error:
                faults.setdefault((error.reason, error.message), []).append(i)
                unit = b""
        if (keyframe or not unit) and gop:
            if fault := _decode_fault(camera, gop):
                faults.setdefault(("corrupt", fault), []).extend(range(i - len(gop), i))
            gop = []
        if unit and (keyframe or gop):
            gop.append(unit)
    for (reason, text), numbers in faults.items():
        yield reason, f"{_listed('picture', numbers)} of {label}: {text}"
    if camera.rendition_of:
        original = next((c for c in index.cameras if c.name == camera.rendition_of and not c.rendition_of), None)
        if original is None or not np.array_equal(original.times_ns, camera.times_ns):
            yield "corrupt", f"{label} has not the times of its camera, or no camera"


def _picture(camera: idx.CameraIndex, i: int, data: bytes) -> tuple[bytes, bool]:
    """A coded picture, and whether it stands alone.

    Raises:
        EpisodeError, NalError: it is not what the index says.
    """
    offset, time_ns = int(camera.offsets[i]), int(camera.times_ns[i])
    record = data[offset : offset + int(camera.lengths[i])]
    if zlib.crc32(record) != camera.crcs[i]:
        raise EpisodeError("corrupt", "its checksum is wrong")
    head = struct.pack("<BQHIQQ", Opcode.MESSAGE, len(record) - 9, camera.channel, i, time_ns, time_ns)
    if record[:MESSAGE_HEAD] != head:
        raise EpisodeError("corrupt", "its message has another channel, number or time than the index says")
    kind = picture_class(camera.codec)
    try:
        message = kind.FromString(record[MESSAGE_HEAD:])
    except DecodeError as error:
        raise EpisodeError("corrupt", f"it is no {kind.DESCRIPTOR.full_name}: {error}") from error
    if (message.timestamp, message.frame_id, message.format) != (timestamp(time_ns), camera.name, camera.codec):
        raise EpisodeError("corrupt", "its message says another time, camera or format than the index")
    unit = bytes(message.data)
    if camera.codec == "h264":
        keyframe = is_keyframe(unit)
    elif jpeg_size(unit) == (camera.height, camera.width):
        keyframe = True
    else:
        raise EpisodeError("corrupt", "a JPEG file has another size than its camera")
    if keyframe != camera.keyframes[i]:
        raise EpisodeError("corrupt", "the index is wrong about whether it is a keyframe")
    return unit, keyframe


def _decode_fault(camera: idx.CameraIndex, units: Sequence[bytes]) -> str:
    size = camera.height, camera.width
    try:
        decode(Run(camera.codec, size, units, [i == len(units) - 1 for i in range(len(units))], size))
    except EpisodeError as error:
        return error.message
    return ""


def _chunk_faults(index: idx.EpisodeIndex, data: bytes) -> Iterator[Fault]:
    """What is wrong with the compressed chunks that the index knows, and with what it says they hold."""
    topics = {c: each for c, each in index.by_channel.items() if not isinstance(each, idx.CameraIndex)}
    totals = dict.fromkeys(topics, 0)
    for chunk in index.chunks:
        packed = data[chunk.offset : chunk.offset + chunk.size_bytes]
        what = ", ".join(
            f"{_listed('message', range(first, first + count))} of '{topics[channel].name}'"
            for channel, (first, count, _, _) in chunk.channels.items()
            if channel in topics
        )
        if any(channel not in topics or topics[channel].group != chunk.group for channel in chunk.channels):
            yield "corrupt", f"a chunk of '{chunk.group}' holds other topics: {what}"
        if any(chunk.channels[channel][0] != totals.get(channel) for channel in chunk.channels):
            yield "corrupt", f"a chunk does not go on where the one before it ends: {what}"
        for channel in chunk.channels.keys() & totals.keys():
            totals[channel] = sum(chunk.channels[channel][:2])
        try:
            if zlib.crc32(packed) != chunk.crc:
                raise EpisodeError("corrupt", "its checksum is wrong")
            if _held(unpack(packed, chunk.unpacked_bytes)) != chunk.channels:
                raise EpisodeError("corrupt", "it holds other messages than the index says")
        except EpisodeError as error:
            yield error.reason, f"the chunk of {what} at byte {chunk.offset}: {error.message}"
    for channel, each in topics.items():
        count = each.rows if isinstance(each, idx.SeriesIndex) else each.count
        if count != totals[channel]:
            yield "corrupt", f"'{each.name}' has {count} messages, and its chunks {totals[channel]}"


def _held(content: bytes) -> dict[int, tuple[int, int, int, int]]:
    """What a chunk holds by channel: first message's number, how many, first and last time."""
    messages = chunk_messages(content)
    found = {}
    for channel in np.unique(messages.channels).tolist():
        own = messages.channels == channel
        numbers, times_ns = messages.sequences[own], messages.times_ns[own]
        if (np.diff(numbers.astype(np.int64)) != 1).any():
            raise EpisodeError("corrupt", "its messages are not numbered one by one")
        found[channel] = int(numbers[0]), int(own.sum()), int(times_ns[0]), int(times_ns[-1])
    return found


def _series_faults(reader: EpisodeReader, series: idx.SeriesIndex) -> Iterator[Fault]:
    try:
        found = reader.series(series.name)
    except EpisodeError:
        # Its chunks say more.
        return
    steps = np.diff(found.times_ns)
    if (steps <= 0).any() or found.times_ns[0] < 0:
        yield "times", f"the times of '{series.name}' do not increase"
    if len(found.times_ns) != series.rows or series.period_ns != (int(np.median(steps)) if len(steps) else 0):
        yield "corrupt", f"the index is wrong about the rows or the period of '{series.name}'"


def _agreement_faults(index: idx.EpisodeIndex, found: Scan) -> Iterator[Fault]:
    """Where a file that is whole holds other things than its index says."""
    yield from (("corrupt", fault) for fault in channel_faults(index, found))
    groups = {channel: each.group for channel, each in index.by_channel.items()}
    pictures = {each.channel for each in index.cameras}
    packed = [(each.offset, each.size_bytes, each.crc) for each in index.chunks]
    if [(c.data_at, c.end - c.data_at, c.packed_crc) for c in found.chunks if c.compression] != packed:
        yield "corrupt", "the index knows other compressed chunks than there are"
    for chunk in found.chunks:
        channels = set(np.unique(chunk.messages.channels).tolist())
        if len({groups.get(channel) for channel in channels}) != 1 or channels - groups.keys():
            yield "corrupt", f"the chunk at byte {chunk.start} holds messages of several groups"
        if bool(chunk.compression) == bool(channels & pictures):
            yield "corrupt", f"the chunk at byte {chunk.start} should be compressed if, and only if, it has no pictures"
        if (np.diff(chunk.messages.times_ns) < 0).any():
            yield "times", f"the messages of the chunk at byte {chunk.start} are not in order of time"
    for camera in index.cameras:
        places = [
            place
            for chunk in found.chunks
            if not chunk.compression
            for place in (chunk.messages.starts[chunk.messages.channels == camera.channel] + chunk.data_at).tolist()
        ]
        if places != (camera.offsets + MESSAGE_HEAD).tolist():
            yield "corrupt", f"the index knows other pictures of '{camera.name}' than there are"


def _stock_faults(reader: EpisodeReader, found: Scan, data: bytes) -> Iterator[Fault]:
    """Where a reader that knows nothing of Megahour finds other messages."""
    pictures = {camera.channel for camera in reader.index.cameras}
    stock: dict[int, list[tuple[int, bytes]]] = {}
    ours = _messages(found)
    try:
        for _, channel, message in make_reader(BytesIO(data), validate_crcs=True).iter_messages(log_time_order=False):
            if next(ours, None) != (channel.id, message.sequence, message.log_time, message.data):
                yield "corrupt", "the stock MCAP reader finds other messages"
                return
            if channel.id not in pictures:
                stock.setdefault(channel.id, []).append((message.log_time, message.data))
    except Exception as error:  # whatever it raises, it raises it for others too
        yield "corrupt", f"the stock MCAP reader refuses it: {type(error).__name__} {error}"
        return
    if next(ours, None) is not None:
        yield "corrupt", "the stock MCAP reader finds fewer messages"
    for series in reader.index.series:
        own = stock.get(series.channel, [])
        try:
            rows = reader.series(series.name)
            decoded = [JointStates.FromString(payload) for _, payload in own]
        except (EpisodeError, DecodeError) as error:
            yield "corrupt", f"a row of '{series.name}' is no message: {error}"
            continue
        values = np.array([[joint.position for joint in row.joints] for row in decoded], series.dtype)
        if rows.values.tobytes() != values.tobytes() or rows.times_ns.tolist() != [time_ns for time_ns, _ in own]:
            yield "corrupt", f"the stock MCAP reader finds other rows of '{series.name}'"
        if any(row.timestamp != timestamp(time_ns) for row, (time_ns, _) in zip(decoded, own, strict=True)):
            yield "times", f"rows of '{series.name}' say another time than their messages"
    for topic in reader.index.topics:
        try:
            kept = [(message.time_ns, message.data) for message in reader.messages(topic.name)]
        except EpisodeError as error:
            yield error.reason, error.message
            continue
        if kept != stock.get(topic.channel, []):
            yield "corrupt", f"the stock MCAP reader finds other messages of '{topic.name}'"


def _messages(found: Scan) -> Iterator[tuple[int, int, int, bytes]]:
    """All messages in the order they lie: channel, number, time, payload."""
    for chunk in found.chunks:
        m = chunk.messages
        columns = (each.tolist() for each in (m.channels, m.sequences, m.times_ns, m.starts, m.ends))
        for channel, number, time_ns, start, end in zip(*columns, strict=True):
            yield channel, number, time_ns, chunk.content[start:end]


def _listed(what: str, numbers: Sequence[int]) -> str:
    """Numbers as a person would list them: `pictures 3, 5 to 9 and 11 more`."""
    runs = []
    for _, run in groupby(enumerate(numbers), key=lambda each: each[1] - each[0]):
        members = [number for _, number in run]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]} to {members[-1]}")
    shown = ", ".join(runs[:SHOWN_NUMBERS])
    more = f" and {len(runs) - SHOWN_NUMBERS} more runs" if len(runs) > SHOWN_NUMBERS else ""
    return f"{what}{'' if len(numbers) == 1 else 's'} {shown}{more}"

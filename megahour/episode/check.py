"""Check an episode from end to end: with the stock MCAP reader, against its own index, and by decoding it all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise

import numpy as np
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from google.protobuf.message import DecodeError
from mcap.reader import make_reader
from mcap.records import Message
from mcap.stream_reader import StreamReader

from megahour.episode.h264 import Decoder, is_keyframe
from megahour.episode.index import CameraIndex
from megahour.episode.model import EpisodeError
from megahour.episode.ranges import MemoryBytes
from megahour.episode.reader import EpisodeReader
from megahour.storage import Lake, read_bytes


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an episode: a code and a sentence."""

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
    """The same for a file that was read already."""
    try:
        reader = EpisodeReader(MemoryBytes(name, data))
        by_channel = _stock_messages(name, data)
        problems: list[Problem] = []
        for camera in reader.index.cameras:
            problems += _camera_problems(reader, camera, by_channel.get(camera.channel, []))
        for series in reader.index.series:
            times = reader.series(series.name).times_ns
            stock = [message.log_time for message in by_channel.get(series.channel, [])]
            if not np.array_equal(times, np.array(stock, np.int64)):
                problems.append(Problem("corrupt", f"{name}: '{series.name}' and the file's messages differ"))
            if (np.diff(times) <= 0).any():
                problems.append(Problem("times", f"{name}: the times of '{series.name}' do not increase"))
        return problems
    except EpisodeError as error:
        return [Problem(error.reason, str(error))]


def _stock_messages(name: str, data: bytes) -> dict[int, list[Message]]:
    """All messages by channel, as a reader that knows nothing of Megahour finds them, all checksums validated."""
    by_channel: dict[int, list[Message]] = {}
    try:
        for record in StreamReader(BytesIO(data), validate_crcs=True).records:
            if isinstance(record, Message):
                by_channel.setdefault(record.channel_id, []).append(record)
        summary = make_reader(BytesIO(data), validate_crcs=True).get_summary()
    except Exception as error:  # on damaged files it raises whatever comes: struct, zstd and Unicode errors too
        raise EpisodeError(
            "corrupt", f"{name}: the stock MCAP reader refuses it: {type(error).__name__} {error}"
        ) from error
    counts = {channel: len(messages) for channel, messages in by_channel.items()}
    if summary is None or summary.statistics is None or summary.statistics.channel_message_counts != counts:
        raise EpisodeError("corrupt", f"{name}: its statistics do not count the messages it has")
    return by_channel


def _camera_problems(reader: EpisodeReader, camera: CameraIndex, stock: list[Message]) -> Iterator[Problem]:
    count = len(camera.times_ns)
    coded = reader.coded(camera.name, 0, count)
    try:
        stored = [CompressedVideo.FromString(message.data).data for message in stock]
    except DecodeError as error:
        yield Problem("corrupt", f"Camera '{camera.name}' has a message that is no CompressedVideo: {error}")
        return
    if stored != coded or [message.log_time for message in stock] != camera.times_ns.tolist():
        yield Problem("corrupt", f"The index of camera '{camera.name}' and the file's messages differ")
    if (np.diff(camera.times_ns) <= 0).any():
        yield Problem("times", f"The times of camera '{camera.name}' do not increase")
    keyframes = np.array([is_keyframe(unit) for unit in coded])
    if count == 0 or not keyframes[0] or not np.array_equal(keyframes, camera.keyframes):
        yield Problem("corrupt", f"The keyframes of camera '{camera.name}' are not those of its index")
        return
    size = camera.height, camera.width
    decoder = Decoder(camera.codec, size)
    starts = [*np.flatnonzero(keyframes).tolist(), count]
    for start, end in pairwise(starts):
        decoder.decode(coded[start:end], [i == end - 1 for i in range(start, end)], size)

"""Write an episode: one MCAP file whose groups of topics can be read by byte range."""

from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO

import numpy as np
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from mcap import records
from numpy.typing import NDArray

from megahour.episode import index as idx
from megahour.episode.container import Container, Group, Message, record_bytes
from megahour.episode.h264 import encode
from megahour.episode.joints import timestamp, to_messages
from megahour.episode.model import Camera, EpisodeError, EpisodeFacts, RawEpisode, Series
from megahour.episode.profile import CONTAINER_VERSION, MIXED, Profile
from megahour.files import appearing

CAMERAS, CONTROL, EXTRA = "cameras", "control", "extra"
SERIES_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class WrittenEpisode:
    """What was written. `frames` counts the pictures of the camera with the fewest, 0 without cameras."""

    size_bytes: int
    frames: int
    frames_by_camera: dict[str, int]


def write_episode(path: Path, episode: RawEpisode, facts: EpisodeFacts, profile: Profile = MIXED) -> WrittenEpisode:
    """Write `episode` to `path`, whole or not at all: under another name first, then renamed. Same input, same bytes.

    Pictures are pulled from the cameras one by one, so memory does not grow with the episode.

    Raises:
        EpisodeError: `times` when a topic's times do not increase, `frame_count` when a camera has not one picture per
            time, `invalid` when names repeat or shapes disagree.
        Whatever the episode's own `frames()` raises.
    """
    _validate(episode)
    with appearing(path) as partial, partial.open("wb") as out:
        size_bytes = _write(out, episode, facts, profile)
    frames_by_camera = {camera.name: len(camera.times_ns) for camera in episode.cameras}
    return WrittenEpisode(size_bytes, min(frames_by_camera.values(), default=0), frames_by_camera)


def _validate(episode: RawEpisode) -> None:
    names = [camera.name for camera in episode.cameras] + [series.name for series in episode.series]
    if not names or len(set(names)) != len(names):
        raise EpisodeError("invalid", f"An episode needs topics with different names, and this one has {names}")
    topics: list[Camera | Series] = [*episode.cameras, *episode.series]
    for topic in topics:
        times = np.asarray(topic.times_ns)
        if not len(times):
            raise EpisodeError("invalid", f"'{topic.name}' is empty")
        if times[0] < 0 or (np.diff(times) <= 0).any():
            at = int(np.argmax(np.diff(times) <= 0)) + 1 if times[0] >= 0 else 0
            raise EpisodeError("times", f"The times of '{topic.name}' must be positive and increase; row {at} does not")
    for series in episode.series:
        n, d = series.values.shape
        if n != len(series.times_ns) or d != len(series.names) or d == 0:
            raise EpisodeError(
                "invalid",
                f"'{series.name}' has values {series.values.shape}, {len(series.times_ns)} times, "
                f"{len(series.names)} names",
            )
        if series.values.dtype not in (np.float32, np.float64):
            raise EpisodeError("invalid", f"'{series.name}' is {series.values.dtype}, not float32 or float64")


def _write(out: IO[bytes], episode: RawEpisode, facts: EpisodeFacts, profile: Profile) -> int:
    file = Container(out)
    topics: list[Camera | Series] = [*episode.cameras, *episode.series]
    channels = {topic.name: file.add_channel(topic) for topic in topics}

    cuts = segment_starts(episode.cameras, profile.gop)
    streams = [_camera_messages(c, channels[c.name].id, cuts, episode.rate_hz, profile) for c in episode.cameras]
    group = Group(file, CAMERAS, compressed=False)
    for _, segment in groupby(heapq.merge(*streams), key=lambda message: message.segment):
        for message in segment:
            group.add(message)
        if group.size >= profile.chunk_bytes:
            group.end_chunk()
    group.end_chunk()
    # Low-dimensional topics come last: the tail that opens an episode then often holds them already.
    for name in (EXTRA, CONTROL):
        series = [s for s in episode.series if _series_group(s.name) == name]
        group = Group(file, name, compressed=True)
        for message in heapq.merge(*(_series_messages(s, channels[s.name].id) for s in series)):
            group.add(message)
            if group.size >= SERIES_CHUNK_BYTES:
                group.end_chunk()
        group.end_chunk()

    metadata = record_bytes(records.Metadata(idx.METADATA, _metadata(episode, facts, profile)))
    index = idx.EpisodeIndex(
        cameras=tuple(file.camera_index(c, channels[c.name].id, CAMERAS) for c in episode.cameras),
        series=tuple(
            idx.SeriesIndex(
                s.name, channels[s.name].id, _series_group(s.name), len(s.times_ns), s.values.dtype.name, s.names
            )
            for s in episode.series
        ),
        chunks=tuple(file.packed_chunks),
        metadata_crc=zlib.crc32(metadata),
    )
    return file.finish(idx.pack(index), metadata)


def segment_starts(cameras: Sequence[Camera], gop: int) -> NDArray[np.int64]:
    """Times at which every camera starts anew with a keyframe: each `gop`-th picture of the slowest camera.

    A camera with less than a quarter of the pictures of another does not count: its pace would make segments too long.
    """
    if not cameras:
        return np.zeros(0, np.int64)
    most = max(len(camera.times_ns) for camera in cameras)
    steady = [camera for camera in cameras if 4 * len(camera.times_ns) >= most]
    slowest = min(steady, key=lambda camera: len(camera.times_ns))
    return np.asarray(slowest.times_ns[::gop], np.int64)


def _camera_messages(
    camera: Camera, channel: int, cuts: NDArray[np.int64], rate_hz: float, profile: Profile
) -> Iterator[Message]:
    # Pictures before the first common start belong to the first segment.
    segments = np.maximum(np.searchsorted(cuts, camera.times_ns, side="right") - 1, 0)
    since, keyframes = 0, []
    for i, segment in enumerate(segments):
        since = 0 if i == 0 or segment != segments[i - 1] or since + 1 >= profile.gop else since + 1
        keyframes.append(since == 0)
    span_s = (int(camera.times_ns[-1]) - int(camera.times_ns[0])) / 1e9
    own_rate = (len(camera.times_ns) - 1) / span_s if span_s > 0 else rate_hz
    units = encode(camera.frames(), (camera.height, camera.width), keyframes, own_rate, profile.crf, profile.preset)
    for i, unit in enumerate(units):
        time_ns = int(camera.times_ns[i])
        video = CompressedVideo(timestamp=timestamp(time_ns), frame_id=camera.name, data=unit.data, format="h264")
        yield Message(time_ns, channel, i, video.SerializeToString(), unit.keyframe, int(segments[i]))


def _series_messages(series: Series, channel: int) -> Iterator[Message]:
    times = np.asarray(series.times_ns, np.int64)
    for i, payload in enumerate(to_messages(series.names, times, series.values)):
        yield Message(int(times[i]), channel, i, payload)


def _series_group(name: str) -> str:
    return CONTROL if name in ("state", "action") else EXTRA


def _metadata(episode: RawEpisode, facts: EpisodeFacts, profile: Profile) -> dict[str, str]:
    return {
        "container_version": str(CONTAINER_VERSION),
        "profile": profile.name,
        "episode_id": facts.episode_id,
        "robot": facts.robot,
        "task": facts.task,
        "source": facts.source,
        "format": facts.format,
        "rate_hz": repr(float(facts.rate_hz)),
        "success": "" if facts.success is None else str(facts.success).lower(),
        "attributes": json.dumps(facts.attributes, sort_keys=True, ensure_ascii=False),
        "notes": json.dumps([[note.code, note.text] for note in episode.notes], ensure_ascii=False),
        "video": f"h264 crf {profile.crf:g} gop {profile.gop} {profile.preset} fastdecode bt601 limited",
    }

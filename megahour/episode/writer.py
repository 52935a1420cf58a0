"""Write an episode: one MCAP file whose groups of topics can be read by byte range."""

from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from mcap import records
from numpy.typing import NDArray

from megahour.episode import index as idx
from megahour.episode.container import Container, Group, Message, picture_class, protobuf_topic, record_bytes
from megahour.episode.joints import timestamp, to_messages
from megahour.episode.model import Camera, EpisodeError, EpisodeFacts, RawEpisode, Series
from megahour.episode.profile import CONTAINER_VERSION, MESSAGES, MIXED, Profile, ProfileError
from megahour.episode.streams import CameraStream, Picture, Spool, ahead, camera_stream
from megahour.files import appearing

COMPRESSED_CHUNK_BYTES = 128 * 1024
MOST_CHUNK_BYTES = 64 * 1024 * 1024
"""A chunk of cameras ends here even where they do not start anew: it is held in memory, here and by other readers."""


@dataclass(frozen=True)
class WrittenEpisode:
    """What was written. `frames` counts the pictures of the camera with the fewest, 0 without cameras."""

    size_bytes: int
    frames: int
    frames_by_camera: dict[str, int]


def write_episode(
    path: Path, episode: RawEpisode, facts: EpisodeFacts, profile: Profile = MIXED, cores: int = 1
) -> WrittenEpisode:
    """Write `episode` to `path`, whole or not at all: under another name first, then renamed. Same input, same bytes.

    Pictures, rows and messages are pulled one by one and leave with their chunk: of what is written only the index
    stays in memory. With several `cores` as many cameras are coded at once; the bytes do not depend on it.

    Raises:
        EpisodeError: `times` when a topic's times do not increase, `frame_count` when a camera has not one picture per
            time, `invalid` when names repeat, shapes disagree, or the profile's groups do not fit the topics.
        Whatever the episode's own `frames()` raises.
    """
    _validate(episode, profile)
    with appearing(path) as partial, partial.open("wb") as out, ExitStack() as stack:
        size_bytes = _Writing(out, episode, facts, profile, stack, max(1, cores)).write()
    frames_by_camera = {camera.name: len(camera.times_ns) for camera in episode.cameras}
    return WrittenEpisode(size_bytes, min(frames_by_camera.values(), default=0), frames_by_camera)


def _validate(episode: RawEpisode, profile: Profile) -> None:
    topics: list[Camera | Series] = [*episode.cameras, *episode.series]
    names = [_topic(topic) for topic in topics] + [extra.name for extra in episode.extras]
    if profile.rendition:
        names += [f"rendition/{camera.name}" for camera in episode.cameras]
    if not names or len(set(names)) != len(names) or not all(names):
        raise EpisodeError("invalid", f"An episode needs topics with different names, and this one has {names}")
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
    _validate_groups(episode, profile)


def _validate_groups(episode: RawEpisode, profile: Profile) -> None:
    kinds = {
        "cameras": [f"/camera/{camera.name}" for camera in episode.cameras],
        "renditions": [f"/rendition/{camera.name}" for camera in episode.cameras if profile.rendition],
        "series": [f"/{series.name}" for series in episode.series],
    }
    owner: dict[str, str] = {}
    for kind, names in kinds.items():
        for topic in names:
            try:
                group = profile.group_of(topic)
            except ProfileError as error:
                raise EpisodeError("invalid", str(error)) from error
            if owner.setdefault(group, kind) != kind:
                raise EpisodeError(
                    "invalid",
                    f"The profile '{profile.name}' puts {owner[group]} and {kind} together into '{group}': they are "
                    "stored and read in different ways, so give them groups of their own",
                )


def _topic(topic: Camera | Series) -> str:
    return f"camera/{topic.name}" if isinstance(topic, Camera) else topic.name


class _Writing:
    """One episode on its way into a file."""

    def __init__(
        self, out: IO[bytes], episode: RawEpisode, facts: EpisodeFacts, profile: Profile, stack: ExitStack, cores: int
    ) -> None:
        self._file = Container(out)
        self._episode, self._facts, self._profile = episode, facts, profile
        self._stack, self._cores = stack, cores

    def write(self) -> int:
        cameras = self._pictures()
        topics = self._messages()
        # Low-dimensional topics come last: the tail that opens an episode then often holds them already.
        series = self._series()
        metadata = record_bytes(records.Metadata(idx.METADATA, _metadata(self._episode, self._facts, self._profile)))
        index = idx.EpisodeIndex(
            cameras=cameras,
            series=series,
            topics=topics,
            chunks=tuple(self._file.packed_chunks),
            metadata_crc=zlib.crc32(metadata),
        )
        return self._file.finish(idx.pack(index), metadata)

    def _pictures(self) -> tuple[idx.CameraIndex, ...]:
        profile, cameras = self._profile, self._episode.cameras
        spool = self._stack.enter_context(Spool()) if profile.rendition and cameras else None
        streams = [camera_stream(camera, profile, self._episode.rate_hz, spool) for camera in cameras]
        cuts = _cuts(streams, profile.gop)
        keyframes = [_keyframes(stream, cuts, profile.gop) for stream in streams]
        channels = [
            self._camera_channel(f"camera/{s.camera.name}", s.codec, (s.camera.height, s.camera.width)) for s in streams
        ]
        pictures: list[Iterator[Picture]] = [s.pictures(keys) for s, keys in zip(streams, keyframes, strict=True)]
        if self._cores > 1 and len(streams) > 1:
            pictures = ahead(pictures, self._cores, self._stack)
        groups = [profile.group_of(f"/camera/{stream.camera.name}") for stream in streams]
        for name in dict.fromkeys(groups):
            self._interleave(
                name,
                [
                    _camera_messages(stream.camera, stream.codec, channel, cuts, pictured)
                    for stream, channel, pictured, group in zip(streams, channels, pictures, groups, strict=True)
                    if group == name
                ],
            )
        found = [
            _camera_index(self._file, s.camera, channel, group, (s.camera.height, s.camera.width), s.codec, "")
            for s, channel, group in zip(streams, channels, groups, strict=True)
        ]
        if profile.rendition and spool is not None:
            found += self._renditions(streams, spool, cuts)
        return tuple(found)

    def _renditions(
        self, streams: Sequence[CameraStream], spool: Spool, cuts: NDArray[np.int64]
    ) -> Iterator[idx.CameraIndex]:
        rendition = self._profile.rendition
        assert rendition is not None
        size = rendition.height, rendition.width
        small = [stream.camera for stream in streams if spool.holds(stream.camera.name)]
        channels = [self._camera_channel(f"rendition/{camera.name}", "h264", size) for camera in small]
        groups = [self._profile.group_of(f"/rendition/{camera.name}") for camera in small]
        for name in dict.fromkeys(groups):
            self._interleave(
                name,
                [
                    _camera_messages(camera, "h264", channel, cuts, spool.pictures(camera.name))
                    for camera, channel, group in zip(small, channels, groups, strict=True)
                    if group == name
                ],
            )
        for camera, channel, group in zip(small, channels, groups, strict=True):
            yield _camera_index(self._file, camera, channel, group, size, "h264", camera.name)

    def _camera_channel(self, name: str, codec: str, size: tuple[int, int]) -> int:
        # The size as shown: pictures of odd sizes are coded with one row or column more.
        said = {"height": str(size[0]), "width": str(size[1])}
        return self._file.add_channel(protobuf_topic(name, picture_class(codec)), said)

    def _interleave(self, name: str, streams: Sequence[Iterator[Message]]) -> None:
        group = Group(self._file, name, compressed=False)
        for _, segment in groupby(heapq.merge(*streams), key=lambda message: message.segment):
            for message in segment:
                group.add(message)
                if group.size >= MOST_CHUNK_BYTES:
                    group.end_chunk()
            if group.size >= self._profile.chunk_bytes:
                group.end_chunk()
        group.end_chunk()

    def _messages(self) -> tuple[idx.TopicIndex, ...]:
        channels = {extra.name: self._file.add_channel(extra) for extra in self._episode.extras}
        counts = dict.fromkeys(channels, 0)
        group, last_ns = Group(self._file, MESSAGES, compressed=True), 0
        for message in self._episode.extra_messages():
            if message.topic not in channels:
                raise EpisodeError("invalid", f"A message is of '{message.topic}', which is no topic of this episode")
            if message.time_ns < last_ns:
                raise EpisodeError("times", f"The messages of '{message.topic}' and other topics are not in order")
            last_ns = message.time_ns
            group.add(Message(message.time_ns, channels[message.topic], counts[message.topic], message.data))
            counts[message.topic] += 1
            if group.size >= COMPRESSED_CHUNK_BYTES:
                group.end_chunk()
        group.end_chunk()
        return tuple(idx.TopicIndex(name, channel, MESSAGES, counts[name]) for name, channel in channels.items())

    def _series(self) -> tuple[idx.SeriesIndex, ...]:
        profile, series = self._profile, self._episode.series
        channels = {
            s.name: self._file.add_channel(protobuf_topic(s.name, JointStates), {"dtype": s.values.dtype.name})
            for s in series
        }
        groups = {s.name: profile.group_of(f"/{s.name}") for s in series}
        for name in reversed(list(profile.groups)):
            group = Group(self._file, name, compressed=True)
            members = [s for s in series if groups[s.name] == name]
            for message in heapq.merge(*(_series_messages(s, channels[s.name]) for s in members)):
                group.add(message)
                if group.size >= COMPRESSED_CHUNK_BYTES:
                    group.end_chunk()
            group.end_chunk()
        return tuple(
            idx.SeriesIndex(
                name=s.name,
                channel=channels[s.name],
                group=groups[s.name],
                rows=len(s.times_ns),
                dtype=s.values.dtype.name,
                names=s.names,
                period_ns=int(np.median(np.diff(s.times_ns))) if len(s.times_ns) > 1 else 0,
            )
            for s in series
        )


def _cuts(streams: Sequence[CameraStream], gop: int) -> NDArray[np.int64]:
    """Times at which every camera starts anew with a keyframe, as far as it depends on us.

    Where H.264 is stored as it came, that of the slowest such camera sets the pace: each of its keyframes.
    """
    fixed = [stream for stream in streams if stream.codec == "h264" and stream.own_keyframes is not None]
    if fixed:
        pace = _slowest([stream.camera for stream in fixed])
        slowest = next(stream for stream in fixed if stream.camera is pace)
        times_ns: NDArray[np.int64] = np.asarray(pace.times_ns, np.int64)
        return times_ns[np.flatnonzero(slowest.own_keyframes or ())]
    return segment_starts([stream.camera for stream in streams], gop)


def segment_starts(cameras: Sequence[Camera], gop: int) -> NDArray[np.int64]:
    """Times at which every camera starts anew with a keyframe: each `gop`-th picture of the slowest camera."""
    return np.asarray(_slowest(cameras).times_ns[::gop], np.int64) if cameras else np.zeros(0, np.int64)


def _slowest(cameras: Sequence[Camera]) -> Camera:
    """The camera with the fewest pictures, among those with a quarter of the most: others would make segments long."""
    most = max(len(camera.times_ns) for camera in cameras)
    return min((c for c in cameras if 4 * len(c.times_ns) >= most), key=lambda camera: len(camera.times_ns))


def _segments(times_ns: NDArray[np.int64], cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    # Pictures before the first common start belong to the first segment.
    segments: NDArray[np.int64] = np.maximum(np.searchsorted(cuts, times_ns, side="right") - 1, 0)
    return segments


def _keyframes(stream: CameraStream, cuts: NDArray[np.int64], gop: int) -> list[bool]:
    """Which pictures of a camera are to be keyframes."""
    if stream.own_keyframes is not None:
        return list(stream.own_keyframes)
    since, keyframes = 0, []
    segments = _segments(stream.camera.times_ns, cuts)
    for i, segment in enumerate(segments):
        since = 0 if i == 0 or segment != segments[i - 1] or since + 1 >= gop else since + 1
        keyframes.append(since == 0)
    return keyframes


def _camera_messages(
    camera: Camera, codec: str, channel: int, cuts: NDArray[np.int64], pictures: Iterator[Picture]
) -> Iterator[Message]:
    segments, kind = _segments(camera.times_ns, cuts), picture_class(codec)
    for i, picture in enumerate(pictures):
        time_ns = int(camera.times_ns[i])
        message = kind(timestamp=timestamp(time_ns), frame_id=camera.name, data=picture.data, format=codec)
        yield Message(time_ns, channel, i, message.SerializeToString(), picture.keyframe, int(segments[i]))


def _camera_index(
    file: Container, camera: Camera, channel: int, group: str, size: tuple[int, int], codec: Any, rendition_of: str
) -> idx.CameraIndex:
    places = file.places[channel]
    return idx.CameraIndex(
        name=camera.name,
        channel=channel,
        group=group,
        width=size[1],
        height=size[0],
        codec=codec,
        rendition_of=rendition_of,
        times_ns=np.asarray(camera.times_ns, np.int64),
        offsets=np.array([place.offset for place in places], np.int64),
        lengths=np.array([place.length for place in places], np.uint32),
        crcs=np.array([place.crc for place in places], np.uint32),
        keyframes=np.array([place.keyframe for place in places], np.bool_),
    )


def _series_messages(series: Series, channel: int) -> Iterator[Message]:
    times = np.asarray(series.times_ns, np.int64)
    for i, payload in enumerate(to_messages(series.names, times, series.values)):
        yield Message(int(times[i]), channel, i, payload)


def _metadata(episode: RawEpisode, facts: EpisodeFacts, profile: Profile) -> dict[str, str]:
    coded = "as it came, or else " if profile.pictures == "as_coded" else ""
    said = {
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
        "video": f"{coded}h264 crf {profile.crf:g} gop {profile.gop} {profile.preset} bt601 limited",
    }
    return {**said, "crc32": idx.said_crc(said)}

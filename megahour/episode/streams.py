"""Cameras on their way into a file: coded here, or as they came; several at a time on several cores."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import tee
from typing import IO, Literal

import numpy as np

from megahour.episode.h264 import Decoder, Settings, Size, encode, is_keyframe, nal_units
from megahour.episode.jpeg import jpeg_size
from megahour.episode.model import Camera, EpisodeError, Frames
from megahour.episode.nal import SPS
from megahour.episode.profile import Profile, ProfileError

SPOOL_BYTES = 16 * 2**20
"""Coded pictures of renditions that wait in memory for their place in the file; more wait on disk."""
AHEAD_PICTURES = 16


@dataclass(frozen=True)
class Picture:
    """One coded picture: an H.264 access unit or a JPEG file."""

    data: bytes
    keyframe: bool


@dataclass(frozen=True)
class CameraStream:
    """A camera as it will be stored. `own_keyframes` says which pictures stand alone, where that is not ours to choose.

    `pictures(keyframes)` starts the one pass over its coded pictures.
    """

    camera: Camera
    codec: Literal["h264", "jpeg"]
    own_keyframes: tuple[bool, ...] | None
    pictures: Callable[[Sequence[bool]], Iterator[Picture]]


class Spool:
    """Coded pictures of renditions, made while the cameras are written, for the groups behind them."""

    def __init__(self) -> None:
        self._files: dict[str, IO[bytes]] = {}
        self._lengths: dict[str, list[tuple[int, bool]]] = {}

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def open(self, camera: str) -> None:
        """Expect a rendition of this camera."""
        self._files[camera] = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115, closed by __exit__
        self._lengths[camera] = []

    def add(self, camera: str, picture: Picture) -> None:
        """Keep the next picture of a camera."""
        self._files[camera].write(picture.data)
        self._lengths[camera].append((len(picture.data), picture.keyframe))

    def holds(self, camera: str) -> bool:
        """Whether this camera has a rendition."""
        return camera in self._files

    def pictures(self, camera: str) -> Iterator[Picture]:
        """All pictures of a camera, in order."""
        file = self._files[camera]
        file.seek(0)
        for length, keyframe in self._lengths[camera]:
            yield Picture(file.read(length), keyframe)


def camera_stream(camera: Camera, profile: Profile, rate_hz: float, spool: Spool | None) -> CameraStream:
    """How `camera` is stored under `profile`. `rate_hz` stands in where its times do not say its own rate.

    With a `spool` its rendition goes there on the same pass, where that is smaller than the camera.
    """
    rendition = profile.rendition
    smaller = rendition is not None and (camera.height > rendition.height or camera.width > rendition.width)
    if spool is not None and smaller:
        spool.open(camera.name)
    else:
        spool = None
    coded = camera.coded if profile.pictures == "as_coded" else None
    if coded is None:
        return CameraStream(camera, "h264", None, lambda keys: _coded_here(camera, profile, rate_hz, keys, spool))
    if coded.codec == "jpeg":
        own = (True,) * len(camera.times_ns)
    else:
        own = tuple(is_keyframe(unit) for unit in coded.units())
        if not own or not own[0] or len(own) != len(camera.times_ns):
            raise EpisodeError(
                "frame_count",
                f"The coded pictures of '{camera.name}' are {len(own)}, of {len(camera.times_ns)} times, or the first "
                "is no keyframe",
            )
    return CameraStream(camera, coded.codec, own, lambda keys: _as_it_came(camera, profile, rate_hz, keys, spool))


def try_out(profile: Profile) -> None:
    """Code one picture as the profile says, so that what x264 refuses is known before any recording is blamed for it.

    Raises:
        ProfileError: x264 refuses it.
    """
    picture = np.zeros((32, 32, 3), np.uint8)
    try:
        list(encode([picture], (32, 32), [True], Settings(30.0, profile.crf, profile.preset, profile.x264)))
    except EpisodeError as error:
        raise ProfileError(f"The profile '{profile.name}' cannot be used: {error}") from error


def own_rate_hz(camera: Camera, rate_hz: float) -> float:
    """The mean rate of a camera's times, `rate_hz` of a single one."""
    span_s = (int(camera.times_ns[-1]) - int(camera.times_ns[0])) / 1e9
    return (len(camera.times_ns) - 1) / span_s if span_s > 0 else rate_hz


def _coded_here(
    camera: Camera, profile: Profile, rate_hz: float, keyframes: Sequence[bool], spool: Spool | None
) -> Iterator[Picture]:
    settings = Settings(own_rate_hz(camera, rate_hz), profile.crf, profile.preset, profile.x264)
    size: Size = (camera.height, camera.width)
    if spool is None:
        for unit in encode(camera.frames(), size, keyframes, settings):
            yield Picture(unit.data, unit.keyframe)
        return
    full, again = tee(camera.frames())
    small = _rendition(camera, profile, rate_hz, again, keyframes)
    for unit in encode(full, size, keyframes, settings):
        # Both encoders look equally far ahead, so what waits between them are a few pictures.
        if (picture := next(small, None)) is not None:
            spool.add(camera.name, picture)
        yield Picture(unit.data, unit.keyframe)
    for picture in small:
        spool.add(camera.name, picture)


def _as_it_came(
    camera: Camera, profile: Profile, rate_hz: float, keyframes: Sequence[bool], spool: Spool | None
) -> Iterator[Picture]:
    assert camera.coded is not None
    count, known = 0, b""
    for unit in camera.coded.units():
        if count == len(keyframes):
            raise EpisodeError("frame_count", f"'{camera.name}' has more pictures than its {count} times")
        if camera.coded.codec == "jpeg":
            if (found := jpeg_size(unit)) != (camera.height, camera.width):
                raise EpisodeError(
                    "invalid",
                    f"A JPEG of '{camera.name}' is {found}, and its camera says {(camera.height, camera.width)}",
                )
        elif keyframes[count] and (said := _parameters(unit)) != known:
            known = said
            _decode_once(camera, unit)
        yield Picture(unit, keyframes[count])
        count += 1
    if count != len(keyframes):
        raise EpisodeError("frame_count", f"'{camera.name}' has {count} pictures, and {len(keyframes)} times")
    if spool is not None:
        # A rendition keeps the GOPs of the profile: the source's own may be of any length.
        every = [i % profile.gop == 0 for i in range(len(keyframes))]
        for picture in _rendition(camera, profile, rate_hz, camera.frames(), every):
            spool.add(camera.name, picture)


def _parameters(unit: bytes) -> bytes:
    """What a keyframe says of the sequence it begins, its size among it."""
    return b"".join(nal for nal in nal_units(unit) if nal[0] & 31 == SPS)


def _decode_once(camera: Camera, unit: bytes) -> None:
    size: Size = (camera.height, camera.width)
    try:
        Decoder("h264", size).decode([unit], [True], size)
    except EpisodeError as error:
        raise EpisodeError("invalid", f"The coded pictures of '{camera.name}' do not fit it: {error}") from error


def _rendition(
    camera: Camera, profile: Profile, rate_hz: float, frames: Iterator[Frames], keyframes: Sequence[bool]
) -> Iterator[Picture]:
    assert profile.rendition is not None
    settings = Settings(own_rate_hz(camera, rate_hz), profile.rendition.crf, profile.preset, profile.x264)
    target: Size = (profile.rendition.height, profile.rendition.width)
    for unit in encode(frames, (camera.height, camera.width), keyframes, settings, target):
        yield Picture(unit.data, unit.keyframe)


def ahead(streams: Sequence[Iterator[Picture]], cores: int, stack: ExitStack) -> list[Iterator[Picture]]:
    """The same streams, each worked on by a thread, at most `cores` at any moment; they end with `stack`."""
    turns, stopped = threading.Semaphore(cores), threading.Event()

    def put(out: queue.Queue[Picture | BaseException | None], item: Picture | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                out.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def work(stream: Iterator[Picture], out: queue.Queue[Picture | BaseException | None]) -> None:
        try:
            while not stopped.is_set():
                with turns:
                    picture = next(stream, None)
                put(out, picture)
                if picture is None:
                    return
        except BaseException as error:
            put(out, error)

    def received(out: queue.Queue[Picture | BaseException | None]) -> Iterator[Picture]:
        while (item := out.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    queues: list[queue.Queue[Picture | BaseException | None]] = [queue.Queue(AHEAD_PICTURES) for _ in streams]
    threads = [threading.Thread(target=work, args=each, daemon=True) for each in zip(streams, queues, strict=True)]
    for thread in threads:
        thread.start()

    def end() -> None:
        stopped.set()
        for thread in threads:
            thread.join()

    stack.callback(end)
    return [received(out) for out in queues]

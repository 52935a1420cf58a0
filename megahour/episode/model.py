"""What an episode is, before and beside its bytes: cameras, series, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from megahour.errors import DataError

Frames = NDArray[np.uint8]
"""Pictures, `(..., height, width, 3)`, RGB."""
TimesNs = NDArray[np.int64]
"""Times in nanoseconds, `(n,)`, strictly increasing, from the episode's own start or the Unix epoch."""

Chroma = Literal["nearest", "smooth"]
"""Colour of pictures at their coded size, which holds one value for 2x2 pixels: repeated, as decoders do, or
interpolated: 0.4 to 1.3 dB nearer to what was coded, for 6 times the work."""


@dataclass(frozen=True)
class Coded:
    """A camera's pictures as its source has them coded. `units()` starts a new pass and yields one picture per time.

    `jpeg` are JPEG files. `h264` are Annex B access units without B-frames; the first and every keyframe carry their
    SPS and PPS.
    """

    codec: Literal["jpeg", "h264"]
    units: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class Camera:
    """A camera's pictures. `frames()` starts a new pass and yields `(height, width, 3)` uint8 RGB, one per time.

    `coded` are the same pictures before they were decoded, for a profile that stores them as they are.
    """

    name: str
    width: int
    height: int
    times_ns: TimesNs
    frames: Callable[[], Iterator[Frames]]
    coded: Coded | None = None


@dataclass(frozen=True)
class Series:
    """A low-dimensional topic: `values` is `(n, d)` float32 or float64, one row per time, one name per column."""

    name: str
    times_ns: TimesNs
    values: NDArray[np.floating]
    names: tuple[str, ...]


@dataclass(frozen=True)
class ExtraTopic:
    """A topic that is kept as it came: no camera, and no series of floats.

    `encoding` is that of its messages and `schema_*` describe them, both by the names of the MCAP registry
    (https://mcap.dev/spec/registry): `cdr` with `ros2msg`, `protobuf` with `protobuf`, `json` with `jsonschema`.
    """

    name: str
    encoding: str
    schema_name: str
    schema_encoding: str
    schema: bytes


@dataclass(frozen=True)
class ExtraMessage:
    """A message of an extra topic, at a time in nanoseconds as `TimesNs` has them."""

    topic: str
    time_ns: int
    data: bytes


@dataclass(frozen=True)
class Note:
    """What was lost, mended or guessed on an episode's way in: a code for machines, a sentence for people."""

    code: str
    text: str


@dataclass(frozen=True)
class EpisodeFacts:
    """What is said about an episode in its metadata record: the file explains itself without the lake."""

    episode_id: str
    robot: str
    task: str
    source: str
    format: str
    rate_hz: float
    success: bool | None = None
    attributes: dict[str, str] = field(default_factory=dict)


def no_messages() -> Iterator[ExtraMessage]:
    """The messages of an episode without extra topics."""
    return iter(())


@dataclass(frozen=True)
class RawEpisode:
    """One episode as an importer hands it over: series in memory, pictures and extra messages streamed.

    `index` is the episode's place in its recording. `series` holds at least `state` and `action` where the source has
    them; names are those of the topics (`/state`, `/action`). What is neither picture nor floats goes to `extras`, and
    `extra_messages()` starts a new pass over their messages, of all topics together, in order of time. `notes` says
    what was lost, mended or guessed. `format` is set where a recording's own format is not exact.
    """

    index: int
    robot: str
    task: str
    rate_hz: float
    success: bool | None
    cameras: tuple[Camera, ...]
    series: tuple[Series, ...]
    attributes: dict[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    extras: tuple[ExtraTopic, ...] = ()
    extra_messages: Callable[[], Iterator[ExtraMessage]] = no_messages
    format: str = ""


class EpisodeError(DataError):
    """An episode cannot be written or read. `reason` is a code for machines, the text a sentence for people.

    Reasons: `missing`, `truncated`, `corrupt`, `version`, `no_topic`, `out_of_range`; when writing `frame_count`,
    `times`, `invalid`; when repairing `replaced`.
    """

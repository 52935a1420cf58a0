"""What an episode is, before and beside its bytes: cameras, series, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megahour.errors import DataError

Frames = NDArray[np.uint8]
"""Pictures, `(..., height, width, 3)`, RGB."""
TimesNs = NDArray[np.int64]
"""Times in nanoseconds, `(n,)`, strictly increasing, from the episode's own start or the Unix epoch."""


@dataclass(frozen=True)
class Camera:
    """A camera's pictures. `frames()` starts a new pass and yields `(height, width, 3)` uint8 RGB, one per time."""

    name: str
    width: int
    height: int
    times_ns: TimesNs
    frames: Callable[[], Iterator[Frames]]


@dataclass(frozen=True)
class Series:
    """A low-dimensional topic: `values` is `(n, d)` float32 or float64, one row per time, one name per column."""

    name: str
    times_ns: TimesNs
    values: NDArray[np.floating]
    names: tuple[str, ...]


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


@dataclass(frozen=True)
class RawEpisode:
    """One episode as an importer hands it over: series in memory, pictures streamed.

    `index` is the episode's place in its recording. `series` holds at least `state` and `action` where the source
    has them; names are those of the topics (`/state`, `/action`). `notes` says what the source had and this lacks.
    """

    index: int
    robot: str
    task: str
    rate_hz: float
    success: bool | None
    cameras: tuple[Camera, ...]
    series: tuple[Series, ...]
    attributes: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class EpisodeError(DataError):
    """An episode cannot be written or read. `reason` is a code for machines, the text a sentence for people.

    Reasons: `missing`, `truncated`, `corrupt`, `version`, `no_topic`, `out_of_range`; when writing `frame_count`,
    `times`, `invalid`.
    """

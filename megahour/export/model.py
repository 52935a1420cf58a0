"""What an export is made of: which episodes, which of their topics, and what all of them share."""

from __future__ import annotations

from dataclasses import dataclass

from megahour.errors import DataError


class ExportError(DataError):
    """A dataset cannot be written. `reason` is a code for machines, the text a sentence for people.

    Reasons: `exists`, `busy`, `empty`, `no_manifest`, `unfit` where single episodes cannot be exported, `mixed` where
    they do not fit together. Of single episodes: `no_topic`, `not_video`, `unaligned`, `too_long`, and those of
    `EpisodeError`.
    """


@dataclass(frozen=True)
class Wanted:
    """What to take of each episode: these cameras and series, all where None; `fps` where None is the cameras' own."""

    cameras: tuple[str, ...] | None = None
    series: tuple[str, ...] | None = None
    fps: int | None = None


@dataclass(frozen=True)
class CameraShape:
    """What a camera's pictures are in a dataset: their size as they decode."""

    name: str
    height: int
    width: int


@dataclass(frozen=True)
class SeriesShape:
    """What a low-dimensional topic is in a dataset: one name per column."""

    name: str
    dtype: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Shape:
    """What all episodes of one dataset have alike."""

    fps: int
    cameras: tuple[CameraShape, ...]
    series: tuple[SeriesShape, ...]

    @property
    def wanted(self) -> Wanted:
        """What to take of an episode to get this."""
        return Wanted(tuple(c.name for c in self.cameras), tuple(s.name for s in self.series), self.fps)

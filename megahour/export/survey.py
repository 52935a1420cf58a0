"""Whether episodes fit into one dataset, from their indexes alone, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from megahour.episode.index import CameraIndex
from megahour.episode.model import EpisodeError
from megahour.episode.reader import EpisodeReader, open_episode
from megahour.export.choose import Chosen
from megahour.export.files import MOST_VIDEO_S
from megahour.export.model import CameraShape, ExportError, SeriesShape, Shape, Wanted
from megahour.export.timeline import Timeline, timeline
from megahour.storage import Lake

MOST_NAMED = 3
MOST_REFUSALS = 5


@dataclass(frozen=True)
class Candidate:
    """What one episode would be in a dataset; without a shape, `refusal` says why it cannot be in any."""

    episode_id: str
    shape: Shape | None = None
    robot: str = ""
    on_grid: bool = True
    refusal: str = ""


@dataclass(frozen=True)
class Agreed:
    """What all episodes have alike, their robots, and how many have times that are not 1/fps apart."""

    shape: Shape
    robots: tuple[str, ...]
    off_grid: int


def examine(lake: Lake, chosen: Chosen, wanted: Wanted) -> Candidate:
    """What an episode would be; reads the end of its file."""
    try:
        reader = open_episode(lake, chosen.uri, chosen.size_bytes)
        shape, rows = shape_of(reader, wanted)
    except (ExportError, EpisodeError) as error:
        return Candidate(chosen.episode_id, refusal=f"{error.reason}: {error}")
    return Candidate(chosen.episode_id, shape, reader.facts.robot, rows.on_grid)


def agree(candidates: Iterable[Candidate]) -> Agreed:
    """The shape that all episodes have.

    Raises:
        ExportError: `unfit`, `mixed` or `empty`; the text names episodes and says what to do.
    """
    named: dict[Shape, list[str]] = {}
    counts: dict[Shape, int] = {}
    robots: set[str] = set()
    refused: list[str] = []
    seen = off_grid = refusals = 0
    for each in candidates:
        seen += 1
        if each.shape is None:
            refusals += 1
            if len(refused) < MOST_REFUSALS:
                refused.append(f"{each.episode_id}: {each.refusal}")
            continue
        counts[each.shape] = counts.get(each.shape, 0) + 1
        examples = named.setdefault(each.shape, [])
        if len(examples) < MOST_NAMED:
            examples.append(each.episode_id)
        robots.add(each.robot)
        off_grid += not each.on_grid
    if refused:
        more = "; ..." if refusals > len(refused) else ""
        raise ExportError(
            "unfit",
            f"{refusals} of {seen} episodes cannot be exported: {'; '.join(refused)}{more}. Choose other topics with "
            "--camera and --series, or leave these episodes out: of --episodes, or with the recipe's filter",
        )
    if not counts:
        raise ExportError("empty", "No episodes were chosen: there is nothing to export")
    if len(counts) > 1:
        raise ExportError("mixed", _disagreement(counts, named))
    return Agreed(next(iter(counts)), tuple(sorted(robots)), off_grid)


def shape_of(reader: EpisodeReader, wanted: Wanted) -> tuple[Shape, Timeline]:
    """The shape that an episode has, and the timeline of its rows.

    Raises:
        ExportError: `no_topic`, `not_video`, `unaligned` or `too_long`.
        EpisodeError: the episode is damaged.
    """
    cameras = _cameras(reader, wanted.cameras)
    there = {series.name: series for series in reader.index.series}
    names = sorted(there) if wanted.series is None else wanted.series
    for name in names:
        if name not in there:
            raise ExportError("no_topic", f"there is no series '{name}', only {', '.join(there) or 'none'}")
    if not cameras and not names:
        raise ExportError("no_topic", "it has neither cameras nor series that were asked for")
    topics = {} if cameras else {name: reader.series(name).times_ns for name in names}
    times = {name: camera.times_ns for name, camera in cameras.items()}
    rows = timeline(topics, times, wanted.fps, reader.facts.rate_hz)
    for name, first in rows.first.items():
        _require_findable(cameras[name], first, rows)
    shape = Shape(
        rows.fps,
        # Odd sizes are coded with one more row or column, and decode to that.
        tuple(CameraShape(name, c.height + c.height % 2, c.width + c.width % 2) for name, c in cameras.items()),
        tuple(SeriesShape(name, there[name].dtype, there[name].names) for name in names),
    )
    return shape, rows


def coded_from(camera: CameraIndex, picture: int) -> int:
    """The keyframe that a picture is decoded from: a video that shows it begins there at the latest."""
    return int(np.flatnonzero(camera.keyframes[: picture + 1])[-1])


def _require_findable(camera: CameraIndex, first: int, rows: Timeline) -> None:
    before = first - coded_from(camera, first)
    end_s = (before + len(rows.times_ns)) / rows.fps
    if before and end_s > MOST_VIDEO_S:
        raise ExportError(
            "too_long",
            f"its rows end at {end_s:.0f} s of the video of '{camera.name}', which begins {before} pictures earlier; "
            f"LeRobot's times find pictures beyond {MOST_VIDEO_S:.0f} s only where rows begin with their video",
        )


def _cameras(reader: EpisodeReader, wanted: tuple[str, ...] | None) -> dict[str, CameraIndex]:
    there = {camera.name: camera for camera in reader.index.cameras if not camera.rendition_of}
    found = {}
    for name in sorted(there) if wanted is None else wanted:
        if name not in there:
            raise ExportError("no_topic", f"there is no camera '{name}', only {', '.join(there) or 'none'}")
        if there[name].codec != "h264":
            raise ExportError(
                "not_video",
                f"its profile '{reader.profile}' stores the camera '{name}' as single {there[name].codec.upper()} "
                "pictures, and only H.264 goes into a video without being coded anew",
            )
        found[name] = there[name]
    return found


def _disagreement(counts: Mapping[Shape, int], named: Mapping[Shape, list[str]]) -> str:
    said = _differing({shape: _aspects(shape) for shape in counts}, counts, named)
    # Where all else is alike, the columns' names differ; one of them says it.
    said = said or _differing({shape: _columns(shape) for shape in counts}, counts, named)[:1]
    return (
        f"A LeRobot dataset has one rate and one set of features, and these episodes differ: {'; '.join(said)}. Choose "
        "episodes that are alike with a recipe's filter, topics that all have with --camera and --series, or one rate "
        "with --fps"
    )


def _differing(
    aspects: Mapping[Shape, Mapping[str, str]], counts: Mapping[Shape, int], named: Mapping[Shape, list[str]]
) -> list[str]:
    """Each aspect in which shapes differ, with its values and the episodes that have them."""
    said = []
    for aspect in dict.fromkeys(name for found in aspects.values() for name in found):
        groups: dict[str, list[Shape]] = {}
        for shape, found in aspects.items():
            groups.setdefault(found.get(aspect, "none"), []).append(shape)
        if len(groups) > 1:
            values = []
            for value, shapes in groups.items():
                examples = [name for shape in shapes for name in named[shape]][:MOST_NAMED]
                count = sum(counts[shape] for shape in shapes)
                more = ", ..." if count > len(examples) else ""
                values.append(f"{value} in {count} ({', '.join(examples)}{more})")
            said.append(f"{aspect} is {', '.join(values)}")
    return said


def _aspects(shape: Shape) -> dict[str, str]:
    """What can differ, each with its value as a person reads it."""
    return {
        "fps": str(shape.fps),
        **{f"camera '{camera.name}'": f"{camera.width}x{camera.height}" for camera in shape.cameras},
        **{f"series '{series.name}'": f"{len(series.names)} {series.dtype}" for series in shape.series},
    }


def _columns(shape: Shape) -> dict[str, str]:
    return {f"column {i} of '{one.name}'": f"'{name}'" for one in shape.series for i, name in enumerate(one.names)}

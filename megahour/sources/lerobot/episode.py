"""An episode of a LeRobot dataset, of either version, from where its rows and videos lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from megahour.episode.model import Camera, Frames, RawEpisode
from megahour.sources import steps
from megahour.sources.lerobot import columns
from megahour.sources.lerobot.dataset import Episode, Feature, Video
from megahour.sources.lerobot.rows import Rows, all_rows, load, rows_of_episode
from megahour.sources.model import Recording, SourceError
from megahour.sources.options import Options
from megahour.sources.steps import Gathered

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.sources.lerobot.clip import Clip
    from megahour.sources.video import VideoFacts

SUCCESS, SUBTASK = "next.success", "subtask_index"
NEAR_S = 1e-4
"""LeRobot's own tolerance between a row's time and that of its frame."""


def read(recording: Recording, episode: Episode, options: Options, local: Callable[[str], Path]) -> RawEpisode:
    """The episode as a recording's one episode.

    `observation.images.cam_high` becomes the camera `cam_high`, `observation.state` the series `state`, `action`
    `action`, every other column of floats a series of its own, all else extra topics or attributes; `notes` say what
    is not as the source has it.

    Raises:
        SourceError: `missing_video`, `missing_file`, `truncated`, `unreadable`, `missing_feature`, `feature_mismatch`,
            `empty`, `times`, or `frame_count` when a video has not one frame per row.
    """
    dataset = episode.dataset
    rows = rows_of(recording, episode, local)
    _refuse_missing_videos(recording, episode)
    features = {feature.name: feature for feature in dataset.features}
    _refuse_missing_features(features, rows)
    pictured = [name for name in rows.schema.names if columns.is_picture(rows.schema.field(name).type)]
    table = load(rows, [name for name in rows.schema.names if name not in pictured])
    into = Gathered(columns.times_of(table, dataset.fps, rows.key), taken=set())
    rate_hz = columns.rate_of(into, dataset.fps)
    for name in dataset.cameras:
        _add_video(into, features[name], episode.videos[name], rate_hz, local)
    for name in _in_order(features, rows):
        if name in pictured:
            columns.add_pictures(into, name, rows, features.get(name))
        elif not (name == SUBTASK and episode.subtask_texts):
            columns.add_column(into, name, table[name].combine_chunks(), features.get(name), rows.key)
    task = _task(into, episode, options, table, rows.key)
    if SUBTASK in table.column_names and episode.subtask_texts:
        numbers = columns.numbers_of(table[SUBTASK], f"{rows.key}: '{SUBTASK}'")
        columns.add_changes(into, "subtask", [episode.subtask_texts.get(int(number)) for number in numbers])
    if not into.cameras and not into.series:
        raise SourceError("empty", f"{recording.uri} has neither pictures nor rows of floats: nothing can be learnt")
    for name, value in episode.said.items():
        if value is not None:
            steps.add_said(into, steps.topic_name(name), value)
    into.attributes |= {"lerobot_version": dataset.version, "lerobot_episode": str(episode.number)}
    return RawEpisode(
        index=0,
        robot=_robot(dataset.robot, options),
        task=task,
        rate_hz=rate_hz,
        success=_success(table, episode.said),
        cameras=tuple(into.cameras),
        series=tuple(into.series),
        attributes=into.attributes,
        notes=tuple(into.notes),
        extras=tuple(into.extras),
        extra_messages=into.messages(),
    )


def rows_of(recording: Recording, episode: Episode, local: Callable[[str], Path]) -> Rows:
    """Where the rows of an episode are; as many as the metadata says.

    Raises:
        SourceError: `missing_file`, `frame_count`, `empty`, or as `rows_of_episode`.
    """
    there = [key for key in episode.data_keys if key not in recording.missing]
    if not there:
        why = [f"its Parquet file {key} has not landed" for key in episode.data_keys[:1]]
        why = why or [f"{episode.listed_in} does not say in which file its rows lie"]
        raise SourceError("missing_file", f"{recording.uri} has no data: {why[0]}")
    is_shared = episode.is_shared
    rows = rows_of_episode(there, local, episode.number) if is_shared else all_rows(local(there[0]), there[0])
    if episode.length is not None and episode.length != len(rows):
        which = f" of episode {episode.number}" if is_shared else ""
        raise SourceError(
            "frame_count", f"{rows.key} has {len(rows)} rows{which}, and {episode.listed_in} says {episode.length}"
        )
    return rows


def task_of(said: Sequence[str], texts: Sequence[str | None]) -> str:
    """The task of an episode, empty where nothing says it: what the metadata says of it, where that is one text, else
    that which most rows have, of equals the first. `texts` are those of the rows."""
    known = Counter(text for text in texts if text)
    if len(said) != 1 and known:
        return known.most_common(1)[0][0]
    return " ".join(said)


def _task(into: Gathered, episode: Episode, options: Options, table: pa.Table, key: str) -> str:
    numbers: list[int] = []
    if "task_index" in table.column_names:
        numbers = [int(number) for number in columns.numbers_of(table["task_index"], f"{key}: 'task_index'")]
    texts = [episode.task_texts.get(number) for number in numbers]
    task = task_of(episode.tasks, texts)
    if len(set(numbers)) > 1:
        columns.add_changes(into, "task", [text or f"task {n}" for text, n in zip(texts, numbers, strict=True)])
    elif texts and texts[0] and texts[0] != task:
        text = f"{episode.listed_in} says {task!r}, and the rows are of {texts[0]!r}: the first is taken"
        into.note("task_disagrees", text)
    if not task:
        instead = "that of source.yaml is taken" if options.task else "it stays empty"
        into.note("no_task", f"the dataset has no text of the task: {instead}")
    return task or options.task or ""


def _robot(said: str, options: Options) -> str:
    return options.robot or "unknown" if said in ("", "unknown") else said


def _refuse_missing_videos(recording: Recording, episode: Episode) -> None:
    for camera in episode.dataset.cameras:
        video = episode.videos.get(camera)
        if video is None or video.key in recording.missing:
            what = f"{episode.listed_in} names no file" if video is None else f"{video.key} has not landed"
            raise SourceError("missing_video", f"{recording.uri} has no video of the camera '{camera}': {what}")


def _refuse_missing_features(features: Mapping[str, Feature], rows: Rows) -> None:
    for name, feature in features.items():
        if feature.dtype != "video" and name not in columns.BOOKKEEPING and name not in rows.schema.names:
            raise SourceError("missing_feature", f"meta/info.json promises '{name}', and {rows.key} lacks it")


def _in_order(features: Mapping[str, Feature], rows: Rows) -> list[str]:
    """The columns that are no bookkeeping: as the metadata has them, then what it has not."""
    names = [name for name in features if name in rows.schema.names]
    names += [name for name in rows.schema.names if name not in features]
    return [n for n in names if n not in columns.BOOKKEEPING and not n.startswith(columns.INDEX_OF_PANDAS)]


def _success(table: pa.Table, said: Mapping[str, object]) -> bool | None:
    """What the rows say, true where one of them does, else what the metadata says of the episode."""
    rows: list[bool] = []
    if SUCCESS in table.column_names:
        values, _, _ = columns.unfold(table[SUCCESS].combine_chunks())
        if columns.is_number(values.type):
            rows = [success for value in values.to_pylist() if (success := steps.success_of(value)) is not None]
    return any(rows) if rows else steps.success_of(said.get("success"))


def _add_video(into: Gathered, feature: Feature, video: Video, rate_hz: float, local: Callable[[str], Path]) -> None:
    """A camera that is a video, or a part of one that episodes share."""
    from megahour.sources.lerobot.clip import cut_out, find_clip
    from megahour.sources.video import probe_video

    name = into.name(columns.topic_of(feature.name))
    if feature.is_depth:
        into.note("depth_as_colour", f"camera {name} is a depth map that the dataset holds as a colour video: kept so")
    path, key, times_ns = local(video.key), video.key, into.times_ns
    clip = find_clip(path, video, len(times_ns)) if video.spans else None
    if clip is None:
        facts = probe_video(path, key)
        frames = range(facts.frames)
    else:
        with cut_out(clip) as (own, frames):
            facts = probe_video(own, key)
        if abs(clip.offset_s) > NEAR_S:
            text = f"camera {name} begins {clip.offset_s:+.4f} s off what the metadata says: its own frames are taken"
            into.note("start_offset", text)
    into.notes += facts.notes
    if len(frames) != len(times_ns) or frames.stop > facts.frames:
        raise SourceError(
            "frame_count",
            f"{key} has {facts.frames - frames.start} frames, and its episode has {len(times_ns)} rows: which frame "
            "belongs to which row cannot be known. Export the episode again",
        )
    columns.refuse_size(feature, facts.width, facts.height, key)
    own_s = facts.times_s[frames.start : frames.stop]
    drift_s = float(np.abs(own_s - own_s[0] - (times_ns - times_ns[0]) / 1e9).max())
    if drift_s > 0.5 / rate_hz:
        raise SourceError(
            "times", f"{key} and the timestamps of its episode drift {drift_s:.3f} s apart: frames were dropped"
        )
    pictures = partial(_pictures, path, key, facts, clip)
    into.cameras.append(Camera(name, facts.width, facts.height, times_ns, pictures))


def _pictures(path: Path, key: str, facts: VideoFacts, clip: Clip | None) -> Iterator[Frames]:
    from megahour.sources.lerobot.clip import cut_out
    from megahour.sources.video import read_video

    if clip is None:
        yield from read_video(path, key, facts)
    else:
        with cut_out(clip) as (own, frames):
            yield from read_video(own, key, facts, frames)

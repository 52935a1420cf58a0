"""Measure the episodes of a batch: each signal by itself, a failing one leaves a NULL and a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from megahour.ingest import quality
from megahour.ingest.land import digest
from megahour.ingest.pending import is_marked, mark
from megahour.ingest.plan import Batch, plan_key
from megahour.ingest.pool import Died, run_tasks
from megahour.ingest.steps import STEPS, active_steps, fitting_workers, machine_memory_mb, time_limit_s
from megahour.ingest.verdict import IngestError, judge
from megahour.settings import Settings
from megahour.storage import Lake

if TYPE_CHECKING:
    from megahour.episode.model import Frames
    from megahour.episode.reader import EpisodeReader

Row = dict[str, Any]
SIGNALS = tuple(step.name for step in STEPS if not step.critical)
SCALED_PX = 64
"""Pictures are compared at this height."""
STACK_FRAMES = 60


@dataclass(frozen=True)
class Task:
    """An episode to measure. `signals` are those switched on."""

    lake: Lake
    episode_id: str
    uri: str
    batch: str
    signals: tuple[str, ...]


@dataclass(frozen=True)
class QualityReport:
    """Episodes of a batch: how many, how many measured now, and which warnings they have, each with its count."""

    episodes: int
    measured: int
    warnings: dict[str, int]
    seconds: float


def measure_batch(lake: Lake, settings: Settings, batch: Batch) -> QualityReport:
    """Measure a batch's episodes in worker processes. An episode with every signal that is on is not measured again.

    Raises:
        IngestError: the lake or the installation failed.
        ValueError: `settings.skip_steps` is wrong.
    """
    steps = [step for step in active_steps(settings.skip_steps) if not step.critical]
    signals = tuple(step.name for step in steps)
    started = datetime.now(UTC)
    try:
        # Asked before the episodes are read: these are all of the batch only if it was ingested by then.
        complete = is_marked(lake, batch.key, "ingested")
        episodes, before = _episodes(lake, batch.key)
        wanting = [row for row in episodes if _is_wanting(before.get(row["episode_id"]), signals)]
        tasks = [Task(lake, row["episode_id"], row["uri"], batch.key, signals) for row in wanting]
        limits_s = [time_limit_s(row["size_bytes"], settings.ingest_task_s) for row in wanting]
        workers = fitting_workers(steps, settings.ingest_workers, machine_memory_mb())
        found = []
        with closing(run_tasks(measure, tasks, limits_s, workers)) as events:
            for event in events:
                task = tasks[event.index]
                found.append(_of_the_dead(task, event) if isinstance(event, Died) else event.value)
        after = _append(lake, batch.key, found, before)
        if complete:
            mark(lake, batch.key, "measured")
    except Exception as error:
        raise IngestError(
            f"The episodes of batch {batch.key} could not be measured: {error}. Nothing is lost; run it again"
        ) from error
    warnings: dict[str, int] = {}
    for row in (before | after).values():
        for warning in row["warnings"] or []:
            warnings[warning] = warnings.get(warning, 0) + 1
    return QualityReport(len(episodes), len(after), warnings, (datetime.now(UTC) - started).total_seconds())


def measure(task: Task) -> Row:
    """One episode's row for `episode_quality`, without time and revision.

    Raises:
        IngestError: the machine failed, not the episode.
    """
    from megahour.episode.reader import open_episode

    row: Row = {"episode_id": task.episode_id, "batch": task.batch, **dict.fromkeys(SIGNALS)}
    warnings = [f"{name}: switched off" for name in SIGNALS if name not in task.signals]
    try:
        episode = open_episode(task.lake, task.uri)
    except Exception as error:
        return {**row, "warnings": [*warnings, f"not opened: {_excuse(task, error)}"]}
    for name in task.signals:
        try:
            row[name] = MEASURES[name](episode)
        except Exception as error:
            warnings.append(f"{name}: {_excuse(task, error)}")
    return {**row, "warnings": warnings}


def _excuse(task: Task, error: Exception) -> str:
    rejected = judge(error, task.lake, plan_key(task.batch))
    return f"{rejected.reason}: {rejected.error}"


def _frozen_share(episode: EpisodeReader) -> float | None:
    """The most frozen camera's share."""
    shares = [quality.frozen_share(_stacks(episode, name)) for name in episode.cameras]
    return max((share for share in shares if share is not None), default=None)


def _stacks(episode: EpisodeReader, camera: str) -> Iterator[Frames]:
    info = episode.cameras[camera]
    size = (SCALED_PX, max(2, round(info.width * SCALED_PX / info.height)))
    for start in range(0, info.frames, STACK_FRAMES):
        yield episode.frames(camera, range(start, min(start + STACK_FRAMES, info.frames)), size)


def _dropped_frames(episode: EpisodeReader) -> int:
    return sum(quality.dropped_frames(camera.times_ns) for camera in episode.cameras.values())


def _nan_values(episode: EpisodeReader) -> int:
    return quality.nan_values([episode.series(name) for name in episode.series_names])


def _action_jump(episode: EpisodeReader) -> float | None:
    return quality.action_jump(episode.series("action").values) if "action" in episode.series_names else None


def _idle_share(episode: EpisodeReader) -> float | None:
    name = next((name for name in ("state", "action") if name in episode.series_names), None)
    return None if name is None else quality.idle_share(episode.series(name).values, episode.facts.rate_hz)


MEASURES: dict[str, Callable[[EpisodeReader], float | None]] = {
    "frozen_share": _frozen_share,
    "dropped_frames": _dropped_frames,
    "nan_values": _nan_values,
    "action_jump": _action_jump,
    "idle_share": _idle_share,
}


def _episodes(lake: Lake, batch: str) -> tuple[list[Row], dict[str, Row]]:
    """The batch's episodes, and the quality rows they have, by episode id."""
    from megahour.warehouse.queries import query

    sql = "SELECT episode_id, uri, size_bytes FROM episodes WHERE batch = ? ORDER BY key"
    episodes = query(lake, sql, [batch]).to_pylist()
    sql = "FROM episode_quality WHERE episode_id IN (SELECT episode_id FROM episodes WHERE batch = ?)"
    return episodes, {row["episode_id"]: row for row in query(lake, sql, [batch]).to_pylist()}


def _is_wanting(row: Row | None, signals: tuple[str, ...]) -> bool:
    """Whether a signal that is on was off or failed the last time."""
    if row is None:
        return True
    return any(warning.partition(":")[0] in (*signals, "not opened", "died") for warning in row["warnings"] or [])


def _of_the_dead(task: Task, died: Died) -> Row:
    row: Row = {"episode_id": task.episode_id, "batch": task.batch, **dict.fromkeys(SIGNALS)}
    return {**row, "warnings": [f"died: the process that measured it died twice: {died.how}"]}


def _append(lake: Lake, batch: str, found: list[Row], before: dict[str, Row]) -> dict[str, Row]:
    """Append the rows that say something new; returns them by episode id."""
    from megahour.warehouse.tables import append

    now = datetime.now(UTC)
    rows = {}
    for row in found:
        old = before.get(row["episode_id"])
        if old is None or any(old[name] != row[name] for name in (*SIGNALS, "warnings")):
            revision = 1 if old is None else old["revision"] + 1
            rows[row["episode_id"]] = {**row, "measured_at": now, "revision": revision}
    named = digest(f"{row['episode_id']} {row['revision']}" for row in rows.values())
    append(lake, "episode_quality", list(rows.values()), once=f"measure:{batch}:{named}")
    return rows

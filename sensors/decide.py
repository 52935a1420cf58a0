"""What sensors decide, apart from what they look at: facts in, acts out. No clock, no file, no Dagster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from megahour.manifest.peek import Selection
from resources.clusters.protocol import JobState

METRIC_POINTS = 20
"""Training steps of a run that are reported as points of a curve, besides its validations."""


class Act(Enum):
    """What to do about a run's job."""

    NOTHING = "nothing"
    CONFIRM = "confirm"
    RESUBMIT = "resubmit"
    GIVE_UP = "give-up"
    FINISHED = "finished"
    CANCELLED = "cancelled"


def act_on_job(state: JobState, done: bool, attempts: int, max_attempts: int, seen_dead: bool) -> Act:
    """What to do about a job. `done` must have been read after `state`: a job that ended has written it before.

    A run has finished when its job also ended: until then its log grows. A job is dead when it ended without `DONE`,
    whatever its exit code, and when the cluster never heard of it. It must be seen dead twice: shared file systems
    show a new file late. An unknown state changes nothing.
    """
    if state.live or state is JobState.UNKNOWN:
        return Act.NOTHING
    if done:
        return Act.FINISHED
    if state is JobState.CANCELLED:
        return Act.CANCELLED
    if not seen_dead:
        return Act.CONFIRM
    return Act.RESUBMIT if attempts < max_attempts else Act.GIVE_UP


@dataclass(frozen=True)
class Quiet:
    """Since when the lake rests: the versions of its tables, and the time (s) at which they were first seen at rest."""

    versions: Mapping[str, int] = field(default_factory=dict)
    since_s: float = 0.0


def rest(before: Quiet, versions: Mapping[str, int], busy: bool, now_s: float) -> Quiet:
    """The next state: rest starts anew whenever a table changed or ingest is at work."""
    if busy or dict(before.versions) != dict(versions):
        return Quiet(dict(versions), now_s)
    return before


def stale_recipes(selected: Mapping[str, Selection], built: Mapping[str, str]) -> list[str]:
    """The recipes that select something, and something else than at their last request."""
    return [name for name, now in sorted(selected.items()) if now.rows and built.get(name) != now.fingerprint]


@dataclass(frozen=True)
class Point:
    """Something in a run's log that is reported: `kind`, the event itself, and its name for ever."""

    kind: str
    event: dict[str, Any]
    event_id: str


def points(
    run_key: str, steps: int, events: Iterable[tuple[int, dict[str, Any]]], past: int
) -> tuple[list[Point], int]:
    """What of a run's events is reported: all turns of its life, all validations, and some training steps.

    Of training steps it is the first in each of `METRIC_POINTS` parts of the run, however often the trainer logs.
    Checkpoints are not taken from events: a committed directory is the truth.

    Args:
        past: the last part that has its point, -1 at first. From the log's first byte on, the same points come out
            whatever the looks in between.

    Returns:
        The points, and the `past` of the next look.
    """
    stride = max(1, steps // METRIC_POINTS)
    found = []
    for offset, event in events:
        kind, step = event.get("kind"), event.get("step")
        if kind == "step" and isinstance(step, int):
            if step // stride <= past:
                continue
            past = step // stride
        elif kind not in ("started", "resumed", "stopped", "finished", "failed", "validation"):
            continue
        found.append(Point(str(kind), event, f"{run_key}.{offset}"))
    return found, past


def metrics(event: Mapping[str, Any]) -> dict[str, int | float]:
    """The numbers of an event, by names that tell training from validation."""
    prefix = "validation_" if event.get("kind") == "validation" else ""
    return {
        (name if name == "step" else prefix + name): value
        for name, value in event.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value == value
    }


def metrics_at(step: int, events: Iterable[Mapping[str, Any]]) -> dict[str, int | float]:
    """The last training and validation numbers at or before a checkpoint's step."""
    found: dict[str, int | float] = {}
    for event in events:
        if event.get("kind") in ("step", "validation") and isinstance(event.get("step"), int) and event["step"] <= step:
            found |= metrics(event)
    return found | {"step": step}


@dataclass(frozen=True)
class Watch:
    """What the observer remembers of a run: how far its log was read and its curve drawn (see `points`), whether its
    job was just seen dead, and after how many attempts it was closed (None: open)."""

    offset: int = 0
    past: int = -1
    dead: bool = False
    closed: int | None = None


def watched(offset: int, past: int, act: Act, attempts: int) -> Watch:
    """What to remember. A closed run is looked at again only when somebody starts another attempt."""
    closed = act in (Act.FINISHED, Act.GIVE_UP, Act.CANCELLED)
    return Watch(offset, past, dead=act in (Act.CONFIRM, Act.RESUBMIT), closed=attempts if closed else None)


def unreported(committed: Iterable[int], reported: Collection[int]) -> list[int]:
    """Checkpoint steps that Dagster does not know yet, ascending."""
    return sorted(set(committed) - set(reported))


RETRIES = 2
"""How often a Dagster run that failed for no fault of its input is started again."""

TRANSIENT = ("OSError", "ConnectionError", "TimeoutError", "BrokenPipeError", "ConnectionResetError", "ClusterError")


def retry_of(errors: Iterable[tuple[str, ...]], retries_so_far: int) -> bool:
    """Whether to start a failed run again.

    Args:
        errors: per failed step, the class names of its error and of what caused it; none at all when the run's
            process died. A fault of the input fails again, so only what may pass by itself is tried again.
    """
    if retries_so_far >= RETRIES:
        return False
    return all(any(name in TRANSIENT for name in chain) for chain in errors)


START_LIMIT_S = 120.0
"""How long a run may take to say which process executes it."""


def is_orphan(workers: Collection[tuple[float, float | None]], begun_s: float, now_s: float) -> bool:
    """Whether a run's process is gone.

    Args:
        workers: per process that said it executes the run, when it said so, and when the process that has its number
            now was started (None: there is none). A younger process only reuses the number.
        begun_s: when the run last changed its status.
    """
    if not workers:
        return now_s - begun_s > START_LIMIT_S
    return all(started is None or started > said + 1 for said, started in workers)

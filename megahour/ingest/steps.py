"""What is done to a recording, what each step needs, and which steps may fail or be switched off."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """A step of ingest, and the memory that one process needs for it.

    A failing critical step quarantines the recording; of a failing other step a NULL and a warning remain.
    """

    name: str
    critical: bool
    memory_mb: int


IDENTIFY = Step("identify", critical=True, memory_mb=300)
TRANSCODE = Step("transcode", critical=True, memory_mb=600)
STEPS = (
    IDENTIFY,
    TRANSCODE,
    Step("frozen_share", critical=False, memory_mb=400),
    Step("dropped_frames", critical=False, memory_mb=200),
    Step("nan_values", critical=False, memory_mb=200),
    Step("action_jump", critical=False, memory_mb=200),
    Step("idle_share", critical=False, memory_mb=200),
)
LEAST_BYTES_S = 100_000
"""Bytes of a recording that any machine gets through in a second."""


def active_steps(skip: str) -> tuple[Step, ...]:
    """All steps but those named in `skip` (comma-separated, as in `MEGAHOUR_SKIP_STEPS`).

    Raises:
        ValueError: a name is no step, or the step is critical.
    """
    unwanted = {name.strip() for name in skip.split(",") if name.strip()}
    optional = {step.name for step in STEPS if not step.critical}
    if wrong := sorted(unwanted - optional):
        raise ValueError(
            f"MEGAHOUR_SKIP_STEPS names {', '.join(wrong)}; what can be switched off is {', '.join(sorted(optional))}"
        )
    return tuple(step for step in STEPS if step.name not in unwanted)


def fitting_workers(steps: Iterable[Step], wanted: int, memory_mb: int) -> int:
    """How many processes may run these steps at once, one step each: at most `wanted`, at least one."""
    largest = max((step.memory_mb for step in steps), default=1)
    return max(1, min(wanted, memory_mb // largest))


def time_limit_s(size_bytes: int, task_s: float) -> float:
    """Seconds that a step may take for so many bytes: `task_s` (`MEGAHOUR_INGEST_TASK_S`), and more where there are
    many."""
    return task_s + size_bytes / LEAST_BYTES_S


def machine_memory_mb() -> int:
    """Memory of this machine, or of this container when that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    allowed = [int(text) for path in limits if path.exists() and (text := path.read_text().strip()).isdigit()]
    return min([physical, *allowed]) // 2**20

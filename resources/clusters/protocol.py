"""The one protocol over all clusters: submit, find, state, logs, cancel, nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol


class JobState(Enum):
    """What a cluster says of a job. `UNKNOWN` is a cluster that cannot be asked; `GONE` one that never heard of it."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    GONE = "gone"

    @property
    def live(self) -> bool:
        """The job holds, or will hold, nodes."""
        return self in (JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True)
class JobSpec:
    """One attempt of a run. `env` is added to the submitter's environment; `processes` are the ranks on one node."""

    run_key: str
    attempt: int
    command: tuple[str, ...]
    run_dir: Path
    env: Mapping[str, str] = field(default_factory=dict)
    processes: int = 1


@dataclass(frozen=True)
class Node:
    """A node as the scheduler sees it."""

    name: str
    state: str
    cpus: int


class ClusterError(RuntimeError):
    """The cluster refused a job, or could not be reached while it had to be."""


class Cluster(Protocol):
    """Where training runs. A backend keeps no state of its own between calls: any process may ask about any job."""

    def submit(self, spec: JobSpec) -> str:
        """Start the attempt and return its job id.

        Attaches instead of starting when the run has a live job, when it cannot be told whether it has, and when this
        attempt or a later one was started before: one (run key, attempt) is one job, whoever submits it how often.

        Raises:
            ClusterError: the job could not be started; the message says why.
        """
        ...

    def find(self, run_key: str) -> str | None:
        """The job id of the run's latest attempt, or None when the cluster knows of none."""
        ...

    def state(self, job_id: str) -> JobState:
        """The job's state. Never raises: a cluster that cannot be asked is `UNKNOWN`."""
        ...

    def logs(self, job_id: str, tail: int = 100) -> str:
        """The last `tail` lines that the job wrote."""
        ...

    def cancel(self, job_id: str) -> None:
        """Ask the job to stop for good: it may save first, and is not started again by itself."""
        ...

    def nodes(self) -> list[Node]:
        """All nodes, whatever their state."""
        ...

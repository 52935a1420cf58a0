"""The embedded cluster: jobs are processes of this machine that outlive whoever submitted them.

A job is a supervisor in its own session (`supervise.py`) with the command under it. What is known of it lies in the
run's directory: `job.json` (the latest attempt: process number, start time, boot id, host), `attempt_N.log`,
`attempt_N.exit`, `attempt_N.cancelled`. `job.lock` orders those who submit one run; it needs `flock`, which a local
disk and Linux's NFS give.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megahour.files import write_atomically
from resources.clusters.processes import boot_id, is_same_process, marked
from resources.clusters.protocol import ClusterError, JobSpec, JobState, Node
from resources.clusters.supervise import MARK

Json = dict[str, Any]


@dataclass(frozen=True)
class LocalCluster:
    """`slots` jobs run at a time, the others are pending; `slots_dir` is shared by all that submit on this machine."""

    runs_dir: Path
    slots_dir: Path
    slots: int = 1

    def submit(self, spec: JobSpec) -> str:
        """See `Cluster.submit`."""
        spec.run_dir.mkdir(parents=True, exist_ok=True)
        with run_lock(spec.run_dir) as lock:
            job = read_json(spec.run_dir / "job.json")
            if job is not None:
                state = self.state(job["job_id"])
                if state.live or state is JobState.UNKNOWN or job["attempt"] >= spec.attempt:
                    return str(job["job_id"])
            start_supervisor(spec, self.slots_dir, self.slots, lock)
        return f"{spec.run_key}.{spec.attempt}"

    def find(self, run_key: str) -> str | None:
        """See `Cluster.find`."""
        job = read_json(self.runs_dir / run_key / "job.json")
        return None if job is None else str(job["job_id"])

    def state(self, job_id: str) -> JobState:
        """See `Cluster.state`. A job whose processes vanished without an exit code has failed."""
        run_dir, attempt = self._place(job_id)
        job = read_json(run_dir / "job.json")
        if job is None or job["attempt"] < attempt:
            return JobState.GONE
        if (ended := ended_state(run_dir, attempt)) is not None:
            return ended
        if job["host"] != socket.gethostname() and job["boot_id"] != boot_id():
            return JobState.UNKNOWN
        if job["attempt"] == attempt and is_same_process(job["pid"], job["start_time"], job["boot_id"]):
            return JobState.PENDING if job["started_at"] is None else JobState.RUNNING
        if marked(MARK, mark(run_dir, attempt)):
            return JobState.RUNNING
        # The supervisor may have written its last word between the two looks.
        cancelled = (run_dir / f"attempt_{attempt}.cancelled").exists()
        return ended_state(run_dir, attempt) or (JobState.CANCELLED if cancelled else JobState.FAILED)

    def logs(self, job_id: str, tail: int = 100) -> str:
        """See `Cluster.logs`; at most the last 256 KiB."""
        run_dir, attempt = self._place(job_id)
        try:
            with (run_dir / f"attempt_{attempt}.log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 2**18))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-tail:])
        except FileNotFoundError:
            return ""

    def cancel(self, job_id: str) -> None:
        """See `Cluster.cancel`. The supervisor passes SIGTERM on, and kills what is left after its grace."""
        run_dir, attempt = self._place(job_id)
        if not self.state(job_id).live:
            return
        write_atomically(run_dir / f"attempt_{attempt}.cancelled", b"")
        job = read_json(run_dir / "job.json")
        if job is not None and is_same_process(job["pid"], job["start_time"], job["boot_id"]):
            os.kill(job["pid"], signal.SIGTERM)
            return
        for pid in marked(MARK, mark(run_dir, attempt)):
            os.kill(pid, signal.SIGTERM)

    def nodes(self) -> list[Node]:
        """This machine."""
        return [Node(name=socket.gethostname(), state="up", cpus=os.cpu_count() or 1)]

    def _place(self, job_id: str) -> tuple[Path, int]:
        run_key, _, attempt = job_id.rpartition(".")
        return self.runs_dir / run_key, int(attempt)


@contextmanager
def run_lock(run_dir: Path) -> Iterator[int]:
    """Hold the run's lock. It ends with the last process that holds the descriptor, so a death releases it."""
    lock = os.open(run_dir / "job.lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def start_supervisor(spec: JobSpec, slots_dir: Path, slots: int, lock: int) -> None:
    """Start the attempt's supervisor and return once it is recorded. It shares the lock until then: a submitter that
    dies in between leaves the run locked, never unrecorded.

    Raises:
        ClusterError: the supervisor died first.
    """
    arguments = [
        *("--run-dir", str(spec.run_dir), "--attempt", str(spec.attempt), "--lock-fd", str(lock)),
        *("--slots-dir", str(slots_dir.absolute()), "--slots", str(slots), "--", *spec.command),
    ]
    started = subprocess.run(
        [sys.executable, "-m", "resources.clusters.supervise", *arguments],
        env={**os.environ, **spec.env, MARK: mark(spec.run_dir, spec.attempt)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=(lock,),
        start_new_session=True,
    )
    if started.returncode != 0:
        log = spec.run_dir / f"attempt_{spec.attempt}.log"
        raise ClusterError(f"The supervisor of run {spec.run_key} did not start, see {log}. {started.stderr.strip()}")


def mark(run_dir: Path, attempt: int) -> str:
    """What the environment of an attempt's processes says."""
    return f"{run_dir.absolute()}#{attempt}"


def ended_state(run_dir: Path, attempt: int) -> JobState | None:
    """What the attempt's exit code says, None while there is none. A cancelled job may well end with 0."""
    ended = read_json(run_dir / f"attempt_{attempt}.exit")
    if ended is None:
        return None
    if (run_dir / f"attempt_{attempt}.cancelled").exists():
        return JobState.CANCELLED
    return JobState.SUCCEEDED if ended["code"] == 0 else JobState.FAILED


def read_json(path: Path) -> Json | None:
    try:
        value: Json = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return value

"""The process that owns one attempt on the local cluster: `python -m resources.clusters.supervise` (see `main`).

It leaves the session of whoever submitted it, records itself before it lets go of the run's lock, waits for a free
slot, runs the command, and leaves its exit code. Standard library only: it starts in milliseconds.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from megahour.files import write_atomically
from resources.clusters.processes import boot_id, marked, start_time

MARK = "MEGAHOUR_JOB"
GRACE_S = 45
SLOT_POLL_S = 0.5


class Supervisor:
    """Holds the attempt's command from the moment it waits for a slot until its last process is gone."""

    def __init__(self, run_dir: Path, attempt: int, command: list[str]) -> None:
        self.run_dir = run_dir
        self.attempt = attempt
        self.command = command
        self.stopping = False
        self.child: subprocess.Popen[bytes] | None = None

    def record(self, started_at: str | None) -> None:
        """Write `job.json`: who runs this attempt."""
        job = {
            "job_id": f"{self.run_dir.name}.{self.attempt}",
            "run_key": self.run_dir.name,
            "attempt": self.attempt,
            "pid": os.getpid(),
            "start_time": start_time(os.getpid()),
            "boot_id": boot_id(),
            "host": socket.gethostname(),
            "command": self.command,
            "started_at": started_at,
        }
        write_json(self.run_dir / "job.json", job)

    def run(self, slots_dir: Path, slots: int) -> None:
        """Wait for a slot, run the command to its end, leave `attempt_N.exit`."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        slot = self._take_slot(slots_dir, slots)
        code = -signal.SIGTERM
        if slot is not None:
            self.record(started_at=now())
            # The command holds the slot too: it stays taken when this process alone is killed.
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, pass_fds=(slot,))
            if self.stopping:
                self._stop(signal.SIGTERM, None)
            code = self.child.wait()
            signal.alarm(0)
            self._kill_leftovers()
        write_json(self.run_dir / f"attempt_{self.attempt}.exit", {"code": code, "ended_at": now()})

    def _take_slot(self, slots_dir: Path, slots: int) -> int | None:
        slots_dir.mkdir(parents=True, exist_ok=True)
        files = [os.open(slots_dir / f"slot_{i}", os.O_CREAT | os.O_RDWR, 0o644) for i in range(slots)]
        while not self.stopping:
            for file in files:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
                except BlockingIOError:
                    continue
            time.sleep(SLOT_POLL_S)
        return None

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.stopping = True
        if self.child is not None:
            self.child.send_signal(signal.SIGTERM)
            signal.alarm(GRACE_S)

    def _kill(self, _signal: int, _frame: FrameType | None) -> None:
        self._kill_leftovers()

    def _kill_leftovers(self) -> None:
        for pid in marked(MARK, os.environ[MARK]):
            if pid != os.getpid():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def now() -> str:
    return datetime.now(UTC).isoformat()


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(value, indent=2).encode())


def detach(log: Path) -> int:
    """Continue in a child in a session of its own, with its output in `log`; returns the descriptor to report on.

    The process that was started exits 0 once the child has reported that it is recorded, 1 when it died before.
    """
    ready, report = os.pipe()
    if os.fork():
        os.close(report)
        os._exit(0 if os.read(ready, 1) else 1)
    os.close(ready)
    os.setsid()
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(empty)
    os.close(output)
    return report


def main() -> None:
    """Arguments: the run's directory, the attempt, the slots, the descriptor of the run's lock, the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--slots-dir", type=Path, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    report = detach(options.run_dir / f"attempt_{options.attempt}.log")
    supervisor = Supervisor(options.run_dir, options.attempt, options.command)
    supervisor.record(started_at=None)
    os.close(options.lock_fd)
    os.write(report, b"1")
    os.close(report)
    supervisor.run(options.slots_dir, options.slots)


if __name__ == "__main__":
    main()

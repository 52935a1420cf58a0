"""The trainer's programs as child processes: `python -m trainer.<module>`, their JSON lines in the Dagster log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from logging import Logger
from pathlib import Path
from typing import Any

import dagster as dg

from megahour.parent import die_with_parent

TAIL_LINES = 30
STOP_S = 20


class TrainerError(RuntimeError):
    """A program of the trainer failed; the message ends with what it said last."""


class TrainerResource(dg.ConfigurableResource[None]):
    """Runs the trainer's programs on this machine. Nothing of them is imported here: torch stays in the child."""

    python: str = sys.executable

    def run(self, program: str, run_dir: Path, step: int, log: Logger) -> dict[str, Any]:
        """Run `trainer.<program>` on a checkpoint and return the last JSON object it printed, `{}` if none.

        Raises:
            TrainerError: it ended with another code than 0.
        """
        arguments = ["-m", f"trainer.{program}", "--run-dir", str(run_dir), "--step", str(step)]
        return stream([self.python, *arguments], log)


def stream(command: Sequence[str], log: Logger) -> dict[str, Any]:
    """Run a command in a process group that ends with this call; log its lines, return its last JSON object.

    Raises:
        TrainerError: it ended with another code than 0.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    last: dict[str, Any] = {}
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
        # A Dagster run that is killed must not leave a program that a second run then races.
        preexec_fn=die_with_parent,
    )
    assert child.stdout is not None
    try:
        for line in child.stdout:
            message = parse_object(line)
            if message is None:
                tail.append(line.rstrip())
                log.debug(line.rstrip())
            else:
                last = message
                log.info(describe(message))
        code = child.wait()
    finally:
        end_group(child)
    if code != 0:
        said = "\n".join(tail) or json.dumps(last)
        raise TrainerError(f"`{' '.join(command)}` ended with code {code}. It said last:\n{said}")
    return last


def parse_object(line: str) -> dict[str, Any] | None:
    """The JSON object that a line holds, None when it holds anything else."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def describe(message: dict[str, Any]) -> str:
    """A line for the log: `rollout policy=trained done=3 of=20`."""
    fields = " ".join(f"{name}={value}" for name, value in message.items() if name != "kind")
    return f"{message.get('kind', 'result')} {fields}"


def end_group(child: subprocess.Popen[str]) -> None:
    """Stop whatever is left of the child's group, and wait for the child."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, ending)
        except ProcessLookupError:
            break
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue
        break
    child.wait()

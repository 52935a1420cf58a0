"""A pool of worker processes that outlives the death of any of them, and says which task it was.

The standard process pool is lost as a whole when one worker dies, and then no one knows which task killed it. Here a
dead worker costs its own task a second try, alone on the machine, and nothing else. A worker that does not come back
in time is killed, and has died.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

OUT_OF_MEMORY = 71
"""Exit code of a worker whose allocation failed."""
START_S = 300.0
"""How long a worker may take until it can work: it imports what its tasks need, maybe from a slow shared disk."""
HANG_UP_S = 30.0
"""How long a worker may take to end after its line broke or it was killed: the kernel has its memory to free."""


class PoolError(RuntimeError):
    """The work cannot go on: a worker does not start, or a task met an error that is not the task's own."""


@dataclass(frozen=True)
class Done(Generic[R]):
    """Task `index` returned `value`."""

    index: int
    value: R


@dataclass(frozen=True)
class Died:
    """The worker of task `index` died twice, the second time running alone; `how` says of what."""

    index: int
    how: str


def run_tasks(
    function: Callable[[T], R], tasks: Sequence[T], limits_s: Sequence[float], workers: int
) -> Generator[Done[R] | Died]:
    """Run `function` over `tasks` in `workers` processes and yield results as they come.

    `function` is one of a module's top level. It returns verdicts on its task; an exception it raises stops
    everything. Close the iterator to stop early: it ends its workers. They end by themselves when this process dies.

    Args:
        limits_s: for each task the seconds after which its worker is killed.

    Raises:
        PoolError: the function raised, or a worker died before its first task.
    """
    again = []
    for event in _crew(function, tasks, limits_s, range(len(tasks)), workers):
        if isinstance(event, Died):
            again.append(event.index)
        else:
            yield event
    for index in again:
        yield from _crew(function, tasks, limits_s, [index], workers=1)


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    due: float
    """When it is killed, as `time.monotonic()` has it."""
    ready: bool = False
    task: int | None = None


def _crew(
    function: Callable[[T], R], tasks: Sequence[T], limits_s: Sequence[float], indices: Sequence[int], workers: int
) -> Generator[Done[R] | Died]:
    waiting = deque(indices)
    crew: dict[Connection, _Worker] = {}
    try:
        while waiting or any(worker.task is not None for worker in crew.values()):
            while len(crew) < workers and sum(worker.task is None for worker in crew.values()) < len(waiting):
                started = _start(function)
                crew[started.connection] = started
            answers = wait(list(crew), _time_left(crew.values()))
            if not answers:
                # Only now: what came while the caller was busy came in time.
                yield from _kill_late(crew, limits_s)
            for connection in answers:
                assert isinstance(connection, Connection)
                worker = crew[connection]
                try:
                    kind, value = connection.recv()
                except (EOFError, OSError):
                    del crew[connection]
                    how = _reap(worker)
                    if not worker.ready:
                        raise PoolError(f"A worker process ended before it could work: {how}") from None
                    if worker.task is not None:
                        yield Died(worker.task, how)
                    continue
                if kind == "raised":
                    raise PoolError(value)
                if kind == "done":
                    assert worker.task is not None
                    finished, worker.task = worker.task, None
                    yield Done(finished, value)
                worker.ready, worker.due = True, math.inf
                if waiting:
                    worker.task = waiting.popleft()
                    worker.due = time.monotonic() + limits_s[worker.task]
                    _hand_over(worker, tasks[worker.task])
    finally:
        for worker in crew.values():
            _stop(worker)


def _time_left(crew: Iterable[_Worker]) -> float | None:
    """Seconds until the first of them is late; None when none can be."""
    due = min(worker.due for worker in crew)
    return None if due == math.inf else max(0.0, due - time.monotonic())


def _kill_late(crew: dict[Connection, _Worker], limits_s: Sequence[float]) -> Generator[Died]:
    for worker in [each for each in crew.values() if each.due <= time.monotonic()]:
        del crew[worker.connection]
        _stop(worker)
        if worker.task is None:
            raise PoolError(f"A worker process was not ready to work after {START_S:.0f} s, and was killed")
        limit_s = limits_s[worker.task]
        yield Died(
            worker.task, f"killed, still at work after {limit_s:.0f} s; MEGAHOUR_INGEST_TASK_S gives a recording more"
        )


def _start(function: Callable[[Any], Any]) -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "megahour.ingest.worker", str(theirs.fileno()), str(os.getpid())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment)
    worker = _Worker(process, Connection(ours.detach()), due=time.monotonic() + START_S)
    _hand_over(worker, function)
    return worker


def _hand_over(worker: _Worker, message: Any) -> None:
    try:
        worker.connection.send(message)
    except OSError:
        # It is dead; the next receive finds that out, in the one place that deals with it.
        return


def _reap(worker: _Worker) -> str:
    """Collect a worker that hung up, and say how it ended."""
    try:
        code: int | None = worker.process.wait(timeout=HANG_UP_S)
    except subprocess.TimeoutExpired:
        code = None
    _stop(worker)
    return _how_it_ended(code)


def _stop(worker: _Worker) -> None:
    worker.process.kill()
    # The kernel ends none that waits for a disk that does not answer; one more to wait for it would change nothing.
    with suppress(subprocess.TimeoutExpired):
        worker.process.wait(timeout=HANG_UP_S)
    worker.connection.close()


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "it hung up and did not end"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, which is what the kernel does when memory runs out"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code == OUT_OF_MEMORY:
        return "it ran out of memory"
    return f"exit code {code}"

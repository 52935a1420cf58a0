"""The child's side: one simulator, told over a pipe what to do, gone when its parent is gone."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from megahour.parent import end_with_parent
from megahour.simulators.model import SimulatorError


def main() -> None:
    """`python -m megahour.simulators.worker FD PARENT_PID`: serve requests until the pipe closes."""
    connection = Connection(int(sys.argv[1]))
    end_with_parent(int(sys.argv[2]))
    # Ctrl-C reaches the whole foreground group; the parent decides what it means for the simulator.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(connection)
    # OpenGL contexts complain when the interpreter tears them down in its own order.
    os._exit(0)


def serve(connection: Connection) -> None:
    """Answer `(method, arguments)` with `(True, result)` or `(False, error text)`, until the other end is gone."""
    simulator: Any = None
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, OSError):
            return
        answer: tuple[bool, Any]
        try:
            if method == "open":
                simulator = _open(**arguments)
                answer = (True, simulator.versions())
            else:
                answer = (True, getattr(simulator, method)(**arguments))
        except Exception as error:
            traceback.print_exc()
            answer = (False, str(error) if isinstance(error, SimulatorError) else f"{type(error).__name__}: {error}")
        try:
            connection.send(answer)
        except OSError:
            return


def _open(name: str, task: str, size: tuple[int, int], cameras: tuple[str, ...]) -> Any:
    if name != "metaworld":
        raise SimulatorError(f"There is no simulator {name!r}; there is: metaworld")
    return importlib.import_module("megahour.simulators.metaworld").MetaWorld(task, size, cameras)


if __name__ == "__main__":
    main()

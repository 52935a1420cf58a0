"""A worker process of the pool, `python -m megahour.ingest.worker FD PARENT_PID`: receives one function, then tasks,
until its parent closes the line or dies.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection

from megahour.ingest.pool import OUT_OF_MEMORY
from megahour.parent import end_with_parent


def serve(connection: Connection) -> None:
    """Answer each task with `("done", value)` or `("raised", text)`."""
    function = connection.recv()
    connection.send(("ready", None))
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        try:
            value = function(task)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except Exception as error:
            traceback.print_exc()
            connection.send(("raised", f"{type(error).__name__}: {error}"))
        else:
            connection.send(("done", value))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(int(sys.argv[2]))
    serve(Connection(int(sys.argv[1])))

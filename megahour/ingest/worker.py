"""A worker process of the pool: receives one function, then tasks, until its parent closes the line or dies."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection

from megahour.ingest.pool import OUT_OF_MEMORY


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


def end_with_parent() -> None:
    """Wait for the parent's death and end at once, in the middle of a task too."""
    # Not sys.stdin: a thread that holds its lock breaks the interpreter's own shutdown.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    serve(Connection(int(sys.argv[1])))

"""A child process that ends with the one that started it, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

WATCH_S = 0.25

# Loaded here, because between fork and exec nothing may be imported.
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """In a child before it starts a program (`preexec_fn`): the kernel kills it when the thread that started it ends.

    For a thread that waits for the child, and a program that cannot watch its parent itself.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_at_once() -> None:
    os._exit(1)


def end_with_parent(parent: int, ending: Callable[[], None] = end_at_once) -> None:
    """Watch the parent process from a thread, and call `ending` in it when the parent is gone.

    Args:
        parent: the number of the process that started this one, as it says itself or as `os.getppid()` gives it.
    """

    # The kernel's parent-death signal fires when the *thread* that started the child ends, and a pipe stays open while
    # any fork of the parent lives; the parent's number changes exactly when the parent is gone.
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        ending()

    threading.Thread(target=watch, daemon=True).start()

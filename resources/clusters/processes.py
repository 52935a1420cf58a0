"""Which processes of this machine are alive, told apart from those that reuse their number. Reads Linux's `/proc`."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def boot_id() -> str:
    """The identity of this boot of the kernel."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is none, or only its zombie."""
    try:
        # The command name may hold spaces and parentheses: fields are counted from the last one (proc(5)).
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_same_process(pid: int, started: int, boot: str) -> bool:
    """True while the process that had this number, start time and boot is alive."""
    return boot == boot_id() and start_time(pid) == started


def marked(variable: str, value: str) -> list[int]:
    """The living processes that were started with `variable=value` in their environment.

    An environment is inherited by every descendant, through new sessions and past the death of parents, and a process
    that reuses a number does not have it.
    """
    needle = f"{variable}={value}".encode()
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if needle in environment.split(b"\0") and start_time(int(entry.name)) is not None:
            found.append(int(entry.name))
    return sorted(found)


def started_at(pid: int) -> float | None:
    """When the process started, in seconds since the epoch; None when there is none, or only its zombie."""
    ticks = start_time(pid)
    if ticks is None:
        return None
    booted = next(line for line in (PROC / "stat").read_text().splitlines() if line.startswith("btime"))
    return float(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")

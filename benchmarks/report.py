"""What all benchmarks share: the two options, the conditions, a table, and the same as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]


def conditions(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Where and with what this is measured. The load is that before the benchmark."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load": [round(load, 2) for load in os.getloadavg()],
        "kernel": platform.release(),
        "commit": commit(ROOT),
        "versions": {"python": platform.python_version(), **{name: installed(name) for name in packages}},
    }


def cpu_model(cpuinfo: str) -> str:
    """The name of the processor in `/proc/cpuinfo`, else the machine's kind."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def installed(package: str) -> str:
    """The version of a package, `absent` without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def commit(root: Path) -> str:
    """The commit of this tree, with `+` when files differ from it; `unknown` outside of git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def run(
    name: str,
    claim: str,
    measure: Callable[[bool], list[Row]],
    packages: Sequence[str] = (),
    sides: str | None = None,
) -> None:
    """The main program of a benchmark.

    Args:
        claim: one sentence: what the figures say.
        measure: gives the rows, all with the same columns; its argument is true for `--quick` (under a minute).
        packages: whose versions matter.
        sides: what exactly each side of a comparison does, printed below the table; the benchmark's own docstring.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=claim)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write conditions and figures there too")
    options = parser.parse_args()
    found = conditions(packages)
    rows = measure(options.quick)
    console = Console()
    show(console, name, claim, found, rows)
    report = {"benchmark": name, "quick": options.quick, "conditions": found, "rows": rows}
    if sides is not None:
        console.print(sides.strip(), style="dim", highlight=False, markup=False)
        report["sides"] = sides.strip()
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def show(console: Console, name: str, claim: str, found: dict[str, Any], rows: list[Row]) -> None:
    """Print the table, and the conditions below it."""
    table = Table(title=f"{name}: {claim}", title_justify="left", box=None, pad_edge=False)
    for column in rows[0]:
        number = all(isinstance(row[column], int | float) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
    versions = ", ".join(f"{package} {number}" for package, number in found["versions"].items())
    console.print(
        f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB, load {found['load'][0]} before, "
        f"Linux {found['kernel']}, commit {found['commit']}, {found['time']}; {versions}",
        style="dim",
        highlight=False,
    )

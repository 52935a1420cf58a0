"""Makes `.venv` once, and again when what it is made from changed. Standard library only: for a bare Python."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("constraints.txt", "pyproject.toml")
EXTRAS = "simulation,dev"
STAMP = ".installed"
OLDEST_PYTHON = (3, 11)


def fingerprint(sources: Iterable[Path], python: str, extras: str) -> str:
    """What an environment is made from, as 64 hexadecimal digits."""
    digest = hashlib.sha256(f"{python}\0{extras}\0".encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current(venv: Path, wanted: str) -> bool:
    """Whether an installation of exactly this has finished in `venv`."""
    try:
        return (venv / STAMP).read_text() == wanted and (venv / "bin" / "python").exists()
    except FileNotFoundError:
        return False


def write_stamp(venv: Path, wanted: str) -> None:
    """Say that the installation has finished: the last act, and whole or absent."""
    partial = venv / f"{STAMP}.tmp"
    partial.write_text(wanted)
    partial.replace(venv / STAMP)


def python_of(venv: Path) -> str | None:
    """The version of Python that `venv` was made with, None when there is none."""
    try:
        lines = (venv / "pyvenv.cfg").read_text().splitlines()
    except FileNotFoundError:
        return None
    found = [value.strip() for name, _, value in (line.partition("=") for line in lines) if name.strip() == "version"]
    return found[0] if found else None


def install(root: Path) -> int:
    """Bring `root/.venv` up to date; returns the exit code."""
    if sys.version_info < OLDEST_PYTHON:
        print(f"Python {sys.version.split()[0]} is too old: install 3.11 or later", file=sys.stderr)
        return 1
    venv = root / ".venv"
    python = sys.version.split()[0]
    wanted = fingerprint([root / name for name in SOURCES], python, EXTRAS)
    if is_current(venv, wanted):
        return 0
    (venv / STAMP).unlink(missing_ok=True)
    print("Installing into .venv (some minutes the first time)", flush=True)
    fresh = [] if python_of(venv) in (None, python) else ["--clear"]
    subprocess.run([sys.executable, "-m", "venv", *fresh, str(venv)], check=True)
    quiet = [] if sys.stdout.isatty() else ["-q"]
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", *quiet, "--disable-pip-version-check", "--no-input"]
    environment = {**os.environ, "PYTHONNOUSERSITE": "1"}
    subprocess.run([*pip, "-c", "constraints.txt", "-e", f".[{EXTRAS}]"], cwd=root, env=environment, check=True)
    write_stamp(venv, wanted)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(install(ROOT))
    except subprocess.CalledProcessError as error:
        print(f"The installation failed (code {error.returncode}); what it said is above", file=sys.stderr)
        sys.exit(1)

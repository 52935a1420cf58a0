"""Makes `.peers/`: other projects' programs that tests compare ours with, each in an environment of its own.

`lerobot` reads what we export; `tools` holds `pymcap-cli`, whose licence is the GPL: it is run as a program, and
nothing of it is imported. Made once, and again when a pin changes. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from infra.laptop.install import ROOT, fingerprint, is_current, python_of, write_stamp

FOLDER = ROOT / ".peers"


@dataclass(frozen=True)
class Peer:
    """An environment: `packages` are installed with what they need, `alone` without.

    What LeRobot says it needs would bring another torch, CUDA builds and a window system.
    """

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


PEERS = (
    Peer(
        "lerobot",
        packages=(
            "torch==2.13.0",
            "datasets==5.2.0",
            "av==18.1.0",
            "jsonlines==4.0.0",
            "requests==2.34.2",
            "packaging==26.4",
            "accelerate==1.15.0",
            "pillow==13.0.0",
            "mcap==1.6.0",
            "mcap-protobuf-support==0.6.0",
            "foxglove-schemas-protobuf==0.4.0",
        ),
        alone=("lerobot==0.4.4", "torchvision==0.25.0", "torchcodec==0.13.0", "mcap-frames==0.1.0"),
    ),
    Peer("tools", packages=("pymcap-cli==0.34.0",)),
)


def make(peer: Peer, folder: Path) -> bool:
    """Bring one environment up to date; returns whether it had to be.

    Raises:
        subprocess.CalledProcessError: pip or venv failed.
    """
    venv = folder / peer.name
    python = sys.version.split()[0]
    wanted = fingerprint([], python, repr(peer))
    if is_current(venv, wanted):
        return False
    # From nothing: what an older list of pins installed would stay beside the new.
    fresh = [] if python_of(venv) is None else ["--clear"]
    print(f"Installing {peer.name} into {venv} (some minutes the first time)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", *fresh, str(venv)], check=True)
    quiet = [] if sys.stdout.isatty() else ["-q"]
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", *quiet, "--disable-pip-version-check", "--no-input"]
    environment = {**os.environ, "PYTHONNOUSERSITE": "1"}
    subprocess.run([*pip, *peer.packages], env=environment, check=True)
    if peer.alone:
        subprocess.run([*pip, "--no-deps", *peer.alone], env=environment, check=True)
    write_stamp(venv, wanted)
    return True


def main() -> int:
    """Make all of them; returns the exit code."""
    for peer in PEERS:
        try:
            make(peer, FOLDER)
        except (subprocess.CalledProcessError, OSError) as error:
            how = f"code {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else str(error)
            print(
                f"The environment {FOLDER / peer.name} could not be made ({how}); what was said is above. It needs "
                "PyPI and 1.6 GB of disk. Without it, `.venv/bin/python -m pytest` skips the tests that compare with "
                "other projects",
                file=sys.stderr,
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

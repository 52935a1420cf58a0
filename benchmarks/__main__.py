"""`python -m benchmarks`: every benchmark, quick, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NOT_BENCHMARKS = {
    "__init__",
    "__main__",
    "decode",
    "episodes",
    "jpeg",
    "patterns",
    "peer_reader",
    "report",
    "rounds",
    "slow_store",
}


def names() -> list[str]:
    """The benchmarks of this folder."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def main() -> int:
    failed = [
        name for name in names() if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--quick"]).returncode
    ]
    if failed:
        print(f"These benchmarks failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Does a checkpoint load, and are its weights finite? `python -m trainer.loadable --run-dir DIR --step N`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainer.checkpoint import CheckpointError
from trainer.export import read_weights


def main() -> None:
    parser = argparse.ArgumentParser(description="Check that a checkpoint loads and holds finite numbers only.")
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's directory")
    parser.add_argument("--step", type=int, required=True, help="the checkpoint's step")
    arguments = parser.parse_args()
    try:
        saved, weights = read_weights(arguments.run_dir, arguments.step)
    except CheckpointError as error:
        print(json.dumps({"loadable": False, "finite": False, "error": str(error)}))
        raise SystemExit(1) from error
    broken = sorted(name for name, weight in weights.items() if not weight.isfinite().all())
    parameters = sum(w.numel() for w in weights.values())
    print(
        json.dumps(
            {
                "loadable": True,
                "finite": not broken,
                "parameters": parameters,
                "size_bytes": saved.size_bytes,
                "not_finite": broken,
            }
        )
    )
    raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()

"""A lake of toy episodes and runs on it: small enough to train in seconds, real in every layer below."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from megahour.manifest.build import build_manifest
from megahour.manifest.load import Manifest
from megahour.manifest.recipe import Recipe
from megahour.runs import Intent, run_key, write_intent
from megahour.storage import Lake, open_lake
from resources.training import TORCHRUN_ENVIRONMENT
from tests.ingest.recordings import ingest_all, landing
from tests.ingest.recordings import make_lake as make_ingest_lake

RECIPE = Recipe.model_validate(
    {
        "name": "toy",
        "mixture": [{"name": "all", "filter": "robot = 'toy'"}],
        "validation_share": 0.25,
        "observation": {"cameras": ["front"], "size": [32, 32]},
        "windows": {"future_frames": [1, 2], "actions": 2},
        "train": {"steps": 6, "batch": 4, "checkpoint_every": 3, "validate_every": 3},
    }
)
SHAPE = {"dim": 64, "ffn_dim": 128, "layers": 2, "heads": 2, "adapter_dim": 64, "frequency_dim": 32}
"""Overrides that make preset nano smaller still."""


def write_moving_square(path: Path, seed: int, steps: int = 14) -> None:
    """An episode in which a square moves as the state and the action say: there is something to learn."""
    import h5py

    direction = [(1, 1), (1, -1), (-1, 1), (-1, -1)][seed % 4]
    velocity = np.array([direction]).repeat(steps, axis=0)
    place = (seed % 3 + 12 + np.cumsum(velocity, axis=0)).clip(2, 24)
    pictures = np.full((steps, 32, 32, 3), 40, np.uint8)
    for t, (y, x) in enumerate(place):
        pictures[t, y : y + 6, x : x + 6] = (220, 180, 60)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.attrs.update({"robot": "toy", "task": "drift", "success": True, "rate_hz": 20.0})
        file.create_dataset("observations/images/front", data=pictures, chunks=(1, 32, 32, 3), compression="gzip")
        file.create_dataset("observations/qpos", data=velocity.astype(np.float32))
        file.create_dataset("action", data=velocity.astype(np.float32))


def make_lake(folder: Path, episodes: int = 8) -> Lake:
    """A lake with toy episodes, ingested for real."""
    lake, settings = make_ingest_lake(folder)
    for seed in range(episodes):
        write_moving_square(landing(lake) / "toy" / f"{seed}.hdf5", seed)
    ingest_all(lake, settings)
    return lake


def make_run(lake: Lake, runs_dir: Path, **changes: Any) -> tuple[Path, Manifest]:
    """A run on the toy recipe, its intent written; `changes` go to the recipe's train section."""
    manifest = build_manifest(lake, RECIPE)
    assert RECIPE.train is not None
    train = RECIPE.train.model_copy(update={"overrides": SHAPE, **changes})
    config = {"train": train.model_dump(mode="json", exclude={"launch"}), "evaluate": None}
    header = manifest.header
    intent = Intent(
        run_key=run_key(header.digest, config, "test", train.seed),
        recipe="toy",
        lake=lake.uri,
        manifest=manifest.key,
        manifest_digest=header.digest,
        table_versions=header.table_versions,
        config=config,
        code_version="test",
        seed=train.seed,
        created_at=datetime.now(UTC).isoformat(),
    )
    return write_intent(runs_dir, intent), manifest


def torchrun(run_dir: Path, ranks: int, restarts: int = 0) -> list[str]:
    """The command that trains a run."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    trainer = ["-m", "trainer.train", "--run-dir", str(run_dir)]
    return [sys.executable, *launcher, "--max-restarts", str(restarts), *trainer]


def environment(scratch: Path) -> dict[str, str]:
    """The environment of a training process in tests: one thread per rank, its own scratch."""
    return {**os.environ, **TORCHRUN_ENVIRONMENT, "MEGAHOUR_SCRATCH": str(scratch), "OMP_NUM_THREADS": "1"}


def train(run_dir: Path, ranks: int, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """Train a run to its end in processes of its own."""
    return subprocess.run(
        torchrun(run_dir, ranks, restarts),
        env=environment(run_dir.parent / "scratch"),
        capture_output=True,
        text=True,
        timeout=240,
    )


def reopen(lake: Lake) -> Lake:
    """The same lake as another process sees it."""
    return open_lake(lake.uri)

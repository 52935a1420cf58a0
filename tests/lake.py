"""Rows of tables for tests: episodes that never were, with every column that a manifest reads."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from megahour.storage import Lake, open_lake

Row = dict[str, Any]
INGESTED_AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def make_lake(folder: Path) -> Lake:
    return open_lake(folder.as_uri())


def stats_of(values: np.ndarray) -> Row:
    """The moments of `(n, d)` values as the tables hold them."""
    mean = values.mean(axis=0)
    return {
        "count": len(values),
        "mean": mean.tolist(),
        "m2": ((values - mean) ** 2).sum(axis=0).tolist(),
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
    }


def series_of(index: int, frames: int, columns: int) -> np.ndarray:
    """The values an episode is said to have, `(frames, columns)`."""
    return np.random.default_rng([index, columns]).normal(index, 1 + index, (frames, columns))


def episode_row(index: int, **changes: Any) -> Row:
    frames = changes.get("frames", 50 + index % 7)
    row = {
        "episode_id": f"e{index:05d}",
        "recording_id": f"r{index:05d}",
        "recording_uri": f"landing/sim/{index}.hdf5",
        "index": 0,
        "uri": f"episodes/2026-01-02/e{index:05d}.mcap",
        "etag": f'"{index}"',
        "size_bytes": 1000 + index,
        "sha256": hashlib.sha256(str(index).encode()).hexdigest(),
        "recording_bytes": 5000,
        "robot": "sawyer",
        "task": "press",
        "source": "sim",
        "format": "aloha_hdf5",
        "success": index % 4 != 0,
        "rate_hz": 20.0,
        "duration_s": frames / 20,
        "frames": frames,
        "cameras": ["front", "wrist"],
        "state_dim": 4,
        "action_dim": 2,
        "state_stats": stats_of(series_of(index, frames, 4)),
        "action_stats": stats_of(series_of(index, frames, 2)),
        "profile": "mixed",
        "container_version": 1,
        "batch": "20260102T0304-0000",
        "ingested_at": INGESTED_AT,
        "revision": 1,
    }
    return {**row, **changes}


def recording_row(index: int, **changes: Any) -> Row:
    row = {
        "recording_id": f"r{index:05d}",
        "uri": f"landing/sim/{index}.hdf5",
        "format": "aloha_hdf5",
        "source": "sim",
        "files": 1,
        "size_bytes": 5000,
        "batch": "20260102T0304-0000",
        "landed_at": INGESTED_AT,
        "revision": 1,
    }
    return {**row, **changes}

"""Small synthetic recordings in the ALOHA layout, and what tests ask of a lake after an ingest."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from megahour.ingest.discover import discover
from megahour.ingest.land import land_batch
from megahour.ingest.plan import Batch, read_batch
from megahour.ingest.run import IngestReport, ingest_batch
from megahour.settings import Settings
from megahour.storage import Lake, open_lake
from megahour.warehouse.queries import query
from megahour.warehouse.tables import open_table

NOON = datetime(2031, 1, 1, 12, 0, tzinfo=UTC)
"""When tests discover: batch keys are then the same in every lake."""


def write_recording(path: Path, seed: int, steps: int = 12) -> Path:
    """An episode of `steps` steps with one 32x48 camera; the same seed gives the same content."""
    import h5py

    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.attrs.update({"robot": "toy", "task": "push", "success": True, "rate_hz": 20.0, "seed": seed})
        pictures = rng.integers(0, 255, (1, 32, 48, 3), np.uint8).repeat(steps, axis=0)
        pictures[np.arange(steps), 10, np.arange(steps) % 48] = 255
        file.create_dataset("observations/images/front", data=pictures, chunks=(1, 32, 48, 3), compression="lzf")
        file.create_dataset("observations/qpos", data=rng.normal(size=(steps, 3)).cumsum(axis=0).astype(np.float32))
        file.create_dataset("action", data=rng.normal(size=(steps, 2)).astype(np.float32))
    return path


def truncate(path: Path) -> Path:
    """Cut a file short, as a copy that broke off."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)
    return path


def make_lake(tmp_path: Path) -> tuple[Lake, Settings]:
    """An empty lake and settings to ingest into it."""
    lake = open_lake((tmp_path / "lake").as_uri())
    return lake, Settings(lake=lake.uri, scratch=tmp_path / "scratch", settle_s=3.0)


def landing(lake: Lake) -> Path:
    """The landing zone's folder of a local lake."""
    folder = lake.local_path("landing")
    assert folder is not None
    return folder


def discovered(lake: Lake, settings: Settings, cursor: str = "") -> list[Batch]:
    """The batches that a discovery asks for, at a time when everything has settled."""
    found = discover(lake, settings, cursor, NOON, time.monotonic() + 60)
    return [read_batch(lake, key) for key in found.batches_to_request]


def ingest_all(lake: Lake, settings: Settings) -> list[IngestReport]:
    """Discover, land and ingest all there is; batches known from before run again."""
    reports = []
    for batch in discovered(lake, settings):
        land_batch(lake, settings, batch)
        reports.append(ingest_batch(lake, settings, batch))
    return reports


def rows(lake: Lake, table: str) -> list[dict]:
    """All rows ever appended to a table, sorted, without the columns that hold a time."""
    delta = open_table(lake, table)
    if delta is None:
        return []
    found = delta.to_pyarrow_table().to_pylist()
    plain = [{name: value for name, value in row.items() if not isinstance(value, datetime)} for row in found]
    return sorted(plain, key=lambda row: (row["key"], row["revision"], repr(row)))


def contents(lake: Lake) -> dict[str, list[dict]]:
    """All rows of the tables that an ingest writes."""
    return {name: rows(lake, name) for name in ("recordings", "episodes", "quarantine", "episode_quality")}


def quarantine(lake: Lake) -> dict[str, tuple[str, str]]:
    """URI to state and reason, as of now."""
    return {row["uri"]: (row["state"], row["reason"]) for row in query(lake, "FROM quarantine").to_pylist()}

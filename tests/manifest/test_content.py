"""A digest names content: the same recordings give the same one in any lake, and other bytes give another."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from megahour.files import sha256_of
from megahour.ingest.discover import discover
from megahour.ingest.plan import read_batch
from megahour.ingest.run import ingest_batch
from megahour.manifest.build import build_manifest
from megahour.manifest.load import Manifest
from megahour.manifest.recipe import Component, Observation, Recipe, Windows
from megahour.settings import Settings
from megahour.storage import Lake, sha256
from megahour.warehouse.queries import query
from megahour.warehouse.tables import append
from tests.ingest.recordings import NOON, landing, make_lake, rows, write_recording
from tests.samples import copy_g1

RECIPE = Recipe(
    name="all",
    mixture=(Component(name="all", filter="true"),),
    validation_share=0.3,
    observation=Observation(cameras=()),
    windows=Windows(future_frames=(2,), actions=4),
)


def ingest(lake: Lake, settings: Settings, now: datetime) -> list[str]:
    """Ingest what landed since; returns the batches."""
    keys = discover(lake, settings, "", now, time.monotonic() + 60).batches_to_request
    for key in keys:
        ingest_batch(lake, settings, read_batch(lake, key))
    return list(keys)


def ingest_one_by_one(lake: Lake, settings: Settings, seeds: Sequence[int]) -> Manifest:
    for day, seed in enumerate(seeds):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
        ingest(lake, settings, NOON + timedelta(days=day))
    return build_manifest(lake, RECIPE)


def test_two_lakes_with_the_same_recordings_agree_whatever_the_order_and_the_batches(tmp_path: Path) -> None:
    lake, settings = make_lake(tmp_path / "at_once")
    for seed in range(3):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
    assert len(ingest(lake, settings, NOON)) == 1
    one = build_manifest(lake, RECIPE)
    other = ingest_one_by_one(*make_lake(tmp_path / "day_by_day"), [2, 0, 1])
    assert other.header.digest == one.header.digest
    places = [manifest.table()["uri"].to_pylist() for manifest in (one, other)]
    assert places[0] != places[1], "the lakes differ in where they keep the files"
    content = [manifest.table().drop_columns(["uri", "etag"]) for manifest in (one, other)]
    assert content[0].equals(content[1])


def test_one_recording_more_or_another_revision_of_an_episode_is_another_digest(tmp_path: Path) -> None:
    lake, settings = make_lake(tmp_path)
    digests = [ingest_one_by_one(lake, settings, [0, 1]).header.digest]
    digests.append(ingest_one_by_one(lake, settings, [2]).header.digest)
    (row,) = query(lake, "FROM episodes ORDER BY key LIMIT 1").to_pylist()
    other_bytes = {**row, "sha256": "0" * 64, "revision": 2}
    del other_bytes["key"]
    append(lake, "episodes", [other_bytes], once="written anew")
    digests.append(build_manifest(lake, RECIPE).header.digest)
    assert len(set(digests)) == 3


def test_a_row_and_a_manifest_name_the_bytes_of_the_stored_file(tmp_path: Path) -> None:
    lake, settings = make_lake(tmp_path)
    manifest = ingest_one_by_one(lake, settings, [0, 1])
    named = dict(zip(*(manifest.table()[name].to_pylist() for name in ("uri", "sha256")), strict=True))
    for row in rows(lake, "episodes"):
        path = lake.local_path(row["uri"])
        assert path is not None
        assert row["sha256"] == sha256_of(path) == sha256(lake, row["uri"]) == named[row["uri"]]


def test_of_a_file_that_is_taken_over_its_own_bytes_are_named(tmp_path: Path) -> None:
    lake, settings = make_lake(tmp_path)
    ingest_one_by_one(lake, settings, [0])
    (first,) = rows(lake, "episodes")
    for folder in ("tables", "batches"):
        shutil.rmtree(tmp_path / "lake" / folder)
    # The source's name is written in the container: a new one has other bytes.
    shutil.move(landing(lake) / "toys", landing(lake) / "renamed")
    ingest(lake, settings, NOON)
    (second,) = rows(lake, "episodes")
    assert second["source"] == "renamed"
    assert second["sha256"] == first["sha256"] == sha256(lake, second["uri"])


@pytest.mark.timeout(600)
def test_two_runs_over_real_recordings_agree(tmp_path: Path) -> None:
    digests = []
    for day in range(2):
        lake, settings = make_lake(tmp_path / str(day))
        copy_g1(landing(lake) / "g1", [0])
        ingest(lake, settings, NOON + timedelta(days=day))
        digests.append(build_manifest(lake, RECIPE).header.digest)
    assert digests[0] == digests[1]

"""Checks of assets look, and leave nothing behind."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml

from assets import checks
from megahour.manifest.build import build_manifest
from megahour.manifest.recipe import Recipe
from megahour.settings import Settings
from megahour.storage import open_lake
from megahour.warehouse.tables import append
from resources.clusters.protocol import JobState
from resources.lake import LakeResource
from resources.training import Attempt, record_attempt
from tests.lake import episode_row
from tests.sensors.conftest import settings  # noqa: F401

RECIPE = {
    "name": "demo",
    "mixture": [{"name": "all", "filter": "true"}],
    "observation": {"cameras": ["front"]},
    "windows": {"stride": 2},
}


def call(check: dg.AssetChecksDefinition, partition: str, *resources: Any) -> dg.AssetCheckResult:
    """The check's function by itself: Dagster runs a partitioned check only together with its asset."""
    op: Any = check.op
    context = SimpleNamespace(partition_key=partition)
    found: dg.AssetCheckResult = op.compute_fn.decorated_fn(context, LakeResource(), *resources)
    return found


def files_in(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def test_a_digest_is_checked_against_what_it_was_built_from(settings: Settings) -> None:  # noqa: F811
    lake = open_lake(settings.lake_uri)
    append(lake, "episodes", [episode_row(i) for i in range(10)], once="rows")
    built = build_manifest(lake, Recipe.model_validate(RECIPE))
    append(lake, "episodes", [episode_row(i) for i in range(10, 20)], once="later")
    (settings.recipes / "demo.yaml").write_text(yaml.safe_dump({**RECIPE, "windows": {"stride": 3}}))
    assert lake.root is not None
    before = files_in(lake.root)
    assert call(checks.digest_is_reproducible, "demo").passed, (
        "neither later episodes nor an edited recipe are what it was built from"
    )
    assert files_in(lake.root) == before

    wrong = "0" * 64
    header = json.loads(built.path.with_suffix(".json").read_text())
    for suffix in (".arrow", ".json"):
        built.path.with_suffix(suffix).rename(built.path.with_name(wrong + suffix))
    built.path.with_name(f"{wrong}.json").write_text(json.dumps({**header, "digest": wrong}))
    (built.path.parent / "latest").write_text(wrong)
    before = files_in(lake.root)
    found = call(checks.digest_is_reproducible, "demo")
    assert not found.passed
    assert found.metadata["stored"] == dg.MetadataValue.text(wrong)
    assert found.metadata["again"] == dg.MetadataValue.text(built.header.digest)
    assert files_in(lake.root) == before


@pytest.mark.parametrize(
    ("state", "passed"),
    [(JobState.RUNNING, True), (JobState.UNKNOWN, True), (JobState.FAILED, False), (JobState.GONE, False)],
)
def test_a_cluster_that_cannot_be_asked_condemns_no_run(
    settings: Settings,  # noqa: F811
    state: JobState,
    passed: bool,
) -> None:
    run_dir = settings.runs_dir / "abc"
    run_dir.mkdir(parents=True)
    record_attempt(run_dir, Attempt(1, "job", "local", "2026-01-01T00:00:00+00:00"))
    cluster = SimpleNamespace(open=lambda: SimpleNamespace(state=lambda job_id: state))
    assert call(checks.run_is_alive, "abc", cluster).passed is passed


@pytest.mark.parametrize("column", ["episode_id", "sha256"])
def test_an_episode_on_both_sides_of_a_split_is_found(
    settings: Settings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    column: str,
) -> None:
    rows = {"split": ["train", "train", "validation"], "episode_id": ["a", "b", "c"], "sha256": ["1", "2", "3"]}

    def verdict() -> bool:
        built = SimpleNamespace(table=lambda: pa.table(rows))
        monkeypatch.setattr(checks, "latest", lambda recipe, lake: built)
        return call(checks.splits_are_disjoint, "demo").passed

    assert verdict()
    rows[column][2] = rows[column][0]
    assert not verdict()

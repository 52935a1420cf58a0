"""Checks of assets look, and leave nothing behind."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import yaml

from assets import checks
from megahour.manifest.build import build_manifest
from megahour.manifest.recipe import Recipe
from megahour.settings import Settings
from megahour.storage import open_lake
from megahour.warehouse.tables import append
from resources.lake import LakeResource
from tests.lake import episode_row
from tests.sensors.conftest import settings  # noqa: F401

RECIPE = {
    "name": "demo",
    "mixture": [{"name": "all", "filter": "true"}],
    "observation": {"cameras": ["front"]},
    "windows": {"stride": 2},
}


def check() -> dg.AssetCheckResult:
    """The check's function by itself: Dagster runs a partitioned check only together with its asset."""
    op: Any = checks.digest_is_reproducible.op
    found: dg.AssetCheckResult = op.compute_fn.decorated_fn(SimpleNamespace(partition_key="demo"), LakeResource())
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
    assert check().passed, "neither later episodes nor an edited recipe are what it was built from"
    assert files_in(lake.root) == before

    wrong = "0" * 64
    header = json.loads(built.path.with_suffix(".json").read_text())
    for suffix in (".arrow", ".json"):
        built.path.with_suffix(suffix).rename(built.path.with_name(wrong + suffix))
    built.path.with_name(f"{wrong}.json").write_text(json.dumps({**header, "digest": wrong}))
    (built.path.parent / "latest").write_text(wrong)
    before = files_in(lake.root)
    found = check()
    assert not found.passed
    assert found.metadata["stored"] == dg.MetadataValue.text(wrong)
    assert found.metadata["again"] == dg.MetadataValue.text(built.header.digest)
    assert files_in(lake.root) == before

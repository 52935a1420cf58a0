"""The code location loads, quickly and without the trainer, and everything in it is described."""

import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from definitions import defs

ROOT = Path(__file__).parent.parent
ASSETS = {
    "recordings",
    "episodes",
    "episode_quality",
    "curated_episodes",
    "manifest",
    "training_run",
    "checkpoint",
    "exported_weights",
    "evaluation",
}


def test_dagster_validates_the_workspace(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    found = subprocess.run(
        command, cwd=ROOT, env={"DAGSTER_HOME": str(tmp_path), "PATH": ""}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert "All code locations passed validation" in found.stdout + found.stderr


def test_the_code_location_loads_quickly_and_without_heavy_modules() -> None:
    heavy = "torch trainer av duckdb h5py matplotlib deltalake mcap pyarrow metaworld"
    script = f"import sys, definitions; print([m for m in '{heavy}'.split() if m in sys.modules])"
    began = time.monotonic()
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    assert time.monotonic() - began < 15


def test_every_asset_says_what_it_is() -> None:
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert set(specs) == ASSETS
    for name, spec in specs.items():
        assert spec.description, name
        assert spec.owners, name
        assert spec.kinds, name
        assert spec.group_name not in (None, "default"), name


def test_jobs_sensors_and_the_schedule_are_there() -> None:
    repository = defs.get_repository_def()
    jobs = {"ingest", "curate", "manifests", "train", "evaluate", "everything"}
    assert jobs <= set(repository.job_names)
    sensors = {sensor.name: sensor for sensor in repository.sensor_defs}
    watching = {"observe_training", "evaluate_checkpoints", "run_failures", "sweep_runs"}
    assert set(sensors) == {"landing", "refresh", "launch_training"} | watching
    for sensor in sensors.values():
        assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
        assert sensor.description
    assert [schedule.name for schedule in repository.schedule_defs] == ["nightly"]


@pytest.mark.parametrize("name", sorted(ASSETS - {"curated_episodes"}))
def test_partitioned_assets_have_a_partition_and_a_backfill_policy(name: str) -> None:
    graph = defs.resolve_asset_graph()
    node = graph.get(dg.AssetKey(name))
    assert node.partitions_def is not None
    assert name == "checkpoint" or node.backfill_policy is not None


def test_the_checkpoint_is_walkable_to_the_recordings() -> None:
    graph = defs.resolve_asset_graph()
    upstream = {key.to_user_string() for key in graph.get_ancestor_asset_keys(dg.AssetKey("checkpoint"))}
    assert upstream == {"training_run", "manifest", "curated_episodes", "episode_quality", "episodes", "recordings"}

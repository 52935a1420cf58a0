"""Lineage: from a checkpoint to its recordings and back, with nothing but the lake and the run directories."""

import json
from pathlib import Path

import pytest

from megahour.lineage import LineageError, episode_lineage, find_row, run_lineage
from megahour.manifest.build import build_manifest
from megahour.manifest.load import Manifest, ManifestError
from megahour.manifest.recipe import Component, Observation, Recipe
from megahour.runs import Intent, run_key, write_intent
from megahour.storage import Lake
from megahour.warehouse.tables import append, table_versions
from tests.lake import episode_row, make_lake, recording_row


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = make_lake(tmp_path / "lake")
    append(lake, "recordings", [recording_row(i) for i in range(20)], once="recordings")
    append(lake, "episodes", [episode_row(i) for i in range(20)], once="episodes")
    return lake


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def a_manifest(lake: Lake, name: str, condition: str) -> Manifest:
    mixture = (Component(name="only", filter=condition),)
    return build_manifest(lake, Recipe(name=name, mixture=mixture, observation=Observation(cameras=("front",))))


def a_run(lake: Lake, runs_dir: Path, manifest: Manifest, steps: tuple[int, ...] = (100, 200)) -> str:
    header = manifest.header
    key = run_key(header.digest, {}, "code", 0)
    intent = Intent(
        run_key=key,
        recipe=header.recipe["name"],
        lake=lake.uri,
        manifest=manifest.key,
        manifest_digest=header.digest,
        table_versions=header.table_versions,
        config={},
        code_version="code",
        seed=0,
        created_at=header.created_at,
    )
    run_dir = write_intent(runs_dir, intent)
    for step in steps:
        (run_dir / f"step_{step:06d}").mkdir()
        (run_dir / f"step_{step:06d}" / "manifest.json").write_text("{}")
    (run_dir / "step_000300.tmp").mkdir()
    (run_dir / "step_000300.tmp" / "manifest.json").write_text("{}")
    return key


def test_a_run_leads_to_its_episodes_and_recordings(lake: Lake, runs_dir: Path) -> None:
    versions = table_versions(lake)
    key = a_run(lake, runs_dir, a_manifest(lake, "good", "success"))
    append(lake, "episodes", [episode_row(i) for i in range(20, 30)], once="later")
    found = run_lineage(lake, runs_dir, key)
    assert [checkpoint["step"] for checkpoint in found["checkpoints"]] == [100, 200]
    assert all(Path(checkpoint["path"]).is_dir() for checkpoint in found["checkpoints"])
    assert found["table_versions"] == versions
    assert "filter: success" in found["manifest"]["recipe_text"]
    chosen = [i for i in range(20) if i % 4]
    assert sorted(episode["episode_id"] for episode in found["episodes"]) == [f"e{i:05d}" for i in chosen]
    assert [recording["uri"] for recording in found["recordings"]] == [f"landing/sim/{i}.hdf5" for i in chosen]
    assert json.loads(json.dumps(found)) == found


def test_an_episode_leads_to_all_that_used_it(lake: Lake, runs_dir: Path) -> None:
    good, every = a_manifest(lake, "good", "success"), a_manifest(lake, "every", "true")
    runs = {a_run(lake, runs_dir, good), a_run(lake, runs_dir, every, steps=(50,))}
    for i in range(20):
        found = episode_lineage(lake, runs_dir, f"e{i:05d}")
        using = [good, every] if i % 4 else [every]
        assert {manifest["digest"] for manifest in found["manifests"]} == {one.header.digest for one in using}
        assert found["recording"]["uri"] == f"landing/sim/{i}.hdf5"
        assert found["episode"]["recording_id"] == f"r{i:05d}"
        for manifest in found["manifests"]:
            rows = (good if manifest["recipe"] == "good" else every).rows(manifest["split"])
            assert f"e{i:05d}" in rows["episode_id"].to_pylist()
    assert {run["run_key"] for run in episode_lineage(lake, runs_dir, "e00001")["runs"]} == runs
    (run,) = episode_lineage(lake, runs_dir, "e00000")["runs"]
    assert [checkpoint["step"] for checkpoint in run["checkpoints"]] == [50]
    assert json.loads(json.dumps(found)) == found


def test_bisection_finds_every_row_and_no_other(lake: Lake) -> None:
    manifest = a_manifest(lake, "good", "success")
    for row in manifest.table().to_pylist():
        assert find_row(manifest, row["episode_id"]) == row
    assert find_row(manifest, "e00004") is None
    assert find_row(manifest, "nobody") is None


def test_what_is_not_there_is_named(lake: Lake, runs_dir: Path) -> None:
    with pytest.raises(LineageError, match="none yet"):
        run_lineage(lake, runs_dir, "missing")
    manifest = a_manifest(lake, "good", "success")
    key = a_run(lake, runs_dir, manifest)
    with pytest.raises(LineageError, match=key):
        run_lineage(lake, runs_dir, "missing")
    with pytest.raises(LineageError, match="no episode nobody"):
        episode_lineage(lake, runs_dir, "nobody")
    with pytest.raises(LineageError, match="Several episodes begin with e0001"):
        episode_lineage(lake, runs_dir, "e0001")
    manifest.path.unlink()
    with pytest.raises(ManifestError, match="gone"):
        run_lineage(lake, runs_dir, key)


def test_an_episode_that_was_superseded_since_still_leads_to_what_used_it(lake: Lake, runs_dir: Path) -> None:
    manifest = a_manifest(lake, "good", "success")
    key = a_run(lake, runs_dir, manifest)
    append(lake, "episodes", [episode_row(1, revision=2, superseded_by="later")], once="superseded")
    found = episode_lineage(lake, runs_dir, "e00001")
    assert found["episode"]["superseded_by"] == "later"
    assert [run["run_key"] for run in found["runs"]] == [key]
    assert "e00001" in {episode["episode_id"] for episode in run_lineage(lake, runs_dir, key)["episodes"]}

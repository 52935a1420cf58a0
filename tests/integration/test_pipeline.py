"""What lands becomes an evaluated checkpoint with no hand; once, however often it lands, whatever Dagster forgets."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.partitions import RUN_TAG, STEP_TAG
from megahour.runs import committed_steps, read_events, read_intent
from megahour.warehouse.queries import query
from megahour.warehouse.tables import table_versions
from tests.ingest.recordings import contents, quarantine, rows, truncate
from tests.integration.pipeline import Pipeline, pipeline, toy_recipe
from tests.samples import G1, copy_g1, drop_last_frame, samples_dir
from tests.trainer.toy import SHAPE, write_moving_square

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TASK = "button-press-topdown-v3"
ROLES = ("code-server", "daemon")
SIMULATES = importlib.util.find_spec("metaworld") is not None
TOYS = 4
STEPS, EVERY = 20, 10
PRESS: dict[str, Any] = {
    "name": "press",
    "mixture": [{"name": "experts", "filter": f"robot = 'sawyer' AND task = '{TASK}'"}],
    "validation_share": 0.3,
    "observation": {"cameras": ["corner2", "gripper"], "size": [64, 64]},
    "windows": {"future_frames": [4, 8], "actions": 8},
    "train": {
        "launch": True,
        "steps": STEPS,
        "batch": 4,
        "checkpoint_every": EVERY,
        "validate_every": EVERY,
        "overrides": SHAPE,
    },
    "evaluate": {"simulator": "metaworld", "task": TASK, "rollouts": 2, "first_init_state": 1000, "max_steps": 12},
}
RECIPE = PRESS if SIMULATES else toy_recipe(steps=STEPS, checkpoint_every=EVERY, validate_every=EVERY)
TRAINED_ON = 3 if SIMULATES else TOYS
BAD = {
    "landing/lab/toy/broken.hdf5": "truncated",
    "landing/lab/g1#episode=1": "missing_video",
    "landing/lab/g1#episode=2": "frame_count",
}


def has_samples() -> bool:
    try:
        return (samples_dir() / G1).is_dir()
    except pytest.skip.Exception:
        return False


def fill(folder: Path) -> None:
    """What a lab drops at once: toy episodes, some bad recordings, and demonstrations of the simulator's expert."""
    for seed in range(TOYS):
        write_moving_square(folder / "toy" / f"{seed}.hdf5", seed)
    write_moving_square(folder / "toy" / "broken.hdf5", seed=TOYS)
    truncate(folder / "toy" / "broken.hdf5")
    if has_samples():
        copy_g1(folder / "g1", [1, 2])
        missing, short = (next((folder / "g1").rglob(f"episode_00000{episode}.mp4")) for episode in (1, 2))
        missing.unlink()
        drop_last_frame(short)
    if SIMULATES:
        from megahour.recording import record

        list(record(TASK, 3, 0, folder / "press", size=(64, 64)))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline that was given recordings and a recipe, and was left alone until it had nothing more to do."""
    folder = tmp_path_factory.mktemp("pipeline")
    fill(folder / "incoming")
    with pipeline(folder, roles=ROLES) as started:
        started.write_recipe(RECIPE)
        started.landing.mkdir(parents=True)
        (folder / "incoming").rename(started.landing / "lab")
        started.wait_for(started.run_dirs, "a training run", 300)
        started.wait_for(lambda: started.materializations("evaluation"), "the evaluation", 300)
        started.wait_for_rest()
        yield started


@pytest.fixture(scope="module")
def run_dir(running: Pipeline) -> Path:
    (found,) = running.run_dirs()
    return found


def shown(materialization: dg.AssetMaterialization) -> dict[str, Any]:
    return {name: value.value for name, value in materialization.metadata.items()}


def is_picture(markdown: str) -> bool:
    head, _, data = markdown.rstrip(")").partition(";base64,")
    return head.rpartition("data:image/")[2] in ("png", "webp") and len(base64.b64decode(data)) > 100


def reported_steps(running: Pipeline, run_key: str) -> list[int]:
    return [int((found.tags or {})[STEP_TAG]) for found in running.materializations("checkpoint", run_key)]


def test_what_landed_is_carried_to_an_evaluated_checkpoint_with_no_hand(running: Pipeline, run_dir: Path) -> None:
    assert query(running.lake, "FROM episodes WHERE robot = 'toy'").num_rows == TOYS
    assert query(running.lake, "FROM episode_quality").num_rows == query(running.lake, "FROM episodes").num_rows
    assert committed_steps(run_dir) == [EVERY, STEPS]
    assert (run_dir / "export/step_000020/model.safetensors").stat().st_size > 0
    assert (run_dir / "export/step_000020/model.pt").stat().st_size > 0
    summary = json.loads((run_dir / "evaluation/step_000020/summary.json").read_text())
    assert summary["video_db"].keys() == {"model", "copy_last"}
    assert running.failed_runs() == []


def test_each_stage_ran_once_and_each_checkpoint_was_reported_once(running: Pipeline, run_dir: Path) -> None:
    assert reported_steps(running, run_dir.name) == [EVERY, STEPS]
    kinds = Counter(event["kind"] for _, event in read_events(run_dir))
    assert kinds["started"] == kinds["finished"] == 1 and kinds["resumed"] == 0
    runs = Counter(run.job_name for run in running.instance.get_runs(limit=100))
    assert runs == {"ingest": 1, "manifests": 1, "train": 1, "evaluate": 1}


def test_metadata_shows_numbers_and_pictures(running: Pipeline, run_dir: Path) -> None:
    run_key = run_dir.name
    (landed,) = map(shown, running.materializations("recordings"))
    total = query(running.lake, "FROM recordings").num_rows
    assert landed["planned_recordings"] >= landed["new"] == total > TOYS
    (episodes,) = map(shown, running.materializations("episodes"))
    assert episodes["ingested"] == query(running.lake, "FROM episodes").num_rows
    assert is_picture(episodes["contact_sheet"])
    (curated,) = map(shown, running.materializations("curated_episodes"))
    assert curated["dagster/row_count"] == episodes["ingested"] and is_picture(curated["durations"])
    (manifest,) = map(shown, running.materializations("manifest", RECIPE["name"]))
    assert manifest["dagster/row_count"] == TRAINED_ON and manifest["windows"] > 0 and "| train |" in manifest["splits"]
    for checkpoint in map(shown, running.materializations("checkpoint", run_key)):
        assert checkpoint["loss"] > 0 and checkpoint["validation_loss"] > 0
        assert checkpoint["manifest_digest"] == manifest["digest"]
        assert is_picture(checkpoint["loss_curve"])
    (evaluation,) = map(shown, running.materializations("evaluation", run_key))
    assert evaluation["step"] == STEPS and evaluation["video_db_model"] > 0 and is_picture(evaluation["prediction"])
    curve = [shown_at for found in running.observations("training_run", run_key) if (shown_at := found.metadata)]
    assert [point["step"].value for point in curve if "loss" in point] == [EVERY, STEPS]


def test_every_asset_check_passes(running: Pipeline, run_dir: Path) -> None:
    found = running.checks()
    assert {name: str(verdict.description) for name, verdict in found.items() if not verdict.passed} == {}
    (batch,) = running.instance.get_dynamic_partitions("ingest_batch")
    run, recipe = run_dir.name, RECIPE["name"]
    expected = {("episodes", name, batch) for name in ("row_counts_equal_landed", "no_duplicates", "containers_open")}
    expected |= {("manifest", name, recipe) for name in ("splits_are_disjoint", "digest_is_reproducible")}
    expected |= {("training_run", "run_is_alive", run), ("checkpoint", "loads_and_is_finite", run)}
    expected |= {("evaluation", name, run) for name in ("enough_rollouts", "no_regression")}
    assert set(found) == expected


def test_bad_recordings_are_held_with_a_reason_and_the_rest_of_their_batch_goes_through(running: Pipeline) -> None:
    expected = {uri: reason for uri, reason in BAD.items() if has_samples() or "/g1" not in uri}
    assert quarantine(running.lake) == {uri: ("held", reason) for uri, reason in expected.items()}
    listed = {row["uri"]: row for row in running.cli("quarantine", "ls")}
    assert {uri: row["reason"] for uri, row in listed.items()} == expected
    for row in listed.values():
        assert row["error"].count(" ") > 5
    (report,) = map(shown, running.materializations("episodes"))
    assert report["quarantined"] == len(expected) and report["ingested"] >= TOYS
    if not has_samples():
        pytest.skip("the real recordings are not here: only the truncated file was tested")


@pytest.mark.simulator
@pytest.mark.skipif(not SIMULATES, reason="the simulation extra is not installed")
def test_rollouts_in_the_simulator_are_rows_videos_and_a_summary(running: Pipeline, run_dir: Path) -> None:
    (evaluation,) = running.materializations("evaluation", run_dir.name)
    assert (evaluation.tags or {})[RUN_TAG] == run_dir.name
    metadata = shown(evaluation)
    assert is_picture(metadata["success_chart"]) and "videos/trained_00.mp4" in metadata["videos"]
    found = query(running.lake, "FROM evaluations ORDER BY policy, rollout").to_pylist()
    assert [(row["policy"], row["init_state"]) for row in found] == [
        (policy, 1000 + i) for policy in ("blind", "trained", "untrained") for i in range(2)
    ]
    assert {(row["run_key"], row["step"], row["steps"], row["error"]) for row in found} == {
        (run_dir.name, STEPS, 12, None)
    }
    assert all(json.loads(row["versions"])["mujoco"] for row in found)
    videos = [row["video"] for row in found if row["video"]]
    assert len(videos) == 4
    for key in videos:
        path = running.lake.local_path(key)
        assert path is not None and path.read_bytes()[4:8] == b"ftyp"
    told = running.cli("eval", "show", run_dir.name)
    assert told["run_key"] == run_dir.name
    for rate in told["success"]:
        mine = [row for row in found if row["policy"] == rate["policy"]]
        assert (rate["k"], rate["n"]) == (sum(row["success_once"] for row in mine), 2)
        assert metadata[f"success_{rate['policy']}"] == rate["k"] / rate["n"]
    assert [rate["policy"] for rate in told["success"]] == ["trained", "untrained", "blind"]


def test_with_dagsters_database_gone_lineage_says_the_same_and_nothing_is_done_twice(
    running: Pipeline, run_dir: Path
) -> None:
    run = run_dir.name
    rows = query(running.lake, "SELECT episode_id, robot FROM episodes ORDER BY key").to_pylist()
    used = next(row["episode_id"] for row in rows if (row["robot"] == "sawyer") is SIMULATES)

    def lineage() -> list[Any]:
        return [running.cli("lineage", run), running.cli("lineage", "--episode", used)]

    before, (of_run, of_episode) = state_of(running), lineage()
    assert [checkpoint["step"] for checkpoint in of_run["checkpoints"]] == [EVERY, STEPS]
    assert of_run["manifest"]["digest"] == read_intent(run_dir).manifest_digest
    assert of_run["table_versions"]["episodes"] >= 0
    assert len(of_run["episodes"]) == len(of_run["recordings"]) == TRAINED_ON
    assert used in [episode["episode_id"] for episode in of_run["episodes"]]
    assert [(user["run_key"], len(user["checkpoints"])) for user in of_episode["runs"]] == [(run, 2)]

    running.wipe()
    assert lineage() == [of_run, of_episode]
    running.start(*ROLES)
    running.wait_for(lambda: running.materializations("evaluation", run), "the evaluation is told again", 300)
    running.wait_for_rest()
    assert_same(state_of(running), before)
    assert lineage() == [of_run, of_episode]
    assert reported_steps(running, run) == [EVERY, STEPS]
    for asset in ("recordings", "episodes", "episode_quality", "curated_episodes", "manifest"):
        assert running.materializations(asset), asset
    assert running.failed_runs() == []


def test_landing_again_under_other_names_and_touching_files_changes_no_row(running: Pipeline) -> None:
    before = state_of(running)
    first = set(running.instance.get_dynamic_partitions("ingest_batch"))
    again = running.folder / "again"
    shutil.copytree(running.landing / "lab", again)
    for path in (again / "toy").iterdir():
        path.rename(path.with_name(f"copy_of_{path.name}"))
    again.rename(running.landing / "other")
    for path in (running.landing / "lab").rglob("*.*"):
        os.utime(path)
    looked_at = running.wait_for(lambda: landed_again(running, first), "both are ingested again")
    running.wait_for_rest()
    assert_same(state_of(running), before)
    reports = [shown(found) for batch in looked_at for found in running.materializations("episodes", batch)]
    assert sum(report["skipped"] for report in reports) >= 2 * TOYS
    assert sum(report["ingested"] for report in reports) == 0
    assert running.failed_runs() == []


def landed_again(running: Pipeline, before: set[str]) -> set[str]:
    """Batches that were ingested since, once both sources are among them."""
    new = set(running.instance.get_dynamic_partitions("ingest_batch")) - before
    done = {batch for batch in new if running.materializations("episode_quality", batch)}
    return done if done == new and len(new) >= 2 else set()


def assert_same(now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    for part in before:
        assert now[part] == before[part], f"{part} changed"


def state_of(running: Pipeline) -> dict[str, Any]:
    """All that a stage done twice would change: rows, table versions, manifests, and the files of runs."""
    runs = {
        str(path.relative_to(running.runs_dir)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(running.runs_dir.rglob("*"))
        if path.is_file()
    }
    manifests = sorted(path.name for path in (running.folder / "lake" / "manifests").rglob("*.*"))
    return {
        **contents(running.lake),
        "evaluations": rows(running.lake, "evaluations"),
        "versions": table_versions(running.lake),
        "manifests": manifests,
        "runs": runs,
    }

"""Launch, export and evaluation as Dagster runs, with a program that stands in for the trainer's."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import assets.evaluation
from assets import checks, curation, ingest, training
from assets.evaluation import figures, shown_video
from jobs.asset_jobs import STAGES
from megahour.settings import Settings
from megahour.storage import open_lake
from megahour.warehouse.queries import query
from resources.lake import LakeResource
from resources.trainer import TrainerResource
from tests.sensors.conftest import instance, settings  # noqa: F401
from tests.sensors.world import CLUSTER, FakeClusterResource, commit, finish, intent, make_run

RUN = intent().run_key

TRAINER = """#!{python}
import json, pathlib, sys
program, run_dir, step = sys.argv[2], pathlib.Path(sys.argv[4]), int(sys.argv[6])
calls = run_dir / "calls"
calls.write_text((calls.read_text() if calls.exists() else "") + program + "\\n")
if program == "trainer.loadable":
    print(json.dumps({{"finite": not (run_dir / "nan").exists()}}))
    sys.exit((run_dir / "nan").exists())
folder = run_dir / program.replace("trainer.", "").replace("evaluate", "evaluation") / f"step_{{step:06d}}"
folder.mkdir(parents=True)
if program == "trainer.export":
    (folder / "model.safetensors").write_bytes(b"1234")
    (folder / "export.json").write_text("{{}}")
if program == "trainer.evaluate":
    print(json.dumps({{"kind": "rollout", "policy": "trained", "done": 1, "of": 2}}))
    rows = [dict(run_key=run_dir.name, step=step, policy="trained", rollout=i, success_once=True, revision=1,
                 evaluated_at="2026-01-01T00:00:00+00:00", versions="{{}}") for i in range(2)]
    (folder / "rollouts.jsonl").write_text("\\n".join(map(json.dumps, rows)))
    rate = dict(k=2, n=2, low=0.34, high=1.0)
    summary = dict(run_key=run_dir.name, step=step, success=dict(trained=rate), errors=dict(trained=0),
                   video_db=dict(model=20.0, copy_last=18.0), validation_loss=0.5, versions={{}})
    (folder / "summary.json").write_text(json.dumps(summary))
"""


@pytest.fixture
def resources(tmp_path: Path) -> dict[str, Any]:
    program = tmp_path / "python"
    program.write_text(TRAINER.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {
        "lake": LakeResource(),
        "cluster": FakeClusterResource(),
        "trainer": TrainerResource(python=str(program)),
    }


def execute(job: str, instance: dg.DagsterInstance, resources: dict[str, Any], **more: Any) -> Any:  # noqa: F811
    """A job of the code location on the run's partition, with these resources."""
    found = dg.Definitions(
        assets=[*dg.load_assets_from_modules([ingest, curation, training, assets.evaluation]), training.checkpoint],
        asset_checks=dg.load_asset_checks_from_modules([checks]),
        jobs=STAGES,
        resources=resources,
    )
    instance.add_dynamic_partitions("run", [RUN])
    run = found.resolve_job_def(job).execute_in_process
    return run(instance=instance, partition_key=RUN, raise_on_error=False, **more)


def test_launching_twice_attaches(settings: Settings, instance: dg.DagsterInstance, resources: dict[str, Any]) -> None:  # noqa: F811
    make_run(settings.runs_dir, attempts=0)
    for _ in range(2):
        result = execute("train", instance, resources)
        assert result.success
        [event] = result.asset_materializations_for_node("training_run")
        assert event.metadata["job_id"].value == f"{RUN}.1"
    assert list(CLUSTER.states) == [f"{RUN}.1"]


def test_a_run_nobody_described_says_what_to_do(
    settings: Settings,  # noqa: F811
    instance: dg.DagsterInstance,  # noqa: F811
    resources: dict[str, Any],
) -> None:
    result = execute("train", instance, resources)
    assert not result.success
    assert "name its recipe and its manifest" in str(result.all_events)
    assert not CLUSTER.states


def test_an_evaluation_is_run_once_and_reported_as_often_as_asked(
    settings: Settings,  # noqa: F811
    instance: dg.DagsterInstance,  # noqa: F811
    resources: dict[str, Any],
) -> None:
    run_dir = make_run(settings.runs_dir)
    for step in (10, 20, 30):
        commit(run_dir, step)
    finish(run_dir, 20)
    for _ in range(2):
        result = execute("evaluate", instance, resources)
        assert result.success
        [event] = result.asset_materializations_for_node("evaluation")
        assert event.metadata["step"].value == 20
        assert event.metadata["success_trained"].value == 1.0
        assert event.metadata["video_db_model"].value == 20.0
        assert "data:image/png;base64," in event.metadata["success_chart"].value
        assert all(check.passed for check in result.get_asset_check_evaluations())
    assert (run_dir / "calls").read_text().split().count("trainer.evaluate") == 1
    rows = query(open_lake(settings.lake_uri), "SELECT count(*) AS n FROM raw_evaluations").to_pylist()
    assert rows == [{"n": 2}], "the same rollouts are appended once"


def test_the_tag_names_the_step(settings: Settings, instance: dg.DagsterInstance, resources: dict[str, Any]) -> None:  # noqa: F811
    run_dir = make_run(settings.runs_dir)
    for step in (10, 20):
        commit(run_dir, step)
    result = execute("evaluate", instance, resources, tags={"megahour/step": "10"})
    [event] = result.asset_materializations_for_node("exported_weights")
    assert event.metadata["step"].value == 10
    assert event.metadata["size_bytes"].value == 6


def test_without_a_checkpoint_it_says_so(
    settings: Settings,  # noqa: F811
    instance: dg.DagsterInstance,  # noqa: F811
    resources: dict[str, Any],
) -> None:
    make_run(settings.runs_dir)
    result = execute("evaluate", instance, resources)
    assert not result.success
    assert "has no committed checkpoint" in str(result.all_events)


@pytest.mark.parametrize("nan", [False, True])
def test_the_checkpoint_check_runs_the_trainer(
    settings: Settings,  # noqa: F811
    instance: dg.DagsterInstance,  # noqa: F811
    resources: dict[str, Any],
    nan: bool,
) -> None:
    run_dir = make_run(settings.runs_dir)
    commit(run_dir, 10)
    if nan:
        (run_dir / "nan").touch()
    verdicts = {
        check.check_name: check.passed
        for check in execute("evaluate", instance, resources).get_asset_check_evaluations()
    }
    assert verdicts["loads_and_is_finite"] is not nan


def summary(k: int, low: float, loss: float, run: str = "before") -> dict[str, Any]:
    rate = {"k": k, "n": 20, "low": low, "high": 1.0}
    return {"run_key": run, "step": 1, "success": {"trained": rate}, "validation_loss": loss, "video_db": None}


@pytest.mark.parametrize(
    ("now", "before", "sentences"),
    [
        (summary(18, 0.7, 1.0), summary(19, 0.76, 1.0), 0),
        (summary(12, 0.4, 1.0), summary(19, 0.76, 1.0), 1),
        (summary(19, 0.76, 1.2), summary(19, 0.76, 1.0), 1),
        (summary(19, 0.76, float("nan")), summary(19, 0.76, 1.0), 1),
        (summary(19, 0.76, 1.0) | {"success": {}}, summary(19, 0.76, 1.0), 0),
    ],
)
def test_a_regression_is_more_than_chance(now: dict[str, Any], before: dict[str, Any], sentences: int) -> None:
    assert len(checks.regressions(now, before)) == sentences


def test_the_previous_run_is_the_last_evaluated_one_of_the_recipe(settings: Settings) -> None:  # noqa: F811
    for name, created, recipe, done in [("a", 1, "r", True), ("b", 2, "r", False), ("c", 3, "other", True)]:
        run_dir = make_run(settings.runs_dir, intent(name * 16, recipe=recipe, created=created))
        commit(run_dir, 10)
        if done:
            folder = run_dir / "evaluation" / "step_000010"
            folder.mkdir(parents=True)
            (folder / "summary.json").write_text(json.dumps(summary(1, 0, 0, run=name)))
    found = checks.previous_summary(settings.runs_dir, intent("d" * 16, created=4))
    assert found is not None
    assert found["run_key"] == "a"
    assert checks.previous_summary(settings.runs_dir, intent("a" * 16, created=1)) is None


def test_figures_without_a_simulator() -> None:
    found = figures({"success": {}, "video_db": {"model": 21.5, "copy_last": 20}, "validation_loss": 0.2, "errors": {}})
    assert found == {"video_db_model": 21.5, "video_db_copy_last": 20.0, "validation_loss": 0.2, "errors": 0}


def test_the_rollout_shown_is_a_success_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    for name in ("trained_00", "trained_01", "blind_00"):
        (tmp_path / f"videos/{name}.mp4").touch()
    rows = [
        {"policy": "blind", "success_once": True, "video": "runs/r/videos/blind_00.mp4"},
        {"policy": "trained", "success_once": False, "video": "runs/r/videos/trained_00.mp4"},
        {"policy": "trained", "success_once": True, "video": "runs/r/videos/trained_01.mp4"},
        {"policy": "trained", "success_once": True, "video": None},
    ]
    assert shown_video(tmp_path, rows) == tmp_path / "videos/trained_01.mp4"
    assert shown_video(tmp_path, rows[:2]) == tmp_path / "videos/trained_00.mp4"
    assert shown_video(tmp_path, rows[:1]) is None

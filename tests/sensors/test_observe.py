"""What happens to a run is told to Dagster exactly once, and a dead job comes back."""

import shutil
from typing import Any

import dagster as dg
import pytest

from assets.partitions import EVENT_TAG, STEP_TAG
from megahour.runs import append_event
from megahour.settings import Settings
from resources.clusters.protocol import JobState
from resources.lake import LakeResource
from sensors.observe import observe_training
from tests.sensors.world import CLUSTER, FakeClusterResource, commit, finish, intent, make_run, tick, train

RUN = intent().run_key


def observe(instance: dg.DagsterInstance, cursor: str | None) -> dg.SensorResult:
    return tick(observe_training, instance, cursor, {"lake": LakeResource(), "cluster": FakeClusterResource()})


def steps(instance: dg.DagsterInstance, run_key: str = RUN) -> list[str]:
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(dg.AssetKey("checkpoint"), asset_partitions=[run_key]), limit=100, ascending=True
    )
    return [
        (record.asset_materialization.tags or {})[STEP_TAG] for record in found.records if record.asset_materialization
    ]


def observations(instance: dg.DagsterInstance) -> list[str]:
    found = instance.fetch_observations(dg.AssetKey("training_run"), limit=1000, ascending=True).records
    return [record.event_log_entry.asset_observation.tags[EVENT_TAG] for record in found]  # type: ignore[union-attr]


def test_checkpoints_and_metrics_are_reported_as_they_come(settings: Settings, instance: dg.DagsterInstance) -> None:
    run_dir = make_run(settings.runs_dir)
    train(run_dir, 1, 10)
    commit(run_dir, 10)
    first = observe(instance, None)
    assert steps(instance) == ["10"]
    assert instance.get_dynamic_partitions("run") == [RUN]
    [checkpoint] = [e for e in first.asset_events or () if isinstance(e, dg.AssetMaterialization)]
    assert checkpoint.metadata["loss"].value == pytest.approx(0.1)
    assert "data:image/png;base64," in str(checkpoint.metadata["loss_curve"].value)
    assert len(observations(instance)) == 6, "the first step, and every second"

    second = observe(instance, first.cursor)
    assert not second.asset_events, "nothing new"
    train(run_dir, 11, 20)
    append_event(run_dir, "validation", step=20, attempt="1.0", loss=0.3)
    commit(run_dir, 20)
    observe(instance, second.cursor)
    assert steps(instance) == ["10", "20"]
    assert len(observations(instance)) == 12


@pytest.mark.parametrize("lost_after", [0, 2, 4])
def test_a_daemon_killed_before_it_keeps_the_cursor_repeats_nothing(
    settings: Settings, instance: dg.DagsterInstance, lost_after: int
) -> None:
    run_dir = make_run(settings.runs_dir)
    cursor = None
    for turn in range(1, 6):
        train(run_dir, turn * 8 - 7, turn * 8)
        commit(run_dir, turn * 8)
        if turn == 5:
            finish(run_dir, 40)
            CLUSTER.default = JobState.SUCCEEDED
        result = observe(instance, cursor)
        if turn - 1 != lost_after:
            cursor = result.cursor
    observe(instance, cursor)
    observe(instance, None)
    assert steps(instance) == ["8", "16", "24", "32", "40"]
    told = observations(instance)
    assert len(told) == len(set(told)) == 22, "21 steps and the end of the run"


def test_a_daemon_killed_between_two_events_reports_the_rest_once(
    settings: Settings, instance: dg.DagsterInstance
) -> None:
    run_dir = make_run(settings.runs_dir)
    train(run_dir, 1, 10)
    commit(run_dir, 5)
    commit(run_dir, 10)
    context = dg.build_sensor_context(
        instance=instance, resources={"lake": LakeResource(), "cluster": FakeClusterResource()}
    )
    found: Any = observe_training(context)
    events = found.asset_events
    assert len(events) == 8
    for event in events[:-1]:
        instance.report_runless_asset_event(event)
    observe(instance, None)
    assert steps(instance) == ["5", "10"]
    assert len(observations(instance)) == 6


def test_a_new_database_is_told_everything_once_more(settings: Settings) -> None:
    run_dir = make_run(settings.runs_dir)
    train(run_dir, 1, 10)
    commit(run_dir, 10)
    finish(run_dir, 10)
    CLUSTER.default = JobState.SUCCEEDED
    for _ in range(2):
        with dg.DagsterInstance.ephemeral() as instance:
            cursor = observe(instance, None).cursor
            observe(instance, cursor)
            assert steps(instance) == ["10"]
            assert instance.get_dynamic_partitions("run") == [RUN]


def test_a_committed_checkpoint_without_its_event_is_reported(settings: Settings, instance: dg.DagsterInstance) -> None:
    run_dir = make_run(settings.runs_dir)
    commit(run_dir, 10)
    (run_dir / "events.jsonl").unlink()
    (run_dir / "step_000020.tmp").mkdir()
    observe(instance, None)
    assert steps(instance) == ["10"]


def test_a_dead_job_is_resubmitted_once_it_was_seen_twice(settings: Settings, instance: dg.DagsterInstance) -> None:
    make_run(settings.runs_dir)
    CLUSTER.states[f"{RUN}.1"] = JobState.FAILED
    first = observe(instance, None)
    assert not first.run_requests
    second = observe(instance, first.cursor)
    [request] = second.run_requests or ()
    assert (request.run_key, request.partition_key) == (f"{RUN}:2", RUN)
    assert request.run_config["ops"]["training_run"]["config"]["attempt"] == 2
    third = observe(instance, second.cursor)
    assert [again.run_key for again in third.run_requests or ()] == [f"{RUN}:2"], "Dagster starts a run key once"
    assert observations(instance) == [f"{RUN}.resubmit.1"]


@pytest.mark.parametrize("state", [JobState.UNKNOWN, JobState.PENDING, JobState.RUNNING, JobState.CANCELLED])
def test_no_other_state_starts_anything(settings: Settings, instance: dg.DagsterInstance, state: JobState) -> None:
    make_run(settings.runs_dir)
    CLUSTER.default = state
    cursor = None
    for _ in range(4):
        result = observe(instance, cursor)
        cursor = result.cursor
        assert not result.run_requests


def test_a_run_gives_up_after_its_attempts_and_says_so_once(settings: Settings, instance: dg.DagsterInstance) -> None:
    run_dir = make_run(settings.runs_dir, attempts=2)
    CLUSTER.states[f"{RUN}.2"] = JobState.FAILED
    cursor = None
    for _ in range(5):
        result = observe(instance, cursor)
        cursor = result.cursor
        assert not result.run_requests
    assert observations(instance) == [f"{RUN}.give-up.2"]
    checks = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(dg.AssetKey("training_run"), "run_is_alive"), limit=10
    )
    assert len(checks) == 1

    make_run(settings.runs_dir, attempts=3)
    CLUSTER.states[f"{RUN}.3"] = JobState.RUNNING
    train(run_dir, 1, 10)
    commit(run_dir, 10)
    observe(instance, cursor)
    assert steps(instance) == ["10"], "somebody started it again by hand"


def test_one_broken_run_does_not_hide_the_others(settings: Settings, instance: dg.DagsterInstance) -> None:
    commit(make_run(settings.runs_dir), 10)
    broken = make_run(settings.runs_dir, intent("bbbbbbbbbbbbbbbb", created=2))
    (broken / "intent.json").write_text("{")
    odd = make_run(settings.runs_dir, intent("cccccccccccccccc", created=3))
    (odd / "DONE").write_text("yes")
    commit(make_run(settings.runs_dir, intent("dddddddddddddddd", created=4)), 5)
    observe(instance, None)
    assert steps(instance) == ["10"]
    assert steps(instance, "dddddddddddddddd") == ["5"]


def test_a_run_directory_that_disappears_is_forgotten(settings: Settings, instance: dg.DagsterInstance) -> None:
    run_dir = make_run(settings.runs_dir)
    cursor = observe(instance, None).cursor
    shutil.rmtree(run_dir)
    assert not observe(instance, cursor).asset_events

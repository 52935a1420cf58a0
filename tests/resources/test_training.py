"""Launching a run: one job per attempt, whoever asks, and however the asker dies."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from megahour.runs import Intent, write_intent
from resources.clusters.protocol import JobState
from resources.training import done_step, launch, new_runs, read_attempts, training_command
from tests.sensors.world import FakeCluster, intent


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_intent(tmp_path, intent())


def test_launching_again_attaches_until_the_job_is_dead(run_dir: Path) -> None:
    cluster = FakeCluster()
    first = launch(cluster, "fake", run_dir, 2)
    assert (first.attempt, first.started) == (1, True)
    for state in (JobState.RUNNING, JobState.PENDING, JobState.UNKNOWN):
        cluster.states[first.job_id] = state
        again = launch(cluster, "fake", run_dir, 2)
        assert (again.attempt, again.started, again.job_id) == (1, False, first.job_id)
    cluster.states[first.job_id] = JobState.FAILED
    assert launch(cluster, "fake", run_dir, 2, up_to=1).attempt == 1, "a late request starts no further attempt"
    assert launch(cluster, "fake", run_dir, 2, up_to=2).attempt == 2
    assert [attempt.attempt for attempt in read_attempts(run_dir)] == [1, 2]


def test_a_finished_run_is_not_started_again(run_dir: Path) -> None:
    cluster = FakeCluster()
    job = launch(cluster, "fake", run_dir, 2).job_id
    cluster.states[job] = JobState.SUCCEEDED
    (run_dir / "DONE").write_text('{"step": 40}')
    assert not launch(cluster, "fake", run_dir, 2).started


def test_killed_between_submission_and_record_it_attaches(run_dir: Path) -> None:
    cluster = FakeCluster()
    job = launch(cluster, "fake", run_dir, 2).job_id
    (run_dir / "attempts.jsonl").write_text('{"attempt": 1, "job')
    assert launch(cluster, "fake", run_dir, 2).job_id == job
    assert list(cluster.states) == [job]
    assert [attempt.job_id for attempt in read_attempts(run_dir)] == [job]


def test_the_order_of_a_recipes_overrides_makes_no_new_run(run_dir: Path) -> None:
    written = intent()
    train = {**written.config["train"], "overrides": {"layers": 2, "dim": 64}}
    wanted = replace(written, config={**written.config, "train": train})
    stored = Intent(**json.loads(json.dumps(asdict(wanted), sort_keys=True)))
    assert new_runs([wanted], [stored]) == []
    assert new_runs([wanted], [written]) == [wanted]


def test_done_says_the_step(run_dir: Path) -> None:
    assert done_step(run_dir) is None
    (run_dir / "DONE").write_text('{"step": 40}')
    assert done_step(run_dir) == 40
    (run_dir / "DONE").write_text("40")
    with pytest.raises(ValueError, match="expected"):
        done_step(run_dir)


def test_the_command_names_the_run(run_dir: Path) -> None:
    command = training_command(run_dir, 2)
    assert command[-4:] == ("-m", "trainer.train", "--run-dir", str(run_dir))
    assert "2" in command

"""Training under `kill -9`: of a rank, of its whole job, of all of Dagster. One run takes all three, and finishes."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from assets.partitions import EVENT_TAG, STEP_TAG
from megahour.runs import committed_steps, read_events
from resources.clusters.local import LocalCluster, mark
from resources.clusters.processes import marked
from resources.clusters.protocol import JobState
from resources.clusters.supervise import MARK
from resources.training import read_attempts
from tests.integration.pipeline import Pipeline, pipeline, toy_recipe
from tests.trainer.toy import write_moving_square

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

STEPS, EVERY = 200, 25


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline whose training has begun."""
    folder = tmp_path_factory.mktemp("faults")
    for seed in range(4):
        write_moving_square(folder / "incoming" / f"{seed}.hdf5", seed)
    with pipeline(folder) as started:
        started.write_recipe(toy_recipe(steps=STEPS, checkpoint_every=EVERY, validate_every=STEPS))
        started.landing.mkdir(parents=True)
        (folder / "incoming").rename(started.landing / "toy")
        yield started


@pytest.fixture(scope="module")
def run_dir(running: Pipeline) -> Path:
    return running.wait_for(lambda: running.run_dirs(), "a training run", 240)[0]


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [event for _, event in read_events(run_dir) if event["kind"] == kind]


def last_step(run_dir: Path) -> int:
    return max((event["step"] for event in events(run_dir, "step")), default=0)


def ranks(run_dir: Path) -> list[psutil.Process]:
    """The living ranks of the run's job."""
    found = []
    for pid in marked(MARK, mark(run_dir, len(read_attempts(run_dir)))):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if "trainer.train" in process.cmdline() and "torch.distributed.run" not in process.cmdline():
                found.append(process)
    return found


def newer(run_dir: Path, step: int) -> Callable[[], bool]:
    """Whether a checkpoint after this step is committed, and training goes on."""
    return lambda: committed_steps(run_dir)[-1:] > [step] and not (run_dir / "DONE").exists()


def test_a_rank_killed_hard_the_run_resumes_from_its_last_committed_checkpoint(
    running: Pipeline, run_dir: Path
) -> None:
    running.wait_for(newer(run_dir, 0), "the first checkpoint")
    victim = ranks(run_dir)[1]
    victim.kill()
    running.wait_for(lambda: events(run_dir, "resumed"), "the ranks resume")
    (resumed,) = events(run_dir, "resumed")
    assert resumed["attempt"] == "1.1" and resumed["ranks"] == 2
    assert resumed["step"] in committed_steps(run_dir) and resumed["step"] < STEPS
    assert len(read_attempts(run_dir)) == 1
    assert victim.pid not in [process.pid for process in ranks(run_dir)]


def test_a_job_killed_whole_is_submitted_again_and_resumes(running: Pipeline, run_dir: Path) -> None:
    running.wait_for(newer(run_dir, events(run_dir, "resumed")[-1]["step"]), "a checkpoint of the restarted ranks")
    # the supervisor first, so that nobody is left to write down how it ended
    supervisor = json.loads((run_dir / "job.json").read_text())["pid"]
    for pid in (supervisor, *marked(MARK, mark(run_dir, 1))):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    committed = committed_steps(run_dir)[-1]
    assert committed < STEPS and not (run_dir / "attempt_1.exit").exists()
    running.wait_for(lambda: len(events(run_dir, "resumed")) == 2, "the second attempt resumes")
    resumed = events(run_dir, "resumed")[-1]
    assert resumed["attempt"] == "2.0" and resumed["step"] == committed
    assert [attempt.attempt for attempt in read_attempts(run_dir)] == [1, 2]
    told = [(found.tags or {})[EVENT_TAG] for found in running.observations("training_run", run_dir.name)]
    assert f"{run_dir.name}.resubmit.1" in told


def test_with_dagster_killed_hard_the_training_goes_on_and_is_told_once_later(running: Pipeline, run_dir: Path) -> None:
    before = last_step(run_dir)
    running.kill("daemon", "webserver", "code-server")
    assert not (run_dir / "DONE").exists()
    running.wait_for(lambda: last_step(run_dir) >= before + 30, "the training goes on without Dagster")
    cluster = LocalCluster(running.runs_dir, running.settings.scratch / "slots")
    assert cluster.state(f"{run_dir.name}.2") in (JobState.RUNNING, JobState.SUCCEEDED)
    dead = set(committed_steps(run_dir))

    running.start()
    running.wait_for(lambda: running.materializations("evaluation", run_dir.name), "the evaluation", 240)
    running.wait_for_rest()
    reported = [int((found.tags or {})[STEP_TAG]) for found in running.materializations("checkpoint", run_dir.name)]
    assert reported == committed_steps(run_dir) == list(range(EVERY, STEPS + 1, EVERY))
    assert dead <= set(reported)
    assert events(run_dir, "finished")[0]["step"] == STEPS and len(read_attempts(run_dir)) == 2
    told = Counter((found.tags or {})[EVENT_TAG] for found in running.observations("training_run", run_dir.name))
    assert set(told.values()) == {1} and f"{run_dir.name}.finished.2" in told
    assert [check.passed for (_, name, _), check in running.checks().items() if name == "run_is_alive"] == [True]

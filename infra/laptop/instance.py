"""What Dagster says of the demonstration: runs that work, runs that failed and stay so, sensors that cannot go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES

from megahour.settings import Settings
from resources.cluster import open_cluster
from resources.training import done_step, read_attempts
from sensors.decide import Act, act_on_job, retry_of
from sensors.failures import PARTITION_TAG, RETRY_TAG, error_chain

LATEST_RUNS = 200
BAD_TICKS = 3
"""A sensor that failed this often in a row does not heal."""
LOG_TAIL = 20


@dataclass(frozen=True)
class RunFacts:
    """A Dagster run. `errors`: per failed step the class names of its error and of the causes; `said` is for people."""

    run_id: str
    job: str
    partition: str
    failed: bool
    retries: int = 0
    errors: tuple[tuple[str, ...], ...] = ()
    said: str = ""


def broken(newest_first: Iterable[RunFacts]) -> list[RunFacts]:
    """The failed runs that nobody will start again: the latest of their job and partition, and not to be retried."""
    seen = set()
    found = []
    for run in newest_first:
        if (run.job, run.partition) in seen:
            continue
        seen.add((run.job, run.partition))
        if run.failed and not retry_of(run.errors, run.retries):
            found.append(run)
    return found


class Instance:
    """Dagster's storage, read only. It remembers what it asked before, for failed runs do not change."""

    def __init__(self, folder: Path) -> None:
        self.dagster = dg.DagsterInstance.from_config(str(folder))
        self._failed: dict[str, RunFacts] = {}
        self._rollouts: dict[str, tuple[str | None, int]] = {}

    def close(self) -> None:
        self.dagster.dispose()

    def ingested(self) -> set[str]:
        """Batches that went through to their end."""
        return self.dagster.get_materialized_partitions(dg.AssetKey("episode_quality"))

    def at_work(self) -> int:
        """Runs that are queued or going on."""
        return self.dagster.get_runs_count(dg.RunsFilter(statuses=list(IN_PROGRESS_RUN_STATUSES)))

    def runs(self) -> list[RunFacts]:
        """The latest runs, newest first."""
        return [self._facts(run) for run in self.dagster.get_runs(limit=LATEST_RUNS)]

    def rollouts(self, run_key: str) -> int:
        """Rollouts that the latest evaluation of a training run has logged."""
        tags = {PARTITION_TAG: run_key}
        runs = self.dagster.get_runs(dg.RunsFilter(job_name="evaluate", tags=tags), limit=1)
        if not runs:
            return 0
        cursor, seen = self._rollouts.get(runs[0].run_id, (None, 0))
        page = self.dagster.get_records_for_run(runs[0].run_id, cursor=cursor, limit=1000)
        seen += sum(record.event_log_entry.user_message.startswith("rollout ") for record in page.records)
        self._rollouts[runs[0].run_id] = (page.cursor, seen)
        return seen

    def sick_sensors(self) -> list[str]:
        """A sentence for each sensor whose last ticks all failed."""
        found = []
        for state in self.dagster.all_instigator_state():
            ticks = self.dagster.get_ticks(state.instigator_origin_id, state.selector_id, limit=BAD_TICKS)
            if len(ticks) == BAD_TICKS and all(tick.status.value == "FAILURE" for tick in ticks):
                error = ticks[0].error
                said = error.to_string().strip() if error is not None else "no reason is known"
                found.append(f"The sensor {state.name} failed {BAD_TICKS} times in a row: {said[-2000:]}")
        return found

    def failed_checks(self, runs: Iterable[str]) -> list[str]:
        """Names of asset checks that failed in these Dagster runs."""
        found = []
        for run_id in runs:
            for entry in self.dagster.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
                check = entry.dagster_event.event_specific_data if entry.dagster_event else None
                if isinstance(check, dg.AssetCheckEvaluation) and not check.passed:
                    found.append(f"{check.asset_key.to_user_string()}.{check.check_name}: {check.description or ''}")
        return found

    def _facts(self, run: dg.DagsterRun) -> RunFacts:
        partition = run.tags.get(PARTITION_TAG, "")
        if run.status is not dg.DagsterRunStatus.FAILURE:
            return RunFacts(run.run_id, run.job_name, partition, failed=False)
        if run.run_id not in self._failed:
            steps = [
                entry.dagster_event.event_specific_data
                for entry in self.dagster.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
                if entry.dagster_event is not None
            ]
            errors = tuple(tuple(error_chain(getattr(step, "error", None))) for step in steps)
            said = "\n".join(str(getattr(step, "error_display_string", step)).strip() for step in steps)
            retries = int(run.tags.get(RETRY_TAG, "0"))
            self._failed[run.run_id] = RunFacts(
                run.run_id, run.job_name, partition, True, retries, errors, said[-3000:] or "its process died"
            )
        return self._failed[run.run_id]


def dead_training(run_dir: Path, settings: Settings) -> str | None:
    """Why a training run will not go on by itself, None while it does or has finished."""
    attempts = read_attempts(run_dir)
    if not attempts:
        return None
    cluster = open_cluster(settings)
    job_id = attempts[-1].job_id
    state = cluster.state(job_id)
    act = act_on_job(state, done_step(run_dir) is not None, len(attempts), settings.train_attempts, seen_dead=True)
    if act not in (Act.GIVE_UP, Act.CANCELLED):
        return None
    return f"The training run {run_dir.name} is {state.value} after {len(attempts)} attempts. It said last:\n" + (
        cluster.logs(job_id, LOG_TAIL)
    )


def live_jobs(run_dirs: Iterable[Path], settings: Settings) -> list[tuple[str, int]]:
    """Trainings that go on: run key, and the process to stop (it saves first)."""
    cluster = open_cluster(settings)
    found = []
    for run_dir in run_dirs:
        attempts = read_attempts(run_dir)
        if attempts and cluster.state(attempts[-1].job_id).live:
            found.append((run_dir.name, job_pid(run_dir)))
    return found


def job_pid(run_dir: Path) -> int:
    """The process number of a local job's supervisor, 0 when it is not known."""
    from resources.clusters.local import read_json

    job = read_json(run_dir / "job.json")
    return 0 if job is None else int(job["pid"])

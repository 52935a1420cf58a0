"""A run whose process was killed does not stay in progress for ever."""

import subprocess
import sys
import time

import dagster as dg
import pytest
from dagster._core.events import EngineEventData

from sensors.decide import is_orphan
from sensors.sweep import sweep_runs


@dg.job(name="ingest")
def ingest() -> None: ...


def started(instance: dg.DagsterInstance, pid: int) -> dg.DagsterRun:
    run = instance.create_run_for_job(ingest, status=dg.DagsterRunStatus.STARTED)
    instance.report_engine_event("Executing", run, EngineEventData(metadata={"pid": dg.MetadataValue.text(str(pid))}))
    return run


def test_only_the_run_without_its_process_is_reported() -> None:
    alive = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    try:
        with dg.instance_for_test() as instance:
            kept, lost = started(instance, alive.pid), started(instance, dead.pid)
            sweep_runs(dg.build_sensor_context(instance=instance))
            statuses = {run.run_id: run.status for run in instance.get_runs()}
            assert statuses == {kept.run_id: dg.DagsterRunStatus.STARTED, lost.run_id: dg.DagsterRunStatus.FAILURE}
    finally:
        alive.kill()
        alive.wait()


@pytest.mark.parametrize(
    ("workers", "age_s", "orphan"),
    [
        ([], 10, False),
        ([], 1000, True),
        ([(100.0, None)], 10, True),
        ([(100.0, 99.0)], 10, False),
        ([(100.0, 500.0)], 10, True),
        ([(100.0, None), (200.0, 150.0)], 10, False),
    ],
)
def test_a_reused_number_is_not_the_worker(
    workers: list[tuple[float, float | None]], age_s: float, orphan: bool
) -> None:
    now = time.time()
    assert is_orphan(workers, now - age_s, now) is orphan

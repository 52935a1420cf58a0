"""Dagster runs whose process died with its code server are reported failed: nobody else tells Dagster."""

import time
from collections.abc import Iterator

import dagster as dg

from megahour.settings import Settings
from resources.clusters.processes import started_at
from sensors.decide import is_orphan

SWEPT = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)


@dg.sensor(
    minimum_interval_seconds=max(10, Settings().sensor_interval_s),
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Reports runs failed whose process is gone; `run_failures` then starts them again. "
        "Only where runs are processes of this machine (the default run launcher)."
    ),
)
def sweep_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    instance = context.instance
    if not isinstance(instance.run_launcher, dg.DefaultRunLauncher):
        return dg.SkipReason("Runs are not processes of this machine")
    swept = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=list(SWEPT))):
        run = record.dagster_run
        workers = list(worker_events(instance, run.run_id))
        begun = record.update_timestamp.timestamp()
        if is_orphan([(at, started_at(pid)) for pid, at in workers], begun, time.time()):
            instance.report_run_failed(run, "The process of this run is gone: it was killed, or its machine restarted")
            swept.append(f"{run.job_name} {run.run_id}")
    return dg.SkipReason(f"Reported failed: {', '.join(swept)}" if swept else "Every run has its process")


def worker_events(instance: dg.DagsterInstance, run_id: str) -> Iterator[tuple[int, float]]:
    """The processes that said they execute a run, and when they said it (s since the epoch)."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        event = entry.dagster_event
        pid = event.engine_event_data.metadata.get("pid") if event is not None else None
        if pid is not None and str(pid.value).isdigit():
            yield int(str(pid.value)), entry.timestamp

"""The last checkpoint of a finished run is proved."""

import json

import dagster as dg

from assets.partitions import RUN_TAG, STEP_TAG
from jobs.asset_jobs import evaluate_job
from megahour.runs import find_runs
from megahour.settings import Settings
from resources.lake import LakeResource
from resources.training import done_step
from sensors.reported import materialized


@dg.sensor(
    job=evaluate_job,
    minimum_interval_seconds=Settings().sensor_interval_s,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Exports and evaluates the last checkpoint of each finished run, once it is reported.",
)
def evaluate_checkpoints(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
    asked = set(json.loads(context.cursor or "[]"))
    requests = []
    for run_dir, intent in find_runs(lake.settings.runs_dir):
        run_key = run_dir.name
        if isinstance(intent, Exception):
            context.log.error(f"The run {run_dir} cannot be read: {intent}")
            continue
        try:
            step = done_step(run_dir)
        except (OSError, ValueError) as error:
            context.log.error(f"The run {run_dir} cannot be evaluated: {error}")
            continue
        if step is None or f"{run_key}:{step}" in asked:
            continue
        if str(step) in materialized(context.instance, "checkpoint", run_key, STEP_TAG):
            asked.add(f"{run_key}:{step}")
            tags = {RUN_TAG: run_key, STEP_TAG: str(step)}
            requests.append(dg.RunRequest(run_key=f"{run_key}:{step}", partition_key=run_key, tags=tags))
    return dg.SensorResult(run_requests=requests, cursor=json.dumps(sorted(asked)))

"""A new manifest of a recipe that says `launch: true` starts a run."""

import dagster as dg

from assets.partitions import runs
from jobs.asset_jobs import train_job
from jobs.requests import launch_request
from megahour.runs import Intent, find_runs
from megahour.settings import Settings
from resources.lake import LakeResource
from resources.recipes import usable_recipes
from resources.training import latest_intents, new_runs


@dg.sensor(
    job=train_job,
    minimum_interval_seconds=Settings().sensor_interval_s,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Launches a run for each new manifest of a recipe marked for training. Reads the lake, not events.",
)
def launch_training(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
    settings = lake.settings
    found, problems = usable_recipes(settings.recipes)
    wanted, unusable = latest_intents(lake.open(), found)
    for problem in (*problems, *unusable):
        context.log.error(problem)
    existing = [intent for _, intent in find_runs(settings.runs_dir) if isinstance(intent, Intent)]
    launching = new_runs(wanted, existing)
    new = [
        intent.run_key
        for intent in launching
        if not runs.has_partition_key(intent.run_key, dynamic_partitions_store=context.instance)
    ]
    return dg.SensorResult(
        run_requests=[launch_request(intent) for intent in launching],
        dynamic_partitions_requests=[runs.build_add_request(new)] if new else [],
    )

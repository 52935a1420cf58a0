"""When ingest rests, what depends on the tables is made again: the curated view, and manifests whose rows changed."""

import json
import time
from dataclasses import asdict
from typing import Any

import dagster as dg
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES

from assets.partitions import ingest_batches, recipes
from jobs.asset_jobs import curate_job, ingest_job, manifests_job
from jobs.requests import refresh_requests
from megahour.settings import Settings
from megahour.storage import Lake
from resources.lake import LakeResource
from resources.recipes import selections, usable_recipes
from sensors.decide import Quiet, rest, stale_recipes

WATCHED_TABLES = ("recordings", "episodes", "episode_quality")


@dg.sensor(
    jobs=[curate_job, manifests_job],
    minimum_interval_seconds=Settings().sensor_interval_s,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Pins the curated episodes and rebuilds the manifests whose rows changed, once ingest is at rest.",
)
def refresh(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
    from megahour.warehouse.tables import table_version

    settings, root = lake.settings, lake.open()
    found, problems = usable_recipes(settings.recipes)
    state = read_cursor(context.cursor)
    versions = {table: table_version(root, table) for table in WATCHED_TABLES}
    quiet = rest(Quiet(**state["quiet"]), versions, is_ingesting(context.instance, root), time.time())
    state["quiet"] = asdict(quiet)
    seen = {"versions": versions, "recipes": {name: recipe.model_dump_json() for name, recipe in found.items()}}
    rested = time.time() - quiet.since_s >= settings.settle_s
    requests: list[dg.RunRequest] = []
    if rested and versions["episodes"] >= 0 and seen != state["seen"]:
        selected, wrong = selections(root, found, versions)
        problems += wrong
        stale = stale_recipes(selected, state["built"])
        at = ",".join(str(version) for version in versions.values())
        requests = refresh_requests({name: f"{selected[name].fingerprint}:{at}" for name in stale}, at)
        state["built"] |= {name: selected[name].fingerprint for name in stale}
        state["seen"] = seen
    for problem in problems:
        context.log.error(problem)
    new = [name for name in found if not recipes.has_partition_key(name, dynamic_partitions_store=context.instance)]
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=[recipes.build_add_request(new)] if new else [],
        cursor=json.dumps(state),
    )


def is_ingesting(instance: dg.DagsterInstance, lake: Lake) -> bool:
    """A batch is planned that nobody asked for yet, or being ingested."""
    from megahour.ingest.plan import list_batches

    active = dg.RunsFilter(job_name=ingest_job.name, statuses=list(IN_PROGRESS_RUN_STATUSES))
    known = set(instance.get_dynamic_partitions(str(ingest_batches.name)))
    return instance.get_runs_count(active) > 0 or not known.issuperset(list_batches(lake))


def read_cursor(cursor: str | None) -> dict[str, dict[str, Any]]:
    """The last tick's state; a lost one makes everything again, and that changes nothing."""
    return {"quiet": {}, "built": {}, "seen": {}} | (json.loads(cursor) if cursor else {})

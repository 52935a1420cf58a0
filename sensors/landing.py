"""Recordings that landed become ingest batches, and each batch a run."""

import time
from datetime import UTC, datetime

import dagster as dg

from assets.partitions import ingest_batches
from jobs.asset_jobs import ingest_job
from megahour.settings import Settings
from resources.lake import LakeResource


@dg.sensor(
    job=ingest_job,
    minimum_interval_seconds=Settings().sensor_interval_s,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for new recordings in the landing zone, and cuts them into batches of equal bytes.",
)
def landing(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
    from megahour.ingest.discover import discover

    settings = lake.settings
    deadline = time.monotonic() + settings.sensor_budget_s
    found = discover(lake.open(), settings, context.cursor or "", datetime.now(UTC), deadline)
    # Ranges of dynamic partitions follow the order of insertion: keys are added in the order of their names.
    new = [
        key
        for key in sorted(found.batches_to_request)
        if not ingest_batches.has_partition_key(key, dynamic_partitions_store=context.instance)
    ]
    return dg.SensorResult(
        run_requests=[dg.RunRequest(run_key=key, partition_key=key) for key in sorted(found.batches_to_request)],
        dynamic_partitions_requests=[ingest_batches.build_add_request(new)] if new else [],
        cursor=found.cursor,
    )

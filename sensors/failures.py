"""Dagster runs that failed: what passes by itself is tried again, the rest is told to a person."""

from collections.abc import Iterator

import dagster as dg

from jobs.asset_jobs import STAGES
from megahour.settings import Settings
from sensors.decide import retry_of

RETRY_TAG = "megahour/retry"
PARTITION_TAG = "dagster/partition"


@dg.run_failure_sensor(
    monitored_jobs=STAGES,
    request_jobs=STAGES,
    minimum_interval_seconds=Settings().sensor_interval_s,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts a run again whose process died or whose storage failed (any stage may run twice).",
)
def run_failures(context: dg.RunFailureSensorContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    run = context.dagster_run
    retries = int(run.tags.get(RETRY_TAG, "0"))
    steps = context.get_step_failure_events()
    errors = [tuple(error_chain(event.event_specific_data.error)) for event in steps]  # type: ignore[union-attr]
    said = "; ".join(event.event_specific_data.error_display_string.strip()[:500] for event in steps)  # type: ignore[union-attr]
    name = f"{run.job_name} {run.tags.get(PARTITION_TAG, '')} ({run.run_id})"
    if "dagster/backfill" in run.tags or not retry_of(errors, retries):
        context.log.error(f"{name} failed and is not tried again: {said or context.failure_event.message}")
        yield dg.SkipReason(f"{name} needs a person")
        return
    context.log.warning(f"{name} failed and is tried again ({retries + 1}): {said or 'its process died'}")
    kept = {tag: value for tag, value in run.tags.items() if tag.startswith("megahour/")}
    yield dg.RunRequest(
        run_key=f"retry:{run.run_id}",
        job_name=run.job_name,
        partition_key=run.tags.get(PARTITION_TAG),
        run_config=run.run_config,
        asset_selection=sorted(run.asset_selection) if run.asset_selection else None,
        tags={**kept, RETRY_TAG: str(retries + 1)},
    )


def error_chain(error: object) -> Iterator[str]:
    """Class names of an error and of all that caused it."""
    while error is not None:
        yield str(getattr(error, "cls_name", ""))
        error = getattr(error, "cause", None)

"""The runs that sensors, the schedule and the job `everything` ask for."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from assets.partitions import RUN_TAG
from jobs.asset_jobs import curate_job, manifests_job, train_job
from megahour.runs import Intent


def refresh_requests(stale: Mapping[str, str], at: str) -> list[dg.RunRequest]:
    """One run for the curated view and the first recipe's manifest, one for each other manifest.

    Args:
        stale: recipe to what names this build of it; a run is started once under each name.
        at: what names this build of the curated view, when no recipe is stale.
    """
    if not stale:
        return [dg.RunRequest(run_key=f"curate:{at}", job_name=curate_job.name)]
    return [
        dg.RunRequest(
            run_key=f"{name}:{build}",
            job_name=manifests_job.name,
            partition_key=name,
            asset_selection=None if place == 0 else [dg.AssetKey("manifest")],
        )
        for place, (name, build) in enumerate(stale.items())
    ]


def launch_request(intent: Intent, attempt: int = 1) -> dg.RunRequest:
    """The Dagster run that starts an attempt; one per attempt, whoever asks how often."""
    config = {"recipe": intent.recipe, "manifest": intent.manifest, "attempt": attempt}
    return dg.RunRequest(
        run_key=f"{intent.run_key}:{attempt}",
        job_name=train_job.name,
        partition_key=intent.run_key,
        run_config={"ops": {"training_run": {"config": config}}},
        tags={RUN_TAG: intent.run_key},
    )

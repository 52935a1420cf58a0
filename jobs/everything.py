"""One button: bring all that is behind up to date now, stage after stage, as runs of the stages' own jobs.

Dagster's asset jobs hold one kind of partition, and the way from recordings to an evaluation has three. So this job is
an op that executes the others in its process. It launches training and does not wait for it: the sensors carry on.
"""

import time
from collections.abc import Iterable
from datetime import UTC, datetime

import dagster as dg

from assets.partitions import RUN_TAG, STEP_TAG, ingest_batches, recipes, runs
from jobs.asset_jobs import evaluate_job, ingest_job
from jobs.requests import launch_request, refresh_requests
from megahour.runs import Intent, find_runs
from resources.lake import LakeResource
from resources.recipes import selections, usable_recipes
from resources.training import done_step, latest_intents, new_runs


@dg.op(description="Ingest what landed, build all manifests, launch what they ask for, evaluate what has finished.")
def bring_up_to_date(context: dg.OpExecutionContext, lake: LakeResource) -> None:
    from megahour.ingest.discover import discover

    settings, root, instance = lake.settings, lake.open(), context.instance
    deadline = time.monotonic() + settings.sensor_budget_s
    batches = discover(root, settings, "", datetime.now(UTC), deadline).batches_to_request
    ingested = instance.get_materialized_partitions(dg.AssetKey("episode_quality"))
    outstanding = [key for key in sorted(batches) if key not in ingested]
    instance.add_dynamic_partitions(str(ingest_batches.name), outstanding)
    execute(context, (dg.RunRequest(job_name=ingest_job.name, partition_key=key) for key in outstanding))

    found, problems = usable_recipes(settings.recipes)
    selected, wrong = selections(root, found)
    names = sorted(name for name, selection in selected.items() if selection.rows)
    instance.add_dynamic_partitions(str(recipes.name), names)
    execute(context, refresh_requests(dict.fromkeys(names, context.run_id), context.run_id))

    wanted, unusable = latest_intents(root, found)
    for problem in (*problems, *wrong, *unusable):
        context.log.error(problem)
    launching = new_runs(wanted, (intent for _, intent in find_runs(settings.runs_dir) if isinstance(intent, Intent)))
    instance.add_dynamic_partitions(str(runs.name), [intent.run_key for intent in launching])
    execute(context, map(launch_request, launching))

    for run_dir, intent in find_runs(settings.runs_dir):
        step = None if isinstance(intent, Exception) else done_step(run_dir)
        if step is not None and not (run_dir / "evaluation" / f"step_{step:06d}" / "summary.json").exists():
            instance.add_dynamic_partitions(str(runs.name), [run_dir.name])
            tags = {RUN_TAG: run_dir.name, STEP_TAG: str(step)}
            execute(context, [dg.RunRequest(job_name=evaluate_job.name, partition_key=run_dir.name, tags=tags)])


def execute(context: dg.OpExecutionContext, requests: Iterable[dg.RunRequest]) -> None:
    """Execute the runs one after the other in this process, and log how each ended.

    Raises:
        dg.Failure: one of them failed; the others were executed all the same.
    """
    failed = []
    for request in requests:
        result = context.repository_def.get_job(str(request.job_name)).execute_in_process(
            instance=context.instance,
            partition_key=request.partition_key,
            run_config=request.run_config,
            tags=dict(request.tags),
            asset_selection=request.asset_selection,
            raise_on_error=False,
        )
        said = f"{request.job_name} {request.partition_key or ''}: run {result.run_id}"
        context.log.info(f"{said} {'succeeded' if result.success else 'failed'}")
        if not result.success:
            failed.append(said)
    if failed:
        raise dg.Failure(f"{len(failed)} runs failed: {'; '.join(failed)}", allow_retries=False)


@dg.job(
    name="everything",
    executor_def=dg.in_process_executor,
    description="All stages now, in order, without waiting for sensors. Training is launched, not waited for.",
)
def everything() -> None:
    bring_up_to_date()

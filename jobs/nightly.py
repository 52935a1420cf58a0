"""Every night: the curated view and all manifests, also those that no sensor saw change."""

import dagster as dg

from assets.partitions import recipes
from jobs.asset_jobs import manifests_job
from jobs.requests import refresh_requests
from resources.lake import LakeResource
from resources.recipes import selections, usable_recipes


@dg.schedule(
    name="nightly",
    cron_schedule="0 2 * * *",
    job=manifests_job,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="The curated view, and the manifest of every recipe that selects something.",
)
def nightly(context: dg.ScheduleEvaluationContext, lake: LakeResource) -> list[dg.RunRequest]:
    found, problems = usable_recipes(lake.settings.recipes)
    selected, wrong = selections(lake.open(), found)
    for problem in (*problems, *wrong):
        context.log.error(problem)
    night = context.scheduled_execution_time.date().isoformat()
    names = sorted(name for name, selection in selected.items() if selection.rows)
    context.instance.add_dynamic_partitions(str(recipes.name), names)
    if not names:
        return [dg.RunRequest(run_key=night, asset_selection=[dg.AssetKey("curated_episodes")])]
    return refresh_requests(dict.fromkeys(names, night), night)

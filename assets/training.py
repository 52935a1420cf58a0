"""Training, fire and observe: a launch takes seconds, and checkpoints are reported as they appear on shared storage."""

import dagster as dg

from assets.curation import manifest
from assets.metadata import table
from assets.partitions import RUN_TAG, TRAINING_TEAM, runs
from megahour.runs import Intent, read_intent, write_intent
from resources.cluster import ClusterResource
from resources.lake import LakeResource
from resources.training import intent_of, launch, read_attempts

# Which of the manifests it is stands in the run's intent and in its checkpoints: Dagster's graph cannot say it.
ANY_MANIFEST = dg.AssetDep(manifest, partition_mapping=dg.AllPartitionMapping())


class LaunchConfig(dg.Config):
    """What to launch. All empty: the run's intent says it, and the next attempt is started if its job is dead."""

    recipe: str = ""
    manifest: str = ""
    attempt: int = 0


@dg.asset(
    partitions_def=runs,
    backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1),
    deps=[ANY_MANIFEST],
    group_name="training",
    owners=TRAINING_TEAM,
    kinds={"torch"},
    description=(
        "A job on the cluster under the run's key. Launching a run again attaches to its job; a job that died is "
        "started again from its last checkpoint."
    ),
)
def training_run(
    context: dg.AssetExecutionContext, config: LaunchConfig, lake: LakeResource, cluster: ClusterResource
) -> dg.MaterializeResult[None]:
    settings = lake.settings
    run_dir = settings.runs_dir / context.partition_key
    if not (run_dir / "intent.json").exists():
        run_dir = write_intent(settings.runs_dir, planned_intent(context.partition_key, config, lake))
    started = launch(cluster.open(), settings.cluster, run_dir, settings.train_processes, up_to=config.attempt or None)
    intent = read_intent(run_dir)
    said = "started" if started.started else "attached to"
    context.log.info(f"{said} job {started.job_id}, attempt {started.attempt}, {started.state.value}")
    return dg.MaterializeResult(
        data_version=dg.DataVersion(f"{intent.run_key}.{started.attempt}"),
        tags={RUN_TAG: intent.run_key},
        metadata={
            "attempt": started.attempt,
            "job_id": started.job_id,
            "state": started.state.value,
            "recipe": intent.recipe,
            "manifest_digest": intent.manifest_digest,
            "code_version": intent.code_version,
            "run_dir": dg.MetadataValue.path(str(run_dir)),
            "config": dg.MetadataValue.json(intent.config),
            "attempts": table(
                (
                    {**vars(attempt), "submitted": attempt.submitted_at[:19].replace("T", " ")}
                    for attempt in read_attempts(run_dir)
                ),
                ["attempt", "job_id", "cluster", "submitted"],
            ),
        },
    )


def planned_intent(run_key: str, config: LaunchConfig, lake: LakeResource) -> Intent:
    """The intent of a run that starts now.

    Raises:
        dg.Failure: the recipe or the code changed since the run was asked for, or nobody said what to run.
    """
    from megahour.manifest.load import read_header
    from megahour.manifest.recipe import load_recipe

    if not config.recipe or not config.manifest:
        raise dg.Failure(
            f"There is no run {run_key} yet: name its recipe and its manifest in the config of training_run",
            allow_retries=False,
        )
    recipe = load_recipe(lake.settings.recipes / f"{config.recipe}.yaml")
    header = read_header(lake.open(), config.manifest)
    intent = intent_of(recipe, lake.settings.lake_uri, config.manifest, header.digest, header.table_versions)
    if intent.run_key != run_key:
        raise dg.Failure(
            f"The recipe {config.recipe} and this code make the run {intent.run_key}, and {run_key} was asked for: "
            "one of them changed in between. The sensor launch_training asks for the new one",
            allow_retries=False,
        )
    return intent


checkpoint = dg.AssetSpec(
    "checkpoint",
    partitions_def=runs,
    deps=[training_run, ANY_MANIFEST],
    group_name="training",
    owners=TRAINING_TEAM,
    kinds={"torch"},
    description=(
        "Committed checkpoints, each reported once, by the sensor `observe_training`. A checkpoint carries its "
        "manifest digest, table versions and run key: `megahour lineage <run>` tells the rest."
    ),
)

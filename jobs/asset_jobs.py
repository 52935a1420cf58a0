"""One job per stage. A run's process takes seconds to start, so what belongs together is one job."""

from __future__ import annotations

import dagster as dg

from assets import curation, evaluation, ingest, training

STAGE_TAG = "megahour/stage"


def stage(name: str, selection: dg.AssetSelection, description: str) -> dg.UnresolvedAssetJobDefinition:
    return dg.define_asset_job(name, selection=selection, description=description, run_tags={STAGE_TAG: name})


ingest_job = stage(
    "ingest",
    dg.AssetSelection.assets(ingest.recordings, ingest.episodes, ingest.episode_quality),
    "One batch of recordings to episodes, rows and quality signals.",
)
curate_job = stage(
    "curate", dg.AssetSelection.assets(curation.curated_episodes), "Pin and summarise the curated episodes."
)
manifests_job = stage(
    "manifests",
    dg.AssetSelection.assets(curation.curated_episodes, curation.manifest),
    "Pin the curated episodes and build one recipe's manifest.",
)
train_job = stage(
    "train",
    dg.AssetSelection.assets(training.training_run).without_checks(),
    "Start a run's job on the cluster, or attach to it. Takes seconds.",
)
evaluate_job = stage(
    "evaluate",
    dg.AssetSelection.assets(evaluation.exported_weights, evaluation.evaluation)
    | dg.AssetSelection.checks_for_assets(training.checkpoint.key),
    "Check a checkpoint, export its weights, prove them in the simulator.",
)

STAGES = [ingest_job, curate_job, manifests_job, train_job, evaluate_job]

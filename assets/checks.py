"""What must hold of each asset, checked in the run that makes it."""

import json
from pathlib import Path
from typing import Any

import dagster as dg

from assets.curation import manifest
from assets.evaluation import chosen_step, evaluation
from assets.ingest import episodes
from assets.partitions import ingest_batches, recipes, runs
from assets.training import checkpoint, training_run
from megahour.runs import Intent, committed_steps, find_runs, read_intent
from resources.cluster import ClusterResource
from resources.clusters.protocol import JobState
from resources.lake import LakeResource
from resources.trainer import TrainerError, TrainerResource
from resources.training import done_step, read_attempts

OPENED_EPISODES = 8
"""Episode files that one check decodes; all of them were checked once when they were written."""

LOSS_MARGIN = 1.05
"""A validation loss this many times the previous run's is a regression."""


@dg.asset_check(
    asset=episodes,
    partitions_def=ingest_batches,
    description="Every landed recording became an episode or is in quarantine.",
)
def row_counts_equal_landed(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    from megahour.ingest.audit import audit_batches

    found = audit_batches(lake.open(), list(context.partition_keys))
    return dg.AssetCheckResult(
        passed=not found.lost,
        description=f"{len(found.lost)} recordings are neither episodes nor in quarantine" if found.lost else None,
        metadata={
            "recordings": found.recordings,
            "episodes": found.episodes,
            "quarantined": found.quarantined,
            "lost": list(found.lost[:20]),
        },
    )


@dg.asset_check(asset=episodes, partitions_def=ingest_batches, description="No episode is stored twice.")
def no_duplicates(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    from megahour.ingest.audit import audit_batches

    found = audit_batches(lake.open(), list(context.partition_keys)).duplicates
    return dg.AssetCheckResult(passed=not found, metadata={"duplicates": list(found[:20])})


@dg.asset_check(
    asset=episodes, partitions_def=ingest_batches, description="Episode files open, and their checksums hold."
)
def containers_open(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    from megahour.episode.check import check_episode
    from megahour.ingest.audit import episodes_of

    root = lake.open()
    keys = episodes_of(root, list(context.partition_keys), OPENED_EPISODES)
    problems = {key: [str(problem) for problem in found] for key in keys if (found := check_episode(root, key))}
    return dg.AssetCheckResult(passed=not problems, metadata={"opened": len(keys), "problems": problems})


@dg.asset_check(
    asset=manifest,
    partitions_def=recipes,
    description="There is something to train on, and validation shares no episode and no episode's bytes with it.",
)
def splits_are_disjoint(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    import pyarrow.compute as pc

    rows = latest(context.partition_key, lake).table()
    sides: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        side = rows.filter(pc.equal(rows["split"], split))
        sides[split] = {name for column in ("episode_id", "sha256") for name in side[column].to_pylist()}
    shared = sides["train"] & sides["validation"]
    return dg.AssetCheckResult(
        passed=bool(sides["train"]) and not shared,
        metadata={**{split: len(names) // 2 for split, names in sides.items()}, "shared": sorted(shared)[:20]},
    )


@dg.asset_check(
    asset=manifest,
    partitions_def=recipes,
    description="Building it again from the table versions it pins gives the same digest.",
)
def digest_is_reproducible(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    from megahour.manifest.build import manifest_digest
    from megahour.manifest.recipe import Recipe

    stored = latest(context.partition_key, lake).header
    again = manifest_digest(lake.open(), Recipe.model_validate(stored.recipe), stored.table_versions)
    return dg.AssetCheckResult(passed=stored.digest == again, metadata={"stored": stored.digest, "again": again})


@dg.asset_check(
    asset=training_run,
    partitions_def=runs,
    description="The run has finished, or its job is on the cluster. The sensor observe_training reports it too.",
)
def run_is_alive(
    context: dg.AssetCheckExecutionContext, lake: LakeResource, cluster: ClusterResource
) -> dg.AssetCheckResult:
    run_dir = lake.settings.runs_dir / context.partition_key
    if (step := done_step(run_dir)) is not None:
        return dg.AssetCheckResult(passed=True, description=f"finished at step {step}")
    attempts = read_attempts(run_dir)
    state = cluster.open().state(attempts[-1].job_id) if attempts else None
    # a cluster that cannot be asked says nothing about the run
    return dg.AssetCheckResult(
        passed=state is not None and (state.live or state is JobState.UNKNOWN),
        severity=dg.AssetCheckSeverity.WARN if state is JobState.UNKNOWN else dg.AssetCheckSeverity.ERROR,
        description=f"{len(attempts)} attempts, the last is {state.value if state else 'not submitted'}",
        metadata={"attempts": len(attempts)},
    )


@dg.asset_check(
    asset=checkpoint.key, partitions_def=runs, description="The checkpoint's checksums hold, it loads, all is finite."
)
def loads_and_is_finite(
    context: dg.AssetCheckExecutionContext, lake: LakeResource, trainer: TrainerResource
) -> dg.AssetCheckResult:
    run_dir = lake.settings.runs_dir / context.partition_key
    step = chosen_step(context, run_dir)
    try:
        found = trainer.run("loadable", run_dir, step, context.log)
    except TrainerError as error:
        return dg.AssetCheckResult(passed=False, description=str(error)[-2000:], metadata={"step": step})
    return dg.AssetCheckResult(passed=bool(found.get("finite")), metadata={"step": step, "found": found})


@dg.asset_check(
    asset=evaluation, partitions_def=runs, description="As many rollouts as the recipe asks for ended without an error."
)
def enough_rollouts(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    run_dir = lake.settings.runs_dir / context.partition_key
    asked = (read_intent(run_dir).config.get("evaluate") or {}).get("rollouts", 0)
    summary = read_summary(run_dir, chosen_step(context, run_dir))
    counted = {policy: rate["n"] for policy, rate in summary["success"].items()}
    short = {policy: n for policy, n in counted.items() if n < asked}
    return dg.AssetCheckResult(
        passed=not short and (asked == 0 or bool(counted)),
        description=f"{short} of {asked} rollouts count" if short else None,
        metadata={"asked": asked, **{f"rollouts_{policy}": n for policy, n in counted.items()}},
    )


@dg.asset_check(
    asset=evaluation,
    partitions_def=runs,
    description="Not worse than the previous run of the recipe, beyond what chance explains.",
)
def no_regression(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
    runs_dir = lake.settings.runs_dir
    run_dir = runs_dir / context.partition_key
    before = previous_summary(runs_dir, read_intent(run_dir))
    if before is None:
        return dg.AssetCheckResult(passed=True, description="the first evaluated run of this recipe")
    worse = regressions(read_summary(run_dir, chosen_step(context, run_dir)), before)
    return dg.AssetCheckResult(
        passed=not worse,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(worse) or None,
        metadata={"previous_run": before["run_key"], "previous_step": before["step"]},
    )


def regressions(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What is worse than before, a sentence each. A success rate must fall below the previous Wilson interval."""
    worse = []
    rate, previous = now["success"].get("trained"), before["success"].get("trained")
    if rate and previous and rate["n"] and rate["k"] / rate["n"] < previous["low"]:
        worse.append(
            f"success fell to {rate['k']}/{rate['n']}, below {previous['low']:.2f}, the lower bound of "
            f"{previous['k']}/{previous['n']} in run {before['run_key']}"
        )
    loss, previous_loss = now.get("validation_loss"), before.get("validation_loss")
    if loss is not None and previous_loss is not None and not loss <= previous_loss * LOSS_MARGIN:
        worse.append(f"validation loss rose from {previous_loss:.4g} in run {before['run_key']} to {loss:.4g}")
    return worse


def previous_summary(runs_dir: Path, intent: Intent) -> dict[str, Any] | None:
    """The last evaluation of the run of the same recipe that was created before this one, None before the first."""
    for run_dir, other in reversed(list(find_runs(runs_dir))):
        if isinstance(other, Exception) or other.recipe != intent.recipe or other.run_key == intent.run_key:
            continue
        if other.created_at < intent.created_at:
            for step in reversed(committed_steps(run_dir)):
                if (run_dir / "evaluation" / f"step_{step:06d}" / "summary.json").exists():
                    return read_summary(run_dir, step)
    return None


def read_summary(run_dir: Path, step: int) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "evaluation" / f"step_{step:06d}" / "summary.json").read_text())
    return summary


def latest(recipe: str, lake: LakeResource) -> Any:
    from megahour.manifest.load import latest_manifest

    found = latest_manifest(lake.open(), recipe, lake.settings.scratch)
    if found is None:
        raise dg.Failure(f"The recipe {recipe} has no manifest: materialize `manifest` first", allow_retries=False)
    return found

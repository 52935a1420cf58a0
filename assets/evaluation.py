"""From a checkpoint to what it can do: weights that others load, and rollouts in a simulator."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import dagster as dg

from assets.metadata import picture, rounded, table
from assets.partitions import RUN_TAG, STEP_TAG, TRAINING_TEAM, runs
from assets.training import checkpoint
from megahour.runs import committed_steps
from resources.lake import LakeResource
from resources.trainer import TrainerResource
from resources.training import done_step

ONE_RUN_EACH = dg.BackfillPolicy.multi_run(max_partitions_per_run=1)


@dg.asset(
    partitions_def=runs,
    backfill_policy=ONE_RUN_EACH,
    deps=[checkpoint],
    group_name="evaluation",
    owners=TRAINING_TEAM,
    kinds={"torch"},
    description="The model alone, in one safetensors and one pt file: what a robot or a paper needs, no optimizer.",
)
def exported_weights(
    context: dg.AssetExecutionContext, lake: LakeResource, trainer: TrainerResource
) -> dg.MaterializeResult[None]:
    run_dir = lake.settings.runs_dir / context.partition_key
    step = chosen_step(context, run_dir)
    folder = run_dir / "export" / f"step_{step:06d}"
    if not (folder / "export.json").exists():
        trainer.run("export", run_dir, step, context.log)
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    return dg.MaterializeResult(
        data_version=dg.DataVersion(f"{context.partition_key}.{step}"),
        tags={RUN_TAG: context.partition_key, STEP_TAG: str(step)},
        metadata={
            "step": step,
            "size_bytes": sum(files.values()),
            "folder": dg.MetadataValue.path(str(folder)),
            "files": table([{"file": name, "bytes": size} for name, size in files.items()], ["file", "bytes"]),
            "export": dg.MetadataValue.json(json.loads((folder / "export.json").read_text())),
        },
    )


@dg.asset(
    partitions_def=runs,
    backfill_policy=ONE_RUN_EACH,
    deps=[exported_weights],
    group_name="evaluation",
    owners=TRAINING_TEAM,
    kinds={"mujoco", "deltalake"},
    description=(
        "Success in a simulator on held-out starts, beside an untrained and a blind control, and held-out video "
        "prediction beside copying the last frame. One row per rollout. A finished evaluation is read, not repeated."
    ),
)
def evaluation(
    context: dg.AssetExecutionContext, lake: LakeResource, trainer: TrainerResource
) -> dg.MaterializeResult[None]:
    from megahour.pictures import film, success_chart
    from megahour.warehouse.tables import append

    run_dir = lake.settings.runs_dir / context.partition_key
    step = chosen_step(context, run_dir)
    folder = run_dir / "evaluation" / f"step_{step:06d}"
    if not (folder / "summary.json").exists():
        trainer.run("evaluate", run_dir, step, context.log)
    summary = json.loads((folder / "summary.json").read_text())
    rows = read_rollouts(folder / "rollouts.jsonl")
    appended = append(lake.open(), "evaluations", rows, once=f"evaluation:{context.partition_key}:{step}")
    context.log.info(f"{appended} of {len(rows)} rollouts are new in the table `evaluations`")
    pictures: dict[str, Any] = {}
    if summary["success"]:
        pictures["success_chart"] = picture(success_chart(summary), "success")
    if (video := shown_video(folder, rows)) is not None:
        pictures["rollout"] = picture(film(video), video.stem)
    if (folder / "prediction.png").exists():
        pictures["prediction"] = picture((folder / "prediction.png").read_bytes(), "predicted and real frames")
    return dg.MaterializeResult(
        data_version=dg.DataVersion(f"{context.partition_key}.{step}"),
        tags={RUN_TAG: context.partition_key, STEP_TAG: str(step)},
        metadata={
            **success_table(summary),
            **pictures,
            "step": step,
            **figures(summary),
            "versions": summary.get("versions") or {},
            "videos": videos(folder),
        },
    )


def chosen_step(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, run_dir: Path) -> int:
    """The step that the Dagster run's tag names, else the last of a finished run, else its latest checkpoint.

    Raises:
        dg.Failure: the run has no committed checkpoint.
    """
    if tagged := context.run.tags.get(STEP_TAG):
        return int(tagged)
    steps = committed_steps(run_dir)
    if not steps:
        raise dg.Failure(
            f"The run {run_dir.name} has no committed checkpoint in {run_dir}: train it first", allow_retries=False
        )
    return done_step(run_dir) or steps[-1]


def read_rollouts(path: Path) -> list[dict[str, Any]]:
    """The rows of the table `evaluations` that an evaluation left; none without a simulator."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row | {"evaluated_at": datetime.fromisoformat(row["evaluated_at"])} for row in rows]


def figures(summary: dict[str, Any]) -> dict[str, int | float]:
    """The numbers of a summary by name, so that they plot over runs."""
    found: dict[str, int | float] = {}
    for policy, rate in summary["success"].items():
        found[f"success_{policy}"] = rate["k"] / rate["n"] if rate["n"] else 0.0
    for name, decibels in (summary.get("video_db") or {}).items():
        found[f"video_db_{name}"] = float(decibels)
    if summary.get("validation_loss") is not None:
        found["validation_loss"] = float(summary["validation_loss"])
    found["errors"] = sum((summary.get("errors") or {}).values())
    return rounded(found)


def success_table(summary: dict[str, Any]) -> dict[str, dg.MarkdownMetadataValue]:
    """Success of each policy with its Wilson interval; nothing without a simulator."""
    rates = [
        {
            "policy": policy,
            "success": f"{rate['k']}/{rate['n']}",
            "95% interval": f"{rate['low']:.0%} to {rate['high']:.0%}",
            "at the end": rate.get("at_end"),
            "errors": rate.get("errors"),
        }
        for policy, rate in summary["success"].items()
    ]
    return {"success": table(rates, list(rates[0]))} if rates else {}


def shown_video(folder: Path, rows: list[dict[str, Any]]) -> Path | None:
    """The video of one rollout of the trained policy, of one that succeeded if there is any."""
    filmed = [row for row in rows if row["policy"] == "trained" and row.get("video")]
    filmed.sort(key=lambda row: not row["success_once"])
    found = (folder / "videos" / Path(row["video"]).name for row in filmed)
    return next((path for path in found if path.exists()), None)


def videos(folder: Path) -> dg.MarkdownMetadataValue:
    """Where the rollouts' videos lie."""
    found = sorted((folder / "videos").glob("*.mp4"))
    lines = [f"- `{path}`" for path in found]
    return dg.MetadataValue.md("\n".join(lines) or "no rollouts were filmed")

"""Commands that look at training: `lineage`, `runs` and `eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from megahour.cli.find import (
    CommandError,
    Json,
    known_runs,
    open_the_lake,
    read_settings,
    require_digits,
    rows_of,
    run_dir_of,
)

runs_app = typer.Typer(help="Training runs.", no_args_is_help=True)
eval_app = typer.Typer(help="Evaluations of checkpoints.", no_args_is_help=True)

POLICIES = ("trained", "untrained", "blind")
"""The trained policy and its controls, in the order they are shown; others follow."""
ROLLOUT_COLUMNS = ("policy", "rollout", "init_state", "success_once", "success_at_end", "steps", "error", "video")


def lineage(
    run: Annotated[str | None, typer.Argument(help="A run key, or its first digits; default the latest run.")] = None,
    episode: Annotated[str | None, typer.Option(help="An episode's id: what used it?")] = None,
    json: Json = False,
) -> None:
    """Trace a run to its recordings, or an episode to the checkpoints that used it."""
    from megahour.display import show_json, show_tree
    from megahour.lineage import episode_lineage, run_lineage

    settings = read_settings()
    if episode is not None:
        if run is not None:
            raise CommandError("Ask for a run or for an episode, not for both")
        require_digits(episode)
        title, found = (
            f"episode {episode}",
            episode_lineage(open_the_lake(), settings.runs_dir, episode, settings.scratch),
        )
    else:
        key = run_dir_of(run).name
        title = f"run {key}"
        found = run_lineage(open_the_lake(), settings.runs_dir, key, settings.scratch)
    if json:
        show_json(found)
    else:
        show_tree(title, found)


@runs_app.command("ls")
def runs_ls(json: Json = False) -> None:
    """List training runs, oldest first."""
    from megahour.display import show_json, show_rows

    runs_dir, known = known_runs()
    rows = [_run_summary(run_dir) for run_dir in known]
    if json:
        show_json(rows)
    else:
        columns = ("run_key", "recipe", "state", "step", "of", "loss", "checkpoints", "attempt", "created_at")
        show_rows(rows, columns, f"No runs in {runs_dir}. A manifest of a recipe with `launch: true` starts one")


@runs_app.command("show")
def runs_show(
    run: Annotated[str | None, typer.Argument(help="A run key, or its first digits; default the latest.")] = None,
    json: Json = False,
) -> None:
    """Show a run: what it was to do, how far it is, its checkpoints and what happened."""
    from dataclasses import asdict

    from megahour.display import show_json, show_tree
    from megahour.runs import read_events, read_intent

    run_dir = run_dir_of(run)
    events = [event for _, event in read_events(run_dir) if event["kind"] != "step"]
    shown = {**_run_summary(run_dir), "intent": asdict(read_intent(run_dir)), "events": events}
    if json:
        show_json(shown)
    else:
        show_tree(f"run {run_dir.name}", shown)


@eval_app.command("show")
def eval_show(
    run: Annotated[
        str | None, typer.Argument(help="A run key, or its first digits; default the latest rolled out.")
    ] = None,
    rollouts: Annotated[bool, typer.Option("--rollouts", help="Every rollout.")] = False,
    json: Json = False,
) -> None:
    """Show how often a run's last evaluated checkpoint succeeded, beside its controls."""
    from megahour.display import show_json, show_rows
    from megahour.success import wilson

    if run is None:
        latest = rows_of("SELECT run_key FROM evaluations ORDER BY evaluated_at DESC LIMIT 1")
        if not latest:
            raise CommandError("There are no rollouts yet: no run was evaluated in a simulator")
        run_key = latest[0]["run_key"]
    else:
        run_key = run_dir_of(run).name
    rows = rows_of(
        "SELECT * EXCLUDE (key, revision) FROM evaluations WHERE run_key = ? "
        "QUALIFY step = max(step) OVER () ORDER BY policy, rollout",
        [run_key],
    )
    if not rows:
        raise CommandError(
            f"Run {run_key} was not rolled out in a simulator: it is not evaluated yet, or its recipe names none"
        )
    summary = []
    found = {row["policy"] for row in rows}
    for policy in [*(name for name in POLICIES if name in found), *sorted(found.difference(POLICIES))]:
        own = [row for row in rows if row["policy"] == policy]
        k, n = sum(row["success_once"] for row in own), len(own)
        low, high = wilson(k, n)
        summary.append(
            {
                "policy": policy,
                "step": own[0]["step"],
                "task": own[0]["task"],
                "success": f"{k}/{n}",
                "k": k,
                "n": n,
                "low": low,
                "high": high,
                "at_end": sum(row["success_at_end"] for row in own),
                "at_reset": sum(row["success_at_reset"] for row in own),
                "errors": sum(bool(row["error"]) for row in own),
            }
        )
    if json:
        show_json({"run_key": run_key, "success": summary, **({"rollouts": rows} if rollouts else {})})
        return
    columns = ("policy", "step", "task", "success", "low", "high", "at_end", "at_reset", "errors")
    show_rows(summary, columns, "")
    if rollouts:
        show_rows(rows, ROLLOUT_COLUMNS, "")


def _run_summary(run_dir: Path) -> dict[str, Any]:
    from megahour.runs import committed_steps, read_events, read_intent

    intent = read_intent(run_dir)
    last: dict[str, Any] = {}
    for _, event in read_events(run_dir):
        last[event["kind"]] = event
        last["any"] = event
    ended = {"finished": "finished", "failed": "failed", "stopped": "stopped"}
    kind = last["any"]["kind"] if last else ""
    return {
        "run_key": intent.run_key,
        "recipe": intent.recipe,
        "state": ended.get(kind, "training") if last else "waiting",
        "step": last["any"].get("step") if last else None,
        "of": intent.config.get("train", {}).get("steps"),
        "loss": last.get("step", {}).get("loss"),
        "checkpoints": committed_steps(run_dir),
        "attempt": last["any"].get("attempt") if last else None,
        "created_at": intent.created_at,
    }

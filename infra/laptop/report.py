"""The end of the demonstration: `demo.json` in the lake's root, and the same for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from infra.laptop.facts import Facts, RecipeFacts, read_summary
from megahour.lineage import run_lineage
from megahour.runs import Json, read_events
from megahour.settings import Settings
from megahour.storage import Lake, overwrite, read_bytes
from megahour.success import wilson

KEY = "demo.json"


def demo_json(facts: Facts, main: RecipeFacts, summary: Json, seconds: Mapping[str, float]) -> Json:
    """What `demo.json` holds. `seconds` of phases are those the demonstration itself spent, over interruptions."""
    rates = {policy: {"k": rate["k"], "n": rate["n"]} for policy, rate in summary["success"].items()}
    video = summary.get("video_db") or {}
    return {
        "seconds": {phase: round(spent, 1) for phase, spent in seconds.items()},
        "success": rates,
        "video_db": {name: video.get(name) for name in ("model", "copy_last")},
        "episodes": facts.episodes,
        "manifest": main.manifest,
        "run": main.run_key,
    }


def read_demo(lake: Lake) -> Json | None:
    """The last demonstration's `demo.json`, None before the first."""
    try:
        found: dict[str, Any] = json.loads(read_bytes(lake, KEY))
    except (FileNotFoundError, ValueError):
        return None
    return found


def write_demo(lake: Lake, demo: Json) -> None:
    """Replace `demo.json`; readers see the old one or the new one."""
    overwrite(lake, KEY, json.dumps(demo, indent=2).encode())


def show_report(
    console: Console, lake: Lake, settings: Settings, facts: Facts, main: str, seconds: Mapping[str, float]
) -> None:
    """Print success rates, the video prediction, losses, lineage and times."""
    run = facts.recipe(main)
    assert run.run_key is not None and run.done is not None
    summary = read_summary(settings.runs_dir / run.run_key, run.done) or {}
    table = Table(title=f"{main}: success on held-out starts", title_justify="left", box=None, pad_edge=False)
    for column in ("policy", "success", "95% interval", "at the end", "errors"):
        table.add_column(column)
    for policy, rate in (summary.get("success") or {}).items():
        low, high = wilson(rate["k"], rate["n"])
        interval = f"{low:.2f} to {high:.2f}"
        table.add_row(policy, f"{rate['k']}/{rate['n']}", interval, str(rate.get("at_end", "")), str(rate["errors"]))
    console.print()
    console.print(table)
    for recipe in facts.recipes:
        if recipe.run_key is not None and recipe.done is not None:
            console.print(prediction_line(recipe, settings.runs_dir / recipe.run_key), highlight=False)
    found = run_lineage(lake, settings.runs_dir, run.run_key, settings.scratch)
    versions = ", ".join(f"{name} {version}" for name, version in found["table_versions"].items() if version >= 0)
    console.print(
        f"\nLineage of run {run.run_key}: {len(found['checkpoints'])} checkpoints <- manifest "
        f"{found['manifest']['digest'][:12]} <- tables at versions {versions} <- {len(found['episodes'])} episodes "
        f"<- {len(found['recordings'])} recordings. All of it: megahour lineage {run.run_key}",
        highlight=False,
    )
    held = f", {facts.quarantined} recordings in quarantine" if facts.quarantined else ""
    console.print(f"In the lake: {facts.episodes} episodes{held}. {lake.url(KEY)}", highlight=False)
    if seconds:
        spent = ", ".join(f"{phase} {value:.0f} s" for phase, value in seconds.items())
        console.print(f"Time: {spent}; {sum(seconds.values()):.0f} s in all", highlight=False)


def prediction_line(recipe: RecipeFacts, run_dir: Path) -> str:
    """A run's losses and, where it was measured, its prediction of held-out pictures."""
    line = f"{recipe.name}: loss {recipe.first_loss:.3g} -> {recipe.loss:.3g} in {recipe.step} steps"
    held = [event["loss"] for _, event in read_events(run_dir) if event.get("kind") == "validation"]
    if held:
        line += f", held-out loss {held[0]:.3g} -> {held[-1]:.3g}"
    summary = (read_summary(run_dir, recipe.done) if recipe.done is not None else None) or {}
    if video := summary.get("video_db"):
        line += f", held-out video {video['model']:.1f} dB (copying the last frame: {video['copy_last']:.1f} dB)"
    return line

"""What the lake and the run directories say of the demonstration: facts alone, and how far they are from the goal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from megahour.ingest.discover import LANDING, by_source, known_recordings
from megahour.manifest.load import latest_key, read_header
from megahour.manifest.peek import peek
from megahour.manifest.recipe import Recipe
from megahour.runs import Intent, Json, find_runs, read_events
from megahour.settings import Settings
from megahour.sources import find_recordings
from megahour.storage import Lake, list_files, read_bytes
from megahour.warehouse.queries import query
from megahour.warehouse.tables import table_versions
from resources.training import done_step, identity, latest_intents

PHASES = ("ingest", "manifest", "train", "evaluate")


@dataclass(frozen=True)
class RecipeFacts:
    """How far a recipe is. `fresh`: its latest manifest holds what it selects now. `step` of `steps` was trained."""

    name: str
    selected: int = 0
    manifest: str | None = None
    fresh: bool = False
    run_key: str | None = None
    steps: int = 0
    step: int = 0
    loss: float | None = None
    first_loss: float | None = None
    done: int | None = None
    evaluated: bool = False
    rollouts: int = 0


@dataclass(frozen=True)
class Facts:
    """How far all is. `undecided` recordings are in a batch, and neither episode nor in quarantine yet."""

    recordings: int = 0
    waiting: int = 0
    undecided: int = 0
    episodes: int = 0
    quarantined: int = 0
    files: int = 0
    recipes: tuple[RecipeFacts, ...] = ()

    def recipe(self, name: str) -> RecipeFacts:
        return next(recipe for recipe in self.recipes if recipe.name == name)


def phase(facts: Facts, main: str) -> str:
    """The phase that is going on: one of `PHASES`, or `done`. The recipe `main` says when training ends."""
    if facts.waiting or facts.undecided or not facts.recordings:
        return "ingest"
    if not all(recipe.fresh for recipe in facts.recipes):
        return "manifest"
    if facts.recipe(main).done is None:
        return "train"
    if not all(recipe.evaluated for recipe in facts.recipes):
        return "evaluate"
    return "done"


def look(lake: Lake, settings: Settings, recipes: Mapping[str, Recipe], ingested: Iterable[str] = ()) -> Facts:
    """Read the facts. `ingested`: batches that Dagster calls done, though a copy's URI is then in no table."""
    landed = [
        recording
        for _, files in by_source(list_files(lake, LANDING))
        for recording in find_recordings(files, partial(read_bytes, lake))
    ]
    planned = known_recordings(lake)
    versions = tuple(sorted(table_versions(lake).items()))
    decided, episodes, quarantined = count(lake, versions)
    finished = recordings_of(lake, frozenset(ingested))
    known = [each for each in landed if planned.get(each.uri) == each.fingerprint]
    intents, _ = latest_intents(lake, recipes)
    wanted = {intent.recipe: intent for intent in intents}
    return Facts(
        recordings=len(landed),
        waiting=len(landed) - len(known),
        undecided=sum(each.uri not in decided and each.uri not in finished for each in known),
        episodes=episodes,
        quarantined=quarantined,
        files=sum(1 for _ in list_files(lake, "episodes")),
        recipes=tuple(
            look_at_recipe(lake, settings.runs_dir, recipe, wanted.get(name), versions)
            for name, recipe in recipes.items()
        ),
    )


@lru_cache(maxsize=4)
def count(lake: Lake, versions: tuple[tuple[str, int], ...]) -> tuple[frozenset[str], int, int]:
    """URIs of recordings with a verdict, episodes, and recordings in quarantine, at these table versions."""
    pinned = dict(versions)
    episodes = query(lake, "SELECT recording_uri FROM episodes", versions=pinned)["recording_uri"].to_pylist()
    held = query(lake, "SELECT uri FROM quarantine WHERE state = 'held'", versions=pinned)["uri"].to_pylist()
    return frozenset(episodes) | frozenset(held), len(episodes), len(held)


@lru_cache(maxsize=4)
def recordings_of(lake: Lake, batches: frozenset[str]) -> frozenset[str]:
    """URIs of the recordings in these batches."""
    from megahour.ingest.plan import read_batch

    return frozenset(recording.uri for key in batches for recording in read_batch(lake, key).recordings)


@lru_cache(maxsize=8)
def selected_rows(lake: Lake, recipe: str, versions: tuple[tuple[str, int], ...]) -> int:
    """How many episodes a recipe (as JSON) selects at these table versions."""
    return peek(lake, Recipe.model_validate_json(recipe), dict(versions)).rows


@lru_cache(maxsize=8)
def rollouts_of(lake: Lake, run_key: str, version: int) -> int:
    """Rows of the table `evaluations`, at this version, that belong to a run."""
    sql = "SELECT count(*) AS n FROM evaluations WHERE run_key = ?"
    return int(query(lake, sql, [run_key], {"evaluations": version})["n"][0].as_py())


def look_at_recipe(
    lake: Lake, runs_dir: Path, recipe: Recipe, wanted: Intent | None, versions: tuple[tuple[str, int], ...]
) -> RecipeFacts:
    """The facts of one recipe; `wanted` is the run that its latest manifest asks for."""
    selected = 0 if dict(versions)["episodes"] < 0 else selected_rows(lake, recipe.model_dump_json(), versions)
    key = latest_key(lake, recipe.name)
    if key is None or wanted is None:
        return RecipeFacts(recipe.name, selected)
    header = read_header(lake, key)
    fresh = header.rows == selected
    runs = (
        (run_dir, intent)
        for run_dir, intent in find_runs(runs_dir)
        if isinstance(intent, Intent) and identity(intent) == identity(wanted)
    )
    run_dir, intent = next(runs, (None, None))
    if run_dir is None or intent is None:
        return RecipeFacts(recipe.name, selected, header.digest, fresh, steps=int(wanted.config["train"]["steps"]))
    steps = [event for _, event in read_events(run_dir) if event.get("kind") == "step"]
    done = done_step(run_dir)
    rollouts = rollouts_of(lake, run_dir.name, dict(versions)["evaluations"])
    rows_due = bool(intent.config.get("evaluate"))
    return RecipeFacts(
        recipe.name,
        selected,
        header.digest,
        fresh,
        run_dir.name,
        int(intent.config["train"]["steps"]),
        max((int(event["step"]) for event in steps), default=0),
        steps[-1].get("loss") if steps else None,
        steps[0].get("loss") if steps else None,
        done,
        done is not None and read_summary(run_dir, done) is not None and (rollouts > 0 or not rows_due),
        rollouts,
    )


def read_summary(run_dir: Path, step: int) -> Json | None:
    """The evaluation of a checkpoint, None before it is there."""
    try:
        summary: dict[str, Any] = json.loads((run_dir / "evaluation" / f"step_{step:06d}" / "summary.json").read_text())
    except FileNotFoundError:
        return None
    return summary


def progress(facts: Facts, main: str, rolled: int, rollouts: int) -> dict[str, tuple[int, int, str]]:
    """Per phase: how much is done, of how much, and a word about it.

    Args:
        rolled: rollouts that have ended of `rollouts` in the evaluation of the recipe `main`.
    """
    recipes = facts.recipes
    trained = [f"{each.name} {each.step}/{each.steps}" for each in recipes if each.run_key]
    run = facts.recipe(main)
    loss = f", loss {run.loss:.3g}" if run.loss is not None else ""
    held = f", {facts.quarantined} in quarantine" if facts.quarantined else ""
    verdicts = facts.recordings - facts.waiting - facts.undecided
    written = max(verdicts, min(facts.files, facts.recordings))
    return {
        "ingest": (written, facts.recordings, f"{facts.episodes} episodes in the table{held}"),
        "manifest": (sum(each.fresh for each in recipes), len(recipes), ""),
        "train": (run.step, run.steps, f"{', '.join(trained)}{loss}"),
        "evaluate": (
            rollouts if run.evaluated else rolled,
            rollouts,
            ", ".join(f"{each.name} evaluated" for each in recipes if each.evaluated),
        ),
    }

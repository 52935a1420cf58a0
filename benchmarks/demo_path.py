"""What each phase of the demonstration costs per episode, step or rollout, without Dagster around it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.report import Row, run
from megahour.ingest.discover import discover
from megahour.ingest.land import land_batch
from megahour.ingest.measure import measure_batch
from megahour.ingest.plan import read_batch
from megahour.ingest.run import ingest_batch
from megahour.landing import land, plan_landing
from megahour.manifest.build import build_manifest
from megahour.manifest.recipe import Recipe, load_recipe
from megahour.recording import record
from megahour.runs import read_events, write_intent
from megahour.settings import Settings
from megahour.storage import Lake, open_lake
from resources.training import intent_of, training_command

RECIPE = "button_press"
PACKAGES = ("torch", "mujoco", "metaworld", "av", "h5py", "pyarrow", "deltalake", "duckdb")


class Phases:
    """Rows of the table, a phase each."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @contextmanager
    def time(self, phase: str, unit: str, count: int) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.add(phase, unit, count, time.monotonic() - began)

    def add(self, phase: str, unit: str, count: int, seconds: float) -> None:
        self.rows.append(
            {"phase": phase, "count": count, "unit": unit, "seconds": seconds, "seconds_each": seconds / count}
        )


def measure(quick: bool) -> list[Row]:
    """Carry a few episodes from the simulator to a rollout, and time each phase."""
    episodes, steps, rollouts = (4, 10, 2) if quick else (12, 40, 10)
    settings = Settings()
    recipe = load_recipe(settings.recipes / f"{RECIPE}.yaml")
    assert recipe.train is not None and recipe.evaluate is not None
    phases = Phases()
    with tempfile.TemporaryDirectory(prefix="megahour-demo-path-") as folder:
        own = settings.model_copy(update={"lake": f"{folder}/lake", "scratch": Path(folder) / "scratch", "runs": None})
        lake = open_lake(own.lake_uri)
        data(phases, lake, own, recipe.evaluate.task, episodes, Path(folder) / "recorded")
        train = recipe.train.model_copy(
            update={"steps": steps, "checkpoint_every": steps, "validate_every": steps, "launch": False}
        )
        evaluate = recipe.evaluate.model_copy(update={"rollouts": rollouts, "controls": ()})
        model(phases, lake, own, recipe.model_copy(update={"train": train, "evaluate": evaluate}))
    return phases.rows


def data(phases: Phases, lake: Lake, settings: Settings, task: str, episodes: int, folder: Path) -> None:
    """From the simulator to rows."""
    with phases.time("record (simulators' start included)", "episode", episodes):
        list(record(task, episodes, 0, folder, workers=settings.rollout_workers, gl=settings.mujoco_gl))
    with phases.time("land", "episode", episodes):
        list(land(lake, plan_landing(folder)))
    later = datetime.now(UTC) + timedelta(seconds=settings.settle_s + 1)
    found = discover(lake, settings, "", later, time.monotonic() + 60)
    batches = [read_batch(lake, key) for key in found.batches_to_request]
    with phases.time("ingest", "episode", episodes):
        for batch in batches:
            land_batch(lake, settings, batch)
            ingest_batch(lake, settings, batch)
    with phases.time("quality", "episode", episodes):
        for batch in batches:
            measure_batch(lake, settings, batch)


def model(phases: Phases, lake: Lake, settings: Settings, recipe: Recipe) -> None:
    """From rows to rollouts."""
    assert recipe.train is not None and recipe.evaluate is not None
    with phases.time("manifest", "manifest", 1):
        built = build_manifest(lake, recipe, scratch=settings.scratch)
    intent = intent_of(recipe, lake.uri, built.key, built.header.digest, built.header.table_versions)
    run_dir = write_intent(settings.runs_dir, intent)
    began = time.monotonic()
    call(training_command(run_dir, settings.train_processes))
    spent = time.monotonic() - began
    logged = [event for _, event in read_events(run_dir) if event["kind"] == "step"]
    steps = recipe.train.steps
    in_steps = sum(
        event["step_s"] * (event["step"] - before)
        for event, before in zip(logged, [0, *(event["step"] for event in logged)], strict=False)
    )
    phases.add(f"train, batch {recipe.train.batch}, {settings.train_processes} ranks", "step", steps, in_steps)
    phases.add("train: start, first decode, validation, checkpoint", "run", 1, spent - in_steps)
    place = ("--run-dir", str(run_dir), "--step", str(steps))
    with phases.time("export", "run", 1):
        call((sys.executable, "-m", "trainer.export", *place))
    with phases.time("rollout (start and prediction included)", "rollout", recipe.evaluate.rollouts):
        call((sys.executable, "-m", "trainer.evaluate", *place))


def call(command: tuple[str, ...]) -> None:
    """Run a program and be quiet about it.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"`{json.dumps(command)}` ended with code {done.returncode}:\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    run("demo_path", "seconds of each phase of the demonstration", measure, PACKAGES)

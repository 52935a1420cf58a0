"""Facts come from the lake and the run directories alone."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.laptop.facts import look, phase
from megahour.files import write_atomically
from megahour.ingest.discover import discover
from megahour.manifest.build import build_manifest
from megahour.manifest.recipe import Recipe, load_recipe
from megahour.runs import append_event, write_intent
from megahour.settings import Settings
from megahour.storage import Lake, open_lake
from megahour.warehouse.tables import append
from resources.training import latest_intents
from tests.lake import episode_row
from tests.samples import write_aloha

RECIPE = """
name: arm
mixture: [{name: all, filter: "true"}]
observation: {cameras: [front]}
train: {launch: true, steps: 10}
evaluate: {simulator: metaworld, task: t}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "arm.yaml").write_text(RECIPE)
    return Settings(
        lake=str(tmp_path / "lake"), scratch=tmp_path / "scratch", recipes=tmp_path / "recipes", settle_s=0, runs=None
    )


def recipes_of(settings: Settings) -> dict[str, Recipe]:
    return {"arm": load_recipe(settings.recipes / "arm.yaml")}


def add_episodes(lake: Lake, *indices: int) -> None:
    rows = [episode_row(index, recording_uri=f"landing/lab/{index}.hdf5") for index in indices]
    append(lake, "episodes", rows, once=f"episodes {indices}")


def discover_all(lake: Lake, settings: Settings) -> None:
    discover(lake, settings, "", datetime.now(UTC), float("inf"))


def test_a_lake_goes_through_the_phases(settings: Settings, tmp_path: Path) -> None:
    lake, recipes = open_lake(settings.lake_uri), recipes_of(settings)
    assert phase(look(lake, settings, recipes), "arm") == "ingest", "nothing has landed"
    for index in (1, 2):
        write_aloha(tmp_path / "lake" / "landing" / "lab" / f"{index}.hdf5", seed=index)
    landed = look(lake, settings, recipes)
    assert (landed.recordings, landed.waiting, landed.undecided) == (2, 2, 0)
    discover_all(lake, settings)
    planned = look(lake, settings, recipes)
    assert (planned.waiting, planned.undecided, phase(planned, "arm")) == (0, 2, "ingest")

    add_episodes(lake, 1)
    assert look(lake, settings, recipes).undecided == 1
    add_episodes(lake, 2)
    assert phase(look(lake, settings, recipes), "arm") == "manifest"

    build_manifest(lake, recipes["arm"], scratch=settings.scratch)
    built = look(lake, settings, recipes)
    assert phase(built, "arm") == "train"
    assert built.recipe("arm").run_key is None

    run_dir = write_intent(settings.runs_dir, latest_intents(lake, recipes)[0][0])
    append_event(run_dir, "step", step=4, loss=2.0)
    running = look(lake, settings, recipes).recipe("arm")
    assert (running.run_key, running.step, running.steps, running.loss) == (run_dir.name, 4, 10, 2.0)

    (run_dir / "DONE").write_text('{"step": 10}')
    assert phase(look(lake, settings, recipes), "arm") == "evaluate"
    folder = run_dir / "evaluation" / "step_000010"
    folder.mkdir(parents=True)
    write_atomically(folder / "summary.json", b"{}")
    assert phase(look(lake, settings, recipes), "arm") == "evaluate", "its rows are not in the table yet"
    row = {"run_key": run_dir.name, "step": 10, "policy": "trained", "rollout": 0, "revision": 1}
    append(lake, "evaluations", [row], once="evaluation")
    done = look(lake, settings, recipes)
    assert phase(done, "arm") == "done"
    assert asdict(look(lake, settings, recipes)) == asdict(done)

    add_episodes(lake, 3)
    assert phase(look(lake, settings, recipes), "arm") == "manifest", "the manifest lacks an episode now"


def test_a_copy_that_dagster_went_through_is_not_waited_for(settings: Settings, tmp_path: Path) -> None:
    lake, recipes = open_lake(settings.lake_uri), recipes_of(settings)
    write_aloha(tmp_path / "lake" / "landing" / "lab" / "copy.hdf5")
    discover_all(lake, settings)
    add_episodes(lake, 1)
    assert look(lake, settings, recipes).undecided == 1
    batch = next((tmp_path / "lake" / "batches").glob("*.json")).stem
    assert look(lake, settings, recipes, [batch]).undecided == 0

"""From tables to manifests to runs to evaluations: each sensor asks once, and nothing broken stops it."""

import json
from typing import Any

import dagster as dg
import pytest
import yaml

from megahour.manifest.build import build_manifest
from megahour.manifest.recipe import Recipe, load_recipe
from megahour.runs import find_runs, write_intent
from megahour.settings import Settings
from megahour.storage import open_lake
from megahour.warehouse.tables import append
from resources.lake import LakeResource
from resources.training import latest_intents
from sensors.evaluate import evaluate_checkpoints
from sensors.launch import launch_training
from sensors.refresh import refresh
from tests.sensors.world import commit, finish, intent, make_run, tick

LAKE = {"lake": LakeResource()}


def write_recipe(settings: Settings, name: str, robot: str, **train: Any) -> Recipe:
    recipe = {
        "name": name,
        "mixture": [{"name": "all", "filter": f"robot = '{robot}'"}],
        "observation": {"cameras": ["front"]},
        "train": {"launch": True, "steps": 10, **train},
    }
    path = settings.recipes / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return load_recipe(path)


def add_episodes(settings: Settings, robot: str, *names: str) -> None:
    moments = {"count": 20, "mean": [0.0], "m2": [1.0], "min": [-1.0], "max": [1.0]}
    rows = [
        {
            "episode_id": name,
            "recording_id": f"recording of {name}",
            "uri": f"episodes/{name}.mcap",
            "etag": name,
            "size_bytes": 10,
            "sha256": name,
            "robot": robot,
            "frames": 20,
            "cameras": ["front"],
            "state_dim": 1,
            "action_dim": 1,
            "state_stats": moments,
            "action_stats": moments,
            "index": 0,
            "revision": 1,
        }
        for name in names
    ]
    append(open_lake(settings.lake_uri), "episodes", rows, once=",".join(names))


def requested(result: dg.SensorResult) -> list[tuple[str | None, str | None]]:
    return [(request.job_name, request.partition_key) for request in result.run_requests or ()]


def test_refresh_builds_what_changed_and_only_that(settings: Settings, instance: dg.DagsterInstance) -> None:
    write_recipe(settings, "arm", "arm")
    write_recipe(settings, "hand", "hand")
    first = tick(refresh, instance, None, LAKE)
    assert not first.run_requests, "there is no table yet"
    assert sorted(instance.get_dynamic_partitions("recipe")) == ["arm", "hand"]

    add_episodes(settings, "arm", "a1", "a2")
    second = tick(refresh, instance, first.cursor, LAKE)
    assert requested(second) == [("manifests", "arm")], "the other recipe selects nothing yet, which is no failure"
    third = tick(refresh, instance, second.cursor, LAKE)
    assert not third.run_requests

    add_episodes(settings, "hand", "h1")
    fourth = tick(refresh, instance, third.cursor, LAKE)
    assert requested(fourth) == [("manifests", "hand")], "of the first recipe nothing changed"
    write_recipe(settings, "arm", "arm", steps=20)
    fifth = tick(refresh, instance, fourth.cursor, LAKE)
    assert requested(fifth) == [("curate", None)], "how to train is not in the manifest"
    assert requested(tick(refresh, instance, None, LAKE)) == [("manifests", "arm"), ("manifests", "hand")]


def test_refresh_waits_for_ingest_to_rest(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recipe(settings, "arm", "arm")
    add_episodes(settings, "arm", "a1")
    monkeypatch.setenv("MEGAHOUR_SETTLE_S", "3600")
    first = tick(refresh, instance, None, LAKE)
    assert not first.run_requests
    state = json.loads(first.cursor or "")
    state["quiet"]["since_s"] -= 3601
    run = instance.create_run_for_job(_job("ingest"), status=dg.DagsterRunStatus.STARTED)
    busy = tick(refresh, instance, json.dumps(state), LAKE)
    assert not busy.run_requests
    instance.report_run_failed(run)
    assert not tick(refresh, instance, busy.cursor, LAKE).run_requests, "rest began anew"
    assert requested(tick(refresh, instance, json.dumps(state), LAKE)) == [("manifests", "arm")]


def _job(name: str) -> dg.JobDefinition:
    @dg.job(name=name)
    def empty() -> None: ...

    return empty


def test_a_broken_recipe_stops_no_other(settings: Settings, instance: dg.DagsterInstance) -> None:
    write_recipe(settings, "arm", "arm")
    (settings.recipes / "broken.yaml").write_text("name: [")
    write_recipe(settings, "sql", "arm").model_dump()
    (settings.recipes / "sql.yaml").write_text(
        (settings.recipes / "sql.yaml").read_text().replace("robot =", "robit =")
    )
    add_episodes(settings, "arm", "a1")
    assert requested(tick(refresh, instance, None, LAKE)) == [("manifests", "arm")]
    build_manifest(open_lake(settings.lake_uri), load_recipe(settings.recipes / "arm.yaml"))
    assert len(tick(launch_training, instance, None, LAKE).run_requests or ()) == 1


def test_a_new_manifest_launches_one_run(settings: Settings, instance: dg.DagsterInstance) -> None:
    lake = open_lake(settings.lake_uri)
    recipe = write_recipe(settings, "arm", "arm")
    write_recipe(settings, "by_hand", "arm", launch=False)
    assert not tick(launch_training, instance, None, LAKE).run_requests, "nothing is built yet"
    add_episodes(settings, "arm", "a1", "a2")
    build_manifest(lake, recipe)
    build_manifest(lake, load_recipe(settings.recipes / "by_hand.yaml"))
    [request] = tick(launch_training, instance, None, LAKE).run_requests or ()
    assert request.run_config["ops"]["training_run"]["config"]["recipe"] == "arm"
    [again] = tick(launch_training, instance, None, LAKE).run_requests or ()
    assert again.run_key == request.run_key, "asked twice, Dagster starts it once"

    [wanted], _ = latest_intents(lake, {"arm": recipe})
    assert wanted.run_key == request.partition_key
    write_intent(settings.runs_dir, wanted)
    assert not tick(launch_training, instance, None, LAKE).run_requests
    add_episodes(settings, "arm", "a3")
    build_manifest(lake, recipe)
    assert len(tick(launch_training, instance, None, LAKE).run_requests or ()) == 1
    write_recipe(settings, "arm", "arm", steps=11)
    assert len(tick(launch_training, instance, None, LAKE).run_requests or ()) == 1


def test_new_code_alone_launches_nothing(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = open_lake(settings.lake_uri)
    recipe = write_recipe(settings, "arm", "arm")
    add_episodes(settings, "arm", "a1", "a2")
    build_manifest(lake, recipe)
    [wanted], _ = latest_intents(lake, {"arm": recipe})
    write_intent(settings.runs_dir, wanted)
    monkeypatch.setattr("resources.training.training_version", lambda: "another")
    assert latest_intents(lake, {"arm": recipe})[0][0].run_key != wanted.run_key
    assert not tick(launch_training, instance, None, LAKE).run_requests


def test_the_last_checkpoint_of_a_finished_run_is_evaluated_once(
    settings: Settings, instance: dg.DagsterInstance
) -> None:
    run_dir = make_run(settings.runs_dir)
    commit(run_dir, 10)
    commit(run_dir, 20)
    odd = make_run(settings.runs_dir, intent("bbbbbbbbbbbbbbbb", created=2))
    (odd / "DONE").write_text("")
    assert not tick(evaluate_checkpoints, instance, None, LAKE).run_requests
    finish(run_dir, 20)
    first = tick(evaluate_checkpoints, instance, None, LAKE)
    assert not first.run_requests, "the checkpoint is not reported yet"
    event = dg.AssetMaterialization("checkpoint", partition=run_dir.name, tags={"megahour/step": "20"})
    instance.report_runless_asset_event(event)
    second = tick(evaluate_checkpoints, instance, first.cursor, LAKE)
    [request] = second.run_requests or ()
    assert (request.partition_key, request.tags["megahour/step"]) == (run_dir.name, "20")
    assert not tick(evaluate_checkpoints, instance, second.cursor, LAKE).run_requests


def test_runs_are_found_oldest_first_and_broken_ones_last(settings: Settings) -> None:
    make_run(settings.runs_dir, intent("bbbbbbbbbbbbbbbb", created=2))
    broken = make_run(settings.runs_dir, intent("0000000000000000", created=3))
    (broken / "intent.json").write_text("[]")
    make_run(settings.runs_dir, intent("cccccccccccccccc", created=1))
    found = list(find_runs(settings.runs_dir))
    assert [run_dir.name[0] for run_dir, _ in found] == ["c", "b", "0"]
    assert isinstance(found[-1][1], Exception)

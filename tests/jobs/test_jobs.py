"""The nightly schedule and the job that does everything, on tables made by hand."""

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import dagster as dg

from definitions import defs
from jobs.nightly import nightly
from megahour.manifest.load import latest_key
from megahour.settings import Settings
from megahour.storage import open_lake
from resources.cluster import open_cluster
from resources.lake import LakeResource
from resources.training import read_attempts
from tests.sensors.conftest import settings  # noqa: F401
from tests.sensors.test_flow import add_episodes, write_recipe

ROOT = Path(__file__).parent.parent.parent


def requests(instance: dg.DagsterInstance) -> list[tuple[str | None, object]]:
    context = dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=datetime(2026, 1, 1),
        repository_def=defs.get_repository_def(),
        resources={"lake": LakeResource()},
    )
    found = nightly.evaluate_tick(context).run_requests or ()
    return [(request.partition_key, request.asset_selection) for request in found]


def test_every_night_all_that_selects_something_is_built(settings: Settings) -> None:  # noqa: F811
    with dg.instance_for_test() as instance:
        check_nights(settings, instance)


def check_nights(settings: Settings, instance: dg.DagsterInstance) -> None:  # noqa: F811
    assert requests(instance) == [(None, [dg.AssetKey("curated_episodes")])]
    for name in ("arm", "hand", "none"):
        write_recipe(settings, name, name)
    (settings.recipes / "broken.yaml").write_text("[")
    add_episodes(settings, "arm", "a1", "a2")
    add_episodes(settings, "hand", "h1")
    assert requests(instance) == [("arm", None), ("hand", [dg.AssetKey("manifest")])]
    assert sorted(instance.get_dynamic_partitions("recipe")) == ["arm", "hand"]


def test_backfills_of_batches_are_few_runs() -> None:
    node = defs.resolve_asset_graph().get(dg.AssetKey("episodes"))
    assert node.backfill_policy == dg.BackfillPolicy.multi_run(max_partitions_per_run=10)


def test_everything_builds_and_launches(settings: Settings) -> None:  # noqa: F811
    write_recipe(settings, "arm", "arm")
    write_recipe(settings, "hand", "hand")
    add_episodes(settings, "arm", "a1", "a2")
    with dg.instance_for_test() as instance:
        command = [sys.executable, "-m", "dagster", "job", "execute", "-m", "definitions", "-j", "everything"]
        environment = {**os.environ, "DAGSTER_HOME": instance.root_directory}
        found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        [run_dir] = settings.runs_dir.glob("*/")
        attempts = read_attempts(run_dir)
        open_cluster(settings).cancel(attempts[-1].job_id)
        assert found.returncode == 0, found.stderr
        runs = sorted((run.job_name, run.status) for run in instance.get_runs())
        success = dg.DagsterRunStatus.SUCCESS
        assert runs == [("everything", success), ("manifests", success), ("train", success)]
        assert latest_key(open_lake(settings.lake_uri), "arm") is not None
        assert [attempt.attempt for attempt in attempts] == [1]

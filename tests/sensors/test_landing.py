"""Discovery: each batch is asked for once, a lost cursor is harmless, and keys are added in their order."""

from datetime import UTC, datetime, timedelta

import dagster as dg

from megahour.ingest.plan import Batch, list_batches, write_batch
from megahour.settings import Settings
from megahour.sources.model import Recording
from megahour.storage import FileRef, open_lake
from resources.lake import LakeResource
from sensors.landing import landing
from tests.sensors.world import tick

LAKE = {"lake": LakeResource()}


def plan(settings: Settings, number: int) -> str:
    key = f"{datetime.now(UTC) - timedelta(minutes=1):%Y%m%dT%H%M}-{number:04d}"
    file = FileRef(f"landing/s/{number}.hdf5", 1, str(number), datetime(2026, 1, 1, tzinfo=UTC))
    recording = Recording(file.key, "aloha_hdf5", "s", (file,), ())
    write_batch(open_lake(settings.lake_uri), Batch(key, (recording,)))
    return key


def test_each_planned_batch_is_one_run(settings: Settings, instance: dg.DagsterInstance) -> None:
    keys = [plan(settings, number) for number in (2, 1, 3)]
    first = tick(landing, instance, None, LAKE)
    assert [request.run_key for request in first.run_requests or ()] == sorted(keys)
    assert instance.get_dynamic_partitions("ingest_batch") == sorted(keys)
    assert not tick(landing, instance, first.cursor, LAKE).run_requests

    fourth = plan(settings, 4)
    assert [r.run_key for r in tick(landing, instance, first.cursor, LAKE).run_requests or ()] == [fourth]
    again = tick(landing, instance, None, LAKE)
    assert [request.run_key for request in again.run_requests or ()] == [*sorted(keys), fourth]
    assert instance.get_dynamic_partitions("ingest_batch") == [*sorted(keys), fourth]
    assert len(list_batches(open_lake(settings.lake_uri))) == 4

"""Discovery names every new recording's batch once it has settled, and loses none to a crash or a lost cursor."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from megahour.ingest.discover import Cursor, Discovery, discover
from megahour.ingest.plan import Batch, list_batches, read_batch, write_batch
from megahour.settings import Settings
from megahour.storage import Lake, open_lake
from tests.samples import copy_g1

NOW = datetime(2031, 1, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(tmp_path.as_uri())


def land(lake: Lake, name: str, age_s: float = 3600, size: int = 10) -> None:
    path = lake.local_path(f"landing/{name}")
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(name.encode().ljust(size, b"."))
    os.utime(path, (NOW.timestamp() - age_s, NOW.timestamp() - age_s))


def look(lake: Lake, cursor: str = "", now: datetime = NOW, budget_s: float = 60, **settings: int) -> Discovery:
    chosen = Settings(lake=lake.uri).model_copy(update=settings)
    return discover(lake, chosen, cursor, now, time.monotonic() + budget_s)


def planned(lake: Lake) -> list[list[str]]:
    return [[recording.uri for recording in read_batch(lake, key).recordings] for key in list_batches(lake)]


def test_new_recordings_are_asked_for_once(lake: Lake) -> None:
    assert look(lake).batches_to_request == ()
    land(lake, "lab/1.hdf5")
    first = look(lake)
    assert first.batches_to_request == ("20310101T1200-0001",)
    assert look(lake, first.cursor).batches_to_request == ()
    land(lake, "lab/2.hdf5")
    land(lake, "other/3.hdf5")
    second = look(lake, first.cursor)
    assert second.batches_to_request == ("20310101T1200-0002", "20310101T1200-0003")
    assert planned(lake) == [["landing/lab/1.hdf5"], ["landing/lab/2.hdf5"], ["landing/other/3.hdf5"]]


def test_batches_keep_to_their_limits(lake: Lake) -> None:
    for number in range(7):
        land(lake, f"lab/{number}.hdf5", size=100)
    look(lake, batch_bytes=300)
    assert [len(batch) for batch in planned(lake)] == [3, 3, 1]
    look(lake, batch_recordings=1)
    assert len(planned(lake)) == 3


def test_a_recording_still_being_written_waits(lake: Lake) -> None:
    land(lake, "lab/1.hdf5", age_s=2)
    assert look(lake).batches_to_request == ()
    assert look(lake, now=NOW + timedelta(seconds=2)).batches_to_request != ()


def test_a_file_from_the_future_is_not_waited_for(lake: Lake) -> None:
    land(lake, "lab/1.hdf5", age_s=-86400)
    assert look(lake).batches_to_request != ()


def test_a_dataset_whose_videos_are_on_their_way_waits(lake: Lake) -> None:
    folder = lake.local_path("landing/g1/pick")
    assert folder is not None
    copy_g1(folder, [0, 1])
    videos = sorted(folder.rglob("*.mp4"))
    video = videos[1].read_bytes()
    videos[1].unlink()
    for path in folder.rglob("*.*"):
        os.utime(path, (NOW.timestamp() - 3600, NOW.timestamp() - 3600))
    os.utime(videos[0], (NOW.timestamp() - 1, NOW.timestamp() - 1))
    assert look(lake).batches_to_request == ()
    later = NOW + timedelta(minutes=1)
    first = look(lake, now=later)
    assert planned(lake) == [["landing/g1/pick#episode=0", "landing/g1/pick#episode=1"]]
    videos[1].write_bytes(video)
    assert len(look(lake, first.cursor, now=later + timedelta(days=400)).batches_to_request) == 1
    assert planned(lake)[1] == ["landing/g1/pick#episode=1"]


def test_a_crash_before_the_cursor_is_kept_loses_nothing(lake: Lake) -> None:
    land(lake, "lab/1.hdf5")
    first = look(lake)
    land(lake, "lab/2.hdf5")
    look(lake, first.cursor)
    assert look(lake, first.cursor).batches_to_request == ("20310101T1200-0002",)
    assert look(lake, "torn {").batches_to_request == ("20310101T1200-0001", "20310101T1200-0002")
    assert len(planned(lake)) == 2


def test_a_plan_that_appears_late_under_an_older_key_is_found(lake: Lake) -> None:
    for number in (1, 3):
        land(lake, f"lab/{number}.hdf5")
    write_batch(lake, Batch("20310101T1200-0003", ()))
    cursor = look(lake).cursor
    write_batch(lake, Batch("20310101T1200-0002", ()))
    assert look(lake, cursor).batches_to_request == ("20310101T1200-0002",)


def test_a_plan_that_appears_a_day_late_is_found_too(lake: Lake) -> None:
    write_batch(lake, Batch("20310101T1200-0001", ()))
    write_batch(lake, Batch("20310101T1205-0001", ()))
    cursor = look(lake).cursor
    for _ in range(2):
        later = look(lake, cursor, now=NOW + timedelta(days=1))
        assert later.batches_to_request == ()
        cursor = later.cursor
    write_batch(lake, Batch("20310101T1203-0001", ()))
    found = look(lake, cursor, now=NOW + timedelta(days=1))
    assert "20310101T1203-0001" in found.batches_to_request
    assert look(lake, found.cursor, now=NOW + timedelta(days=1)).batches_to_request == ()


def test_the_cursor_stays_small(lake: Lake) -> None:
    for minute in range(0, 40, 2):
        write_batch(lake, Batch(f"20310101T12{minute:02d}-0001", ()))
    cursor = Cursor.parse(look(lake, now=NOW + timedelta(minutes=40)).cursor)
    assert cursor.requested == "20310101T1228-0001"
    assert cursor.recent == tuple(f"20310101T12{minute}-0001" for minute in (30, 32, 34, 36, 38))


def test_without_time_one_source_is_looked_at_and_the_next_time_the_next(lake: Lake) -> None:
    for source in "abc":
        land(lake, f"{source}/1.hdf5")
    cursor = ""
    for source in "abc":
        found = look(lake, cursor, budget_s=-1)
        cursor = found.cursor
        (key,) = found.batches_to_request
        assert [recording.source for recording in read_batch(lake, key).recordings] == [source]
    land(lake, "a/2.hdf5")
    assert len(look(lake, cursor, budget_s=-1).batches_to_request) == 1


def test_a_broken_dataset_stops_no_other_source(lake: Lake) -> None:
    land(lake, "bad/meta/info.json")
    land(lake, "good/1.hdf5")
    look(lake)
    assert planned(lake) == [["landing/bad"], ["landing/good/1.hdf5"]]


def test_a_file_in_no_source_is_found_too(lake: Lake) -> None:
    land(lake, "1.hdf5")
    look(lake)
    assert planned(lake) == [["landing/1.hdf5"]]

"""Discovery names every new recording's batch once it has settled, and loses none to a crash or a lost cursor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from megahour.ingest.discover import Cursor, Discovery, discover, known_recordings
from megahour.ingest.plan import Batch, list_batches, read_batch, write_batch
from megahour.settings import Settings
from megahour.sources import find_recordings
from megahour.sources.model import Recording
from megahour.storage import FileRef, Lake, open_lake
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


def test_each_plan_is_read_once_however_many_there_are(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = [f"20310101T{hour:02d}{minute:02d}" for hour in range(2) for minute in range(60)]
    keys = [f"{minute}-{number:04d}" for minute in minutes for number in range(1, 101)]
    read: list[str] = []

    def plan(lake: Lake, key: str) -> Batch:
        read.append(key)
        return Batch(key, ())

    monkeypatch.setattr("megahour.ingest.discover.list_batches", lambda lake: keys)
    monkeypatch.setattr("megahour.ingest.discover.read_batch", plan)
    for _ in range(3):
        known_recordings(lake)
    assert read == keys and len(keys) == 12_000


def test_nothing_is_planned_before_all_plans_are_read_and_a_tick_goes_on_where_the_last_stopped(lake: Lake) -> None:
    for number in range(3):
        write_batch(lake, Batch(f"20310101T1100-000{number}", ()))
    land(lake, "lab/1.hdf5")
    first = look(lake, budget_s=-1)
    assert first.batches_to_request == ("20310101T1100-0000", "20310101T1100-0001", "20310101T1100-0002")
    second = look(lake, first.cursor, budget_s=-1)
    assert (second.batches_to_request, len(planned(lake))) == ((), 3)
    assert look(lake, second.cursor, budget_s=-1).batches_to_request == ("20310101T1200-0001",)


def test_a_source_is_read_anew_only_when_a_file_changed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[list[str]] = []

    def find(files: list[FileRef], read: Callable[[str], bytes]) -> list[Recording]:
        looks.append([file.key for file in files])
        return find_recordings(files, read)

    def looked() -> list[list[str]]:
        looks.clear()
        look(lake)
        return list(looks)

    monkeypatch.setattr("megahour.ingest.discover.find_recordings", find)
    one, two, other = "landing/lab/1.hdf5", "landing/lab/2.hdf5", "landing/other/3.hdf5"
    land(lake, "lab/1.hdf5")
    land(lake, "other/3.hdf5")
    assert looked() == [[one], [other]] == looked(), "what was planned is found in the plans before it is passed over"
    assert looked() == []
    land(lake, "lab/2.hdf5", age_s=1)
    assert looked() == [[one, two]] == looked(), "what is still being written is looked at until it is planned"
    land(lake, "lab/2.hdf5")
    assert looked() == [[one, two]] == looked()
    assert looked() == []
    land(lake, "other/3.hdf5", size=20)
    assert looked() == [[other]] == looked()
    assert [uri for batch in planned(lake) for uri in batch] == [one, other, two, other]


def test_what_a_plan_held_that_was_taken_away_is_planned_again(lake: Lake) -> None:
    land(lake, "lab/1.hdf5")
    for _ in range(2):
        look(lake)
        (plan,) = list_batches(lake)
        path = lake.local_path(f"batches/{plan}.json")
        assert path is not None
        path.unlink()
    look(lake)
    assert planned(lake) == [["landing/lab/1.hdf5"]]


def set_age(path: Path, age_s: float) -> None:
    os.utime(path, (NOW.timestamp() - age_s, NOW.timestamp() - age_s))


def landed(lake: Lake, name: str) -> Path:
    path = lake.local_path(f"landing/{name}")
    assert path is not None
    return path


def test_a_half_written_source_yaml_is_waited_for(lake: Lake) -> None:
    land(lake, "lab/1.hdf5")
    land(lake, "lab/source.yaml", age_s=0.1)
    land(lake, "other/2.hdf5")
    look(lake)
    assert planned(lake) == [["landing/other/2.hdf5"]]
    look(lake, now=NOW + timedelta(minutes=1))
    assert planned(lake) == [["landing/other/2.hdf5"], ["landing/lab/1.hdf5"]]


def test_options_that_go_back_are_planned_again(lake: Lake) -> None:
    land(lake, "lab/1.hdf5")
    path = landed(lake, "lab/source.yaml")
    seen = []
    for robot, age_s in (("arm", 90), ("leg", 80), ("arm", 90), ("arm", 90)):
        # In one file, at one time and of one size: as an object store has it, the etag is the earlier one.
        path.write_text(f"robot: {robot}")
        set_age(path, age_s)
        look(lake)
        seen.append(len(planned(lake)))
    assert seen == [1, 2, 3, 3]


def test_shards_wait_for_the_features_that_are_coming(lake: Lake) -> None:
    land(lake, "oxe/toy/1.0.0/toy-train.tfrecord-00000-of-00002")
    land(lake, "oxe/toy/1.0.0/toy-train.tfrecord-00001-of-00002", age_s=1)
    land(lake, "oxe/apart/2.0.0/apart-train.tfrecord-00000-of-00001")
    look(lake)
    assert planned(lake) == [["landing/oxe/apart/2.0.0/apart-train.tfrecord-00000-of-00001"]]


@pytest.mark.parametrize(
    ("name", "before", "after", "again"),
    [
        ("info.json", "Unitree_G1_Inspire", "franka", [0, 1]),
        ("episodes.jsonl", '"episode_index": 1,', '"episode_index": 1, "success": true,', [1]),
        ("tasks.jsonl", "yellow", "green", []),
    ],
)
def test_of_an_edited_dataset_the_episodes_it_speaks_of_are_planned(
    lake: Lake, name: str, before: str, after: str, again: list[int]
) -> None:
    meta = copy_g1(landed(lake, "g1/pick"), [0, 1]) / "meta"
    for path in meta.parent.rglob("*.*"):
        set_age(path, 3600)
    look(lake)
    text = (meta / name).read_text()
    assert before in text
    (meta / name).write_text(text.replace(before, after))
    set_age(meta / name, 0.1)
    look(lake)
    assert len(planned(lake)) == 1, "it is still being written"
    look(lake, now=NOW + timedelta(minutes=1))
    assert planned(lake)[1:] == ([[f"landing/g1/pick#episode={number}" for number in again]] if again else [])


def test_a_dataset_that_grows_plans_its_new_episodes_alone(lake: Lake) -> None:
    for episodes in ([0, 1], [0, 1, 2]):
        times = {path: path.stat().st_mtime_ns for path in landed(lake, "g1").rglob("episode_*.*")}
        copy_g1(landed(lake, "g1/pick"), episodes)
        for path, mtime_ns in times.items():
            os.utime(path, ns=(mtime_ns, mtime_ns))
        look(lake, now=NOW + timedelta(days=400))
    assert planned(lake) == [
        ["landing/g1/pick#episode=0", "landing/g1/pick#episode=1"],
        ["landing/g1/pick#episode=2"],
    ]

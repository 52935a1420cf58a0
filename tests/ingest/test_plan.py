"""Batches hold every recording once, within the limits, of bytes as equal as the order allows; keys only grow."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megahour.ingest.plan import Batch, add_batches, cut_batches, list_batches, next_key, read_batch, write_batch
from megahour.sources.model import Recording
from megahour.storage import FileRef, Lake, open_lake

NOW = datetime(2026, 11, 29, 15, 0, tzinfo=UTC)
SIZES = st.lists(st.integers(0, 400), max_size=60)


def make(number: int, size_bytes: int) -> Recording:
    key = f"landing/lab/{number:05d}.hdf5"
    return Recording(key, "aloha_hdf5", "lab", (FileRef(key, size_bytes, f"e{number}", NOW),), ())


@given(SIZES, st.integers(1, 500), st.integers(1, 20), st.randoms(use_true_random=False))
def test_every_recording_is_in_one_batch_within_the_limits(
    sizes: list[int], batch_bytes: int, batch_recordings: int, order: random.Random
) -> None:
    recordings = [make(number, size) for number, size in enumerate(sizes)]
    batches = cut_batches(recordings, batch_bytes, batch_recordings)
    assert [recording for batch in batches for recording in batch] == recordings
    for batch in batches:
        assert 1 <= len(batch) <= batch_recordings
        assert len(batch) == 1 or sum(recording.size_bytes for recording in batch) <= batch_bytes
    order.shuffle(recordings)
    assert cut_batches(recordings, batch_bytes, batch_recordings) == batches


def test_bytes_are_spread_evenly_over_the_fewest_batches() -> None:
    batches = cut_batches([make(number, 10) for number in range(11)], batch_bytes=100, batch_recordings=500)
    assert [len(batch) for batch in batches] == [6, 5]


def test_a_recording_larger_than_a_batch_is_alone_and_its_neighbours_stay_balanced() -> None:
    sizes = [10, 10, 900, 10, 10, 10, 10]
    batches = cut_batches([make(number, size) for number, size in enumerate(sizes)], 40, 500)
    assert [sum(recording.size_bytes for recording in batch) for batch in batches] == [20, 900, 40]


@given(st.lists(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), min_size=2, max_size=30))
def test_keys_grow_and_keep_their_form_whatever_the_clock_does(clock: list[datetime]) -> None:
    keys = [""]
    for now in clock:
        keys.append(next_key(keys[-1], now))
    assert keys == sorted(set(keys))
    assert all(re.fullmatch(r"\d{8}T\d{4}-\d{4}", key) for key in keys[1:])


def test_a_full_minute_runs_into_the_next() -> None:
    assert next_key("20261231T2359-9999", NOW) == "20270101T0000-0001"


def test_a_plan_is_read_back_as_it_was_written_and_never_replaced(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    broken = Recording("landing/lab/ds#3", "lerobot_v21", "lab", (), ("landing/lab/ds/videos/3.mp4",))
    batch = Batch("20261129T1500-0007", (make(1, 5), broken))
    write_batch(lake, batch)
    write_batch(lake, batch)
    assert read_batch(lake, batch.key) == batch
    assert (batch.date, batch.size_bytes) == ("2026-11-29", 5)
    with pytest.raises(FileExistsError):
        write_batch(lake, Batch(batch.key, (broken,)))


def test_a_plan_of_an_earlier_version_may_be_stored_again(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    (batch,) = add_batches(lake, [(make(1, 5),)], NOW)
    path = tmp_path / f"batches/{batch.key}.json"
    plan = json.loads(path.read_bytes())
    for recording in plan["recordings"]:
        del recording["beside"], recording["said"]
    path.write_text(json.dumps(plan))
    write_batch(lake, read_batch(lake, batch.key))
    with pytest.raises(FileExistsError):
        write_batch(lake, Batch(batch.key, (make(2, 5),)))


def test_a_key_taken_by_another_process_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = open_lake(tmp_path.as_uri())
    write_batch(lake, Batch("20261129T1500-0001", (make(1, 5),)))

    def stale(_: Lake) -> list[str]:
        return []

    monkeypatch.setattr("megahour.ingest.plan.list_batches", stale)
    added = add_batches(lake, [(make(2, 5),), (make(3, 5),)], NOW)
    assert [batch.key for batch in added] == ["20261129T1500-0002", "20261129T1500-0003"]
    assert list_batches(lake, after="20261129T1500-0001") == ["20261129T1500-0002", "20261129T1500-0003"]


@pytest.mark.parametrize("damaged", [b"", b"{bad", b"[]", b'{"key": "a"}'])
def test_a_damaged_plan_is_named(tmp_path: Path, damaged: bytes) -> None:
    lake = open_lake(tmp_path.as_uri())
    (batch,) = add_batches(lake, [(make(1, 1),)], NOW)
    (tmp_path / f"batches/{batch.key}.json").write_bytes(damaged)
    with pytest.raises(ValueError, match=rf"{batch.key}\.json is not a batch's plan: .*Restore it, or remove it"):
        read_batch(lake, batch.key)

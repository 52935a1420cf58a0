"""A batch is done when it says so: not before its episodes are measured, and once whatever became of its recordings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from megahour.ingest.land import land_batch
from megahour.ingest.measure import measure_batch
from megahour.ingest.pending import pending_batches
from megahour.ingest.plan import read_batch
from megahour.ingest.quarantine import retry_quarantined
from megahour.ingest.run import ingest_batch
from megahour.ingest.verdict import IngestError
from megahour.settings import Settings
from megahour.storage import Lake
from tests.ingest.recordings import contents, discovered, landing, make_lake, rows, truncate, write_recording

Home = tuple[Lake, Settings]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A lake with a good recording, a bad one and a shard that nothing describes yet, all of them done."""
    lake, settings = make_lake(tmp_path)
    write_recording(landing(lake) / "toys/good.hdf5", 1)
    truncate(write_recording(landing(lake) / "toys/bad.hdf5", 2))
    (landing(lake) / "bridge").mkdir()
    (landing(lake) / "bridge/x.tfrecord").write_bytes(b"no record")
    discovered(lake, settings)
    assert len(work(lake, settings)) == 2
    return lake, settings


def work(lake: Lake, settings: Settings) -> list[str]:
    """Work through what is pending, as a person without a pipeline does; the keys."""
    keys = pending_batches(lake)
    for key in keys:
        batch = read_batch(lake, key)
        land_batch(lake, settings, batch)
        ingest_batch(lake, settings, batch)
        measure_batch(lake, settings, batch)
    return keys


def test_a_batch_is_pending_until_its_episodes_are_measured(tmp_path: Path) -> None:
    lake, settings = make_lake(tmp_path)
    write_recording(landing(lake) / "toys/1.hdf5", 1)
    (batch,) = discovered(lake, settings)
    for step in (land_batch, measure_batch, ingest_batch):
        step(lake, settings, batch)
        assert pending_batches(lake) == [batch.key], step
    assert rows(lake, "episode_quality") == []
    measure_batch(lake, settings, batch)
    assert pending_batches(lake) == []
    assert len(rows(lake, "episode_quality")) == 1


def test_a_batch_that_the_machine_stopped_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, settings = make_lake(tmp_path)
    write_recording(landing(lake) / "toys/1.hdf5", 1)
    (batch,) = discovered(lake, settings)

    def full(*args: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("megahour.ingest.run.record_verdicts", full)
        with pytest.raises(IngestError):
            ingest_batch(lake, settings, batch)
    measure_batch(lake, settings, batch)
    assert pending_batches(lake) == [batch.key]
    assert work(lake, settings) == [batch.key]
    assert pending_batches(lake) == []


def copies(lake: Lake, settings: Settings) -> None:
    shutil.copytree(landing(lake) / "toys", landing(lake) / "again")


def touched(lake: Lake, settings: Settings) -> None:
    for path in (landing(lake) / "toys").iterdir():
        os.utime(path, (0, 0))


def renamed(lake: Lake, settings: Settings) -> None:
    (landing(lake) / "toys").rename(landing(lake) / "moved")


def still_bad(lake: Lake, settings: Settings) -> None:
    retry_quarantined(lake, settings, ["landing/toys/bad.hdf5"])


def gone(lake: Lake, settings: Settings) -> None:
    write_recording(landing(lake) / "toys/late.hdf5", 3)
    discovered(lake, settings)
    (landing(lake) / "toys/late.hdf5").unlink()


def superseded(lake: Lake, settings: Settings) -> None:
    """What was missing comes before the batch is worked on, and a later batch has it."""
    retry_quarantined(lake, settings, ["landing/bridge/x.tfrecord"])
    (landing(lake) / "bridge/features.json").write_text("{}")


def test_what_a_batch_holds_is_looked_at_once(home: Home) -> None:
    lake, settings = home
    changes: tuple[Callable[[Lake, Settings], None], ...] = (copies, touched, still_bad, gone, superseded, renamed)
    for change in changes:
        change(lake, settings)
        discovered(lake, settings)
        assert len(work(lake, settings)) in (1, 2), change
        discovered(lake, settings)
        assert pending_batches(lake) == [], change


def test_batches_of_a_lake_without_markers_are_looked_at_once_more(home: Home) -> None:
    lake, settings = home
    before = contents(lake)
    for stage in ("ingested", "measured"):
        for marker in (landing(lake).parent / "batches").glob(f"*.{stage}"):
            marker.unlink()
    assert len(work(lake, settings)) == 2
    assert work(lake, settings) == []
    assert contents(lake) == before

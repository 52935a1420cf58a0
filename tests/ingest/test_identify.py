"""What a recording is called when its files cannot all be read."""

from pathlib import Path

import pytest

from megahour.ingest import identify as identifying
from megahour.ingest.identify import Task, identify_one
from megahour.ingest.plan import Batch, write_batch
from megahour.sources.model import Recording
from megahour.storage import StoreError, open_lake, write_once


def test_a_lake_that_fails_gives_a_recording_no_other_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = open_lake((tmp_path / "lake").as_uri())
    files = tuple(write_once(lake, f"landing/lab/{name}", name.encode()) for name in ("a", "b", "gone"))
    recording = Recording("landing/lab/a", "lerobot", "lab", files)
    write_batch(lake, Batch("20260101T0000-0001", (recording,)))
    (tmp_path / "lake/landing/lab/gone").unlink()
    task = Task(lake, recording, "20260101T0000-0001", tmp_path)
    rejected = identify_one(task).rejected
    assert rejected is not None
    assert rejected.reason == "gone"
    stage = identifying.stage

    def failing(lake: object, key: str, folder: Path) -> Path:
        if key.endswith("b"):
            raise StoreError("The lake failed")
        return stage(task.lake, key, folder)

    monkeypatch.setattr(identifying, "stage", failing)
    with pytest.raises(StoreError):
        identify_one(task)

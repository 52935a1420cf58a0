"""What is the machine's fault stops the batch and blames no recording; what kills a worker is held in the end."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import av.error
import pytest

from megahour.ingest.land import land_batch
from megahour.ingest.measure import measure_batch
from megahour.ingest.run import ingest_batch
from megahour.ingest.verdict import IngestError, Rejected, judge
from megahour.sources.model import SourceError
from megahour.storage import StoreError, open_lake, write_once
from tests.ingest import tasks
from tests.ingest.recordings import contents, discovered, landing, make_lake, quarantine, rows, write_recording

DIE_WHEN_WRITING = """
import os, signal, sys

def watch(event, arguments):
    if event == "open" and {folder!r} in str(arguments[0]):
        open({count!r}, "a").write("x")
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
"""


WHEN_IDENTIFYING = """
import os, signal, sys

def watch(event, arguments):
    if event == "open" and str(arguments[0]).endswith("landing/toys/1.hdf5"):
        open({count!r}, "a").write("x")
        {end}

sys.addaudithook(watch)
"""


@pytest.fixture
def mounts() -> Iterator[list[Path]]:
    """Mount points to unmount at the end."""
    points: list[Path] = []
    yield points
    for point in points:
        subprocess.run(["umount", str(point)], check=True)


def in_workers(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str) -> Path:
    """Run a program at the start of every worker, and not in this process, while its file is there."""
    hook = folder / "hook" / "sitecustomize.py"
    hook.parent.mkdir()
    hook.write_text(program)
    monkeypatch.syspath_prepend(str(hook.parent))
    return hook


def mount(point: Path, size: str, mounts: list[Path]) -> None:
    point.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point)], capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.decode().strip()}")
    mounts.append(point)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("place", ["lake/episodes", "lake/tables", "scratch"])
def test_a_full_disk_fails_the_batch_and_a_rerun_completes_it(tmp_path: Path, mounts: list[Path], place: str) -> None:
    lake, settings = make_lake(tmp_path)
    for seed in range(3):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed, steps=60)
    (batch,) = discovered(lake, settings)
    mount(tmp_path / place, "16k", mounts)
    with pytest.raises(
        IngestError, match=r"(?s)Batch 20310101T1200-0001 .*No space left on device.* run the batch again"
    ):
        ingest_batch(lake, settings, batch)
    assert rows(lake, "quarantine") == []
    subprocess.run(["mount", "-o", "remount,size=32m", str(tmp_path / place)], check=True)
    report = ingest_batch(lake, settings, batch)
    assert report.ingested + report.skipped == 3
    assert len(rows(lake, "episodes")) == 3
    assert rows(lake, "quarantine") == []


def test_a_recording_that_kills_its_workers_is_held_after_two_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, settings = make_lake(tmp_path)
    for seed in range(3):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
    (batch,) = discovered(lake, settings)
    folder = hashlib.sha256(b"landing/toys/1.hdf5").hexdigest()[:16]
    count = tmp_path / "deaths"
    hook = in_workers(monkeypatch, tmp_path, DIE_WHEN_WRITING.format(folder=folder, count=str(count)))
    report = ingest_batch(lake, settings, batch)
    assert (report.ingested, report.quarantined) == (2, 1)
    assert count.read_text() == "xx"
    assert quarantine(lake) == {"landing/toys/1.hdf5": ("held", "worker_died")}
    assert "SIGKILL" in rows(lake, "quarantine")[0]["error"]
    hook.unlink()
    before = contents(lake)
    assert ingest_batch(lake, settings, batch).ingested == 1
    assert quarantine(lake) == {"landing/toys/1.hdf5": ("released", "worker_died")}
    assert len(rows(lake, "episodes")) == len(before["episodes"]) + 1


def test_a_recording_that_kills_whoever_identifies_it_is_held_and_the_others_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, settings = make_lake(tmp_path)
    for seed in range(3):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
    (batch,) = discovered(lake, settings)
    count = tmp_path / "deaths"
    end = "os.kill(os.getpid(), signal.SIGSEGV)"
    in_workers(monkeypatch, tmp_path, WHEN_IDENTIFYING.format(count=str(count), end=end))
    landed = land_batch(lake, settings, batch)
    assert (landed.recordings, landed.new, count.read_text()) == (3, 2, "xx")
    report = ingest_batch(lake, settings, batch)
    assert (report.ingested, report.quarantined, count.read_text()) == (2, 1, "xxxx")
    assert quarantine(lake) == {"landing/toys/1.hdf5": ("held", "worker_died")}
    error = rows(lake, "quarantine")[0]["error"]
    assert "identified landing/toys/1.hdf5 died twice" in error and "SIGSEGV" in error


def test_a_recording_whose_identification_does_not_end_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, settings = make_lake(tmp_path)
    write_recording(landing(lake) / "toys/1.hdf5", 1)
    (batch,) = discovered(lake, settings)
    program = WHEN_IDENTIFYING.format(count=str(tmp_path / "tries"), end="signal.pause()")
    in_workers(monkeypatch, tmp_path, program)
    assert ingest_batch(lake, settings.model_copy(update={"ingest_task_s": 0.2}), batch).quarantined == 1
    assert quarantine(lake) == {"landing/toys/1.hdf5": ("held", "worker_died")}
    assert "still at work" in rows(lake, "quarantine")[0]["error"]


def test_the_other_steps_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, settings = make_lake(tmp_path)
    write_recording(landing(lake) / "toys/1.hdf5", 1)
    (batch,) = discovered(lake, settings)

    def soon(size_bytes: int, task_s: float) -> float:
        assert size_bytes > 0 and task_s == settings.ingest_task_s
        return 0.2

    with monkeypatch.context() as stuck:
        stuck.setattr("megahour.ingest.run.transcode", tasks.never)
        stuck.setattr("megahour.ingest.run.time_limit_s", soon)
        assert ingest_batch(lake, settings, batch).rejected[0][1] == "worker_died"
    assert ingest_batch(lake, settings, batch).ingested == 1
    with monkeypatch.context() as stuck:
        stuck.setattr("megahour.ingest.measure.measure", tasks.never)
        stuck.setattr("megahour.ingest.measure.time_limit_s", soon)
        (warning,) = measure_batch(lake, settings, batch).warnings
    assert warning.startswith("died: ") and "still at work" in warning


def from_cause(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        StoreError("The lake failed: error sending request"),
        from_cause(SourceError("unreadable", "x.hdf5 cannot be read"), OSError(errno.EIO, "Input/output error")),
    ],
)
def test_errors_of_the_machine_blame_no_recording(tmp_path: Path, error: Exception) -> None:
    lake = open_lake(tmp_path.as_uri())
    write_once(lake, "batches/x.json", b"{}")
    with pytest.raises(IngestError):
        judge(error, lake, "batches/x.json")


def test_errors_of_a_lake_that_went_away_blame_no_recording(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    with pytest.raises(IngestError, match="still mounted"):
        judge(FileNotFoundError("landing/x.hdf5"), lake, "batches/x.json")


def test_errors_of_a_recording_keep_their_reason_and_text(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    write_once(lake, "batches/x.json", b"{}")

    def judged(error: Exception) -> Rejected:
        return judge(error, lake, "batches/x.json")

    assert judged(SourceError("times", "rows are out of order")) == Rejected("times", "rows are out of order")
    assert judged(PermissionError(errno.EACCES, "Permission denied", "x.hdf5")).reason == "unreadable"
    unforeseen = judged(KeyError("rate"))
    assert (unforeseen.reason, unforeseen.error) == ("unexpected", "KeyError: 'rate'")
    with pytest.raises(MemoryError):
        judge(from_cause(SourceError("unreadable", "x"), MemoryError()), lake, "batches/x.json")


def test_what_ffmpeg_calls_an_error_of_the_disk_is_the_recordings_fault(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    write_once(lake, "batches/x.json", b"{}")
    said = av.error.OSError(errno.EIO, "Input/output error", "x.mkv")
    assert isinstance(said, OSError) and said.errno == errno.EIO
    refused = from_cause(SourceError("unreadable", "x.mkv cannot be read as a video"), said)
    assert judge(refused, lake, "batches/x.json").reason == "unreadable"
    assert judge(said, lake, "batches/x.json").reason == "unexpected"
    with pytest.raises(IngestError):
        judge(from_cause(said, OSError(errno.EIO, "Input/output error", "x.mkv")), lake, "batches/x.json")

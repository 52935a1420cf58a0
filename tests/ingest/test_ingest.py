"""The same content is ingested once, whatever happens to its files; bad recordings are held and stop nobody."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from megahour.episode.check import check_episode
from megahour.episode.profile import ProfileError
from megahour.ingest.identify import Task, identify_one
from megahour.ingest.land import land_batch
from megahour.ingest.measure import measure_batch
from megahour.ingest.quarantine import QuarantineError, retry_quarantined
from megahour.ingest.run import ingest_batch
from megahour.settings import Settings
from megahour.sources.model import Recording
from megahour.storage import Lake
from megahour.warehouse.queries import query
from tests.ingest.recordings import (
    contents,
    discovered,
    ingest_all,
    landing,
    make_lake,
    quarantine,
    rows,
    truncate,
    write_recording,
)
from tests.lerobot_v30 import Take, change_listing, rows_of, write_v30


@pytest.fixture
def home(tmp_path: Path) -> tuple[Lake, Settings]:
    return make_lake(tmp_path)


def test_recordings_become_rows_and_files_that_agree(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    for seed in range(3):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
    told: list[tuple[int, int, str]] = []
    (batch,) = discovered(lake, settings)
    report = ingest_batch(lake, settings, batch, lambda *step: told.append(step))
    assert (report.ingested, report.skipped, report.quarantined, report.episodes) == (3, 0, 0, 3)
    assert [(done, total) for done, total, _ in told] == [(1, 3), (2, 3), (3, 3)]
    for row in rows(lake, "episodes"):
        path = lake.local_path(row["uri"])
        assert path is not None
        assert row["uri"] == f"episodes/{batch.date}/{row['episode_id']}.mcap"
        assert row["size_bytes"] == path.stat().st_size
        assert check_episode(lake, row["uri"]) == []
        assert (row["robot"], row["task"], row["success"], row["rate_hz"]) == ("toy", "push", True, 20.0)
        assert (row["frames"], row["cameras"], row["state_dim"], row["action_dim"]) == (12, ["front"], 3, 2)
        assert row["state_stats"]["count"] == 12
        assert row["duration_s"] == pytest.approx(11 / 20)
    assert list((settings.scratch / "ingest").iterdir()) == []


def test_landing_again_touching_and_renaming_change_no_row(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    folder = landing(lake)
    for seed in range(3):
        write_recording(folder / f"toys/{seed}.hdf5", seed)
    truncate(write_recording(folder / "toys/cut.hdf5", 9))
    ingest_all(lake, settings)
    before = contents(lake)
    assert [len(before[table]) for table in ("recordings", "episodes", "quarantine")] == [4, 3, 1]

    for path in (folder / "toys").iterdir():
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 50))
    shutil.copytree(folder / "toys", folder / "again")
    shutil.copytree(folder / "toys", folder / "toys/deeper")
    reports = ingest_all(lake, settings)
    assert sum(report.ingested for report in reports) == 0
    assert contents(lake) == before


def test_bad_recordings_are_held_with_a_reason_and_the_others_pass(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    folder = landing(lake)
    write_recording(folder / "toys/good.hdf5", 1)
    truncate(write_recording(folder / "toys/cut.hdf5", 2))
    (folder / "toys/empty.h5").touch()
    (folder / "toys/other.mcap").write_bytes(b"not ours")
    (report,) = ingest_all(lake, settings)
    assert (report.ingested, report.quarantined) == (1, 3)
    assert quarantine(lake) == {
        "landing/toys/cut.hdf5": ("held", "truncated"),
        "landing/toys/empty.h5": ("held", "truncated"),
        "landing/toys/other.mcap": ("held", "unreadable"),
    }
    cut = next(row for row in rows(lake, "quarantine") if row["uri"].endswith("cut.hdf5"))
    assert "landing/toys/cut.hdf5 is cut short" in cut["error"]
    assert len(rows(lake, "recordings")) == 4


def test_a_repaired_recording_is_ingested_and_released_by_itself(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    path = landing(lake) / "toys/1.hdf5"
    truncate(write_recording(path, 1))
    ingest_all(lake, settings)
    path.unlink()
    write_recording(path, 1)
    ingest_all(lake, settings)
    assert quarantine(lake) == {"landing/toys/1.hdf5": ("released", "truncated")}
    assert len(rows(lake, "episodes")) == 1


def test_a_recording_that_was_entered_and_vanished_is_held(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    path = write_recording(landing(lake) / "toys/1.hdf5", 1)
    write_recording(landing(lake) / "toys/2.hdf5", 2)
    (batch,) = discovered(lake, settings)
    land_batch(lake, settings, batch)
    path.unlink()
    report = ingest_batch(lake, settings, batch)
    assert (report.ingested, report.quarantined) == (1, 1)
    assert quarantine(lake) == {"landing/toys/1.hdf5": ("held", "gone")}


def test_clearing_the_landing_zone_and_running_old_batches_again_holds_nothing(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    for name in ("1", "copy"):
        write_recording(landing(lake) / f"toys/{name}.hdf5", 1)
    ingest_all(lake, settings)
    before = contents(lake)
    shutil.rmtree(landing(lake) / "toys")
    (report,) = ingest_all(lake, settings)
    assert report.skipped == 2
    assert contents(lake) == before


def test_a_retry_that_fails_is_held_again_and_one_that_passes_is_released(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    path = truncate(write_recording(landing(lake) / "toys/1.hdf5", 1))
    ingest_all(lake, settings)
    uri = "landing/toys/1.hdf5"

    (retried,) = retry_quarantined(lake, settings, [uri])
    assert quarantine(lake)[uri] == ("retrying", "truncated")
    assert retried in discovered(lake, settings)
    assert ingest_batch(lake, settings, retried).quarantined == 1
    assert quarantine(lake)[uri] == ("held", "truncated")

    path.unlink()
    write_recording(path, 1)
    (retried,) = retry_quarantined(lake, settings, [uri])
    assert retried in discovered(lake, settings)
    assert ingest_batch(lake, settings, retried).ingested == 1
    assert quarantine(lake)[uri] == ("released", "truncated")
    with pytest.raises(QuarantineError, match=r"Not in quarantine: landing/toys/1\.hdf5"):
        retry_quarantined(lake, settings, [uri])


def test_a_retry_of_many_keeps_to_the_limits_of_a_batch(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    for seed in range(5):
        truncate(write_recording(landing(lake) / f"toys/{seed}.hdf5", seed))
    ingest_all(lake, settings)
    uris = [f"landing/toys/{seed}.hdf5" for seed in range(5)]
    limited = settings.model_copy(update={"batch_recordings": 2})
    batches = retry_quarantined(lake, limited, uris)
    assert [[recording.uri for recording in batch.recordings] for batch in batches] == [uris[:2], uris[2:4], uris[4:]]
    waiting = query(lake, "SELECT uri, state, batch FROM quarantine ORDER BY uri").to_pylist()
    assert [(row["uri"], row["state"]) for row in waiting] == [(uri, "retrying") for uri in uris]
    assert [row["batch"] for row in waiting] == [batch.key for batch in batches for _ in batch.recordings]


def test_what_is_not_there_cannot_be_retried(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    path = truncate(write_recording(landing(lake) / "toys/1.hdf5", 1))
    ingest_all(lake, settings)
    path.unlink()
    with pytest.raises(QuarantineError, match="No longer in the landing zone"):
        retry_quarantined(lake, settings, ["landing/toys/1.hdf5"])
    with pytest.raises(QuarantineError, match="No recording was named"):
        retry_quarantined(lake, settings, [])
    assert quarantine(lake)["landing/toys/1.hdf5"] == ("held", "truncated")


def test_an_episode_file_of_a_killed_run_is_taken_over(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    write_recording(landing(lake) / "toys/1.hdf5", 1)
    ingest_all(lake, settings)
    (first,) = rows(lake, "episodes")
    tables = lake.local_path("tables")
    assert tables is not None
    shutil.rmtree(tables)
    shutil.move(landing(lake) / "toys", landing(lake) / "renamed")
    ingest_all(lake, settings)
    (second,) = rows(lake, "episodes")
    assert (second["episode_id"], second["etag"]) == (first["episode_id"], first["etag"])
    assert second["source"] == "renamed"


def test_signals_are_measured_once_and_again_when_a_step_is_switched_on(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    write_recording(landing(lake) / "toys/1.hdf5", 1)
    (batch,) = discovered(lake, settings)
    ingest_batch(lake, settings, batch)
    without = settings.model_copy(update={"skip_steps": "frozen_share"})
    for measured in (1, 0):
        assert measure_batch(lake, without, batch).measured == measured
    (row,) = rows(lake, "episode_quality")
    assert (row["frozen_share"], row["warnings"]) == (None, ["frozen_share: switched off"])
    for measured in (1, 0):
        assert measure_batch(lake, settings, batch).measured == measured
    (row,) = query(lake, "FROM episode_quality").to_pylist()
    assert (row["frozen_share"], row["dropped_frames"], row["nan_values"], row["warnings"]) == (0.0, 0, 0, [])
    assert row["revision"] == 2


def test_an_episode_that_cannot_be_measured_leaves_null_and_a_warning(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    for seed in (1, 2):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
    (batch,) = discovered(lake, settings)
    ingest_batch(lake, settings, batch)
    path = lake.local_path(rows(lake, "episodes")[0]["uri"])
    assert path is not None
    truncate(path)
    report = measure_batch(lake, settings, batch)
    assert (report.episodes, report.measured, len(report.warnings)) == (2, 2, 1)
    assert next(iter(report.warnings)).startswith("not opened: truncated:")


def test_a_run_that_read_the_tables_too_early_appends_nothing_twice(
    home: tuple[Lake, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, settings = home
    for seed in range(2):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
    truncate(write_recording(landing(lake) / "toys/cut.hdf5", 9))
    (batch,) = discovered(lake, settings)
    ingest_batch(lake, settings, batch)
    before = contents(lake)
    # What another run saw that began at the same moment.
    monkeypatch.setattr("megahour.ingest.run.already_ingested", lambda lake, ids: set())
    monkeypatch.setattr("megahour.ingest.quarantine._latest", lambda lake, uris, ids: {})
    assert ingest_batch(lake, settings, batch).ingested == 2
    assert contents(lake) == before


def test_bad_episodes_of_one_shared_file_are_held_each_with_its_own_text(home: tuple[Lake, Settings]) -> None:
    lake, settings = home
    values = [[float(i), 1.0] for i in range(9)]
    takes = [Take({"observation.state": rows_of(values), "action": rows_of(values)}, {}, ["push"] * 9)] * 3
    dataset = write_v30(landing(lake) / "lab/ds", takes)

    def shorten(listed: list[dict[str, object]]) -> None:
        listed[1] |= {"length": 7}
        listed[2] |= {"length": 8}

    change_listing(dataset, shorten)
    (report,) = ingest_all(lake, settings)
    assert (report.ingested, report.quarantined) == (1, 2)
    for number, length in ((1, 7), (2, 8)):
        uri = f"landing/lab/ds#episode={number}"
        assert quarantine(lake)[uri] == ("held", "frame_count")
        (error,) = [row["error"] for row in rows(lake, "quarantine") if row["uri"] == uri]
        assert error.endswith(f"9 rows of episode {number}, and meta/episodes/chunk-000/file-000.parquet says {length}")


def test_what_cannot_be_hashed_is_known_by_its_bytes_and_its_place(
    home: tuple[Lake, Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, settings = home
    file = write_recording(landing(lake) / "lab/1.hdf5", 1)
    shutil.copy(file, landing(lake) / "lab/2.hdf5")
    (batch,) = discovered(lake, settings)

    def fail(*_: object) -> None:
        raise ArithmeticError("no importer foresaw it")

    monkeypatch.setattr("megahour.ingest.identify.ids_of", fail)

    def named(recording: Recording) -> str:
        return identify_one(Task(lake, recording, batch.key, tmp_path / "scratch")).recording_id

    one, copy = batch.recordings
    assert named(one) == named(copy)
    parts = [replace(one, uri=f"landing/lab/ds#episode={number}") for number in range(2)]
    assert len({named(one), *map(named, parts)}) == 3


@pytest.mark.parametrize("mistake", ['preset = "veryfst"', 'x264 = "nonsense=1"'])
def test_a_profile_that_x264_refuses_blames_no_recording(
    home: tuple[Lake, Settings], tmp_path: Path, mistake: str
) -> None:
    lake, settings = home
    write_recording(landing(lake) / "toys/1.hdf5", 1)
    (batch,) = discovered(lake, settings)
    (tmp_path / "lab.toml").write_text(mistake)
    wrong = settings.model_copy(update={"profile": str(tmp_path / "lab.toml")})
    with pytest.raises(ProfileError, match="The profile 'lab' cannot be used: x264 refuses preset"):
        ingest_batch(lake, wrong, batch)
    assert rows(lake, "quarantine") == []
    assert ingest_batch(lake, settings, batch).ingested == 1

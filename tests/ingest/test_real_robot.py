"""The real G1 dataset goes through whole; a missing or short video is held and the other episodes pass."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from megahour.episode.check import check_episode
from megahour.episode.reader import open_episode
from megahour.ingest.land import land_batch
from megahour.ingest.measure import measure_batch
from megahour.ingest.run import ingest_batch
from megahour.pictures import contact_sheet
from megahour.warehouse.queries import query
from tests.ingest.recordings import contents, discovered, ingest_all, landing, make_lake, quarantine, rows
from tests.samples import G1, copy_g1, drop_last_frame, samples_dir


@pytest.mark.timeout(600)
def test_six_episodes_of_a_real_robot_through_every_step(tmp_path: Path) -> None:
    lake, settings = make_lake(tmp_path)
    copy_g1(landing(lake) / "g1")
    (batch,) = discovered(lake, settings)
    landed = land_batch(lake, settings, batch)
    assert (landed.recordings, landed.new, landed.files) == (6, 6, 12)
    report = ingest_batch(lake, settings, batch)
    assert (report.ingested, report.quarantined, report.episodes) == (6, 0, 6)

    source = samples_dir() / G1
    lengths = [json.loads(line)["length"] for line in (source / "meta/episodes.jsonl").read_text().splitlines()]
    stored = query(lake, "FROM episodes ORDER BY recording_uri").to_pylist()
    assert [row["frames"] for row in stored] == lengths
    assert sum(lengths) == 1583
    for episode, row in enumerate(stored):
        truth = pq.read_table(source / f"data/chunk-000/episode_{episode:06d}.parquet")
        reader = open_episode(lake, row["uri"])
        for column, name in (("observation.state", "state"), ("action", "action")):
            expected = np.stack(truth[column].to_numpy())
            found = reader.series(name).values
            assert found.dtype == expected.dtype == np.float32
            assert found.tobytes() == expected.tobytes()
            stats = row[f"{name}_stats"]
            assert stats["count"] == lengths[episode]
            np.testing.assert_allclose(stats["mean"], expected.mean(axis=0, dtype=np.float64), rtol=0, atol=1e-9)
            np.testing.assert_array_equal(stats["max"], expected.max(axis=0))
        assert (row["robot"], row["cameras"], row["state_dim"]) == ("Unitree_G1_Inspire", ["cam_high"], 26)
        assert reader.cameras["cam_high"].frames == lengths[episode]
    assert check_episode(lake, stored[0]["uri"]) == []

    quality = measure_batch(lake, settings, batch)
    assert (quality.episodes, quality.measured, quality.warnings) == (6, 6, {})
    for row in rows(lake, "episode_quality"):
        assert (row["dropped_frames"], row["nan_values"]) == (0, 0)
        assert row["frozen_share"] < 0.5
        assert 0 < row["action_jump"] <= 1
        assert 0 <= row["idle_share"] < 0.9
    sheet = Image.open(io.BytesIO(contact_sheet(lake, [row["uri"] for row in stored])))
    assert sheet.size == (6 * (128 + 2), 6 * (96 + 16 + 2))


@pytest.mark.timeout(600)
def test_a_missing_and_a_short_video_are_held_and_a_later_video_heals(tmp_path: Path) -> None:
    lake, settings = make_lake(tmp_path)
    folder = copy_g1(landing(lake) / "g1/pick", [0, 1, 2])
    missing, short = (next(folder.rglob(f"episode_00000{episode}.mp4")) for episode in (1, 2))
    video = missing.read_bytes()
    missing.unlink()
    drop_last_frame(short)
    (report,) = ingest_all(lake, settings)
    assert (report.ingested, report.quarantined) == (1, 2)
    assert quarantine(lake) == {
        "landing/g1/pick#episode=1": ("held", "missing_video"),
        "landing/g1/pick#episode=2": ("held", "frame_count"),
    }
    errors = [row["error"] for row in rows(lake, "quarantine")]
    assert any("no video of the camera" in error and "episode_000001.mp4 has not landed" in error for error in errors)
    assert any("263 frames" in error or "frames, and its episode has" in error for error in errors)

    before = contents(lake)
    shutil.copytree(folder, landing(lake) / "g1/copy")
    assert sum(report.ingested for report in ingest_all(lake, settings)) == 0
    assert contents(lake) == before

    shutil.rmtree(landing(lake) / "g1/copy")
    missing.write_bytes(video)
    healed = ingest_all(lake, settings)
    assert sum(report.ingested for report in healed) == 1
    assert quarantine(lake)["landing/g1/pick#episode=1"] == ("released", "missing_video")
    # The old plans, in which the video is missing, hold nothing again.
    after = contents(lake)
    ingest_all(lake, settings)
    assert contents(lake) == after

"""The inputs of benchmarks are what they claim, and are made once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import episodes
from megahour.sources import find_recordings, read_recording
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import samples_dir


def test_noise_is_a_sensors() -> None:
    grey = np.full((120, 160, 3), 128, np.uint8)
    one = episodes.with_noise(grey, np.random.default_rng(1)).astype(float) - 128
    same = episodes.with_noise(grey, np.random.default_rng(1)).astype(float) - 128
    other = episodes.with_noise(grey, np.random.default_rng(2)).astype(float) - 128
    assert np.array_equal(one, same)
    assert abs(one.mean()) < 0.1
    assert 0.6 < one.std() / episodes.NOISE < 0.9, "interpolated colours are smoother than raw pixels"
    neighbours = np.corrcoef(one[:, :-1, 0].ravel(), one[:, 1:, 0].ravel())[0, 1]
    assert neighbours > 0.4, "red is interpolated between every second pixel"
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(one[..., 0].ravel(), one[..., 2].ravel())[0, 1]) < 0.02, "red and blue are other pixels"


def test_real_episodes_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = samples_dir()
    monkeypatch.setenv("MEGAHOUR_SCRATCH", str(tmp_path))
    monkeypatch.setenv("MEGAHOUR_SAMPLES", str(root))
    (episode,) = episodes.real_robot(1)
    (camera,) = episode.cameras
    lake = open_lake(root.as_uri())
    recording = find_recordings(list_files(lake, episodes.REAL), lambda key: read_bytes(lake, key))[0]
    (source,) = read_recording(recording, root.joinpath)
    for one, other in zip(camera.frames(), source.cameras[0].frames(), strict=True):
        assert np.array_equal(one, other)
    assert {series.name: series.values.shape[1] for series in episode.series} == {"state": 26, "action": 26}
    monkeypatch.setattr(episodes, "_create", None)
    assert len(list(episodes.real_robot(1)[0].cameras[0].frames())) == len(camera.times_ns)


@pytest.mark.simulator
def test_simulated_episodes_are_rendered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAHOUR_SCRATCH", str(tmp_path))
    monkeypatch.setattr(episodes, "SIZE", (48, 64))
    (episode,) = episodes.simulated(1, frames=6)
    assert [len(camera.times_ns) for camera in episode.cameras] == [6, 6, 6]
    assert {series.name: series.values.shape for series in episode.series} == {"state": (18, 4), "action": (18, 4)}
    assert np.array_equal(episode.cameras[0].times_ns, episode.series[0].times_ns[::3])
    videos = [np.stack(list(camera.frames())) for camera in episode.cameras]
    assert all((video[1:] != video[:-1]).mean() > 0.5 for video in videos), "noise and motion in every picture"
    state = episode.series[0].values
    assert (np.abs(np.diff(state[:, :3], axis=0)).max(axis=1) > 0).all(), "the hand moves at every step"
    monkeypatch.setattr(episodes, "open_simulator", None)
    again = episodes.simulated(1, frames=6)[0]
    assert np.array_equal(np.stack(list(again.cameras[0].frames())), videos[0])


def test_missing_samples_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAHOUR_SAMPLES", str(tmp_path))
    with pytest.raises(SystemExit, match="MEGAHOUR_SAMPLES"):
        episodes.real_robot(1)

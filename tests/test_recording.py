"""Recording: same seed, same bytes; whole files or none; an interrupted recording goes on."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

pytest.importorskip("metaworld", reason="the simulation extra is not installed")

from megahour.recording import RecordingError, record, write_recording
from megahour.settings import Settings
from megahour.simulators.model import Demonstration

pytestmark = pytest.mark.simulator

TASK = "button-press-topdown-v3"
GL = Settings().mujoco_gl


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recorded")
    episodes = list(record(TASK, 2, 0, out, gl=GL))
    assert [episode.path.name for episode in episodes] == ["episode_000000.hdf5", "episode_000001.hdf5"]
    assert all(episode.success and episode.written for episode in episodes)
    return out


def test_a_recording_is_in_the_aloha_layout(recorded: Path) -> None:
    with h5py.File(recorded / "episode_000001.hdf5") as file:
        steps = file["action"].shape[0]
        assert file["action"].shape == file["observations/qpos"].shape == (steps, 4)
        assert file["action"].dtype == file["observations/qpos"].dtype == np.float32
        for camera in ("corner2", "gripper"):
            images = file[f"observations/images/{camera}"]
            assert images.shape == (steps, 128, 128, 3) and images.dtype == np.uint8
            assert images.chunks == (1, 128, 128, 3)
        assert {name: file.attrs[name] for name in ("sim", "robot", "task", "success", "rate_hz", "init_state")} == {
            "sim": True,
            "robot": "sawyer",
            "task": TASK,
            "success": True,
            "rate_hz": 80.0,
            "init_state": 1,
        }
        assert {"mujoco", "metaworld", "gl", "seed", "action_noise"} <= set(file.attrs)


def test_the_same_seed_gives_the_same_bytes_with_any_number_of_workers(recorded: Path, tmp_path: Path) -> None:
    list(record(TASK, 2, 0, tmp_path, workers=1, gl=GL))
    for path in sorted(recorded.iterdir()):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_another_seed_gives_another_trajectory_from_the_same_start(recorded: Path, tmp_path: Path) -> None:
    list(record(TASK, 1, 1, tmp_path, gl=GL))
    with h5py.File(recorded / "episode_000000.hdf5") as one, h5py.File(tmp_path / "episode_000000.hdf5") as other:
        for camera in ("corner2", "gripper"):
            np.testing.assert_array_equal(
                one[f"observations/images/{camera}"][0], other[f"observations/images/{camera}"][0]
            )
        assert not np.array_equal(one["observations/qpos"][5], other["observations/qpos"][5])


def test_the_clean_action_is_recorded_and_the_noisy_one_executed(recorded: Path) -> None:
    """The expert holds the gripper's command at exactly 1, so noise on it would show."""
    with h5py.File(recorded / "episode_000000.hdf5") as file:
        assert set(np.unique(file["action"][:, 3])) == {1.0}


def test_recording_goes_on_ten_steps_after_success(tmp_path: Path) -> None:
    from megahour.simulators.process import open_simulator

    with open_simulator("metaworld", TASK, cameras=(), gl=GL) as simulator:
        short = simulator.demonstrate(0, 0, 0.15, 300, 0)
        long = simulator.demonstrate(0, 0, 0.15, 300, 10)
    assert len(long.success) == len(short.success) + 10
    np.testing.assert_array_equal(long.action[: len(short.action)], short.action)


def test_finished_files_are_kept_and_a_lost_one_is_made_again(recorded: Path, tmp_path: Path) -> None:
    first = recorded / "episode_000000.hdf5"
    (tmp_path / first.name).write_bytes(first.read_bytes())
    kept_at = (tmp_path / first.name).stat().st_mtime_ns
    (tmp_path / ".episode_000001.hdf5.tmp").write_bytes(b"torn by a power cut")
    episodes = list(record(TASK, 2, 0, tmp_path, gl=GL))
    assert [episode.written for episode in episodes] == [False, True]
    assert episodes[0].steps == h5py.File(first)["action"].shape[0]
    assert (tmp_path / first.name).stat().st_mtime_ns == kept_at
    second = "episode_000001.hdf5"
    assert (tmp_path / second).read_bytes() == (recorded / second).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.name, second]


def test_a_folder_of_other_recordings_is_refused(recorded: Path) -> None:
    with pytest.raises(RecordingError, match="seed is 0, not 5"):
        list(record(TASK, 2, 5, recorded, gl=GL))
    with pytest.raises(RecordingError, match=r"pictures are .*\(128, 128, 3\).*, not .*\(64, 64, 3\)"):
        list(record(TASK, 2, 0, recorded, size=(64, 64), gl=GL))


def test_a_file_that_is_not_hdf5_is_refused(tmp_path: Path) -> None:
    (tmp_path / "episode_000000.hdf5").write_bytes(b"not a recording")
    with pytest.raises(RecordingError, match="not an HDF5 file"):
        list(record(TASK, 1, 0, tmp_path, gl=GL))


def test_a_failed_demonstration_is_recorded_as_failed(tmp_path: Path) -> None:
    failed = Demonstration(
        pictures={"corner2": np.zeros((3, 8, 8, 3), np.uint8)},
        state=np.zeros((3, 4), np.float32),
        action=np.zeros((3, 4), np.float32),
        success=(False, False, False),
        rate_hz=80.0,
        robot="sawyer",
    )
    write_recording(tmp_path / "a.hdf5", failed, {"task": TASK})
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert not file.attrs["success"]

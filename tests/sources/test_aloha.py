"""ALOHA files: what they hold returns as it was, and what is wrong is said."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from megahour.episode.model import RawEpisode
from megahour.sources import SourceError, find_recordings, read_recording
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import pictures, psnr_db, series, write_aloha


def read(root: Path) -> RawEpisode:
    lake = open_lake(root.as_uri())
    (recording,) = find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))
    (episode,) = read_recording(recording, root.joinpath)
    return episode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "landing/sim/press/episode_0.hdf5"


def refused(root: Path, reason: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        for camera in read(root).cameras:
            list(camera.frames())
    assert caught.value.reason == reason


def test_everything_returns(tmp_path: Path, path: Path) -> None:
    write_aloha(path, seed=5, noise=0.15, operator=b"anna")
    episode = read(tmp_path)
    assert (episode.robot, episode.task, episode.success, episode.rate_hz) == ("sawyer", "press-button", True, 20.0)
    assert episode.attributes == {"sim": "True", "noise": "0.15", "operator": "anna"}
    assert episode.notes == ()
    state, action = episode.series
    assert state.values.tobytes() == series("state", 24, 4, seed=5).values.tobytes()
    assert action.values.tobytes() == series("action", 24, 3, seed=6).values.tobytes()
    assert (state.name, action.name, state.values.dtype) == ("state", "action", np.float32)
    assert state.times_ns[:3].tolist() == [0, 50_000_000, 100_000_000]
    for i, camera in enumerate(episode.cameras):
        assert (camera.name, camera.width, camera.height) == (("front", "wrist")[i], 64, 48)
        for _ in range(2):
            assert np.array_equal(np.stack(list(camera.frames())), pictures(24, 48, 64, seed=5 + i))


def test_what_a_file_does_not_say(tmp_path: Path, path: Path) -> None:
    write_aloha(path, task=None, robot=None, success=None, rate_hz=None)
    episode = read(tmp_path)
    assert (episode.robot, episode.task, episode.success, episode.rate_hz) == ("aloha", "press", None, 50.0)
    assert episode.notes == ("no rate_hz in the file: 50 Hz taken, as ALOHA",)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_cut_short(tmp_path: Path, path: Path, share: float) -> None:
    data = write_aloha(path).read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(tmp_path, "truncated", "Copy it again")


def test_a_file_that_is_something_else(tmp_path: Path, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"<html>404 not found</html>" * 100)
    refused(tmp_path, "unreadable", "cannot be read as HDF5")


def test_a_damaged_picture(tmp_path: Path, path: Path) -> None:
    with h5py.File(write_aloha(path), "r") as file:
        chunk = file["observations/images/front"].id.get_chunk_info(7)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes([255]) * chunk.size
    path.write_bytes(bytes(data))
    refused(tmp_path, "unreadable", "images/front is damaged")


def _edit(path: Path, name: str, value: Any) -> None:
    with h5py.File(write_aloha(path), "a") as file:
        del file[name]
        if value is not None:
            file[name] = value


@pytest.mark.parametrize(
    ("name", "value", "reason", "words"),
    [
        ("action", None, "missing_feature", "has no /action"),
        ("observations/qpos", None, "missing_feature", "has no /observations/qpos"),
        ("action", np.zeros((23, 3), np.float32), "frame_count", "23 actions, but 24 entries in /observations/qpos"),
        (
            "observations/images/wrist",
            pictures(23, 8, 8),
            "frame_count",
            "24 actions, but 23 entries in /observations/im",
        ),
        ("action", np.zeros((0, 3), np.float32), "empty", "no steps"),
        ("action", np.zeros((24, 3), np.int64), "feature_mismatch", r"/action is int64 \(24, 3\)"),
        ("action", np.zeros((24, 3, 2), np.float32), "feature_mismatch", r"/action is float32 \(24, 3, 2\)"),
    ],
)
def test_topics_must_fit(tmp_path: Path, path: Path, name: str, value: Any, reason: str, words: str) -> None:
    _edit(path, name, value)
    refused(tmp_path, reason, words)


def test_a_depth_camera_is_left_out_with_a_note(tmp_path: Path, path: Path) -> None:
    _edit(path, "observations/images/wrist", np.zeros((24, 48, 64), np.uint16))
    episode = read(tmp_path)
    assert [camera.name for camera in episode.cameras] == ["front"]
    assert episode.notes == ("camera wrist left out: uint16 (24, 48, 64) is not colour pictures",)


@pytest.mark.parametrize(("order", "swapped"), [(None, True), ("rgb", False)])
def test_jpeg_pictures(tmp_path: Path, path: Path, order: str | None, swapped: bool) -> None:
    video = pictures(24, 48, 64)
    coded = []
    for picture in video:
        out = io.BytesIO()
        Image.fromarray(picture[:, :, ::-1] if swapped else picture).save(out, "JPEG", quality=95)
        coded.append(out.getvalue())
    padded = np.zeros((24, max(map(len, coded)) + 9), np.uint8)
    for row, data in zip(padded, coded, strict=True):
        row[: len(data)] = np.frombuffer(data, np.uint8)
    write_aloha(path, cameras=("front",), compress=True, jpeg_order=order)
    with h5py.File(path, "a") as file:
        del file["observations/images/front"]
        file["observations/images/front"] = padded
        file["compress_len"] = np.array([list(map(len, coded))], np.float32)
        file["observations/qvel"] = np.ones((24, 4), np.float64)
    episode = read(tmp_path)
    assert (episode.cameras[0].width, episode.cameras[0].height) == (64, 48)
    assert psnr_db(video, np.stack(list(episode.cameras[0].frames()))) > 30
    assert [topic.name for topic in episode.series] == ["state", "action", "qvel"]
    assert any("swapped" in note for note in episode.notes) == swapped


@pytest.mark.parametrize(("said", "meant"), [("False", False), (b"true", True), (0, False), (np.float32(1), True)])
def test_success_may_be_a_text(tmp_path: Path, path: Path, said: Any, meant: bool) -> None:
    write_aloha(path, success=said)
    assert read(tmp_path).success is meant


@pytest.mark.parametrize("said", ["partly", np.nan, 2, [True, False]])
def test_success_that_is_neither_is_refused(tmp_path: Path, path: Path, said: Any) -> None:
    write_aloha(path, success=said)
    refused(tmp_path, "feature_mismatch", "must be true or false")


@pytest.mark.parametrize("said", ["fast", [20.0, 30.0], np.nan, 0.0, np.inf, 1e12, 1e-12])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, path: Path, said: Any) -> None:
    write_aloha(path, rate_hz=said)
    refused(tmp_path, "feature_mismatch", "`rate_hz` must be a number")


@pytest.mark.parametrize(
    ("name", "value", "reason", "words"),
    [
        ("action", None, "feature_mismatch", "/action is no array"),
        ("action", np.float32(1), "feature_mismatch", "/action is no array"),
        ("action", h5py.SoftLink("/nowhere"), "missing_feature", "has no /action"),
        ("observations/images", np.zeros(24), "feature_mismatch", "is no folder"),
        ("observations/images/front", None, "feature_mismatch", "/observations/images/front is no array"),
        ("observations/images/front", np.uint8(1), "feature_mismatch", "/observations/images/front is no array"),
        ("observations/images/front", h5py.SoftLink("/nowhere"), "feature_mismatch", "front is no array"),
        ("observations/images/front", np.zeros((24, 0, 48, 3), np.uint8), "feature_mismatch", "48x0: empty"),
    ],
)
def test_a_layout_that_is_not_alohas_is_refused(
    tmp_path: Path, path: Path, name: str, value: Any, reason: str, words: str
) -> None:
    write_aloha(path)
    with h5py.File(path, "a") as file:
        del file[name]
        if value is None:
            file.create_group(name)
        else:
            file[name] = value
    refused(tmp_path, reason, words)


def test_an_empty_attribute_says_nothing(tmp_path: Path, path: Path) -> None:
    write_aloha(path, task=h5py.Empty("S10"), success=h5py.Empty("?"))
    episode = read(tmp_path)
    assert (episode.task, episode.success) == ("press", None)

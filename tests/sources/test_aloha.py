"""ALOHA files: what they hold returns as it was, and what is wrong is said."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from foxglove_schemas_protobuf.RawImage_pb2 import RawImage
from PIL import Image

from megahour.episode.model import Note, RawEpisode
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
    assert episode.notes == (Note("rate_guessed", "no rate_hz in the file: 50 Hz taken, as ALOHA"),)
    assert episode.format == "aloha_hdf5"


def test_options_say_what_a_file_does_not(tmp_path: Path, path: Path) -> None:
    options = "robot: viperx\ntask: open the door\nrate_hz: 25\n"
    write_aloha(path)
    (tmp_path / "landing/sim/source.yaml").write_text(options)
    episode = read(tmp_path)
    assert (episode.robot, episode.task, episode.rate_hz) == ("sawyer", "press-button", 20.0), "the file says it itself"
    write_aloha(path, task=None, robot=None, rate_hz=None)
    episode = read(tmp_path)
    assert (episode.robot, episode.task, episode.rate_hz, episode.notes) == ("viperx", "open the door", 25.0, ())
    assert episode.series[0].times_ns[1] == 40_000_000


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
        ("action", np.zeros((22, 3), np.float32), "frame_count", "22 actions, but 24 entries in /observations/qpos"),
        ("action", np.zeros((25, 3), np.float32), "frame_count", "25 actions, but 24 entries in /observations/qpos"),
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


def test_an_observation_behind_the_last_action_is_left_out(tmp_path: Path, path: Path) -> None:
    _edit(path, "action", np.zeros((23, 3), np.float32))
    with h5py.File(path, "a") as file:
        file["observations/force"] = np.arange(24, dtype=np.float32)
        file["base_action"] = np.ones((23, 2))
    episode = read(tmp_path)
    (note,) = episode.notes
    assert (note.code, "23 actions" in note.text) == ("trimmed", True)
    assert {(topic.name, len(topic.values)) for topic in episode.series} == {
        ("state", 23),
        ("action", 23),
        ("base_action", 23),
        ("force", 23),
    }
    assert episode.series[0].values.tobytes() == series("state", 24, 4).values[:23].tobytes()
    for camera in episode.cameras:
        assert len(camera.times_ns) == len(list(camera.frames())) == 23


def _depth(count: int, dtype: Any, *shape: int) -> Any:
    return (np.arange(count * int(np.prod(shape))) % 60_000).reshape(count, *shape).astype(dtype)


@pytest.mark.parametrize(
    ("values", "encoding", "stored"),
    [
        (_depth(24, np.uint16, 48, 64), "16UC1", np.uint16),
        (_depth(24, ">u2", 48, 64), "16UC1", np.uint16),
        (_depth(24, np.float32, 48, 64, 1), "32FC1", np.float32),
        (_depth(24, np.float16, 1, 48, 64), "32FC1", np.float32),
        (_depth(24, np.float64, 48, 64), "32FC1", np.float32),
    ],
)
def test_depth_is_kept_to_the_bit_as_raw_images(
    tmp_path: Path, path: Path, values: Any, encoding: str, stored: Any
) -> None:
    _edit(path, "observations/images/wrist", values)
    episode = read(tmp_path)
    assert [camera.name for camera in episode.cameras] == ["front"]
    (topic,) = episode.extras
    assert (topic.name, topic.schema_name) == ("wrist", "foxglove.RawImage")
    images = [RawImage.FromString(message.data) for message in episode.extra_messages()]
    assert [(image.width, image.height, image.encoding) for image in images] == [(64, 48, encoding)] * 24
    kept = np.stack([np.frombuffer(image.data, stored).reshape(48, 64) for image in images])
    assert np.array_equal(kept, values.reshape(24, 48, 64).astype(stored))
    assert [message.time_ns for message in episode.extra_messages()] == episode.series[0].times_ns.tolist()
    assert {note.code for note in episode.notes} == ({"converted"} if values.dtype == np.float64 else set())


def _grey(video: Any) -> Any:
    return video.mean(axis=-1).astype(np.uint8)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (_grey, lambda video: _grey(video)[..., None].repeat(3, axis=-1)),
        (lambda video: _grey(video)[..., None], lambda video: _grey(video)[..., None].repeat(3, axis=-1)),
        (lambda video: np.concatenate([video, video[..., :1]], axis=-1), lambda video: video),
        (lambda video: np.moveaxis(video, 3, 1), lambda video: video),
    ],
    ids=["grey", "grey with an axis", "alpha", "channels first"],
)
def test_pictures_that_are_not_colour_become_colour_and_a_note(
    tmp_path: Path, path: Path, change: Any, shown: Any
) -> None:
    video = pictures(24, 48, 64, seed=3)
    _edit(path, "observations/images/wrist", change(video))
    episode = read(tmp_path)
    wrist = episode.cameras[1]
    assert (wrist.name, wrist.width, wrist.height) == ("wrist", 64, 48)
    assert np.array_equal(np.stack(list(wrist.frames())), shown(video))
    assert [note.code for note in episode.notes] == ["converted"]
    assert episode.extras == ()


def test_a_blank_camera_is_noted(tmp_path: Path, path: Path) -> None:
    blank = np.full((24, 48, 64, 3), (7, 0, 9), np.uint8)
    _edit(path, "observations/images/wrist", blank)
    episode = read(tmp_path)
    assert [camera.name for camera in episode.cameras] == ["front", "wrist"]
    (note,) = episode.notes
    assert note == Note("blank_camera", "camera wrist: all 24 pictures are 64x48 of the colour (7, 0, 9)")
    blank[23, 47, 63, 1] = 1
    _edit(path, "observations/images/wrist", blank)
    assert read(tmp_path).notes == ()


def test_nothing_in_a_file_vanishes(tmp_path: Path, path: Path) -> None:
    points = np.random.default_rng(1).normal(size=(24, 500, 3)).astype(np.float32)
    events = np.zeros(24, [("kind", "S4"), ("value", "<f4")])
    events[3] = (b"stop", np.nan)
    write_aloha(path, operator="anna", gains=np.arange(3), calibration="x" * 5000)
    with h5py.File(path, "a") as file:
        held: dict[str, Any] = {
            "base_action": np.ones((24, 2), np.float64),
            "observations/force/left": np.ones((24, 3), np.float16),
            "observations/tactile": np.arange(24 * 16, dtype=np.float32).reshape(24, 4, 4),
            "observations/points": points,
            "observations/gripper_open": np.arange(24) % 2 == 0,
            "observations/mode": np.arange(24, dtype=np.int8),
            "labels": np.arange(24 * 2, dtype=np.int32).reshape(24, 2),
            "events": events,
            "phase": [f"phase {i // 12}" for i in range(24)],
            "language": ["press the button"] * 24,
            "intrinsics/front": np.eye(3),
            "intrinsics/table": np.arange(3000.0),
            "serial": "A-17",
            "version": 4,
            "nothing": h5py.Empty("f4"),
            "no_width": np.zeros((24, 0), np.float32),
            "huge": np.zeros((9, 1024, 1024), np.uint8),
        }
        for name, values in held.items():
            file[name] = values
        file["action"].attrs["unit"] = "rad"
        file["labels_too"] = file["labels"]
        file["gone"] = h5py.SoftLink("/nowhere")
        file["labels"].attrs["refers"] = file["action"].ref
    episode = read(tmp_path)
    floats = {topic.name: topic for topic in episode.series}
    assert list(floats) == ["state", "action", "base_action", "force_left", "tactile"]
    assert (floats["base_action"].values.dtype, floats["force_left"].values.dtype) == (np.float64, np.float32)
    assert floats["tactile"].values[1].tolist() == list(range(16, 32))
    assert floats["tactile"].names[:2] == ("tactile_0", "tactile_1")
    said: dict[str, list[Any]] = {topic.name: [] for topic in episode.extras}
    for message in episode.extra_messages():
        said[message.topic].append(json.loads(message.data)["value"])
    assert said.keys() == {
        *("calibration", "points", "gripper_open", "mode", "labels", "events", "phase", "intrinsics_table")
    }
    assert said["gripper_open"][:3] == [True, False, True]
    assert (said["mode"][23], said["labels"][2], said["phase"][12]) == (23, [4, 5], "phase 1")
    assert said["events"][3] == {"kind": "stop", "value": "nan"}
    assert said["calibration"] == ["x" * 5000]
    kept = [
        np.frombuffer(base64.b64decode(each["base64"]), each["dtype"]).reshape(each["shape"]) for each in said["points"]
    ]
    assert np.array_equal(np.stack(kept), points)
    assert len(said["intrinsics_table"]) == 1
    facts = {"sim": "True", "operator": "anna", "gains": "[0, 1, 2]", "language": "press the button", "serial": "A-17"}
    facts |= {"version": "4", "action/unit": "rad", "labels_too": "the same as /labels"}
    facts |= {"intrinsics/front": "[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]"}
    assert episode.attributes == facts
    left_out = [note.text.split(" left out")[0] for note in episode.notes if note.code == "left_out"]
    assert sorted(left_out) == ["/gone", "/huge", "/labels/refers", "/nothing", "no_width"]


def test_values_that_are_not_finite_are_noted(tmp_path: Path, path: Path) -> None:
    values = series("state", 24, 4).values.copy()
    values[5, 1] = values[9, 0] = np.nan
    _edit(path, "observations/qpos", values)
    episode = read(tmp_path)
    assert np.isnan(episode.series[0].values[5, 1])
    assert episode.notes == (Note("nan", "state has values that are not finite in 2 steps, first in 5"),)


def _jpeg(picture: Any, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, kind, quality=95)
    return out.getvalue()


def _write_coded(path: Path, coded: list[bytes], **attributes: Any) -> None:
    """A file whose camera `front` is coded pictures, padded to the longest as ALOHA's recorder does."""
    padded = np.zeros((24, max(map(len, coded)) + 9), np.uint8)
    for row, data in zip(padded, coded, strict=True):
        row[: len(data)] = np.frombuffer(data, np.uint8)
    write_aloha(path, cameras=("front",), compress=True, **attributes)
    with h5py.File(path, "a") as file:
        del file["observations/images/front"]
        file["observations/images/front"] = padded
        file["compress_len"] = np.array([list(map(len, coded))], np.float32)
        file["observations/qvel"] = np.ones((24, 4), np.float64)


@pytest.mark.parametrize(
    ("attribute", "option", "swapped", "guessed"),
    [
        (None, None, True, True),
        ("rgb", None, False, False),
        ("bgr", None, True, False),
        (None, "rgb", False, False),
        (None, "bgr", True, False),
        ("bgr", "rgb", False, False),
    ],
)
def test_jpeg_pictures(
    tmp_path: Path, path: Path, attribute: str | None, option: str | None, swapped: bool, guessed: bool
) -> None:
    video = pictures(24, 48, 64)
    coded = [_jpeg(picture[:, :, ::-1] if swapped else picture) for picture in video]
    _write_coded(path, coded, jpeg_order=attribute)
    if option:
        (tmp_path / "landing/sim/source.yaml").write_text(f"jpeg_order: {option}\n")
    episode = read(tmp_path)
    (camera,) = episode.cameras
    assert (camera.width, camera.height) == (64, 48)
    for _ in range(2):
        assert psnr_db(video, np.stack(list(camera.frames()))) > 30
    assert [topic.name for topic in episode.series] == ["state", "action", "qvel"]
    assert [note.code for note in episode.notes] == (["jpeg_order_guessed"] if guessed else [])
    assert episode.extras == () and "compress_len" not in episode.attributes
    if swapped:
        assert camera.coded is None, "its colours are wrong"
    else:
        assert camera.coded is not None and camera.coded.codec == "jpeg"
        assert list(camera.coded.units()) == coded == list(camera.coded.units())


def test_an_order_of_colours_that_is_none_is_refused(tmp_path: Path, path: Path) -> None:
    _write_coded(path, [_jpeg(picture) for picture in pictures(24, 48, 64)], jpeg_order="brg")
    refused(tmp_path, "feature_mismatch", "`jpeg_order` must be rgb or bgr, and is brg")


def test_pictures_as_byte_strings(tmp_path: Path, path: Path) -> None:
    video = pictures(24, 48, 64)
    write_aloha(path, cameras=("front",), jpeg_order="rgb")
    with h5py.File(path, "a") as file:
        file["observations/images/side"] = np.array([_jpeg(picture) for picture in video], "S")
        variable = file.create_dataset("observations/images/top", (24,), h5py.vlen_dtype(np.uint8))
        for i, picture in enumerate(video):
            variable[i] = np.frombuffer(_jpeg(picture, "PNG"), np.uint8)
    episode = read(tmp_path)
    assert [camera.name for camera in episode.cameras] == ["front", "side", "top"]
    assert psnr_db(video, np.stack(list(episode.cameras[1].frames()))) > 30
    assert np.array_equal(np.stack(list(episode.cameras[2].frames())), video)
    assert episode.cameras[2].coded is None, "PNG is no JPEG"


@pytest.mark.parametrize(
    ("number", "data", "reason", "words"),
    [
        (0, b"<html>", "unreadable", "images/front has a picture that is not a JPEG or PNG"),
        (7, b"<html>", "unreadable", "images/front has a picture that is not a JPEG or PNG"),
        (7, _jpeg(pictures(1, 48, 64)[0])[:200], "unreadable", "a damaged JPEG or PNG"),
        (7, _jpeg(pictures(1, 32, 64)[0]), "feature_mismatch", "picture 7 is 64x32, and the first is 64x48"),
    ],
)
def test_a_bad_picture_among_good_ones(
    tmp_path: Path, path: Path, number: int, data: bytes, reason: str, words: str
) -> None:
    coded = [_jpeg(picture) for picture in pictures(24, 48, 64)]
    coded[number] = data
    _write_coded(path, coded)
    refused(tmp_path, reason, words)


def _depth_file(height: int, width: int, dtype: Any = np.uint16, most: int = 60_000) -> bytes:
    values = np.linspace(0, most, height * width).reshape(height, width).astype(dtype)
    return _file(Image.fromarray(values))


def _file(picture: Image.Image, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("camera", "first", "other", "words"),
    [
        ("front", _depth_file(3, 4), _depth_file(4, 3), "picture 7 is 3x4, and the first is 4x3"),
        ("depth", _depth_file(3, 4, np.uint8, 200), _depth_file(3, 4), "picture 7 is I;16 with 16 bits .*L with 8"),
        ("depth", _depth_file(3, 4), _depth_file(3, 4, np.uint8, 200), "picture 7 is L with 8 bits .*I;16 with 16"),
        ("depth", _depth_file(3, 4), _file(Image.new("RGB", (4, 3))), "picture 7 is RGB with 8 bits"),
        ("front", _file(Image.new("RGB", (4, 3))), _depth_file(3, 4), "picture 7 is I;16 with 16 bits .*RGB with 8"),
    ],
    ids=["turned", "deeper", "shallower", "colour among depth", "depth among colour"],
)
def test_pictures_of_two_kinds_are_refused(
    tmp_path: Path, path: Path, camera: str, first: bytes, other: bytes, words: str
) -> None:
    coded = [first] * 24
    coded[7] = other
    _write_coded(path, coded, jpeg_order="rgb")
    if camera != "front":
        with h5py.File(path, "a") as file:
            file.move("observations/images/front", f"observations/images/{camera}")
    refused(tmp_path, "feature_mismatch", words)


def test_all_that_is_lost_of_pictures_of_several_kinds_is_said(tmp_path: Path, path: Path) -> None:
    video = pictures(24, 48, 64)
    coded = [_jpeg(picture) for picture in video]
    coded[7] = _file(Image.fromarray(video[7]).convert("L"), "JPEG")
    coded[9] = _file(Image.fromarray(video[9]).convert("RGBA"))
    _write_coded(path, coded, jpeg_order="rgb")
    episode = read(tmp_path)
    (front,) = episode.cameras
    assert front.coded is None and len(list(front.frames())) == 24
    assert episode.notes == (
        Note("converted", "camera front is grey: stored as colour with three equal channels"),
        Note("converted", "camera front is RGBA: stored as red, green and blue alone"),
    )


def test_steps_without_a_picture_have_none(tmp_path: Path, path: Path) -> None:
    coded = [_jpeg(picture) for picture in pictures(24, 48, 64)]
    coded[0] = coded[5] = b""
    _write_coded(path, coded, jpeg_order="rgb")
    episode = read(tmp_path)
    (camera,) = episode.cameras
    wanted = [i for i in range(24) if i not in (0, 5)]
    assert camera.times_ns.tolist() == [i * 50_000_000 for i in wanted]
    assert len(list(camera.frames())) == 22
    assert camera.coded is not None and list(camera.coded.units()) == [coded[i] for i in wanted]
    assert episode.notes == (Note("dropped", "front: 2 steps have no picture"),)


def test_a_second_name_is_as_good_as_the_first(tmp_path: Path, path: Path) -> None:
    write_aloha(path)
    with h5py.File(path, "a") as file:
        file.move("action", "raw/commands")
        file["action"] = h5py.SoftLink("/raw/commands")
        file["observations/qpos_too"] = file["observations/qpos"]
    episode = read(tmp_path)
    assert [topic.name for topic in episode.series] == ["state", "action"]
    assert episode.attributes["raw/commands"] == "the same as /action"
    assert episode.attributes["observations/qpos_too"] == "the same as /observations/qpos"


def test_pictures_are_read_in_blocks(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_aloha(path)
    with h5py.File(path, "a") as file:
        video = file["observations/images/front"][:]
        del file["observations/images/front"]
        file.create_dataset("observations/images/front", data=video, chunks=(5, 48, 64, 3), compression="lzf")
    asked: list[int] = []
    whole = h5py.Dataset.__getitem__

    def watched(self: Any, where: Any) -> Any:
        got = whole(self, where)
        if self.name.endswith("front"):
            asked.append(len(got))
        return got

    monkeypatch.setattr(h5py.Dataset, "__getitem__", watched)
    monkeypatch.setattr("megahour.sources.hdf5.file.LEAST_BLOCK_BYTES", 0)
    camera = read(tmp_path).cameras[0]
    asked.clear()
    assert np.array_equal(np.stack(list(camera.frames())), video)
    assert asked == [5, 5, 5, 5, 4], "as it is stored: each stored chunk is unpacked once"
    monkeypatch.setattr("megahour.sources.hdf5.file.BLOCK_BYTES", 2 * 48 * 64 * 3)
    asked.clear()
    assert np.array_equal(np.stack(list(camera.frames())), video)
    assert asked == [2] * 12, "and no more than what memory has room for"


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

"""RLDS shards: real ones of BridgeData return as they are, and what is wrong with one is said, with its record."""

from __future__ import annotations

import base64
import io
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foxglove_schemas_protobuf.RawImage_pb2 import RawImage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from megahour.episode.model import Note, RawEpisode
from megahour.episode.reader import open_episode_file
from megahour.episode.writer import write_episode
from megahour.sources import Recording, SourceError, find_recordings, ids_of, read_recording, recording_id
from megahour.sources.rlds.example import parse_example
from megahour.sources.rlds.tfrecord import count_records, masked_crc, records
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import (
    FACTS,
    pictures,
    psnr_db,
    rlds_dict,
    rlds_image,
    rlds_sequence,
    rlds_tensor,
    rlds_text,
    samples_dir,
    write_tfrecord,
)

STEPS = 4
SHARD = "toy-train.tfrecord-00000-of-00001"
Record = dict[str, list[Any]]


def find(root: Path) -> list[Recording]:
    lake = open_lake(root.as_uri())
    return find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))


def read(root: Path) -> list[RawEpisode]:
    (recording,) = find(root)
    return list(read_recording(recording, root.joinpath))


def said(episode: RawEpisode) -> dict[str, list[Any]]:
    """The values of the JSON topics of an episode."""
    found: dict[str, list[Any]] = {topic.name: [] for topic in episode.extras}
    for message in episode.extra_messages():
        found[message.topic].append(json.loads(message.data)["value"])
    return found


def refused(root: Path, reason: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        for episode in read(root):
            for camera in episode.cameras:
                list(camera.frames())
    assert caught.value.reason == reason


def file_of(picture: Any, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, kind)
    return out.getvalue()


def toy_features() -> dict[str, Any]:
    """A small dataset as most of Open X-Embodiment are: a camera, a state, an action, an instruction."""
    step = rlds_dict(
        observation=rlds_dict(image=rlds_image(24, 32, 3), state=rlds_tensor("float32", 3)),
        action=rlds_tensor("float32", 2),
        reward=rlds_tensor("float32"),
        is_first=rlds_tensor("bool"),
        language_instruction=rlds_text(),
    )
    return rlds_dict(steps=rlds_sequence(step), episode_metadata=rlds_dict(file_path=rlds_text()))


def toy_record(seed: int = 0) -> Record:
    rng = np.random.default_rng(seed)
    return {
        "steps/observation/image": [file_of(picture) for picture in pictures(STEPS, 24, 32, seed)],
        "steps/observation/state": list(rng.normal(size=STEPS * 3).astype(np.float32)),
        "steps/action": list(rng.normal(size=STEPS * 2).astype(np.float32)),
        "steps/reward": [0.0] * (STEPS - 1) + [1.0],
        "steps/is_first": [1] + [0] * (STEPS - 1),
        "steps/language_instruction": [b"open the drawer"] * STEPS,
        "episode_metadata/file_path": [b"/raw/7.npy"],
    }


def write(root: Path, features: Any, *rows: Record, **info: Any) -> Path:
    """A dataset of one shard; returns its path."""
    folder = root / "landing/oxe/toy/1.0.0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.json").write_text(features if isinstance(features, str) else json.dumps(features))
    if info:
        (folder / "dataset_info.json").write_text(json.dumps(info))
    return write_tfrecord(folder / SHARD, rows)


# --- The real dataset


@pytest.fixture
def bridge(tmp_path: Path) -> Path:
    shutil.copytree(samples_dir() / "bridge_rlds", tmp_path / "landing/oxe/bridge", copy_function=shutil.copyfile)
    return tmp_path


def test_real_episodes_return(bridge: Path) -> None:
    (recording,) = find(bridge)
    shard = bridge / recording.files[0].key
    assert recording.uri == "landing/oxe/bridge/1.0.0/bridge_dataset-train.tfrecord-00000-of-00001"
    assert (recording.format, recording.missing, len(recording.files)) == ("rlds", (), 3)
    assert recording.size_bytes == shard.stat().st_size, "of files that shards share each counts its own"
    tables = [parse_example(data, "") for data in records(shard, "")]
    episodes = list(read_recording(recording, bridge.joinpath))
    assert len(episodes) == len(tables) == 25
    for i, (episode, table) in enumerate(zip(episodes, tables, strict=True)):
        state, action, discount, reward = episode.series
        assert (episode.index, state.name, action.name) == (i, "state", "action")
        assert (discount.name, reward.name) == ("discount", "reward")
        for topic, name in ((state, "observation/state"), (action, "action"), (reward, "reward")):
            assert topic.values.tobytes() == np.asarray(table[f"steps/{name}"], np.float32).tobytes()
            assert topic.values.dtype == np.float32
        (text,) = set(table["steps/language_instruction"])
        assert isinstance(text, bytes) and episode.task == text.decode() != ""
        messages = said(episode)
        assert messages["is_last"] == [False] * 10, "so it is in this dataset"
        assert messages["is_first"] == [True] + [False] * 9
        (embedding,) = messages["language_embedding"]
        assert np.array_equal(np.float32(embedding), np.asarray(table["steps/language_embedding"])[:512])
        assert [camera.name for camera in episode.cameras] == ["image_0", "image_1", "image_2"]
        assert [note.code for note in episode.notes] == ["rate_guessed", "blank_camera"]
        assert episode.notes[1].text.startswith("camera image_3: all 10 pictures are 64x64 of the colour (0, 0, 0)")
        assert episode.attributes["rlds_dataset"] == "bridge_dataset"
        assert episode.attributes["file_path"].endswith("/out.npy")
        assert episode.attributes["has_language"] == "True"


def test_a_real_episode_in_its_container(bridge: Path, tmp_path: Path) -> None:
    (recording,) = find(bridge)
    table = parse_example(next(records(bridge / recording.files[0].key, "")), "")
    episode = next(iter(read_recording(recording, bridge.joinpath)))
    write_episode(tmp_path / "out.mcap", episode, FACTS)
    back = open_episode_file(tmp_path / "out.mcap")
    for name, place in (("state", "observation/state"), ("action", "action")):
        assert back.series(name).values.tobytes() == np.asarray(table[f"steps/{place}"], np.float32).tobytes()
    for camera in episode.cameras:
        files = table[f"steps/observation/{camera.name}"]
        shown = np.stack([np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in files])
        assert np.array_equal(np.stack(list(camera.frames())), shown)
        assert camera.coded is not None and list(camera.coded.units()) == files
        assert psnr_db(shown, back.frames(camera.name, range(10))) > 30


@pytest.mark.parametrize("at", [0, 5, 8, 11, 12, 5000, -1, -4, -5])
def test_a_real_shard_cut_anywhere_is_refused(bridge: Path, at: int) -> None:
    shard = bridge / find(bridge)[0].uri
    lengths = [len(data) + 16 for data in records(shard, "")]
    start = sum(lengths[:24])
    end = start + lengths[24]
    shard.write_bytes(shard.read_bytes()[: (end if at < 0 else start) + at])
    if at == 0:
        refused(bridge, "truncated", r"it holds 24 episodes, and dataset_info\.json says 25")
    else:
        refused(bridge, "truncated", "inside of record 24")


@pytest.mark.parametrize(
    ("record", "at", "words"),
    [
        (0, 0, "no TFRecord file, or its first bytes are damaged"),
        (3, 0, "record 3 is damaged: its length"),
        (3, 9, "record 3 is damaged: its length"),
        (3, 12, "record 3 is damaged: its checksum"),
        (3, 9000, "record 3 is damaged: its checksum"),
        (3, -1, "record 3 is damaged: its checksum"),
    ],
)
def test_one_flipped_bit_in_a_real_shard_is_found(bridge: Path, record: int, at: int, words: str) -> None:
    shard = bridge / find(bridge)[0].uri
    lengths = [len(data) + 16 for data in records(shard, "")]
    data = bytearray(shard.read_bytes())
    data[sum(lengths[: record + (at < 0)]) + at] ^= 1
    shard.write_bytes(bytes(data))
    refused(bridge, "corrupt" if record else "unreadable", words)


# --- What datasets hold


def test_everything_returns(tmp_path: Path) -> None:
    rows = [toy_record(seed) for seed in range(3)]
    write(tmp_path, toy_features(), *rows, name="toy", version="1.0.0")
    episodes = read(tmp_path)
    assert [episode.index for episode in episodes] == [0, 1, 2]
    for seed, (episode, row) in enumerate(zip(episodes, rows, strict=True)):
        state, action, reward = episode.series
        assert state.values.tobytes() == np.array(row["steps/observation/state"]).tobytes()
        assert action.values.tobytes() == np.array(row["steps/action"]).tobytes()
        assert (state.names, action.names) == (("state_0", "state_1", "state_2"), ("action_0", "action_1"))
        assert (reward.name, reward.names, reward.values[:, 0].tolist()) == ("reward", ("reward",), [0, 0, 0, 1])
        (camera,) = episode.cameras
        assert (camera.name, camera.width, camera.height, camera.coded) == ("image", 32, 24, None)
        for _ in range(2):
            assert np.array_equal(np.stack(list(camera.frames())), pictures(STEPS, 24, 32, seed))
        assert said(episode) == {"is_first": [True, False, False, False]}
        assert (episode.task, episode.robot, episode.success) == ("open the drawer", "unknown", None)
        assert [note.code for note in episode.notes] == ["rate_guessed"]
        assert episode.series[0].times_ns.tolist() == [0, 100_000_000, 200_000_000, 300_000_000]
        assert episode.attributes == {
            "file_path": "/raw/7.npy",
            "rlds_dataset": "toy",
            "rlds_version": "1.0.0",
            "rlds_split": "train",
        }


def test_options_say_what_rlds_does_not(tmp_path: Path) -> None:
    row = toy_record() | {"steps/language_instruction": [b""] * STEPS}
    write(tmp_path, toy_features(), row)
    (episode,) = read(tmp_path)
    assert (episode.robot, episode.task, episode.rate_hz) == ("unknown", "", 10.0)
    (tmp_path / "landing/oxe/source.yaml").write_text("robot: widowx\ntask: tidy up\nrate_hz: 5\n")
    (episode,) = read(tmp_path)
    assert (episode.robot, episode.task, episode.rate_hz, episode.notes) == ("widowx", "tidy up", 5.0, ())


def _with(features: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The toy dataset with further features of a step, `__` for a slash; without those that are None."""
    for path, feature in more.items():
        *folders, name = path.split("__")
        node = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
        for folder in folders:
            node = node.setdefault(folder, rlds_dict())["featuresDict"]["features"]
        if feature is None:
            del node[name]
        else:
            node[name] = feature
    return features


def test_a_table_of_actions_is_one_series(tmp_path: Path) -> None:
    action = rlds_dict(
        world_vector=rlds_tensor("float32", 3),
        gripper=rlds_tensor("float32"),
        open_gripper=rlds_tensor("bool"),
        terminate=rlds_tensor("int32", 3),
        name=rlds_text(),
    )
    row = toy_record()
    del row["steps/action"]
    row |= {
        "steps/action/world_vector": list(np.arange(12, dtype=np.float32)),
        "steps/action/gripper": [0.5] * 4,
        "steps/action/open_gripper": [0, 1, 0, 1],
        "steps/action/terminate": [0, 0, 1] * 4,
        "steps/action/name": [b"left", b"left", b"right", b"right"],
    }
    write(tmp_path, _with(toy_features(), action=action), row)
    (episode,) = read(tmp_path)
    (series,) = [topic for topic in episode.series if topic.name == "action"]
    assert series.names == (
        *("gripper", "open_gripper", "terminate_0", "terminate_1", "terminate_2"),
        *("world_vector_0", "world_vector_1", "world_vector_2"),
    )
    assert series.values[1].tolist() == [0.5, 1, 0, 0, 1, 3, 4, 5]
    assert series.values.dtype == np.float32
    assert said(episode)["action_name"] == ["left", "left", "right", "right"]


def test_integers_that_float32_cannot_hold_make_float64(tmp_path: Path) -> None:
    numbers = [0, 1, 2**24 + 1, 5, 6, 7, 8, 9]
    write(tmp_path, _with(toy_features(), action=rlds_tensor("int64", 2)), toy_record() | {"steps/action": numbers})
    action = read(tmp_path)[0].series[1]
    assert (action.name, action.values.dtype) == ("action", np.float64)
    assert action.values.reshape(-1).tolist() == numbers


def test_without_a_state_it_is_put_together_from_the_observation(tmp_path: Path) -> None:
    features = _with(
        toy_features(),
        observation__state=None,
        observation__joints=rlds_tensor("float64", 2),
        observation__gripper=rlds_tensor("float32"),
        observation__pose=rlds_tensor("float32", 2, 2),
        observation__natural_language_embedding=rlds_tensor("float32", 3),
        observation__natural_language_instruction=rlds_text(),
        language_instruction=None,
    )
    row = toy_record()
    del row["steps/observation/state"], row["steps/language_instruction"]
    row |= {
        "steps/observation/joints": [float(i) for i in range(8)],
        "steps/observation/gripper": [float(i) for i in range(4)],
        "steps/observation/pose": [float(i) for i in range(16)],
        "steps/observation/natural_language_embedding": [float(i) for i in range(12)],
        "steps/observation/natural_language_instruction": [b"wave"] * 4,
    }
    write(tmp_path, features, row)
    (episode,) = read(tmp_path)
    topics = {topic.name: topic for topic in episode.series}
    assert topics["state"].names == ("gripper", "joints_0", "joints_1")
    assert topics["state"].values[2].tolist() == [2, 4, 5]
    assert topics.keys() == {"state", "action", "pose", "natural_language_embedding", "reward"}
    assert topics["pose"].values[1].tolist() == [4, 5, 6, 7]
    assert episode.task == "wave"


def test_an_instruction_that_changes_is_kept_whole(tmp_path: Path) -> None:
    told = [b"", b"open it", b"open it", b"close it"]
    write(tmp_path, toy_features(), toy_record() | {"steps/language_instruction": told})
    (episode,) = read(tmp_path)
    assert episode.task == "open it"
    assert said(episode)["language_instruction"] == ["", "open it", "open it", "close it"]


@pytest.mark.parametrize(
    ("dtype", "shape", "encode", "encoding", "stored"),
    [
        ("uint16", (24, 32, 1), file_of, "16UC1", np.uint16),
        ("uint8", (24, 32, 1), file_of, "mono8", np.uint8),
        ("float32", (24, 32, 1), None, "32FC1", np.float32),
    ],
)
def test_depth_is_kept_to_the_bit(
    tmp_path: Path, dtype: str, shape: Any, encode: Callable[..., bytes] | None, encoding: str, stored: Any
) -> None:
    depth = np.random.default_rng(0).uniform(0, 255, (STEPS, 24, 32)).astype(stored)
    if encode is None:  # TensorFlow Datasets stores floats as the four bytes of an RGBA picture.
        files = [file_of(picture.view(np.uint8).reshape(24, 32, 4)) for picture in depth]
    else:
        files = [encode(picture) for picture in depth]
    features = _with(toy_features(), observation__depth=rlds_image(*shape, dtype=dtype))
    write(tmp_path, features, toy_record() | {"steps/observation/depth": files})
    (episode,) = read(tmp_path)
    assert [camera.name for camera in episode.cameras] == ["image"]
    images = [RawImage.FromString(m.data) for m in episode.extra_messages() if m.topic == "depth"]
    assert [(image.encoding, image.width, image.height) for image in images] == [(encoding, 32, 24)] * STEPS
    assert b"".join(image.data for image in images) == depth.tobytes()


def test_pictures_that_lack_and_pictures_that_are_raw(tmp_path: Path) -> None:
    video = pictures(STEPS, 6, 8)
    features = _with(
        toy_features(), observation__raw=rlds_tensor("uint8", 6, 8, 3), observation__wrist=rlds_image(-1, -1, 3)
    )
    row = toy_record() | {
        "steps/observation/raw": video.reshape(-1).tolist(),
        "steps/observation/wrist": [b"", file_of(video[1]), b"", file_of(video[3])],
    }
    write(tmp_path, features, row)
    (episode,) = read(tmp_path)
    cameras = {camera.name: camera for camera in episode.cameras}
    assert np.array_equal(np.stack(list(cameras["raw"].frames())), video)
    assert np.array_equal(np.stack(list(cameras["wrist"].frames())), video[[1, 3]])
    assert cameras["wrist"].times_ns.tolist() == [100_000_000, 300_000_000]
    assert Note("dropped", "observation/wrist: 2 steps have no picture") in episode.notes


def test_tensors_that_are_stored_as_bytes(tmp_path: Path) -> None:
    points = [np.arange(6, dtype=np.float32).reshape(2, 3) + i for i in range(STEPS)]
    grids = [np.full((i + 1, 2), i, np.int16) for i in range(STEPS)]
    features = _with(
        toy_features(),
        observation__points=rlds_tensor("float32", -1, 3, encoding="zlib"),
        observation__grid=rlds_tensor("int16", -1, -1, encoding="bytes"),
        observation__mask=rlds_tensor("bool", 2, encoding="bytes"),
    )
    row = toy_record() | {
        "steps/observation/points": [zlib.compress(each.tobytes()) for each in points],
        "steps/observation/grid/value": [each.tobytes() for each in grids],
        "steps/observation/grid/shape": [n for each in grids for n in each.shape],
        "steps/observation/mask": [b"\0\1"] * STEPS,
    }
    write(tmp_path, features, row)
    (episode,) = read(tmp_path)
    (series,) = [topic for topic in episode.series if topic.name == "points"]
    assert series.values.tobytes() == np.stack(points).tobytes()
    messages = said(episode)
    assert messages["grid"] == [each.tolist() for each in grids]
    assert messages["mask"] == [[False, True]] * STEPS


def test_sequences_in_steps(tmp_path: Path) -> None:
    features = _with(
        toy_features(),
        boxes=rlds_sequence(rlds_tensor("float32", 2), "sequence_feature.Sequence"),
        words=rlds_sequence(rlds_sequence(rlds_text())),
        size=rlds_tensor("float32", -1),
    )
    row = toy_record() | {
        "steps/boxes/ragged_flat_values": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "steps/boxes/ragged_row_lengths_0": [1, 0, 2, 0],
        "steps/words/ragged_flat_values": [b"a", b"b", b"c"],
        "steps/words/ragged_row_lengths_0": [2, 0, 1, 0],
        "steps/words/ragged_row_lengths_1": [1, 0, 2],
        "steps/size": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    }
    write(tmp_path, features, row)
    (episode,) = read(tmp_path)
    messages = said(episode)
    assert messages["boxes"] == [[[1, 2]], [], [[3, 4], [5, 6]], []]
    assert messages["words"] == [[["a"], []], [], [["b", "c"]], []]
    assert [topic.values.shape for topic in episode.series if topic.name == "size"] == [(4, 2)]


def test_what_is_said_of_an_episode(tmp_path: Path) -> None:
    features = toy_features()
    features["featuresDict"]["features"]["episode_metadata"] = rlds_dict(
        success=rlds_tensor("bool"),
        gains=rlds_tensor("float32", 2),
        tags=rlds_sequence(rlds_text()),
        empty=rlds_text(),
        table=rlds_tensor("float32", 2000),
        raw=rlds_tensor("string"),
    )
    row = toy_record() | {
        "episode_metadata/success": [0],
        "episode_metadata/gains": [0.5, 2.0],
        "episode_metadata/tags": [b"kitchen", b"night"],
        "episode_metadata/empty": [b""],
        "episode_metadata/table": [float(i) for i in range(2000)],
        "episode_metadata/raw": [b"\xff\x00"],
        "surprise": [1],
    }
    del row["episode_metadata/file_path"]
    write(tmp_path, features, row)
    (episode,) = read(tmp_path)
    assert episode.success is False
    assert {name: text for name, text in episode.attributes.items() if not name.startswith("rlds_")} == {
        "gains": "[0.5, 2.0]",
        "raw": '{"base64": "/wA="}',
        "success": "False",
        "tags": '["kitchen", "night"]',
    }
    (table,) = said(episode)["table"]
    assert np.frombuffer(base64.b64decode(table["base64"]), table["dtype"]).tolist() == list(range(2000))
    assert Note("left_out", "surprise left out: features.json does not describe it") in episode.notes


def test_values_that_are_not_finite_are_noted(tmp_path: Path) -> None:
    row = toy_record()
    row["steps/observation/state"][4] = np.float32("nan")
    write(tmp_path, toy_features(), row)
    assert Note("nan", "state has values that are not finite in 1 steps, first in 1") in read(tmp_path)[0].notes


def test_features_as_older_datasets_write_them(tmp_path: Path) -> None:
    def old(node: dict[str, Any]) -> dict[str, Any]:
        """The same features in the form before 2022: `type` and `content`."""
        kind = node["pythonClassName"]
        if "featuresDict" in node:
            members = node["featuresDict"]["features"].items()
            return {"type": kind, "content": {"features": {name: old(each) for name, each in members}}}
        if "sequence" in node:
            return {"type": kind, "content": {"feature": old(node["sequence"]["feature"]), "length": None}}
        if "text" in node:
            return {"type": kind, "content": {}, "proto_cls": "tensorflow_datasets.TextFeature"}
        content = dict(node.get("tensor") or node["image"])
        content["shape"] = [int(n) for n in content["shape"]["dimensions"]]
        return {"type": kind, "content": content if "image" in node else json.dumps(content)}

    write(tmp_path, old(toy_features()), toy_record())
    (episode,) = read(tmp_path)
    write(tmp_path, toy_features(), toy_record())
    (wanted,) = read(tmp_path)
    assert episode.task == wanted.task == "open the drawer"
    assert [topic.values.tobytes() for topic in episode.series] == [topic.values.tobytes() for topic in wanted.series]
    assert said(episode) == said(wanted)
    assert [camera.name for camera in episode.cameras] == ["image"]


# --- What may be wrong


def _no_key(name: str) -> Callable[[Record], Record]:
    return lambda row: {key: values for key, values in row.items() if key != name}


def _set(name: str, values: list[Any]) -> Callable[[Record], Record]:
    return lambda row: row | {name: values}


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        (_no_key("steps/action"), "missing_feature", "record 1 has no steps/action"),
        (_no_key("steps/observation/image"), "missing_feature", "record 1 has no steps/observation/image"),
        (_no_key("episode_metadata/file_path"), "missing_feature", "record 1 has no episode_metadata/file_path"),
        (_set("steps/action", [1.0] * 7), "feature_mismatch", r"record 1: steps/action has 7 values, .* has 2 \(2,\)"),
        (_set("steps/action", [1.0] * 10), "feature_mismatch", "steps/action has 5 entries, and .* has 4"),
        (_set("steps/action", [1] * 8), "feature_mismatch", "steps/action holds int64 numbers"),
        (_set("steps/action", [b"x"] * 8), "feature_mismatch", "steps/action holds bytes"),
        (_set("steps/is_first", [0.5] * 4), "feature_mismatch", "steps/is_first holds float32 numbers"),
        (_set("steps/language_instruction", [1] * 4), "feature_mismatch", "language_instruction holds numbers"),
        (_set("steps/observation/image", [b"<html>"] * 4), "unreadable", "not a JPEG or PNG"),
        (
            _set("steps/observation/image", [file_of(pictures(1, 24, 32)[0])[:90]] * 4),
            "unreadable",
            "record 1: steps/observation/image has a picture that is a damaged",
        ),
        (lambda row: {name: [] for name in row}, "empty", "record 1 has no steps"),
    ],
)
def test_a_record_that_is_not_as_features_json_says(
    tmp_path: Path, change: Callable[[Record], Record], reason: str, words: str
) -> None:
    write(tmp_path, toy_features(), toy_record(), change(toy_record()))
    refused(tmp_path, reason, words)


def test_numbers_beyond_their_type(tmp_path: Path) -> None:
    write(tmp_path, _with(toy_features(), stage=rlds_tensor("uint8")), toy_record() | {"steps/stage": [1, 2, 3, 256]})
    refused(tmp_path, "feature_mismatch", "steps/stage has values that are no uint8")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ragged_flat_values": [1, 2], "ragged_row_lengths_0": [1, 0, 0, 0]}, "2 values for 1 entries"),
        ({"ragged_flat_values": [1, 2], "ragged_row_lengths_0": [3, -1, 0, 0]}, "lengths that do not fit"),
        ({"ragged_flat_values": [1, 2], "ragged_row_lengths_0": [1, 1]}, "has 4 entries, and steps/labels has 2"),
    ],
)
def test_sequences_that_do_not_fit(tmp_path: Path, values: dict[str, list[int]], words: str) -> None:
    features = _with(toy_features(), labels=rlds_sequence(rlds_tensor("int64")))
    write(tmp_path, features, toy_record() | {f"steps/labels/{name}": each for name, each in values.items()})
    refused(tmp_path, "feature_mismatch", words)


@pytest.mark.parametrize(
    ("encoding", "data", "words"),
    [
        ("zlib", b"nothing packed", "cannot be unpacked as float32"),
        ("bytes", b"12345", "cannot be unpacked as float32"),
        ("bytes", b"1234", "1 values in an entry"),
    ],
)
def test_bytes_that_are_no_tensor(tmp_path: Path, encoding: str, data: bytes, words: str) -> None:
    features = _with(toy_features(), points=rlds_tensor("float32", -1, 3, encoding=encoding))
    write(tmp_path, features, toy_record() | {"steps/points": [data] * STEPS})
    refused(tmp_path, "feature_mismatch", words)


@pytest.mark.parametrize(
    ("features", "reason", "words"),
    [
        ("", "unreadable", r"features\.json cannot be used: JSONDecodeError"),
        ("[" * 100_000, "unreadable", "RecursionError"),
        ("[]", "unreadable", r"features\.json cannot be used"),
        ('{"pythonClassName": "a.b.Hologram"}', "unreadable", r"a feature of the class a\.b\.Hologram is not known"),
        (rlds_dict(image=rlds_image(8, 8, 3)), "unknown_format", "describes no `steps`"),
        (rlds_dict(steps=rlds_dict(action=rlds_tensor("float32"))), "unknown_format", "describes no `steps`"),
        (rlds_dict(steps=rlds_sequence(rlds_dict(x=rlds_tensor("float32", 10**6)))), "missing_feature", "no steps/x"),
        (
            rlds_dict(steps=rlds_sequence(rlds_dict(action=rlds_tensor("float32", 10**30, 3)))),
            "feature_mismatch",
            "steps/action has 8 values",
        ),
        (
            rlds_dict(steps=rlds_sequence(rlds_dict(action=rlds_tensor("quint8", 2)))),
            "feature_mismatch",
            "steps/action is quint8 by features.json, which is not known",
        ),
    ],
)
def test_features_that_cannot_be_used(tmp_path: Path, features: Any, reason: str, words: str) -> None:
    write(tmp_path, features, toy_record())
    refused(tmp_path, reason, words)


def test_shards_without_features_are_held_with_a_reason(tmp_path: Path) -> None:
    shard = write(tmp_path, toy_features(), toy_record())
    before = recording_id(find(tmp_path)[0], tmp_path.joinpath)
    (shard.parent / "features.json").unlink()
    (recording,) = find(tmp_path)
    assert recording.missing == ("landing/oxe/toy/1.0.0/features.json",)
    assert recording_id(recording, tmp_path.joinpath) != before
    refused(tmp_path, "missing_file", r"cannot be imported: landing/oxe/toy/1\.0\.0/features\.json is missing")


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"\x1f\x8b" + bytes(100), "unreadable", "is compressed"),
        (b"<html>404 not found</html>", "unreadable", "is no TFRecord file"),
        (b"short", "truncated", "inside of record 0"),
        (
            (1 << 60).to_bytes(8, "little") + masked_crc((1 << 60).to_bytes(8, "little")).to_bytes(4, "little"),
            *(
                "truncated",
                "inside of record 0",
            ),
        ),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, data: bytes, reason: str, words: str) -> None:
    write(tmp_path, toy_features()).write_bytes(data)
    refused(tmp_path, reason, words)


def test_an_empty_shard_has_no_episode(tmp_path: Path) -> None:
    shard = write(tmp_path, toy_features())
    assert (count_records(shard, ""), read(tmp_path)) == (0, [])


def test_other_containers_are_held_with_a_reason(tmp_path: Path) -> None:
    shard = write(tmp_path, toy_features())
    shard.rename(shard.with_name("toy-train.array_record-00000-of-00001"))
    refused(tmp_path, "unknown_format", "of RLDS shards Megahour reads TFRecord files")


def test_a_record_that_is_no_example(tmp_path: Path) -> None:
    data = b"\xff\xff\xff"
    head = len(data).to_bytes(8, "little")
    crcs = [masked_crc(part).to_bytes(4, "little") for part in (head, data)]
    write(tmp_path, toy_features()).write_bytes(head + crcs[0] + data + crcs[1])
    refused(tmp_path, "unreadable", r"record 0 is no tf\.train\.Example")


def test_every_folder_and_shard_is_by_itself(tmp_path: Path) -> None:
    first = write(tmp_path, toy_features(), toy_record(1), name="toy", version="1", splits=[{"name": "val"}])
    second = first.with_name("toy-train.tfrecord-00001-of-00002")
    write_tfrecord(second, [toy_record(2)])
    newer = first.parents[1] / "2.0.0"
    shutil.copytree(first.parent, newer)
    (newer / "dataset_info.json").unlink()
    (first.parent / "notes.txt").write_text("")
    found = find(tmp_path)
    assert [(each.uri.removeprefix("landing/oxe/toy/"), len(each.files)) for each in found] == [
        (f"1.0.0/{SHARD}", 3),
        ("1.0.0/toy-train.tfrecord-00001-of-00002", 3),
        (f"2.0.0/{SHARD}", 2),
        ("2.0.0/toy-train.tfrecord-00001-of-00002", 2),
    ]
    local = tmp_path.joinpath
    ids = [recording_id(each, local) for each in found]
    assert ids[0] != ids[1]
    (first.parent / "dataset_info.json").write_text(
        json.dumps({"version": "1", "name": "toy", "splits": [{"name": "train", "shardLengths": ["1", "1"]}]})
    )
    assert [recording_id(each, local) for each in find(tmp_path)] == ids, "a dataset that grows keeps its episodes"
    features = json.loads((first.parent / "features.json").read_text())
    (first.parent / "features.json").write_text(json.dumps(features, indent=4))
    assert [recording_id(each, local) for each in find(tmp_path)] == ids, "however it is written"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rlds")
    write(root, toy_features(), toy_record(1), toy_record(2))
    return root


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), cut=st.booleans(), mask=st.integers(1, 255))
def test_no_damage_goes_unseen(whole: Path, tmp_path: Path, at: float, cut: bool, mask: int) -> None:
    good = (whole / f"landing/oxe/toy/1.0.0/{SHARD}").read_bytes()
    place = int(at * len(good))
    bad = bytearray(good)
    bad[place] ^= mask
    shard = write(tmp_path, toy_features())
    shard.write_bytes(good[:place] if cut else bytes(bad))
    ends = np.cumsum([len(data) + 16 for data in records(whole / f"landing/oxe/toy/1.0.0/{SHARD}", "")])
    if cut and place in (0, *ends):
        return
    with pytest.raises(SourceError) as caught:
        read(tmp_path)
    assert caught.value.reason in ("truncated", "corrupt", "unreadable")


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_damage_from_before_the_checksums_is_never_a_crash(tmp_path: Path, at: float, mask: int) -> None:
    shard = write(tmp_path, toy_features(), toy_record())
    data = bytearray(next(records(shard, "")))
    data[int(at * len(data))] ^= mask
    head = len(data).to_bytes(8, "little")
    crcs = [masked_crc(bytes(part)).to_bytes(4, "little") for part in (head, data)]
    shard.write_bytes(head + crcs[0] + bytes(data) + crcs[1])
    try:
        for episode in read(tmp_path):
            list(episode.extra_messages())
            for camera in episode.cameras:
                list(camera.frames())
    except SourceError as error:
        assert error.reason in ("unreadable", "missing_feature", "feature_mismatch", "empty")


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_metadata_is_never_a_crash(tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(json.dumps(toy_features()).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255))
    shard = write(tmp_path, toy_features(), toy_record())
    (shard.parent / "features.json").write_bytes(bytes(text))
    (shard.parent / "dataset_info.json").write_bytes(bytes(text[: at + 1]))
    try:
        read(tmp_path)
    except SourceError as error:
        assert error.reason in ("unreadable", "unknown_format", "missing_feature", "feature_mismatch")


def test_what_a_folder_says_is_no_part_of_what_its_shards_hold(tmp_path: Path) -> None:
    shard = write(tmp_path, toy_features(), toy_record(1), name="toy", version="1")
    whole = ids_of(find(tmp_path)[0], tmp_path.joinpath)
    (shard.parent / "dataset_info.json").unlink()
    without_info = ids_of(find(tmp_path)[0], tmp_path.joinpath)
    (shard.parent / "features.json").unlink()
    alone = ids_of(find(tmp_path)[0], tmp_path.joinpath)
    assert whole.content_id == without_info.content_id == alone.content_id
    assert len({whole.recording_id, without_info.recording_id, alone.recording_id}) == 3

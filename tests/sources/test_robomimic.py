"""robomimic files: every demonstration returns as it was, in the order of its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from foxglove_schemas_protobuf.RawImage_pb2 import RawImage

from megahour.episode.model import Note, RawEpisode
from megahour.episode.reader import open_episode_file
from megahour.episode.writer import write_episode
from megahour.sources import SourceError, find_recordings, read_recording
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import FACTS, pictures, psnr_db, write_robomimic


def read(root: Path) -> list[RawEpisode]:
    lake = open_lake(root.as_uri())
    (recording,) = find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))
    return list(read_recording(recording, root.joinpath))


def said(episode: RawEpisode) -> dict[str, list[Any]]:
    """The values of the JSON topics of an episode."""
    found: dict[str, list[Any]] = {topic.name: [] for topic in episode.extras}
    for message in episode.extra_messages():
        found[message.topic].append(json.loads(message.data)["value"])
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_robomimic(tmp_path / "landing/sim/lift/ph.hdf5")


def refused(root: Path, reason: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        read(root)
    assert caught.value.reason == reason


def test_everything_returns(tmp_path: Path, path: Path) -> None:
    episodes = read(tmp_path)
    assert [(episode.index, episode.attributes["demo"]) for episode in episodes] == [
        (0, "demo_0"),
        (1, "demo_1"),
        (2, "demo_2"),
        (3, "demo_10"),
    ], "by number: demo_10 is not before demo_2"
    episode = episodes[3]
    with h5py.File(path) as file:
        demo = file["data/demo_10"]
        obs = {name: demo[f"obs/{name}"][:] for name in demo["obs"]}
        felt = [obs[f"robot0_{name}"] for name in ("eef_pos", "eef_quat", "gripper_qpos")]
        assert [topic.name for topic in episode.series] == ["state", "action", "object", "rewards", "sim_state"]
        state, action, objects, rewards, sim_state = episode.series
        assert state.values.tobytes() == np.concatenate(felt, axis=1).tobytes()
        assert state.values.dtype == np.float64
        assert state.names[:4] == ("robot0_eef_pos_0", "robot0_eef_pos_1", "robot0_eef_pos_2", "robot0_eef_quat_0")
        for topic, place in ((action, "actions"), (sim_state, "states"), (objects, "obs/object"), (rewards, "rewards")):
            assert topic.values.tobytes() == demo[place][:].tobytes()
        assert [camera.name for camera in episode.cameras] == ["agentview", "robot0_eye_in_hand"]
        for camera in episode.cameras:
            for _ in range(2):
                assert np.array_equal(np.stack(list(camera.frames())), obs[f"{camera.name}_image"])
        messages = said(episode)
        assert messages.keys() == {"dones", "model_file", "next_obs"}
        assert messages["dones"] == [0, 0, 0, 0, 0, 1]
        assert messages["model_file"] == [demo.attrs["model_file"]]
        (last,) = messages["next_obs"]
        assert last["object"] == demo["next_obs/object"][-1].tolist()
        assert last.keys() == obs.keys()
    assert [message.time_ns for message in episode.extra_messages() if message.topic == "next_obs"] == [200_000_000]
    assert episode.series[0].times_ns.tolist() == [i * 40_000_000 for i in range(6)], "control_freq is 25"
    assert (episode.robot, episode.task, episode.rate_hz, episode.success) == ("Panda", "Lift", 25.0, True)
    assert (episode.notes, episode.format) == ((), "robomimic_hdf5")
    assert episode.attributes.keys() == {"demo", "env_args", "num_samples", "splits", "total"}
    assert json.loads(episode.attributes["env_args"])["env_name"] == "Lift"
    assert [each.attributes["splits"] for each in episodes] == ["train", "train", "train", "valid"]


def test_an_episode_in_its_container(tmp_path: Path, path: Path) -> None:
    episode = read(tmp_path)[1]
    write_episode(tmp_path / "out.mcap", episode, FACTS)
    back = open_episode_file(tmp_path / "out.mcap")
    for topic in episode.series:
        assert back.series(topic.name).values.tobytes() == topic.values.tobytes()
    for camera in episode.cameras:
        shown = np.stack(list(camera.frames()))
        assert psnr_db(shown, back.frames(camera.name, range(len(shown)))) > 30
    kept = [message for topic in episode.extras for message in back.messages(topic.name)]
    assert sorted(kept, key=lambda each: (each.topic, each.time_ns)) == sorted(
        episode.extra_messages(), key=lambda each: (each.topic, each.time_ns)
    )


def _edit(path: Path, **held: Any) -> None:
    """Replace members of `demo_1`, `__` for a slash; remove those that are None."""
    with h5py.File(path, "a") as file:
        demo = file["data/demo_1"]
        for name, values in held.items():
            place = name.replace("__", "/")
            if place in demo:
                del demo[place]
            if values is not None:
                demo[place] = values


def test_without_robots_the_state_is_all_low_dimensional_observations(tmp_path: Path, path: Path) -> None:
    with h5py.File(path, "a") as file:
        obs = file["data/demo_1/obs"]
        for name in ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"):
            obs.move(name, name.removeprefix("robot0_"))
        obs["gripper"] = np.arange(6.0)
        obs["lang_emb"] = np.ones((6, 768), np.float32)
        obs["pose"] = np.ones((6, 4, 4), np.float32)
        obs["features"] = np.ones((6, 100), np.float32)
        obs["stage"] = np.arange(6)
        del file["data/demo_1/next_obs"]
    episode = read(tmp_path)[1]
    (names,) = [topic.names for topic in episode.series if topic.name == "state"]
    assert list(dict.fromkeys(name.rsplit("_", 1)[0] for name in names)) == [
        *("eef_pos", "eef_quat", "gripper", "gripper_qpos", "object")
    ]
    assert [topic.name for topic in episode.series] == ["state", "action", "features", "pose", "rewards", "sim_state"]
    assert {name: len(values) for name, values in said(episode).items()} == {
        "model_file": 1,
        "lang_emb": 1,
        "stage": 6,
        "dones": 6,
    }


def test_two_arms_are_one_state(tmp_path: Path, path: Path) -> None:
    _edit(path, obs__robot1_eef_pos=np.ones((6, 3)), obs__robot1_eef_quat=np.ones((6, 4)), next_obs=None)
    (names,) = [topic.names for topic in read(tmp_path)[1].series if topic.name == "state"]
    assert list(dict.fromkeys(name.rsplit("_", 1)[0] for name in names)) == [
        *("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "robot1_eef_pos", "robot1_eef_quat")
    ]


def test_states_alone_are_an_episode_too(tmp_path: Path, path: Path) -> None:
    _edit(path, obs=None, next_obs=None, rewards=None, dones=None)
    episode = read(tmp_path)[1]
    assert [topic.name for topic in episode.series] == ["action", "sim_state"]
    assert (episode.cameras, episode.success) == ((), None)


def test_depth_is_kept_to_the_bit(tmp_path: Path, path: Path) -> None:
    depth = np.random.default_rng(0).uniform(0, 1, (6, 24, 32, 1)).astype(np.float32)
    _edit(path, obs__agentview_depth=depth, next_obs__agentview_depth=np.concatenate([depth[1:], depth[:1]]))
    episode = read(tmp_path)[1]
    images = [RawImage.FromString(m.data) for m in episode.extra_messages() if m.topic == "agentview_depth"]
    assert [image.encoding for image in images] == ["32FC1"] * 6
    assert b"".join(image.data for image in images) == depth.tobytes()
    assert [camera.name for camera in episode.cameras] == ["agentview", "robot0_eye_in_hand"]


def test_next_obs_that_is_something_else_is_kept_whole(tmp_path: Path, path: Path) -> None:
    other = np.random.default_rng(9).normal(size=(6, 10))
    _edit(path, next_obs__object=other, next_obs__agentview_image=pictures(6, 24, 32, seed=77))
    episode = read(tmp_path)[1]
    kept = {topic.name: topic.values for topic in episode.series}
    assert kept["next_obs_object"].tobytes() == other.tobytes()
    assert "next_obs_agentview_image" in [camera.name for camera in episode.cameras]
    assert [note.code for note in episode.notes] == ["next_obs", "next_obs"]
    assert "object" not in said(episode)["next_obs"][0]


@pytest.mark.parametrize(
    ("change", "success"),
    [
        ({"rewards": np.zeros(6)}, None),
        ({"rewards": np.array([0, 1, 0, 0, 0, 0])}, True),
        ({"rewards": np.full(6, np.nan)}, None),
        ({"rewards": None}, None),
    ],
)
def test_success_is_what_a_sparse_reward_says(tmp_path: Path, path: Path, change: Any, success: bool | None) -> None:
    _edit(path, **change)
    assert read(tmp_path)[1].success is success


def _say(path: Path, place: str, **attributes: Any) -> None:
    with h5py.File(path, "a") as file:
        for name, value in attributes.items():
            if value is None:
                del file[place].attrs[name]
            else:
                file[place].attrs[name] = value


def test_a_shaped_reward_says_nothing_of_success(tmp_path: Path, path: Path) -> None:
    _say(path, "data", env_args=json.dumps({"env_name": "Lift", "env_kwargs": {"reward_shaping": True}}))
    assert read(tmp_path)[0].success is None


@pytest.mark.parametrize("env_args", [None, "{", "[]", "{}", '{"env_kwargs": 3}', "[" * 100_000])
def test_what_a_file_does_not_say(tmp_path: Path, path: Path, env_args: str | None) -> None:
    _say(path, "data", env_args=env_args)
    episode = read(tmp_path)[0]
    assert (episode.robot, episode.task, episode.rate_hz) == ("unknown", "ph", 20.0)
    assert episode.notes == (Note("rate_guessed", "no control_freq in env_args: 20 Hz taken, as robosuite"),)
    (tmp_path / "landing/sim/source.yaml").write_text("robot: franka\ntask: lift it\nrate_hz: 10\n")
    episode = read(tmp_path)[0]
    assert (episode.robot, episode.task, episode.rate_hz, episode.notes) == ("franka", "lift it", 10.0, ())


def test_the_task_in_words_counts_more_than_the_environment(tmp_path: Path, path: Path) -> None:
    _say(path, "data", problem_info=json.dumps({"language_instruction": "lift the cube"}))
    _say(path, "data/demo_1", ep_meta=json.dumps({"lang": "lift the red cube"}))
    assert [episode.task for episode in read(tmp_path)] == [
        *("lift the cube", "lift the red cube", "lift the cube", "lift the cube")
    ]


def test_an_observation_behind_the_last_action_is_left_out(tmp_path: Path, path: Path) -> None:
    with h5py.File(path, "a") as file:
        demo = file["data/demo_1"]
        for name in list(demo["obs"]):
            longer = np.concatenate([demo[f"obs/{name}"], demo[f"next_obs/{name}"][-1:]])
            del demo[f"obs/{name}"]
            demo[f"obs/{name}"] = longer
    episode, other = read(tmp_path)[1], read(tmp_path)[0]
    assert [note.code for note in episode.notes] == ["trimmed"]
    assert {len(topic.values) for topic in episode.series} == {6}
    assert [len(list(camera.frames())) for camera in episode.cameras] == [6, 6]
    assert said(episode).keys() == said(other).keys()


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"actions": None}, "missing_feature", "has no /data/demo_1/actions"),
        ({"actions": np.zeros((0, 7))}, "empty", "/data/demo_1 has no steps"),
        ({"actions": np.zeros((4, 7))}, "frame_count", "4 actions, but 6 entries in /data/demo_1/"),
        ({"actions": np.zeros((5, 7))}, "frame_count", "5 actions, but 6 entries in /data/demo_1/"),
        ({"actions": np.zeros((6, 7), int)}, "feature_mismatch", "actions is int64 .* expected a row of floats"),
        ({"actions": np.zeros((6, 7, 2))}, "feature_mismatch", r"actions is float64 \(7, 2\) a step"),
        ({"actions": np.float64(1)}, "feature_mismatch", "actions is no array"),
        ({"rewards": np.zeros(5)}, "frame_count", "6 actions, but 5 entries in /data/demo_1/rewards"),
        ({"obs__object": np.zeros((5, 10))}, "frame_count", "6 actions, but 5 entries in /data/demo_1/obs/object"),
        ({"obs__object": np.zeros((7, 10))}, "frame_count", "6 actions, but 7 entries in /data/demo_1/obs/object"),
        ({"obs__object": "text"}, "feature_mismatch", "obs/object is no array"),
    ],
)
def test_topics_must_fit(tmp_path: Path, path: Path, change: Any, reason: str, words: str) -> None:
    _edit(path, **change)
    refused(tmp_path, reason, words)


@pytest.mark.parametrize("said", ["fast", True, 0, float("inf"), [20], 10**400])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, path: Path, said: Any) -> None:
    _say(path, "data", env_args=json.dumps({"env_kwargs": {"control_freq": said}}))
    refused(tmp_path, "feature_mismatch", "control_freq in env_args must be a number")


def test_a_demonstration_of_another_length_than_it_says_is_refused(tmp_path: Path, path: Path) -> None:
    _say(path, "data/demo_1", num_samples=5)
    refused(tmp_path, "frame_count", "/data/demo_1 has 6 actions, and its num_samples says 5")


def test_a_file_without_demonstrations_is_refused(tmp_path: Path, path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["data"]
        file.create_group("data")
    refused(tmp_path, "empty", "no demonstration below /data")


def test_nothing_beside_the_demonstrations_vanishes(tmp_path: Path, path: Path) -> None:
    _edit(path, actions_abs=np.ones((6, 7)), action_dict__pos=np.ones((6, 3)), friction=np.arange(3.0))
    with h5py.File(path, "a") as file:
        file.attrs["collected"] = "2031-01-01"
        file["camera_matrix"] = np.eye(2)
        file["data/notes"] = "a dataset among demonstrations"
        file["mask/all"] = np.array([f"demo_{i}" for i in (0, 1, 2, 10)], "S8")
        file["mask/strange"] = np.arange(3)
        file["data/demo_1"].attrs["scene"] = 4
    episode = read(tmp_path)[1]
    assert {topic.name for topic in episode.series} > {"actions_abs", "action_dict_pos"}
    facts = {"collected": "2031-01-01", "camera_matrix": "[[1.0, 0.0], [0.0, 1.0]]", "scene": "4"}
    facts |= {"friction": "[0.0, 1.0, 2.0]", "splits": "all, train"}
    assert facts.items() <= episode.attributes.items()
    assert [(note.code, note.text.split(": ")[1]) for note in episode.notes] == [
        ("left_out", "data/notes, mask/strange")
    ]

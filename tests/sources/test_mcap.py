"""MCAP recordings of ROS 2 and Foxglove: what they hold returns as it was, and what is guessed is said."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import foxglove
import numpy as np
import pytest
from foxglove import Channel, Context, Schema, channels
from foxglove import messages as fox
from foxglove.mcap import MCAPCompression, MCAPWriteOptions
from mcap.reader import make_reader
from mcap.writer import Writer
from rosbags.rosbag2 import Writer as RosWriter
from rosbags.rosbag2.enums import StoragePlugin

from megahour.episode.model import EpisodeFacts, RawEpisode
from megahour.episode.profile import MIXED, Profile, Rendition
from megahour.episode.reader import open_episode_file
from megahour.episode.writer import write_episode
from megahour.sources import SourceError, find_recordings, mcap, recording_id
from megahour.storage import FileRef
from tests.samples import FACTS, pictures, psnr_db, raw_episode, samples_dir
from tests.sources.mcap_files import (
    ROS,
    START_NS,
    STEP_NS,
    Said,
    T,
    cdr,
    coded,
    codes,
    file_of,
    floats,
    header,
    joint_state,
    land,
    note,
    read,
    robot_bag,
    said,
    times,
    write_bag,
)


def messages_of(episode: RawEpisode) -> list[tuple[str, int, bytes]]:
    return [(message.topic, message.time_ns, message.data) for message in episode.extra_messages()]


def decoded(message: Said) -> Any:
    """What rosbags reads out of a message."""
    return ROS.deserialize_cdr(message.data, message.schema)


def refused(root: Path, reason: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        read(root)
    assert caught.value.reason == reason


def test_each_file_is_a_recording_of_its_own_bytes(tmp_path: Path) -> None:
    refs = {}
    for key, data in (("landing/a/x/1.mcap", b"1"), ("landing/a/2.MCAP", b"2"), ("landing/a/notes.txt", b"")):
        refs[key] = FileRef(key, len(data), "", datetime.now(UTC))
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    one, two = find_recordings(refs.values(), lambda key: b"")
    assert [(each.uri, each.format, each.source) for each in (one, two)] == [
        ("landing/a/2.MCAP", "mcap", "a"),
        ("landing/a/x/1.mcap", "mcap", "a"),
    ]
    assert mcap.identity(one, tmp_path.joinpath) is None
    assert recording_id(one, tmp_path.joinpath) != recording_id(two, tmp_path.joinpath)


def test_a_bag_of_ros_2(tmp_path: Path) -> None:
    sent = robot_bag()
    write_bag(land(tmp_path), sent)
    episode = read(tmp_path)
    assert (episode.task, episode.robot, episode.rate_hz, episode.success) == ("pick", "unknown", 30.0, None)
    assert {camera.name: (camera.width, camera.height) for camera in episode.cameras} == {
        "front": (64, 48),
        "wrist_cam": (64, 48),
    }
    front, wrist = episode.cameras
    assert front.times_ns.tolist() == times(24) and wrist.times_ns.tolist() == [t + 1000 for t in times(24)]
    for _ in range(2):
        assert min(psnr_db(one, other) for one, other in zip(front.frames(), pictures(24, 48, 64), strict=True)) > 30
        assert np.array_equal(np.stack(list(wrist.frames())), pictures(24, 48, 64, seed=1))
    jpeg = [decoded(each).data.tobytes() for each in sent if "Compressed" in each.schema]
    assert front.coded is not None and list(front.coded.units()) == jpeg and wrist.coded is None

    said_values = [decoded(each) for each in sent if each.topic == "/joint_states"]
    series = {each.name: each for each in episode.series}
    assert set(series) == {"state", "state_velocity", "action"}
    assert series["state"].names == series["state_velocity"].names == ("a", "b", "c")
    assert series["state"].values.tobytes() == np.stack([each.position for each in said_values]).tobytes()
    assert series["state_velocity"].values.tobytes() == np.stack([each.velocity for each in said_values]).tobytes()
    assert series["state"].values.dtype == np.float64

    (status,) = episode.extras
    text, _ = ROS.generate_msgdef("std_msgs/msg/String", ros_version=2)
    assert (status.name, status.encoding, status.schema_name, status.schema_encoding, status.schema) == (
        *("status", "cdr", "std_msgs/msg/String", "ros2msg"),
        text.encode(),
    )
    assert messages_of(episode) == [("status", each.time_ns, each.data) for each in sent if each.topic == "/status"]
    assert codes(episode) == ["mapping_guessed", "rate_guessed"]
    assert "/leader/joint_states as series action" in note(episode, "mapping_guessed")
    assert "30 Hz taken, the median of state" in note(episode, "rate_guessed")


def test_a_bag_that_rosbags_wrote(tmp_path: Path) -> None:
    """A second writer of the format: its layout of the file, its metadata record."""
    folder = tmp_path / "bag"
    with RosWriter(folder, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        joints = writer.add_connection("/joint_states", "sensor_msgs/msg/JointState", typestore=ROS)
        for i, time_ns in enumerate(times(20)):
            writer.write(joints, time_ns, cdr(joint_state(time_ns, ["a"], [i / 7])))
    (bag,) = folder.glob("*.mcap")
    shutil.copyfile(bag, land(tmp_path))
    (state,) = read(tmp_path).series
    assert state.values[:, 0].tolist() == [i / 7 for i in range(20)] and state.times_ns.tolist() == times(20)


@pytest.mark.parametrize("compression", [MCAPCompression.Lz4, MCAPCompression.Zstd, None])
def test_a_file_of_foxglove(tmp_path: Path, compression: Any) -> None:
    video, still = pictures(24, 48, 64), pictures(24, 40, 32, seed=3)
    packets = coded(video, "h264")
    context, path = Context(), land(tmp_path)
    rng = np.random.default_rng(0)
    position, command = rng.normal(size=(24, 3)), rng.normal(size=24)
    with foxglove.open_mcap(
        path, context=context, writer_options=MCAPWriteOptions(compression=compression, chunk_size=20_000)
    ) as writer:
        front = channels.CompressedVideoChannel("/front/video", context=context)
        side = channels.CompressedImageChannel("/side/image", context=context)
        raw = channels.RawImageChannel("/wrist/image", context=context)
        state = channels.JointStatesChannel("/follower", context=context)
        in_json = Schema(name="foxglove.JointStates", encoding="jsonschema", data=b"{}")
        action = Channel("/leader", schema=in_json, message_encoding="json", context=context)
        tf = channels.FrameTransformChannel("/tf", context=context)
        free = Channel("/anything", context=context)
        for i, time_ns in enumerate(times(24)):
            stamp = fox.Timestamp(time_ns // 10**9, time_ns % 10**9)
            front.log(fox.CompressedVideo(timestamp=stamp, data=packets[i], format="h264"), log_time=time_ns)
            side.log(fox.CompressedImage(data=file_of(still[i], "PNG"), format="png"), log_time=time_ns)
            pixels = still[i][:, :, ::-1].tobytes()
            raw.log(fox.RawImage(width=32, height=40, encoding="bgr8", step=96, data=pixels), log_time=time_ns)
            joints = [fox.JointState(name=n, position=position[i, k], effort=k) for k, n in enumerate("xyz")]
            state.log(fox.JointStates(timestamp=stamp, joints=joints), log_time=time_ns)
            action.log({"joints": [{"name": "x", "position": command[i]}]}, log_time=time_ns)
            tf.log(fox.FrameTransform(parent_frame_id="a", child_frame_id="b"), log_time=time_ns)
            free.log({"count": i}, log_time=time_ns)
        writer.write_metadata("session", {"task": "pour tea", "robot": "ur5", "success": "true", "operator": "anna"})
        writer.attach(log_time=1, create_time=1, name="plan.txt", media_type="text/plain", data=b"12345")
    episode = read(tmp_path)
    assert (episode.task, episode.robot, episode.success) == ("pour tea", "ur5", True)
    assert episode.attributes["session.operator"] == "anna"
    assert note(episode, "left_out") == "attachment 'plan.txt' left out, 5 bytes"
    cameras = {camera.name: camera for camera in episode.cameras}
    assert set(cameras) == {"front", "side", "wrist"}
    shown = zip(cameras["front"].frames(), video, strict=True)
    assert np.mean([psnr_db(one, other) for one, other in shown]) > 33
    for name in ("side", "wrist"):
        assert np.array_equal(np.stack(list(cameras[name].frames())), still)
        assert cameras[name].coded is None
    coded_front = cameras["front"].coded
    assert coded_front is not None and coded_front.codec == "h264" and list(coded_front.units()) == packets
    series = {each.name: each for each in episode.series}
    assert set(series) == {"state", "state_effort", "action"}
    assert series["state"].values.tobytes() == position.tobytes() and series["state"].names == ("x", "y", "z")
    assert series["action"].values[:, 0].tolist() == command.tolist()
    with path.open("rb") as file:
        stock = [
            (channel.topic[1:], message.log_time, message.data)
            for _, channel, message in make_reader(file).iter_messages(["/tf", "/anything"])
        ]
    assert Counter(messages_of(episode)) == Counter(stock) and len(stock) == 48
    assert {(each.name, each.encoding, each.schema_encoding) for each in episode.extras} == {
        ("tf", "protobuf", "protobuf"),
        ("anything", "json", "jsonschema"),
    }


@pytest.mark.parametrize("name", ["cdr_test_0", "talker", "wbag_0"])
def test_real_bags_keep_every_message(tmp_path: Path, name: str) -> None:
    path = samples_dir() / "rosbag2" / f"{name}.mcap"
    shutil.copyfile(path, land(tmp_path))
    episode = read(tmp_path)
    with path.open("rb") as file:
        stock = [(c.topic.strip("/"), m.log_time, m.data) for _, c, m in make_reader(file).iter_messages()]
    got = messages_of(episode)
    assert Counter(got) == Counter(stock)
    assert [time_ns for _, time_ns, _ in got] == sorted(time_ns for _, time_ns, _ in stock)
    assert "no topic has pictures or joints" in note(episode, "mapping_guessed")
    # What is written is what any tool reads, under the schema it came with.
    out = tmp_path / "out.mcap"
    write_episode(out, episode, FACTS)
    with out.open("rb") as file:
        again = [(c.topic[1:], m.log_time, m.data) for _, c, m in make_reader(file, validate_crcs=True).iter_messages()]
    assert Counter(again) == Counter(stock)


def written(path: Path, episode: RawEpisode, profile: Profile = MIXED) -> None:
    facts = EpisodeFacts("ab" * 16, episode.robot, episode.task, "lab", "aloha_hdf5", 30.0, True, {"seed": "7"})
    write_episode(path, episode, facts, profile)


def test_renditions_are_not_imported(tmp_path: Path) -> None:
    """They are made anew from the cameras they show."""
    written(land(tmp_path), raw_episode(), Profile("small", gop=10, rendition=Rendition(24, 32)))
    episode = read(tmp_path)
    assert [camera.name for camera in episode.cameras] == ["front", "wrist"] and episode.extras == ()


def test_pictures_that_were_stored_as_jpeg_come_back_as_jpeg(tmp_path: Path) -> None:
    write_bag(land(tmp_path), [each for each in robot_bag(6) if "wrist" not in each.topic])
    first = read(tmp_path)
    assert first.cameras[0].coded is not None
    files = list(first.cameras[0].coded.units())
    written(tmp_path / "out.mcap", first, Profile("as it came", gop=10, pictures="as_coded"))
    (tmp_path / "out.mcap").replace(land(tmp_path))
    (front,) = read(tmp_path).cameras
    assert front.name == "front" and front.coded is not None and list(front.coded.units()) == files


def test_an_episode_of_megahour(tmp_path: Path) -> None:
    """What Megahour wrote lands as a source: names and dtypes as they were, nothing guessed."""
    before = raw_episode()
    path = land(tmp_path)
    written(path, before)
    episode = read(tmp_path)
    assert (episode.robot, episode.task, episode.success, episode.rate_hz) == ("sawyer", "press the button", True, 30.0)
    assert episode.attributes["seed"] == "7" and episode.attributes["megahour.episode_id"] == "ab" * 16
    assert episode.notes == before.notes
    for one, other in zip(episode.series, sorted(before.series, key=lambda each: each.name), strict=True):
        assert (one.name, one.names, one.values.dtype) == (other.name, other.names, np.float32)
        assert one.values.tobytes() == other.values.tobytes() and one.times_ns.tolist() == other.times_ns.tolist()
    stored = open_episode_file(path)
    for camera in episode.cameras:
        expected = stored.frames(camera.name, range(24), chroma="smooth")
        assert min(psnr_db(a, b) for a, b in zip(camera.frames(), expected, strict=True)) > 45
    assert [camera.name for camera in episode.cameras] == ["front", "wrist"] and episode.extras == ()
    assert all(camera.coded is not None and camera.coded.codec == "h264" for camera in episode.cameras)


def test_an_episode_of_megahour_whose_metadata_is_damaged(tmp_path: Path) -> None:
    path = land(tmp_path)
    written(path, raw_episode())
    data = path.read_bytes()
    assert data.count(b"press the button") == 1
    path.write_bytes(data.replace(b"press the button", b"press the mutton"))
    assert codes(read(tmp_path)) == ["left_out", "checksum"]


def test_import_write_import_changes_nothing(tmp_path: Path) -> None:
    write_bag(land(tmp_path), robot_bag())
    first = read(tmp_path)
    sent = messages_of(first)
    write_episode(tmp_path / "out.mcap", first, FACTS)
    (tmp_path / "out.mcap").replace(land(tmp_path))
    again = read(tmp_path)
    assert messages_of(again) == sent and again.extras == first.extras
    for one, other in zip(again.series, sorted(first.series, key=lambda each: each.name), strict=True):
        assert one.values.tobytes() == other.values.tobytes() and one.times_ns.tolist() == other.times_ns.tolist()
    for camera, before in zip(again.cameras, first.cameras, strict=True):
        assert camera.times_ns.tolist() == before.times_ns.tolist() and camera.name == before.name


def test_joints_in_any_order_and_number(tmp_path: Path) -> None:
    """Values go to the column of their joint, in whatever order a message names them."""
    sent = [
        (["a", "b", "c"], [1.0, 2.0, 3.0]),
        (["c", "a", "b"], [6.0, 4.0, 5.0]),
        (["b"], [7.0]),
        (["a", "b", "c", "d"], [1.0, 2.0, float("nan"), 8.0]),
    ]
    bag = [said("/joint_states", joint_state(t, *each), t) for t, each in zip(times(4), sent, strict=True)]
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    (state,) = episode.series
    nan = float("nan")
    assert state.names == ("a", "b", "c", "d")
    rows = [[1, 2, 3, nan], [4, 5, 6, nan], [nan, 7, nan, nan], [1, 2, nan, 8]]
    assert np.array_equal(state.values, rows, equal_nan=True)
    assert note(episode, "nan") == "state: of 4 messages some lack a in 1, c in 1, d in 3: NaN there"


def test_joints_without_names_and_with_too_few_values(tmp_path: Path) -> None:
    sent = [([], [1.0, 2.0]), ([], [3.0, 4.0]), (["a", "b", "c"], [1.0, 2.0]), (["a"], [])]
    bag = [said("/joint_states", joint_state(t, *each), t) for t, each in zip(times(4), sent, strict=True)]
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    (state,) = episode.series
    assert state.names == ("joint_0", "joint_1") and state.values.tolist() == [[1, 2], [3, 4]]
    text = "/joint_states: 1 of 4 messages left out: it has 2 values in 'position' for 3 joints"
    assert note(episode, "dropped") == text


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    values = [1.0, float("nan"), float("inf"), 2.0]
    bag = [said("/joint_states", joint_state(t, ["a"], [v]), t) for t, v in zip(times(4), values, strict=True)]
    write_bag(land(tmp_path), bag)
    assert note(read(tmp_path), "nan") == "state has values that are not finite in 2 of 4 rows"


def test_times_out_of_order_are_sorted(tmp_path: Path) -> None:
    order = [0, 2, 1, 3, 5, 4]
    bag = [said("/joint_states", joint_state(0, ["a"], [i]), START_NS + i * STEP_NS) for i in order]
    bag += [said("/chat", T["std_msgs/msg/String"](str(i)), START_NS + i * STEP_NS) for i in order]
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    (state,) = episode.series
    assert state.values[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert [time_ns for _, time_ns, _ in messages_of(episode)] == times(6)
    assert [each.text.split(":")[0] for each in episode.notes if each.code == "sorted"] == ["/joint_states", "/chat"]


def test_equal_times(tmp_path: Path) -> None:
    """A message that came twice is one; others at the same time follow each other."""
    one, two = (joint_state(0, ["a"], [v]) for v in (1.0, 2.0))
    bag = [said("/joint_states", each, t) for each, t in ((one, 5), (one, 5), (two, 5), (two, 6), (one, 9))]
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    (state,) = episode.series
    assert state.times_ns.tolist() == [5, 6, 7, 9] and state.values[:, 0].tolist() == [1, 2, 2, 1]
    texts = [each.text for each in episode.notes if each.code == "duplicate_times"]
    assert len(texts) == 2 and "2 times moved" in texts[0] and "1 messages left out that came twice" in texts[1]


def test_times_that_say_nothing(tmp_path: Path) -> None:
    write_bag(land(tmp_path), [said("/joint_states", joint_state(0, ["a"], [i]), 77) for i in range(5)])
    refused(tmp_path, "times", "all 5 messages of /joint_states have the log time 77")


def test_a_gap_stays_and_is_named(tmp_path: Path) -> None:
    when = [*times(10), *times(10, START_NS + 3_000_000_000)]
    write_bag(land(tmp_path), [said("/joint_states", joint_state(t, ["a"], [0]), t) for t in when])
    episode = read(tmp_path)
    assert episode.series[0].times_ns.tolist() == when
    assert note(episode, "gap") == "state: nothing for 2.700 s, 0.300 s after its start"
    # Slow topics and short hiccups are no gaps.
    for step_ns in (2_000_000_000, 50_000_000):
        when = [*times(10, step_ns=step_ns), START_NS + 13 * step_ns]
        write_bag(land(tmp_path), [said("/joint_states", joint_state(t, ["a"], [0]), t) for t in when])
        assert "gap" not in codes(read(tmp_path))


def test_stamps_instead_of_log_times(tmp_path: Path) -> None:
    """`time: stamp` takes when it was measured, not when it was recorded."""
    order = [0, 2, 1, 3]
    bag = [said("/joint_states", joint_state(1000 + i, ["a"], [i]), START_NS + k) for k, i in enumerate(order)]
    path = land(tmp_path, options="topics:\n  /joint_states: {series: state, time: stamp}\n")
    write_bag(path, bag)
    episode = read(tmp_path)
    assert episode.series[0].times_ns.tolist() == [1000, 1001, 1002, 1003]
    assert episode.series[0].values[:, 0].tolist() == [0, 1, 2, 3]
    assert "not in order of their stamps" in note(episode, "sorted")
    assert "From stamp to log time: /joint_states 1699999999" in note(episode, "left_out")
    land(tmp_path, options="topics:\n  /joint_states: {series: state}\n")
    assert read(tmp_path).series[0].times_ns.tolist() == [START_NS + k for k in range(4)]


def test_a_topic_with_two_channels(tmp_path: Path) -> None:
    """Publishers that come and go leave a channel each; each is decoded by its own schema."""
    in_json = {"joints": [{"name": "a", "position": 2.5}]}
    path = land(tmp_path)
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        text, _ = ROS.generate_msgdef("sensor_msgs/msg/JointState", ros_version=2)
        ros = writer.register_schema("sensor_msgs/msg/JointState", "ros2msg", text.encode())
        ids = [writer.register_channel("/joint_states", "cdr", ros) for _ in range(2)]
        for i in range(10):
            writer.add_message(ids[i % 2], i, cdr(joint_state(0, ["a"], [i])), i)
        chat = [writer.register_channel("/chat", "json", 0) for _ in range(2)]
        for i in range(6):
            writer.add_message(chat[i // 3], 100 - i, json.dumps(in_json).encode(), i)
        writer.finish()
    episode = read(tmp_path)
    assert episode.series[0].values[:, 0].tolist() == list(range(10))
    assert [each.name for each in episode.extras] == ["chat"] and len(messages_of(episode)) == 6
    assert [each.text for each in episode.notes if each.code == "merged"] == [
        "/joint_states has 2 channels: merged by time",
        "/chat has 2 channels: merged by time",
    ]


def test_a_topic_of_two_kinds_is_kept_as_it_came(tmp_path: Path) -> None:
    bag = [
        said("/x", joint_state(0, ["a"], [1.0]), 1),
        said("/x", T["std_msgs/msg/String"]("hello"), 2),
    ]
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    assert {each.name: each.schema_name for each in episode.extras} == {
        "x": "sensor_msgs/msg/JointState",
        "x_extra": "std_msgs/msg/String",
    }
    assert messages_of(episode) == [("x", 1, bag[0].data), ("x_extra", 2, bag[1].data)]
    assert "kept as /x_extra" in note(episode, "renamed")


def test_an_extra_topic_gives_way_to_a_series(tmp_path: Path) -> None:
    bag = [said("/joint_states", joint_state(0, ["a"], [1.0]), 1), said("/state", T["std_msgs/msg/String"]("on"), 2)]
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    assert [each.name for each in episode.series] == ["state"]
    assert messages_of(episode) == [("state_extra", 2, bag[1].data)]
    write_episode(tmp_path / "out.mcap", episode, FACTS)


@pytest.mark.parametrize(
    ("encoding", "schema_encoding", "schema"),
    [
        ("cdr", "ros2idl", b"module sensor_msgs { };"),
        ("ros1", "ros1msg", b"string[] name"),
        ("cdr", "ros2msg", b"no message at all\n===\nMSG"),
        ("protobuf", "protobuf", b"\xff\xff\xff"),
        ("cbor", "", b""),
    ],
)
def test_what_cannot_be_decoded_is_kept(tmp_path: Path, encoding: str, schema_encoding: str, schema: bytes) -> None:
    path = land(tmp_path)
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        number = writer.register_schema("sensor_msgs/msg/JointState", schema_encoding, schema)
        channel = writer.register_channel("/joint_states", encoding, number)
        for i in range(3):
            writer.add_message(channel, i, b"\0\1\0\0" + bytes([i] * 9), i)
        writer.finish()
    episode = read(tmp_path)
    (extra,) = episode.extras
    assert (extra.encoding, extra.schema_encoding, extra.schema) == (encoding, schema_encoding, schema)
    assert [data for _, _, data in messages_of(episode)] == [b"\0\1\0\0" + bytes([i] * 9) for i in range(3)]
    assert "kept as it came" in note(episode, "undecoded")
    land(tmp_path, options="topics:\n  /joint_states: {series: state}\n")
    refused(tmp_path, "feature_mismatch", "nothing of /joint_states can be used as source.yaml maps it")


def test_a_message_that_does_not_decode_is_left_out_alone(tmp_path: Path) -> None:
    bag = [said("/joint_states", joint_state(0, ["a"], [i]), i) for i in range(5)]
    bag[2] = type(bag[2])(bag[2].topic, bag[2].schema, 2, bag[2].data[:40])
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    assert episode.series[0].values[:, 0].tolist() == [0, 1, 3, 4]
    # CDR of another version would decode to other values without an error.
    bag[2] = type(bag[2])(bag[2].topic, bag[2].schema, 2, b"\0\7" + cdr(joint_state(0, ["a"], [2]))[2:])
    write_bag(land(tmp_path), bag)
    assert "is no plain CDR" in note(read(tmp_path), "dropped")
    bag[2] = type(bag[2])(bag[2].topic, bag[2].schema, 2, bag[0].data[:40])
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    assert note(episode, "dropped").startswith("/joint_states: 1 of 5 messages left out: a message does not decode")


def test_facts_that_a_person_says(tmp_path: Path) -> None:
    path = land(tmp_path, options="robot: franka\ntask: stack\nrate_hz: 25\n")
    write_bag(path, robot_bag(4))
    episode = read(tmp_path)
    assert (episode.robot, episode.task, episode.rate_hz) == ("franka", "stack", 25.0)
    assert "rate_guessed" not in codes(episode)


def test_long_metadata_becomes_a_message(tmp_path: Path) -> None:
    path = land(tmp_path)
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        channel = writer.register_channel("/x", "json", 0)
        writer.add_message(channel, 1000, b"{}", 1000)
        writer.add_metadata("rosbag2", {"serialized_metadata": "long " * 2000, "short": "yes"})
        writer.finish()
    episode = read(tmp_path)
    assert set(episode.attributes) == {"rosbag2.short", "mcap.library"}
    said_long = json.dumps({"value": "long " * 2000}, separators=(",", ":")).encode()
    assert messages_of(episode) == [("x", 1000, b"{}"), ("metadata/rosbag2.serialized_metadata", 1000, said_long)]


def test_other_messages_are_not_touched(tmp_path: Path) -> None:
    """What is not mapped is kept byte for byte, whatever it is."""
    pose = T["geometry_msgs/msg/PoseStamped"](
        header(5),
        T["geometry_msgs/msg/Pose"](
            T["geometry_msgs/msg/Point"](1.0, 2.0, 3.0), T["geometry_msgs/msg/Quaternion"](0.0, 0.0, 0.0, 1.0)
        ),
    )
    bag = [
        said("/pose", pose, 5),
        said("/numbers", floats([1, 2]), 6),
        said("/joint_states", joint_state(0, [], [1]), 7),
    ]
    write_bag(land(tmp_path), bag)
    assert messages_of(read(tmp_path)) == [("pose", 5, bag[0].data), ("numbers", 6, bag[1].data)]

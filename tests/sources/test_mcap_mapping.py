"""What becomes of topics: guesses by name that are said, and a `source.yaml` that is held to what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.writer import Writer

from megahour.episode.model import RawEpisode
from megahour.sources import SourceError
from megahour.sources.mcap.mapping import Plan, ToCamera, Topic, ToSeries, kind_of, plan
from tests.samples import pictures
from tests.sources.mcap_files import (
    Said,
    T,
    codes,
    compressed,
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

JOINTS, STILL, TEXT = "sensor_msgs/msg/JointState", "sensor_msgs/msg/CompressedImage", "std_msgs/msg/String"


def topics(*names: str, schema: str = JOINTS) -> list[Topic]:
    return [Topic(name, (i,), schema, 10) for i, name in enumerate(names)]


def guessed(found: list[Topic], options: dict[Any, Any] | None = None) -> Plan:
    return plan(found, options or {}, "source.yaml", "take.mcap", own=False)


def names(found: list[Topic], options: dict[Any, Any] | None = None) -> dict[str, str]:
    return {rule.topic.name: rule.targets[0].name for rule in guessed(found, options).rules}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("sensor_msgs/msg/Image", "raw"),
        ("sensor_msgs/Image", "raw"),
        ("sensor_msgs::msg::Image", "raw"),
        ("foxglove.RawImage", "raw"),
        ("foxglove_msgs/msg/CompressedVideo", "video"),
        ("foxglove.CompressedVideo", "video"),
        ("foxglove.CompressedImage", "still"),
        ("foxglove.JointStates", "joints"),
        ("my_msgs/msg/Image", "other"),
        ("", "other"),
    ],
)
def test_kinds_by_schema(schema: str, kind: str) -> None:
    assert kind_of(schema) == kind


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["/camera/front/image_raw/compressed", "/camera/wrist/image_raw/compressed"], ["front", "wrist"]),
        (["/camera/color/image_raw"], ["camera"]),
        (["/cam_high/color/image_raw"], ["cam_high"]),
        (["/left/image", "/left/image/compressed"], ["left_image", "left_image_compressed"]),
        (["/a.b/image", "/a/b/image"], ["a_b_image", "a_b_image_2"]),
        (["image"], ["camera"]),
        ([""], ["camera"]),
    ],
)
def test_names_of_cameras(given: list[str], expected: list[str]) -> None:
    assert list(names(topics(*given, schema=STILL)).values()) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["/joint_states"], ["state"]),
        (["/joint_states", "/joint_command"], ["state", "action"]),
        (["/follower/joint_states", "/leader/joint_states"], ["state", "action"]),
        (["/robot/state", "/robot/target"], ["state", "action"]),
        (["/joint_states", "/left/joint_states"], ["state", "left_joint_states"]),
        (["/left/joint_states", "/right/joint_states"], ["left_joint_states", "right_joint_states"]),
        (["/gripper"], ["gripper"]),
    ],
)
def test_names_of_joints(given: list[str], expected: list[str]) -> None:
    found = guessed(topics(*given))
    assert [rule.targets[0].name for rule in found.rules] == expected
    (told,) = found.notes
    assert told.code == "mapping_guessed"
    assert ("is the state is not clear" in told.text) == ("state" not in expected and len(given) > 1)


def test_what_a_person_says_comes_first() -> None:
    found = topics("/a/joint_states", "/b/joint_states") + topics("/front/image", schema=STILL)
    assert names(found, {"/b/joint_states": {"series": "state"}}) == {
        "/a/joint_states": "a_joint_states",
        "/b/joint_states": "state",
        "/front/image": "front",
    }
    # A name that is taken is not given again.
    assert names(found, {"/a/joint_states": {"series": "front"}})["/front/image"] == "front_image"
    planned = guessed(found, {"/a/joint_states": "extra", "b/joint_states": "skip"})
    assert [topic.name for topic in planned.extras] == ["/a/joint_states"]
    assert [each.code for each in planned.notes] == ["left_out", "mapping_guessed"]
    assert [rule.targets for rule in planned.rules] == [(ToCamera("front"),)]


def test_fields() -> None:
    (topic,) = topics("/x", schema=TEXT)
    said_fields = {"/x": {"series": "s", "fields": ["a.b[2].c", "d[0:7]", "e"], "time": "stamp"}}
    (rule,) = guessed([topic], said_fields).rules
    assert rule.by_stamp and rule.said
    assert rule.targets == (ToSeries("s", fields=(("a", "b", 2, "c"), ("d", slice(0, 7)), ("e",))),)
    (rule,) = guessed([topic], {"/x": [{"series": "s", "fields": "a"}, {"series": "t", "fields": ["b"]}]}).rules
    assert [target.name for target in rule.targets] == ["s", "t"]


WRONG: dict[str, tuple[Any, str]] = {
    "word": ("drop", "/x is 'drop'; it may be skip, extra"),
    "number": (7, "/x is 7; it may be"),
    "nothing": (None, "/x is None; it may be"),
    "empty": ({}, "it may be"),
    "empty list": ([], "it may be"),
    "list of words": (["skip"], "it may be"),
    "unknown key": ({"camera": "front", "fps": 3}, "says 'fps'; it may be"),
    "both": ({"camera": "front", "series": "state"}, "it may be"),
    "camera with fields": ({"camera": "front", "fields": ["data"]}, "it may be"),
    "a name with a slash": ({"series": "a/b"}, "is named 'a/b'; a name is letters"),
    "a name that YAML takes for a truth": ({"series": True}, "is named True"),
    "fields that are none": ({"series": "s", "fields": [1]}, "1 is no field; fields are written position"),
    "a field with a space": ({"series": "s", "fields": ["a b"]}, "'a b' is no field"),
    "a stretch inside": ({"series": "s", "fields": ["a[0:2].b"]}, "is no field"),
    "no fields": ({"series": "s", "fields": []}, "fields must be a list"),
    "time": ({"series": "s", "time": "now"}, "time may be log or stamp"),
    "a list of times": ({"series": "s", "time": ["log"]}, "time may be log or stamp, one for the topic; it is ['log']"),
    "no time": ({"series": "s", "time": None}, "it is None"),
    "a place beyond all": ({"series": "s", "fields": [f"data[{'9' * 5000}]"]}, "is no field"),
    "a stretch beyond all": ({"series": "s", "fields": [f"data[0:{'9' * 5000}]"]}, "is no field"),
    "two times": ([{"series": "s", "time": "stamp"}, {"series": "t"}], "one for the topic"),
    "camera of text": ({"camera": "front"}, "its messages are std_msgs/msg/String, none of sensor_msgs/Comp"),
    "camera in a list": ([{"series": "s"}, {"camera": "c"}], "lists a camera"),
    "one name twice": ([{"series": "s"}, {"series": "s"}], "/x give the name 's' 2 times"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused(name: str) -> None:
    value, words = WRONG[name]
    with pytest.raises(SourceError) as caught:
        guessed(topics("/x", schema=TEXT), {"/x": value})
    assert caught.value.reason == "options"
    assert "source.yaml" in str(caught.value) and words in str(caught.value)


def test_topics_that_are_not_there() -> None:
    found = topics("/a", "/b")
    with pytest.raises(
        SourceError, match=r"take.mcap has no messages of /c, which source.yaml maps; it has /a, /b"
    ) as e:
        guessed(found, {"/c": {"series": "state"}})
    assert e.value.reason == "missing_feature"
    # A file without what is skipped anyway is a good file.
    assert len(guessed(found, {"/c": "skip", "/d": "extra"}).rules) == 2
    with pytest.raises(SourceError, match="mapped twice"):
        guessed(found, {"/a": {"series": "s"}, "a": {"series": "t"}})


def pose(time_ns: int, values: list[float]) -> Any:
    point = T["geometry_msgs/msg/Point"](*values[:3])
    turned = T["geometry_msgs/msg/Quaternion"](*values[3:7])
    return T["geometry_msgs/msg/PoseStamped"](header(time_ns), T["geometry_msgs/msg/Pose"](point, turned))


def twist(values: list[float]) -> Any:
    vectors = [T["geometry_msgs/msg/Vector3"](*values[i : i + 3]) for i in (0, 3)]
    return T["geometry_msgs/msg/Twist"](*vectors)


VALUES = np.random.default_rng(3).normal(size=(20, 7))


def arm_bag() -> list[Said]:
    bag = []
    for i, time_ns in enumerate(times(20)):
        row = VALUES[i].tolist()
        bag += [
            said("/pose", pose(time_ns, row), time_ns),
            said("/cmd_vel", twist(row[:6]), time_ns + 1),
            said("/command", floats(row), time_ns + 2),
            said("/joint_states", joint_state(time_ns + 3, ["a", "b"], row[:2], row[2:4], row[4:6]), time_ns + 3),
            said("/gripper", T["std_msgs/msg/Int32"](i), time_ns + 4),
            said("/closed", T["std_msgs/msg/Bool"](i % 2 == 0), time_ns + 5),
        ]
    return bag


def mapped(root: Path, options: str, bag: list[Said] | None = None) -> RawEpisode:
    write_bag(land(root, options=f"topics:\n{options}"), bag or arm_bag())
    return read(root)


@pytest.mark.parametrize(
    ("rule", "columns", "expected"),
    [
        (
            "/pose: {series: x, fields: [pose]}",
            [*(f"pose.position.{n}" for n in "xyz"), *(f"pose.orientation.{n}" for n in "xyzw")],
            VALUES,
        ),
        ("/pose: {series: x, fields: [pose.position.z]}", ["pose.position.z"], VALUES[:, 2:3]),
        ("/cmd_vel: {series: x}", [f"{part}.{n}" for part in ("linear", "angular") for n in "xyz"], VALUES[:, :6]),
        ("/command: {series: x, fields: [data]}", [f"data_{i}" for i in range(7)], VALUES),
        (
            "/command: {series: x, fields: ['data[5:7]', 'data[0]']}",
            ["data_5", "data_6", "data_0"],
            VALUES[:, [5, 6, 0]],
        ),
        ("/joint_states: {series: x, fields: [effort]}", ["a", "b"], VALUES[:, 4:6]),
        (
            "/joint_states: {series: x, fields: [position, velocity]}",
            ["a", "b", "a.velocity", "b.velocity"],
            VALUES[:, :4],
        ),
        ("/joint_states: {series: x, fields: [position, 'velocity[1]']}", None, VALUES[:, [0, 1, 3]]),
        ("/gripper: {series: x, fields: data}", ["data"], np.arange(20.0)[:, None]),
        ("/closed: {series: x}", ["data"], (np.arange(20.0) % 2 == 0)[:, None].astype(float)),
    ],
)
def test_any_numbers_become_a_series(tmp_path: Path, rule: str, columns: list[str] | None, expected: Any) -> None:
    (series,) = [each for each in mapped(tmp_path, f"  {rule}\n").series if each.name == "x"]
    if columns is not None:
        assert list(series.names) == columns
    assert series.values.tobytes() == np.ascontiguousarray(expected, np.float64).tobytes()


def test_a_mapping_of_everything(tmp_path: Path) -> None:
    episode = mapped(
        tmp_path,
        """
  /joint_states: {series: state, fields: [position]}
  /command:
    - {series: action, fields: ['data[0:3]']}
    - {series: gripper, fields: ['data[6]']}
  /pose: {series: pose, time: stamp}
  /cmd_vel: skip
  /closed: extra
""",
    )
    series = {each.name: each for each in episode.series}
    assert set(series) == {"state", "action", "gripper", "pose"}
    assert series["action"].values.tobytes() == np.ascontiguousarray(VALUES[:, :3]).tobytes()
    assert series["gripper"].values[:, 0].tolist() == VALUES[:, 6].tolist()
    assert series["pose"].names[0] == "pose.position.x" and series["pose"].times_ns.tolist() == times(20)
    assert [each.name for each in episode.extras] == ["closed", "gripper_extra"]
    assert "mapping_guessed" not in codes(episode)
    assert [each.text for each in episode.notes if each.code == "left_out"] == [
        "/cmd_vel left out, 20 messages: landing/lab/source.yaml says skip",
        "/joint_states: effort, velocity left out: source.yaml maps other fields",
    ]


def test_cameras_by_their_mapped_names(tmp_path: Path) -> None:
    episode = mapped(
        tmp_path,
        "  /wrist_cam/image_raw: {camera: eye-in-hand}\n  /camera/front/image_raw/compressed: extra\n",
        robot_bag(6),
    )
    (camera,) = episode.cameras
    assert camera.name == "eye-in-hand" and "camera/front/image_raw/compressed" in {e.name for e in episode.extras}
    assert np.array_equal(np.stack(list(camera.frames())), pictures(6, 48, 64, seed=1))


REFUSED = {
    "/pose: {series: x, fields: [poze]}": (
        "missing_feature",
        "poze of /pose cannot be the series 'x': it has no field",
    ),
    "/pose: {series: x, fields: [header.frame_id]}": ("missing_feature", "is the text 'base', and no number"),
    "/pose: {series: x, fields: ['pose[0]']}": ("missing_feature", "0 is asked of what is no array"),
    "/command: {series: x, fields: ['data[9]']}": ("missing_feature", "place 9 is asked of an array with 7 entries"),
    "/command: {series: x, fields: [data.x]}": ("missing_feature", "'x' is asked of what is no message"),
    "/cmd_vel: {series: x, time: stamp}": ("missing_feature", "a message has no stamp"),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_fields_that_are_not_there(tmp_path: Path, rule: str) -> None:
    reason, words = REFUSED[rule]
    with pytest.raises(SourceError) as caught:
        mapped(tmp_path, f"  {rule}\n")
    assert caught.value.reason == reason
    assert words in str(caught.value) and "landing/lab/pick/take.mcap" in str(caught.value)


def test_a_point_cloud_is_no_series(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has 5000 numbers; a series has at most 4096"):
        mapped(tmp_path, "  /big: {series: x}\n", [said("/big", floats([0.0] * 5000), 1)])


def test_json_that_holds_anything(tmp_path: Path) -> None:
    """Messages without a type may each hold something else: what fits is taken, the rest is counted."""
    rows: list[Any] = [
        {"q": [1, 2.5], "flag": True},
        {"q": [3, 4], "deep": {"a": [{"b": 1}]}},
        {"q": "text"},
        {"q": 2**60 + 1},
        {"other": 1},
        ["a list"],
        {"q": [5, None]},
        {"q": {}},
    ]
    path = land(tmp_path, options="topics:\n  /x: {series: x, fields: [q]}\n")
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        channel = writer.register_channel("/x", "json", 0)
        for i, row in enumerate(rows):
            writer.add_message(channel, i, json.dumps(row).encode(), i)
        writer.add_message(channel, 99, b"{not json", 99)
        writer.finish()
    episode = read(tmp_path)
    (series,) = episode.series
    assert series.times_ns.tolist() == [0, 1, 6] and series.names == ("q_0", "q_1")
    assert np.array_equal(series.values, np.array([[1, 2.5], [3, 4], [5, np.nan]]), equal_nan=True)
    text = note(episode, "dropped")
    assert text.startswith("/x: 5 of 9 messages left out: ") and text.endswith("; and for 4 other reasons")


@pytest.mark.parametrize("row", [{"joints": 5}, {"joints": [3]}, {"joints": [{"position": "x"}]}, {"joints": None}, {}])
def test_joints_in_json_that_are_none(tmp_path: Path, row: Any) -> None:
    path = land(tmp_path)
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("foxglove.JointStates", "jsonschema", b"{}")
        channel = writer.register_channel("/joint_states", "json", schema)
        writer.add_message(channel, 1, json.dumps(row).encode(), 1)
        writer.finish()
    episode = read(tmp_path)
    assert episode.series == () and len(list(episode.extra_messages())) == 1
    assert "kept as it came" in note(episode, "undecoded")


@pytest.mark.parametrize("kind", ["CompressedImage", "RawImage", "CompressedVideo"])
@pytest.mark.parametrize("row", [{}, {"data": 5}, {"data": "*"}, {"data": "aGVsbG8=", "format": None, "width": "x"}])
def test_pictures_in_json_that_are_none(tmp_path: Path, kind: str, row: Any) -> None:
    path = land(tmp_path)
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema(f"foxglove.{kind}", "jsonschema", b"{}")
        channel = writer.register_channel("/front", "json", schema)
        writer.add_message(channel, 1, json.dumps(row).encode(), 1)
        writer.finish()
    episode = read(tmp_path)
    assert episode.cameras == () and "undecoded" in codes(episode)


def test_pictures_in_json(tmp_path: Path) -> None:
    import base64

    video = pictures(3, 16, 24)
    path = land(tmp_path)
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        still = writer.register_schema("foxglove.CompressedImage", "jsonschema", b"{}")
        channel = writer.register_channel("/front", "json", still)
        for i, picture in enumerate(video):
            row = {
                "timestamp": {"sec": 7, "nsec": i},
                "format": "png",
                "data": base64.b64encode(file_of(picture, "PNG")).decode(),
            }
            writer.add_message(channel, i, json.dumps(row).encode(), i)
        writer.finish()
    land(tmp_path, options="topics:\n  /front: {camera: front, time: stamp}\n")
    (camera,) = read(tmp_path).cameras
    assert np.array_equal(np.stack(list(camera.frames())), video)
    assert camera.times_ns.tolist() == [7_000_000_000 + i for i in range(3)]


def test_one_picture_alone(tmp_path: Path) -> None:
    write_bag(land(tmp_path), [said("/front", compressed(5, file_of(pictures(1, 16, 24)[0])), 5)])
    episode = read(tmp_path)
    assert len(list(episode.cameras[0].frames())) == 1 and episode.rate_hz == 1.0

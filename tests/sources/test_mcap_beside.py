"""What an MCAP file says beside its messages' payloads is kept, or said to be left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from mcap.writer import Writer

from megahour.episode.model import RawEpisode
from megahour.sources.mcap.gather import MOST_FRAME_IDS
from megahour.sources.steps import MOST_ATTRIBUTE_CHARS
from tests.sources.mcap_files import T, codes, header, land, note, read, robot_bag, said, write_bag

NOTHING_TO_SAY = ["mapping_guessed", "rate_guessed"]
AT, NONE = np.ones(1), np.zeros(0)
QOS = "- history: 3\n  depth: 10\n  reliability: 1\n"


def write(
    path: Path,
    topics: Sequence[tuple[str, dict[str, str]]],
    sequences: Sequence[Sequence[int]],
    delay_ns: Sequence[int] = (0, 0, 0),
) -> None:
    """A channel for each of `topics`, and messages on the first of them, sent `delay_ns` before they were logged."""
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start(profile="ros2", library="a recorder")
        channels = [writer.register_channel(topic, "json", 0, metadata) for topic, metadata in topics]
        for channel, numbers in zip(channels, sequences, strict=False):
            for i, number in enumerate(numbers):
                time_ns = 1_000_000_000 * (i + 1)
                writer.add_message(channel, time_ns, b"{}", time_ns - delay_ns[i % 3], number)
        writer.finish()


def test_what_channels_and_the_file_say_of_themselves(tmp_path: Path) -> None:
    """Two publishers of one topic may say the same, and may not."""
    long = "degrees " * MOST_ATTRIBUTE_CHARS
    first, second = {"units": "N", "qos": QOS}, {"units": "lbf", "qos": QOS}
    write(land(tmp_path), [("/force/", first), ("/force/", second), ("angle", {"units": long})], [[0], [0], [0]])
    episode = read(tmp_path)
    assert episode.attributes == {
        "mcap.profile": "ros2",
        "mcap.library": "a recorder",
        "force.units": "N",
        "force.units_2": "lbf",
        "force.qos": QOS,
    }
    assert {topic.name for topic in episode.extras} == {"force", "angle", "metadata/angle.units"}
    (kept,) = [message.data for message in episode.extra_messages() if message.topic == "metadata/angle.units"]
    assert len(kept) > len(long)


def test_metadata_records_of_one_name(tmp_path: Path) -> None:
    with land(tmp_path).open("wb") as file:
        writer = Writer(file)
        writer.start()
        writer.add_message(writer.register_channel("/x", "json", 0), 1, b"{}", 1)
        for arm in ("left", "left", "right"):
            writer.add_metadata("calibration", {"arm": arm})
        writer.finish()
    attributes = read(tmp_path).attributes
    assert {name: text for name, text in attributes.items() if name.startswith("calibration")} == {
        "calibration.arm": "left",
        "calibration.arm_2": "right",
    }


def test_topics_on_which_nothing_was_said(tmp_path: Path) -> None:
    write(land(tmp_path), [("/x", {}), ("/rosout", {}), ("/events", {})], [[0]])
    assert "topics without messages left out: /events, /rosout" in note(read(tmp_path), "left_out")


def test_when_messages_were_sent(tmp_path: Path) -> None:
    write(land(tmp_path), [("/x", {}), ("/y", {})], [range(6), range(3)], delay_ns=(0, 250_000, 1_500_000))
    text = note(read(tmp_path), "left_out")
    assert "From there to log time: /x 0.000 to 1.500 ms, /y 0.000 to 1.500 ms" in text
    write(land(tmp_path), [("/x", {})], [range(3)])
    assert codes(read(tmp_path)) == NOTHING_TO_SAY
    # Some recorders do not say it, and write zeros.
    write(land(tmp_path), [("/x", {})], [range(3)], delay_ns=(1_000_000_000, 2_000_000_000, 3_000_000_000))
    assert codes(read(tmp_path)) == NOTHING_TO_SAY


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([[0, 0, 0]], ""),
        ([[7, 8, 9]], ""),
        ([[8, 7, 9]], ""),
        ([[0, 2, 4], [1, 3, 5]], ""),
        ([[0, 1, 4]], "/x 2 missing"),
        ([[0, 1, 1]], "/x 1 there again"),
        ([[0, 3, 3], [0, 1, 2]], "/x 2 missing and 1 there again."),
    ],
    ids=["none", "one by one", "logged in another order", "of all topics together", "missing", "again", "both"],
)
def test_numbers_that_skip_are_told(tmp_path: Path, numbers: list[list[int]], told: str) -> None:
    write(land(tmp_path), [("/x", {}), ("/y", {})][: len(numbers)], numbers)
    episode = read(tmp_path)
    assert ("sequence" in codes(episode)) == bool(told)
    if told:
        assert told in note(episode, "sequence") and "/y" not in note(episode, "sequence")


def ids_of(episode: RawEpisode) -> dict[str, str]:
    return {name: text for name, text in episode.attributes.items() if name.endswith(".frame_id")}


def test_frames_of_reference(tmp_path: Path) -> None:
    write_bag(land(tmp_path), robot_bag(3))
    episode = read(tmp_path)
    mapped = ["camera/front/image_raw/compressed", "joint_states", "leader/joint_states", "wrist_cam/image_raw"]
    assert ids_of(episode) == {f"{topic}.frame_id": "base" for topic in mapped}
    assert "left_out" not in codes(episode), "stamps are the log times, and nothing else is lost"


def test_a_frame_of_reference_that_nothing_can_store(tmp_path: Path) -> None:
    with land(tmp_path).open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("foxglove.JointStates", "jsonschema", b"{}")
        data = b'{"frame_id": "\\ud800", "joints": [{"name": "a", "position": 1.5}]}'
        writer.add_message(writer.register_channel("/arm", "json", schema), 1, data, 1)
        writer.finish()
    assert ids_of(read(tmp_path)) == {"arm.frame_id": "\\ud800"}


@pytest.mark.parametrize("many", [2, MOST_FRAME_IDS + 2])
def test_frames_of_reference_that_change(tmp_path: Path, many: int) -> None:
    names = [f"frame_{i}" for i in range(many)]
    bag = [
        said("/joint_states", T["sensor_msgs/msg/JointState"](header(i + 1, name), ["a"], AT, NONE, NONE), i + 1)
        for i, name in enumerate(names)
    ]
    write_bag(land(tmp_path), bag)
    episode = read(tmp_path)
    assert ids_of(episode) == {}
    text = note(episode, "left_out")
    assert "of the frame_ids frame_0, frame_1" in text and ("and others" in text) == (many > MOST_FRAME_IDS)

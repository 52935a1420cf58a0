"""Topics that are neither pictures nor floats return byte for byte, in order, with what describes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader

from megahour.episode import writer
from megahour.episode.check import check_bytes
from megahour.episode.model import EpisodeError, ExtraMessage, ExtraTopic, RawEpisode
from megahour.episode.ranges import FileBytes
from megahour.episode.reader import EpisodeReader, open_episode_file
from megahour.episode.sample import Query, SeriesQuery
from megahour.episode.writer import WrittenEpisode, write_episode
from tests.samples import FACTS, CountingBytes, random_series, raw_episode

MS = 1_000_000
TOPICS = (
    ExtraTopic("tf", "cdr", "tf2_msgs/msg/TFMessage", "ros2msg", b"geometry_msgs/TransformStamped[] transforms"),
    ExtraTopic("tf_static", "cdr", "tf2_msgs/msg/TFMessage", "ros2msg", b"geometry_msgs/TransformStamped[] transforms"),
    ExtraTopic("gripper/open", "json", "Open", "jsonschema", b'{"type": "object"}'),
    ExtraTopic("speech/\u00fcber", "json", "", "", b""),
    ExtraTopic("silent", "protobuf", "lab.Nothing", "protobuf", b"\x0a\x00"),
    ExtraTopic("raw", "", "", "", b""),
)
"""Two of one schema, two without any, one that never says a word."""


def some_messages() -> list[ExtraMessage]:
    rng = np.random.default_rng(0)
    said = [ExtraMessage("tf_static", 0, b"")]
    for i in range(60):
        said.append(ExtraMessage("tf", 10 * MS * i, rng.bytes(int(rng.integers(0, 400)))))
        said.append(ExtraMessage("gripper/open", 10 * MS * i, b'{"open": true}'))
        if i % 20 == 0:
            # Several at one time, of one topic too, keep the order in which they came.
            said += [ExtraMessage("speech/\u00fcber", 10 * MS * i, f'"{word}"'.encode()) for word in "zay"]
            said.append(ExtraMessage("raw", 10 * MS * i, rng.bytes(3_000)))
    return said


MESSAGES = some_messages()


def with_extras(topics: Iterable[ExtraTopic] = TOPICS, said: Iterable[ExtraMessage] = MESSAGES) -> RawEpisode:
    said = list(said)
    return replace(raw_episode(), extras=tuple(topics), extra_messages=lambda: iter(said))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "e.mcap"


def of(topic: ExtraTopic) -> list[ExtraMessage]:
    return [message for message in MESSAGES if message.topic == topic.name]


@pytest.mark.parametrize("chunk_bytes", [1, 2_000, 10**9])
def test_messages_return_byte_for_byte_with_what_describes_them(
    path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(writer, "COMPRESSED_CHUNK_BYTES", chunk_bytes)
    write_episode(path, with_extras(), FACTS)
    reader = open_episode_file(path)
    assert reader.extras == TOPICS
    assert {topic.name: topic.count for topic in reader.index.topics} == {t.name: len(of(t)) for t in TOPICS}
    for topic in TOPICS:
        assert list(reader.messages(topic.name)) == of(topic)
    assert check_bytes("e", path.read_bytes()) == []


def test_other_tools_see_the_same_messages(path: Path) -> None:
    write_episode(path, with_extras(), FACTS)
    found: dict[str, list[tuple[int, bytes]]] = {}
    described: dict[str, Any] = {}
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        for schema, channel, message in reader.iter_messages(topics=[f"/{topic.name}" for topic in TOPICS]):
            found.setdefault(channel.topic[1:], []).append((message.log_time, message.data))
            said = (schema.name, schema.encoding, schema.data) if schema else ("", "", b"")
            described[channel.topic[1:]] = (channel.message_encoding, *said)
        summary = reader.get_summary()
    assert summary is not None
    assert {channel.topic for channel in summary.channels.values()} >= {f"/{topic.name}" for topic in TOPICS}
    for topic in TOPICS:
        assert sorted(found.get(topic.name, [])) == sorted((m.time_ns, m.data) for m in of(topic))
        if topic.name != "silent":
            expected = (topic.encoding, topic.schema_name, topic.schema_encoding, topic.schema)
            assert described[topic.name] == expected


def test_cameras_and_series_do_not_notice(path: Path, tmp_path: Path) -> None:
    write_episode(path, with_extras(), FACTS)
    write_episode(tmp_path / "without", raw_episode(), FACTS)
    reader, without = open_episode_file(path), open_episode_file(tmp_path / "without")
    assert without.extras == ()
    for name in reader.cameras:
        assert reader.coded(name, 0, 24) == without.coded(name, 0, 24)
    for name in reader.series_names:
        assert reader.series(name).values.tobytes() == without.series(name).values.tobytes()


def test_samples_do_not_read_them_and_messages_are_one_read_per_chunk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "COMPRESSED_CHUNK_BYTES", 4_000)
    episode = replace(with_extras(), series=(random_series("state", 400, 60),))
    write_episode(path, episode, FACTS)
    source = CountingBytes(FileBytes(path))
    reader = EpisodeReader(source)
    reader.sample(400 * MS, Query({"front": (0,)}, series={"state": SeriesQuery((0,))}))
    assert [len(call) for call in source.reads] == [2]
    del source.reads[:]
    channel = {topic.name: topic.channel for topic in reader.index.topics}["raw"]
    chunks = [chunk for chunk in reader.index.chunks if channel in chunk.channels]
    assert 1 < len(chunks) < sum(chunk.group == "messages" for chunk in reader.index.chunks)
    found = reader.messages("raw")
    assert source.reads == [], "messages are read when they are asked for"
    assert next(found).time_ns == 0
    assert len(source.reads) == 1
    assert len(list(found)) == 2
    assert source.reads == [[(chunk.offset, chunk.offset + chunk.size_bytes)] for chunk in chunks]


def test_an_episode_of_extra_topics_alone(path: Path) -> None:
    written = write_episode(path, replace(with_extras(), cameras=(), series=()), FACTS)
    assert written == WrittenEpisode(path.stat().st_size, 0, {})
    reader = open_episode_file(path)
    assert (reader.cameras, reader.series_names, reader.facts) == ({}, (), FACTS)
    assert list(reader.messages("tf")) == of(TOPICS[0])
    assert check_bytes("e", path.read_bytes()) == []


def test_topics_without_messages(path: Path) -> None:
    write_episode(path, replace(with_extras(said=[]), cameras=(), series=()), FACTS)
    reader = open_episode_file(path)
    assert reader.extras == TOPICS
    assert [list(reader.messages(topic.name)) for topic in TOPICS] == [[]] * len(TOPICS)
    assert check_bytes("e", path.read_bytes()) == []
    with pytest.raises(EpisodeError, match=r"e\.mcap: there is no topic 'state', only tf, tf_static") as caught:
        list(reader.messages("state"))
    assert caught.value.reason == "no_topic"


@pytest.mark.parametrize(
    ("said", "reason", "text"),
    [
        ([("tf", 5), ("tf", 4)], "times", "The messages of 'tf' and other topics are not in order"),
        ([("tf", 5), ("raw", 4)], "times", "The messages of 'raw' and other topics are not in order"),
        ([("tf", -1)], "times", "not in order"),
        ([("tf", 5), ("odometry", 6)], "invalid", "A message is of 'odometry', which is no topic of this episode"),
    ],
)
def test_messages_out_of_order_or_of_no_topic_are_refused(
    path: Path, said: list[tuple[str, int]], reason: str, text: str
) -> None:
    messages = [ExtraMessage(topic, time_ns, b"x") for topic, time_ns in said]
    with pytest.raises(EpisodeError, match=text) as caught:
        write_episode(path, with_extras(said=messages), FACTS)
    assert caught.value.reason == reason
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["state", "camera/front", "tf", ""])
def test_a_topic_needs_a_name_of_its_own(path: Path, name: str) -> None:
    with pytest.raises(EpisodeError, match="topics with different names") as caught:
        write_episode(path, with_extras([*TOPICS, replace(TOPICS[0], name=name)]), FACTS)
    assert caught.value.reason == "invalid"


def test_a_source_that_fails_in_its_messages_leaves_nothing_behind(path: Path) -> None:
    def broken() -> Any:
        yield from MESSAGES[:5]
        raise OSError("the bag is cut short")

    with pytest.raises(OSError, match="cut short"):
        write_episode(path, replace(with_extras(), extra_messages=broken), FACTS)
    assert list(path.parent.iterdir()) == []

"""Whole and broken MCAP files: every whole message is found and right, and what is lost is said."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.writer import CompressionType, Writer

from megahour.episode.model import RawEpisode
from megahour.sources import SourceError
from megahour.sources.mcap import fetch
from megahour.sources.mcap.fetch import payloads
from megahour.sources.mcap.scan import RECORD_HEAD, Checked, Packed, Scan, scan, unpacked
from tests.samples import samples_dir
from tests.sources.mcap_files import BARE, Said, codes, floats, land, note, read, robot_bag, said, times, write_bag

LAYOUTS: dict[str, dict[str, Any]] = {
    "none": {},
    "zstd": {"compression": CompressionType.ZSTD},
    "lz4": {"compression": CompressionType.LZ4},
    "small chunks": {"compression": CompressionType.ZSTD, "chunk_size": 1},
    "one chunk": {"compression": CompressionType.ZSTD, "chunk_size": 1 << 30},
    "no chunks": {"use_chunking": False},
    "no indexes": {"index_types": BARE},
    "no summary": {
        "index_types": BARE,
        "repeat_channels": False,
        "repeat_schemas": False,
        "use_statistics": False,
        "use_summary_offsets": False,
    },
    "no checksums": {"compression": CompressionType.ZSTD, "enable_crcs": False},
    "all checksums": {"enable_data_crcs": True},
}
"""Options of the stock writer."""


def found(path: Path) -> list[tuple[str, int, bytes]]:
    """Topic, log time and payload of every message, in the order of the file."""
    result = scan(path, "take.mcap")
    topics = [result.channels[number].topic for number in result.channel.tolist()]
    data = payloads(result, np.arange(len(topics)))
    return list(zip(topics, result.time_ns.tolist(), data, strict=True))


def everything(episode: RawEpisode) -> dict[str, Any]:
    """All that an episode holds, by topic."""
    held: dict[str, Any] = {series.name: (series.times_ns.tolist(), series.values) for series in episode.series}
    held |= {camera.name: (camera.times_ns.tolist(), list(camera.frames())) for camera in episode.cameras}
    for message in episode.extra_messages():
        held.setdefault(message.topic, []).append((message.time_ns, message.data))
    return held


def records(data: bytes) -> list[tuple[int, int, int]]:
    """Opcode, start and end of the records of a file."""
    at, result = 8, []
    while at < len(data) - 8:
        opcode, length = RECORD_HEAD.unpack_from(data, at)
        result.append((opcode, at, at + RECORD_HEAD.size + length))
        at = result[-1][2]
    return result


def chunks(data: bytes) -> list[tuple[int, int]]:
    return [(start, end) for opcode, start, end in records(data) if opcode == Opcode.CHUNK]


def refused(path: Path, reason: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        scan(path, "take.mcap")
    assert caught.value.reason == reason


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_every_message(tmp_path: Path, layout: str) -> None:
    messages = robot_bag(6)
    path = write_bag(land(tmp_path), messages, **LAYOUTS[layout])
    assert found(path) == [(each.topic, each.time_ns, each.data) for each in messages]
    assert scan(path, "").notes == ()
    episode = read(tmp_path)
    assert set(codes(episode)) == {"mapping_guessed", "rate_guessed"}
    assert len(episode.cameras) == 2 and len(episode.series) == 3


@pytest.mark.parametrize("name", ["cdr_test_0", "talker", "wbag_0"])
def test_real_bags_as_the_stock_reader_reads_them(name: str) -> None:
    path = samples_dir() / "rosbag2" / f"{name}.mcap"
    with path.open("rb") as file:
        stock = [
            (channel.topic, message.log_time, message.data)
            for _, channel, message in make_reader(file, validate_crcs=True).iter_messages(log_time_order=False)
        ]
    assert found(path) == stock
    assert len(stock) == {"cdr_test_0": 7, "talker": 20, "wbag_0": 1246}[name]


def test_what_is_no_mcap_file(tmp_path: Path) -> None:
    path = land(tmp_path)
    path.write_bytes(b"")
    refused(path, "truncated", "empty file")
    path.write_bytes(b"\x89MCA")
    refused(path, "truncated", "begins with")
    path.write_bytes(b"<html>404 not found</html>" * 100)
    refused(path, "unreadable", "no MCAP file")
    path.write_bytes(write_bag(path, []).read_bytes())
    refused(path, "empty", "no message")


@pytest.mark.parametrize("layout", ["none", "zstd", "lz4", "no chunks"])
def test_a_cut_file_gives_its_whole_messages(tmp_path: Path, layout: str) -> None:
    rng = np.random.default_rng(0)
    messages = [said("/q", floats(rng.normal(size=40)), time_ns) for time_ns in times(60)]
    path = write_bag(land(tmp_path), messages, **LAYOUTS[layout] | {"chunk_size": 4000})
    whole = path.read_bytes()
    (data_end,) = [start for opcode, start, _ in records(whole) if opcode == Opcode.DATA_END]
    expected = [(each.topic, each.time_ns, each.data) for each in messages]
    counts = []
    for share in (0.2, 0.5, 0.6, 0.9):
        cut = int(data_end * share)
        path.write_bytes(whole[:cut])
        got = found(path)
        assert got == expected[: len(got)]
        counts.append(len(got))
        assert [each.code for each in scan(path, "").notes] == ["truncated"]
        assert f"{len(got)} whole messages" in scan(path, "").notes[0].text
    assert 0 < counts[0] < counts[1] < counts[2] < counts[3] < 60
    if layout in ("none", "no chunks"):
        # What is not compressed is whole up to the last byte.
        assert counts[1] >= 0.4 * 60
    path.write_bytes(whole[:100])
    refused(path, "truncated", "before its first whole message")


def test_a_cut_index_loses_nothing(tmp_path: Path) -> None:
    path = write_bag(land(tmp_path), robot_bag(6))
    whole = path.read_bytes()
    (end,) = [end for opcode, _, end in records(whole) if opcode == Opcode.DATA_END]
    for cut in (end, end + 40, len(whole) - 3):
        path.write_bytes(whole[:cut])
        assert len(found(path)) == 30
        assert scan(path, "").notes == ()


@pytest.mark.parametrize("layout", ["none", "zstd", "lz4"])
def test_a_flipped_byte_costs_its_chunk_alone(tmp_path: Path, layout: str) -> None:
    messages = robot_bag(12)
    path = write_bag(land(tmp_path), messages, **LAYOUTS[layout] | {"chunk_size": 20_000})
    whole = path.read_bytes()
    good = everything(read(tmp_path))
    start, end = chunks(whole)[1]
    assert len(chunks(whole)) > 3
    for at in (start + 200, (start + end) // 2, end - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        left = found(path)
        assert 0 < len(left) < len(messages)
        assert set(left) < {(each.topic, each.time_ns, each.data) for each in messages}
        episode = read(tmp_path)
        text = note(episode, "dropped")
        assert f"at byte {start}" in text and f"{60 - len(left)} messages are lost" in text
        assert "of 1700000000." in text
        for name, value in everything(episode).items():
            if isinstance(value, list):
                assert set(value) < set(good[name])
            else:
                kept = [good[name][0].index(time_ns) for time_ns in value[0]]
                assert all(np.array_equal(one, good[name][1][i]) for one, i in zip(value[1], kept, strict=True))


@pytest.mark.parametrize("layout", ["none", "zstd"])
def test_a_zeroed_middle_costs_what_it_covers(tmp_path: Path, layout: str) -> None:
    messages = robot_bag(12)
    path = write_bag(land(tmp_path), messages, **LAYOUTS[layout] | {"chunk_size": 8000})
    whole = bytearray(path.read_bytes())
    at, end = chunks(bytes(whole))[2][1] - 50, chunks(bytes(whole))[4][0] + 60
    whole[at:end] = bytes(end - at)
    path.write_bytes(bytes(whole))
    left = found(path)
    expected = [(each.topic, each.time_ns, each.data) for each in messages]
    # Chunks before and behind the zeros are all there.
    assert left == expected[: left.index(left[-1])] or set(left) < set(expected)
    assert left[0] == expected[0] and left[-1] == expected[-1]
    assert [each.code for each in scan(path, "").notes] == ["dropped"]


def test_a_zeroed_middle_without_chunks(tmp_path: Path) -> None:
    messages = [said("/q", floats(np.arange(40) + i), time_ns) for i, time_ns in enumerate(times(60))]
    path = write_bag(land(tmp_path), messages, use_chunking=False)
    whole = bytearray(path.read_bytes())
    whole[8000:9000] = bytes(1000)
    path.write_bytes(bytes(whole))
    left = found(path)
    expected = [(each.topic, each.time_ns, each.data) for each in messages]
    assert 54 <= len(left) < 60 and all(each in expected for each in left)
    assert note_codes(scan(path, "")) == ["dropped"]


def note_codes(result: Scan) -> list[str]:
    return [each.code for each in result.notes]


def test_a_wrong_length_is_found_again(tmp_path: Path) -> None:
    """A chunk, and a message, that say to be longer than they are, do not swallow what follows."""
    for options, opcode in (({"chunk_size": 8000}, Opcode.CHUNK), ({"use_chunking": False}, Opcode.MESSAGE)):
        messages = robot_bag(8)
        path = write_bag(land(tmp_path), messages, **options)
        whole = path.read_bytes()
        at = [start for kind, start, _ in records(whole) if kind == opcode][2]
        for bit in (3, 12, 20, 38, 60):
            bad = bytearray(whole)
            bad[at + 1 + bit // 8] ^= 1 << bit % 8
            path.write_bytes(bytes(bad))
            left = found(path)
            assert set(left) <= {(each.topic, each.time_ns, each.data) for each in messages}
            assert len(messages) > len(left) >= len(messages) / 2, (opcode, bit)
            assert left[-1][1] == messages[-1].time_ns
            assert "dropped" in note_codes(scan(path, ""))


def test_an_index_that_says_to_be_longer_swallows_nothing(tmp_path: Path) -> None:
    messages = robot_bag(8)
    path = write_bag(land(tmp_path), messages, chunk_size=8000)
    data = bytearray(path.read_bytes())
    at = [start for kind, start, _ in records(bytes(data)) if kind == Opcode.MESSAGE_INDEX][2]
    data[at + 2] ^= 0x40
    path.write_bytes(bytes(data))
    assert found(path) == [(each.topic, each.time_ns, each.data) for each in messages]


def test_nothing_is_left(tmp_path: Path) -> None:
    path = write_bag(land(tmp_path), robot_bag(3), chunk_size=1 << 30)
    whole = path.read_bytes()
    ((start, end),) = chunks(whole)
    at = (start + end) // 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    refused(path, "corrupt", "wrong checksum")


def test_a_channel_whose_record_is_lost_is_known_from_the_summary(tmp_path: Path) -> None:
    messages = [said("/q", floats([i]), time_ns) for i, time_ns in enumerate(times(9))]
    path = write_bag(land(tmp_path), messages, chunk_size=1)
    whole = bytearray(path.read_bytes())
    whole[chunks(bytes(whole))[0][1] - 3] ^= 1
    path.write_bytes(bytes(whole))
    assert len(found(path)) == 8
    path = write_bag(land(tmp_path), messages, **LAYOUTS["no summary"] | {"chunk_size": 1})
    whole = bytearray(path.read_bytes())
    whole[chunks(bytes(whole))[0][1] - 3] ^= 1
    path.write_bytes(bytes(whole))
    refused(path, "corrupt", "wrong checksum")


def test_damage_outside_of_chunks_shows_in_the_checksum_of_all(tmp_path: Path) -> None:
    path = land(tmp_path)
    for options in ({"use_chunking": False}, {"enable_crcs": False}):
        messages = robot_bag(3)
        write_bag(path, messages, enable_data_crcs=True, **options)
        assert note_codes(scan(path, "")) == []
        data = bytearray(path.read_bytes())
        # A value in the middle of a payload: no length, no time.
        at = data.index(messages[6].data)
        data[at + 200] ^= 4
        path.write_bytes(bytes(data))
        assert len(found(path)) == 15
        assert note_codes(scan(path, "")) == ["checksum"]


@pytest.mark.parametrize("change", ["size", "time"])
def test_chunks_without_checksums_are_held_to_what_they_say(tmp_path: Path, change: str) -> None:
    messages = [said("/q", floats([i]), time_ns) for i, time_ns in enumerate(times(9))]
    layout = LAYOUTS["no checksums"] | {
        "compression": CompressionType.NONE if change == "time" else CompressionType.ZSTD
    }
    path = write_bag(land(tmp_path), messages, **layout | {"chunk_size": 1})
    data = bytearray(path.read_bytes())
    start, _ = chunks(bytes(data))[4]
    if change == "size":
        # One more than it unpacks to.
        data[start + RECORD_HEAD.size + 16] += 1
    else:
        data[data.index(messages[4].data) - 10] ^= 0xF0
    path.write_bytes(bytes(data))
    left = found(path)
    assert left == [(each.topic, each.time_ns, each.data) for i, each in enumerate(messages) if i != 4]
    assert note_codes(scan(path, "")) == ["dropped"]


def test_private_records_are_named(tmp_path: Path) -> None:
    path = write_bag(land(tmp_path), robot_bag(3))
    whole = path.read_bytes()
    at = chunks(whole)[0][0]
    path.write_bytes(whole[:at] + RECORD_HEAD.pack(0x90, 5) + b"12345" + whole[at:])
    assert len(found(path)) == 15
    assert [(each.code, each.text) for each in scan(path, "").notes] == [
        ("left_out", "1 records of a private kind left out, 5 bytes")
    ]


def test_a_time_that_is_none_is_left_out(tmp_path: Path) -> None:
    messages = [Said("/q", "std_msgs/msg/Float64MultiArray", t, b"\0\1\0\0") for t in (5, 2**64 - 1, 7)]
    path = write_bag(land(tmp_path), messages)
    assert [time_ns for _, time_ns, _ in found(path)] == [5, 7]
    assert "times are no times" in scan(path, "").notes[0].text


def test_an_unknown_compression_is_named(tmp_path: Path) -> None:
    path = write_bag(land(tmp_path), robot_bag(3), compression=CompressionType.ZSTD)
    path.write_bytes(path.read_bytes().replace(b"\4\0\0\0zstd", b"\4\0\0\0brot"))
    refused(path, "unreadable", "compressed with brot")


def test_messages_in_any_order_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order, not memory: payloads that cannot wait are unpacked again."""
    messages = [Said("/q", "std_msgs/msg/String", i, bytes([i % 251]) * 5000) for i in range(400)]
    for options in ({"chunk_size": 1 << 30}, {"chunk_size": 20_000}, {"use_chunking": False}):
        path = write_bag(land(tmp_path), messages, **{"compression": CompressionType.LZ4} | options)
        result = scan(path, "")
        rng = np.random.default_rng(1)
        halves = np.arange(400).reshape(2, 200).T.ravel()
        for order in (np.arange(400), np.arange(400)[::-1], halves, rng.permutation(400), rng.permutation(400)[:30]):
            for most in (64 << 20, 30_000):
                monkeypatch.setattr(fetch, "MOST_HELD_BYTES", most)
                assert list(payloads(result, order)) == [messages[i].data for i in order]


@pytest.mark.parametrize("layout", ["together", "a chunk for each topic"])
def test_a_pass_unpacks_each_chunk_once(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of ten topics that overlap in time, too."""
    names = [f"/t{i}" for i in range(10)]
    messages = [
        Said(name, "std_msgs/msg/String", 10 * i + k, b"x" * 50) for i in range(200) for k, name in enumerate(names)
    ]
    if layout != "together":
        # 40 messages of one topic, then 40 of the next: about the size of a chunk.
        messages.sort(key=lambda each: (each.time_ns // 400, each.topic))
    path = write_bag(land(tmp_path), messages, compression=CompressionType.ZSTD, chunk_size=3000)
    result = scan(path, "")
    assert len(result.packed) > 40
    opened: list[Packed] = []

    def counted(file: IO[bytes], chunk: Packed) -> Checked:
        opened.append(chunk)
        return unpacked(file, chunk)

    monkeypatch.setattr(fetch, "unpacked", counted)
    order = np.argsort(result.time_ns, kind="stable")
    assert len(list(payloads(result, order))) == 2000
    assert len(opened) == len(set(opened)) == len(result.packed)


def test_a_fault_of_the_machine_is_not_the_files(tmp_path: Path) -> None:
    class Failing:
        def readinto(self, _: Any) -> int:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        Checked(Failing()).readinto(bytearray(8))


def test_memory_does_not_grow_with_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MOST_HELD_BYTES", 4 << 20)
    rng = np.random.default_rng(0)
    path = land(tmp_path)
    with path.open("wb") as file:
        writer = Writer(file, compression=CompressionType.ZSTD, chunk_size=1 << 30)
        writer.start()
        channel = writer.register_channel("/x", "json", writer.register_schema("", "", b""))
        part = rng.integers(0, 256, 200_000, np.uint8).tobytes()
        for i in range(300):
            writer.add_message(channel, i, part, i)
        writer.finish()
    tracemalloc.start()
    result = scan(path, "")
    total = sum(len(data) for data in payloads(result, np.arange(300)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 60_000_000
    assert peak < 12_000_000


@pytest.mark.parametrize("layout", ["none", "zstd", "lz4", "no chunks", "no checksums", "all checksums"])
def test_no_damage_passes_as_good_data(tmp_path: Path, layout: str) -> None:
    """Flips, cuts and zeros anywhere: an error that says so, or the rest of the right data and a note.

    Where a file has checksums, every value that comes out is one that went in.
    """
    messages = [each for each in robot_bag(8, size=(16, 24)) if "wrist" not in each.topic]
    path = write_bag(land(tmp_path), messages, **LAYOUTS[layout] | {"chunk_size": 3000})
    whole = path.read_bytes()
    sent = {(each.topic, each.time_ns, each.data) for each in messages}
    checked = layout not in ("no chunks", "no checksums")
    rng = np.random.default_rng(7)
    outcomes: dict[str, int] = {}
    for i in range(80):
        bad = bytearray(whole)
        at = int(rng.integers(8, len(bad)))
        if i % 4 == 0:
            del bad[at:]
        elif i % 4 == 1:
            bad[at : at + 300] = bytes(len(bad[at : at + 300]))
        else:
            bad[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(bad))
        try:
            got = found(path)
            episode = read(tmp_path)
            everything(episode)
        except SourceError as error:
            outcomes[error.reason] = outcomes.get(error.reason, 0) + 1
            assert str(error)
            continue
        told = set(codes(episode)) - {"mapping_guessed", "rate_guessed"}
        outcomes[",".join(sorted(told))] = outcomes.get(",".join(sorted(told)), 0) + 1
        if len(got) < len(messages):
            assert told, f"case {i}: {len(messages) - len(got)} messages vanished without a note"
        if checked:
            assert set(got) <= sent, f"case {i}: a message came out that was not sent"
    assert len(outcomes) > 1

"""A damaged episode is refused with a sentence; it never gives other pictures or values than were written."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.opcode import Opcode
from mcap.writer import Writer

from megahour.episode import container, streams, tail, writer
from megahour.episode import index as idx
from megahour.episode import scan as scanning
from megahour.episode.check import check_bytes
from megahour.episode.h264 import nal_units
from megahour.episode.model import Coded, EpisodeError, RawEpisode
from megahour.episode.nal import PPS, SPS
from megahour.episode.profile import MIXED
from megahour.episode.ranges import MemoryBytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.scan import scan
from megahour.episode.writer import write_episode
from tests.episode.damage import Good, good_episodes, layouts, with_summary
from tests.samples import FACTS, h264_camera, jpeg_camera, pictures, raw_episode


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("corruption") / "e.mcap"
    write_episode(path, raw_episode(frames=12), FACTS)
    return path.read_bytes()


def _content(data: bytes) -> list[Any]:
    reader = EpisodeReader(MemoryBytes("e.mcap", data))
    pictures = [reader.frames(name, range(info.frames)).tobytes() for name, info in reader.cameras.items()]
    rows = [
        reader.series(name).values.tobytes() + reader.series(name).times_ns.tobytes() for name in reader.series_names
    ]
    return [reader.facts, reader.notes, pictures, rows]


def test_a_flipped_bit_anywhere(episode: bytes) -> None:
    good = _content(episode)
    refused = 0
    for at in [*range(0, len(episode), 61), *range(len(episode) - 60, len(episode))]:
        damaged = bytearray(episode)
        damaged[at] ^= 1 << (at % 8)
        try:
            assert _content(bytes(damaged)) == good, f"byte {at} changed what is read, and nobody noticed"
        except EpisodeError as error:
            assert error.reason in ("corrupt", "truncated"), error
            refused += 1
        assert check_bytes("e.mcap", bytes(damaged)), f"the check passes with byte {at} damaged"
    assert refused > 100


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.99, 0.9999])
def test_a_file_cut_short(episode: bytes, share: float) -> None:
    with pytest.raises(EpisodeError, match="Ingest its recording again") as caught:
        _content(episode[: int(len(episode) * share)])
    assert caught.value.reason == "truncated"


def test_a_file_without_its_beginning(episode: bytes) -> None:
    with pytest.raises(EpisodeError) as caught:
        _content(episode[1000:])
    assert caught.value.reason == "corrupt"


def test_frames_that_were_swapped_under_the_index(episode: bytes) -> None:
    camera = EpisodeReader(MemoryBytes("e.mcap", episode)).index.cameras[0]
    damaged = bytearray(episode)
    start, length = int(camera.offsets[4]), int(camera.lengths[4])
    payload = slice(start + 31 + 30, start + length)
    damaged[payload] = bytes(len(damaged[payload]))
    with pytest.raises(EpisodeError, match="checksum of picture 4 of camera 'front'"):
        _content(bytes(damaged))


def test_metadata_of_another_episode_in_their_place(tmp_path: Path) -> None:
    """They are as long and under a right checksum of their own: only the index knows that they are others."""
    files = []
    for task in ("press the button", "press the lever!"):
        write_episode(tmp_path / "e", raw_episode(frames=3), replace(FACTS, task=task))
        files.append((tmp_path / "e").read_bytes())
    ((at, record),) = scan("e", files[0]).metadata
    ((_, other),) = scan("e", files[1]).metadata
    assert len(record) == len(other) and record != other
    with pytest.raises(EpisodeError, match="the checksum of its metadata is wrong"):
        _content(files[0][:at] + other + files[0][at + len(record) :])


def test_an_mcap_file_of_somebody_else() -> None:
    out = io.BytesIO()
    foreign = Writer(out)
    foreign.start()
    channel = foreign.register_channel("/text", "json", 0)
    foreign.add_message(channel, 1, b"{}", 1)
    foreign.finish()
    with pytest.raises(EpisodeError, match="no episode of Megahour") as caught:
        _content(out.getvalue())
    assert caught.value.reason == "corrupt"


def test_a_newer_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CONTAINER_VERSION", tail.CONTAINER_VERSION + 1)
    write_episode(tmp_path / "e.mcap", raw_episode(frames=3), FACTS)
    with pytest.raises(
        EpisodeError, match=r"e\.mcap: its container has version \d+, and this Megahour reads"
    ) as caught:
        _content((tmp_path / "e.mcap").read_bytes())
    assert caught.value.reason == "version"


def test_a_damaged_index_is_refused() -> None:
    for data in (b"", b"nonsense", idx.zstandard.ZstdCompressor().compress(struct.pack("<I", 9) + b"{}")):
        with pytest.raises(EpisodeError) as caught:
            idx.unpack(data)
        assert caught.value.reason == "corrupt"


def test_an_index_of_another_version_is_not_called_damaged(episode: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    index = EpisodeReader(MemoryBytes("e.mcap", episode)).index
    monkeypatch.setattr(idx, "VERSION", idx.VERSION + 1)
    other = idx.pack(index)
    monkeypatch.undo()
    with pytest.raises(EpisodeError, match=r"has version \d+, and this Megahour reads") as caught:
        idx.unpack(other)
    assert caught.value.reason == "version"


def test_the_index_returns_as_it_was(episode: bytes) -> None:
    index = EpisodeReader(MemoryBytes("e.mcap", episode)).index
    again = idx.unpack(idx.pack(index))
    assert (again.series, again.topics, again.metadata_crc) == (index.series, index.topics, index.metadata_crc)
    assert list(map(vars, again.chunks)) == list(map(vars, index.chunks))
    for one, other in zip(index.cameras, again.cameras, strict=True):
        for column in ("times_ns", "offsets", "lengths", "crcs", "keyframes"):
            assert np.array_equal(getattr(one, column), getattr(other, column))


# What a program wrote under right checksums can still be wrong.


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Good]:
    return good_episodes(tmp_path_factory.mktemp("good"))


def _reasons(data: bytes, name: str = "e.mcap") -> list[str]:
    return [problem.reason for problem in check_bytes(name, data)]


def _said(data: bytes) -> str:
    return "\n".join(problem.message for problem in check_bytes("e.mcap", data))


@pytest.mark.parametrize("layout", layouts())
def test_good_episodes_have_no_problems(goods: dict[str, Good], layout: str) -> None:
    assert check_bytes("e.mcap", goods[layout].data) == []


def test_a_file_that_is_no_episode_at_all() -> None:
    for nothing in (b"", b"\x00" * 5000, b"x" * 100, container.MAGIC, container.MAGIC * 2):
        assert _reasons(nothing)[0] in ("truncated", "corrupt")


@pytest.mark.parametrize("opcode", [Opcode.CHUNK, Opcode.ATTACHMENT, Opcode.METADATA])
def test_bytes_that_look_like_records_over_and_over(monkeypatch: pytest.MonkeyPatch, opcode: Opcode) -> None:
    """Each claims what is left of the file, which is then neither summed up nor copied."""
    summed, crc32 = 0, zlib.crc32

    def counted(data: Any, value: int = 0) -> int:
        nonlocal summed
        summed += len(data)
        return crc32(data, value)

    monkeypatch.setattr(zlib, "crc32", counted)

    def copied(kind: Any, body: bytes) -> Any:
        nonlocal summed
        summed += len(body)
        return read(kind, body)

    read = scanning.read_record
    monkeypatch.setattr(scanning, "read_record", copied)
    heads = 2_000
    size = 9 * heads
    data = container.MAGIC + b"".join(struct.pack("<BQ", opcode, size - 9 * (i + 1)) for i in range(heads))
    found = scan("e.mcap", data)
    assert found.lost == [(len(container.MAGIC), len(data))]
    assert summed <= len(data)


def test_all_problems_are_reported_not_only_the_first(goods: dict[str, Good]) -> None:
    good = goods["everything"]
    damaged = bytearray(good.data)
    front, wrist, slow, *_ = good.index.cameras
    small = next(each for each in good.index.cameras if each.rendition_of == "front")
    chunks = [chunk for chunk in good.index.chunks if chunk.group in ("messages", "b")]
    for camera, i in ((front, 2), (front, 5), (front, 6), (wrist, 0), (slow, 4), (small, 11)):
        damaged[int(camera.offsets[i] + camera.lengths[i]) - 1] ^= 1
    for chunk in chunks[:2]:
        damaged[chunk.offset + 20] ^= 1
    said = _said(bytes(damaged))
    assert "pictures 2, 5 to 6 of 'front': its checksum is wrong" in said
    assert "picture 0 of 'wrist'" in said and "picture 4 of 'slow'" in said
    assert "picture 11 of the rendition of 'front'" in said
    assert "messages 0 to" in said and "'gripper'" in said and "'force'" in said


def _as_coded(tmp_path: Path, *cameras: Any) -> bytes:
    episode = replace(raw_episode(12, (32, 32)), cameras=cameras)
    write_episode(tmp_path / "e", episode, FACTS, replace(MIXED, pictures="as_coded"))
    return (tmp_path / "e").read_bytes()


def test_a_frame_that_a_writer_lost_before_it_counted(tmp_path: Path) -> None:
    """The file agrees with itself, and decodes without an error to wrong pictures."""
    whole = h264_camera("front", pictures(12, 32, 32), gop=6)
    assert whole.coded is not None
    units = list(whole.coded.units())
    del units[8]
    lacking = replace(whole, times_ns=whole.times_ns[:-1], coded=Coded("h264", lambda: iter(units)))
    ((reason, message),) = [(p.reason, p.message) for p in check_bytes("e.mcap", _as_coded(tmp_path, lacking))]
    assert reason == "dropped_frames"
    assert message.startswith("e.mcap: picture 8 of 'front': has number 3 where 2 comes next")


def _without(unit: bytes, kind: int) -> bytes:
    return b"".join(b"\x00\x00\x00\x01" + nal for nal in nal_units(unit) if nal[0] & 31 != kind)


BROKEN_UNITS: dict[str, tuple[Callable[[list[bytes]], Any], str]] = {
    "two pictures in one": (lambda units: units.__setitem__(2, units[2] + units[3]), "picture 2 of 'front': A message"),
    "no picture": (lambda units: units.__setitem__(2, b"\x00\x00\x00\x01\x06\x05"), "holds 0 pictures"),
    "empty": (lambda units: units.__setitem__(2, b""), "picture 2 of 'front'"),
    "no SPS": (lambda units: units.__setitem__(6, _without(units[6], SPS)), "lacks its SPS or PPS"),
    "no PPS": (lambda units: units.__setitem__(6, _without(units[6], PPS)), "lacks its SPS or PPS"),
    "half of it": (lambda units: units.__setitem__(2, units[2][: len(units[2]) // 2]), "of 'front'"),
    "zeros inside": (lambda units: units.__setitem__(2, units[2][:12] + bytes(8) + units[2][20:]), "of 'front'"),
}


@pytest.mark.parametrize("kind", BROKEN_UNITS)
def test_coded_pictures_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    change, expected = BROKEN_UNITS[kind]
    whole = h264_camera("front", pictures(12, 32, 32, seed=3), gop=6)
    assert whole.coded is not None
    units = list(whole.coded.units())
    change(units)
    monkeypatch.setattr(streams, "is_keyframe", lambda unit: bool(unit) and len(unit) > 4 and unit[4] & 31 in (5, 7, 8))
    monkeypatch.setattr(streams, "_decode_once", lambda *_: None)
    said = _said(_as_coded(tmp_path, replace(whole, coded=Coded("h264", lambda: iter(units)))))
    assert expected in said


def test_jpeg_pictures_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jpeg_camera("wrist", pictures(6, 32, 32))
    other = jpeg_camera("wrist", pictures(6, 24, 32))
    assert whole.coded is not None and other.coded is not None
    files, others = list(whole.coded.units()), list(other.coded.units())
    files[1], files[3], files[4] = others[1], files[3][: len(files[3]) // 2], b"no picture"
    monkeypatch.setattr(streams, "jpeg_size", lambda _: (32, 32))
    said = _said(_as_coded(tmp_path, replace(whole, coded=Coded("jpeg", lambda: iter(files)))))
    assert "picture 1 of 'wrist': a JPEG file has another size than its camera" in said
    assert "picture 4 of 'wrist': A picture is no JPEG file" in said
    assert "picture 3 of 'wrist'" in said


Change = Callable[[idx.EpisodeIndex], idx.EpisodeIndex]


def _camera(number: int, **changes: Any) -> Change:
    def change(index: idx.EpisodeIndex) -> idx.EpisodeIndex:
        cameras = list(index.cameras)
        made = {n: value(getattr(cameras[number], n)) if callable(value) else value for n, value in changes.items()}
        cameras[number] = replace(cameras[number], **made)
        return replace(index, cameras=tuple(cameras))

    return change


def _series(**changes: Any) -> Change:
    return lambda index: replace(index, series=(replace(index.series[0], **changes), *index.series[1:]))


def _topic(**changes: Any) -> Change:
    return lambda index: replace(index, topics=(replace(index.topics[0], **changes), *index.topics[1:]))


def _span(number: int, *changes: int) -> Change:
    """The first channel of a chunk begins, counts, starts and ends elsewhere."""

    def change(index: idx.EpisodeIndex) -> idx.EpisodeIndex:
        chunks = list(index.chunks)
        channel, held = next(iter(chunks[number].channels.items()))
        a, b, c, d = (value + by for value, by in zip(held, changes, strict=True))
        chunks[number] = replace(chunks[number], channels={**chunks[number].channels, channel: (a, b, c, d)})
        return replace(index, chunks=tuple(chunks))

    return change


def _flipped(column: Any) -> Any:
    changed = column.copy()
    changed[1] = ~changed[1]
    return changed


def _far_away(offsets: Any) -> Any:
    moved = offsets.copy()
    moved[-1] = 2**62
    return moved


WRONG: dict[str, tuple[Change, str]] = {
    "a place that no file has": (_camera(0, offsets=_far_away), "places that cannot be"),
    "a keyframe too many": (_camera(0, keyframes=_flipped), "picture 1 of 'front': the index is wrong about whether"),
    "other times": (_camera(0, times_ns=lambda times: times + 1), "another channel, number or time"),
    "another camera's name": (_camera(0, name="other"), "say"),
    "another size": (_camera(0, width=34), "of 'front'"),
    "another size of JPEG": (_camera(1, width=34), "a JPEG file has another size"),
    "a picture less": (
        _camera(0, **{n: lambda c: c[:-1] for n in ("times_ns", "offsets", "lengths", "crcs", "keyframes")}),
        "other pictures of 'front' than there are",
    ),
    "a rendition of nothing": (_camera(-1, rendition_of="nobody"), "has not the times of its camera, or no camera"),
    "a camera in another group": (_camera(0, group="b"), "holds messages of several groups"),
    "more rows": (_series(rows=61), "'state' has 61 messages, and its chunks 60"),
    "another type": (_series(dtype="float32"), "say different things of /state"),
    "other names": (_series(names=tuple("vwxyz")), "state"),
    "another period": (_series(period_ns=1), "the period of 'state'"),
    "a series in another group": (_series(group="b"), "holds other topics"),
    "more messages": (_topic(count=21), "'gripper' has 21 messages, and its chunks 20"),
    "another topic": (_topic(name="hand"), "say different things of /gripper"),
    "a topic less": (lambda index: replace(index, topics=index.topics[:1]), "know other topics"),
    "a first row": (_span(-1, 1, 0, 0, 0), "does not go on where the one before it ends"),
    "a count": (_span(-1, 0, 1, 0, 0), "it holds other messages than the index says"),
    "a first time": (_span(-1, 0, 0, 1, 0), "it holds other messages than the index says"),
    "a last time": (_span(0, 0, 0, 0, 1), "it holds other messages than the index says"),
    "a chunk less": (lambda index: replace(index, chunks=index.chunks[:-1]), "other compressed chunks than there are"),
}


def _everything(tmp_path: Path) -> bytes:
    episode, profile = layouts()["everything"]
    write_episode(tmp_path / "e", episode, FACTS, profile)
    return (tmp_path / "e").read_bytes()


@pytest.mark.parametrize("kind", WRONG)
def test_an_index_that_is_wrong_about_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    change, expected = WRONG[kind]
    pack = idx.pack
    monkeypatch.setattr(writer, "COMPRESSED_CHUNK_BYTES", 3_000)
    monkeypatch.setattr(writer.idx, "pack", lambda index: pack(change(index)))
    assert expected in _said(_everything(tmp_path))


RECORDS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a count of messages": ("Statistics", lambda r: replace(r, message_count=1), "wrong about the statistics"),
    "the place of a chunk": ("ChunkIndex", lambda r: replace(r, chunk_start_offset=9), "wrong about the chunk index"),
    "the times of a chunk": ("Chunk", lambda r: replace(r, message_end_time=10**18), "says other times than"),
    "a message index": ("MessageIndex", lambda r: replace(r, records=r.records[:-1]), "the message indexes behind"),
    "the place of a group of records": ("SummaryOffset", lambda r: replace(r, group_length=1), "summary offset"),
    "the name of the metadata": ("MetadataIndex", lambda r: replace(r, name="other"), "metadata"),
    "a topic": ("Channel", lambda r: replace(r, metadata={**r.metadata, "height": "3"}), "say different things"),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_records_that_are_wrong_about_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    name, change, expected = RECORDS[kind]
    write = container.record_bytes
    monkeypatch.setattr(
        container, "record_bytes", lambda record: write(change(record) if type(record).__name__ == name else record)
    )
    assert expected in _said(_everything(tmp_path))


def test_bytes_between_the_data_and_the_summary(goods: dict[str, Good]) -> None:
    data = goods["cameras"].data
    ending = scan("e", data).ending
    assert ending is not None
    start = ending.summary_start
    footer = struct.pack("<BQQQ", Opcode.FOOTER, 20, start + 5, 0) + bytes(4) + container.MAGIC
    moved = with_summary(data[:start] + b"12345" + ending.summary + footer, start + 5, ending.summary)
    EpisodeReader(MemoryBytes("e.mcap", moved))
    assert "its summary does not follow on its data" in _said(moved)


def test_a_chunk_that_holds_two_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container.Group, "end_chunk", _end_of_all(container.Group.end_chunk))
    assert "holds messages of several groups" in _said(_everything(tmp_path))


def _end_of_all(end_chunk: Callable[[Any], None]) -> Callable[[Any], None]:
    """The second message of a chunk is under the channel of another group."""

    def end(group: Any) -> None:
        if group._name == "a":
            message, at, size = group._messages[1]
            group._messages[1] = replace(message, channel=1), at, size
            part = next(i for i, each in enumerate(group._parts) if len(each) == 31 and i > 3)
            group._parts[part] = group._parts[part][:9] + struct.pack("<H", 1) + group._parts[part][11:]
        end_chunk(group)

    return end


def test_an_episode_of_nothing_but_a_topic_without_messages(tmp_path: Path) -> None:
    episode: RawEpisode = replace(layouts()["messages"][0], extra_messages=lambda: iter(()))
    write_episode(tmp_path / "e", episode, FACTS)
    assert check_bytes("e.mcap", (tmp_path / "e").read_bytes()) == []

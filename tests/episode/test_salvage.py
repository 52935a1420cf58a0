"""Out of a damaged episode comes all that is whole, as it was, at its own time, and a note that tells the rest."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megahour.episode.check import check_bytes
from megahour.episode.container import MAGIC
from megahour.episode.index import CameraIndex
from megahour.episode.model import Camera, Coded, EpisodeError, EpisodeFacts, Note, RawEpisode, Series
from megahour.episode.profile import MIXED
from megahour.episode.ranges import MemoryBytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.salvage import Salvaged, salvage
from megahour.episode.scan import scan
from megahour.episode.tail import FOOTER_BYTES
from megahour.episode.writer import write_episode
from tests.episode.damage import GOP, Good, good_episodes, layouts, messages_of, swap_chunks
from tests.samples import FACTS, h264_camera, pictures, raw_episode

KNOWN = replace(FACTS, attributes={})
"""What the table knows: no attributes."""
LAYOUTS = tuple(layouts())


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Good]:
    return good_episodes(tmp_path_factory.mktemp("good"))


@pytest.fixture
def rich(goods: dict[str, Good]) -> Good:
    return goods["everything"]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def saved_of(data: bytes, known: EpisodeFacts = KNOWN) -> Salvaged:
    return salvage("e.mcap", data, known, ("left_out",))


def note_of(saved: Salvaged) -> str:
    note = saved.episode.notes[-1]
    assert note.code == "repaired"
    return note.text.removeprefix("saved from a damaged file: ")


def picture_numbers(saved: Salvaged, good: Good) -> dict[str, list[int]]:
    """Which pictures of each camera are there; they are bit-equal to those that were, at their own times."""
    found = {}
    for camera in saved.episode.cameras:
        original = next(each for each in good.episode.cameras if each.name == camera.name)
        numbers = np.searchsorted(original.times_ns, camera.times_ns)
        assert original.times_ns[numbers].tolist() == camera.times_ns.tolist()
        assert camera.coded is not None
        coded = good.answers[f"coded {camera.name}"]
        assert [coded[number] for number in numbers] == list(camera.coded.units())
        found[camera.name] = numbers.tolist()
    return found


def row_numbers(saved: Salvaged, good: Good) -> dict[str, list[int]]:
    """Which rows of each series are there, bit-equal."""
    found = {}
    for series in saved.episode.series:
        original = next(each for each in good.episode.series if each.name == series.name)
        numbers = np.searchsorted(original.times_ns, series.times_ns)
        assert original.times_ns[numbers].tolist() == series.times_ns.tolist()
        assert original.values[numbers].tobytes() == series.values.tobytes()
        assert (series.names, series.values.dtype) == (original.names, original.values.dtype)
        found[series.name] = numbers.tolist()
    return found


def everything(good: Good) -> dict[str, list[int]]:
    topics: list[Camera | Series] = [*good.episode.cameras, *good.episode.series]
    return {topic.name: list(range(len(topic.times_ns))) for topic in topics}


def numbers_of(saved: Salvaged, good: Good) -> dict[str, list[int]]:
    return {**picture_numbers(saved, good), **row_numbers(saved, good)}


def nothing_is_lost(saved: Salvaged, good: Good) -> None:
    assert numbers_of(saved, good) == everything(good)
    by_topic = sorted(good.episode.extra_messages(), key=lambda each: (each.time_ns, each.topic))
    assert sorted(saved.episode.extra_messages(), key=lambda each: (each.time_ns, each.topic)) == by_topic
    assert saved.episode.extras == good.episode.extras
    assert " were lost" not in note_of(saved)


def written(saved: Salvaged, path: Path) -> bytes:
    """The file that a repair writes."""
    profile = replace(MIXED, name="mixed", pictures="as_coded", groups=saved.groups)
    write_episode(path, saved.episode, saved.facts, profile)
    return path.read_bytes()


def _is_rendition(topic: Any) -> bool:
    return isinstance(topic, CameraIndex) and bool(topic.rendition_of)


# Nothing wrong, or damage where nothing lies that cannot be made anew.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_of_a_good_file_is_saved_and_stays_as_it_was(goods: dict[str, Good], layout: str, tmp_path: Path) -> None:
    good = goods[layout]
    saved = saved_of(good.data)
    nothing_is_lost(saved, good)
    assert saved.facts == FACTS and saved.episode.notes[:-1] == good.episode.notes
    data = written(saved, tmp_path / "e")
    assert check_bytes("e", data) == []
    index = EpisodeReader(MemoryBytes("e", data)).index
    assert {each.name: each.group for each in index.by_channel.values()} == {
        each.name: each.group for each in good.index.by_channel.values() if not _is_rendition(each)
    }
    assert [chunk.group for chunk in index.chunks] == sorted(
        (chunk.group for chunk in index.chunks), key=list(dict.fromkeys(c.group for c in good.index.chunks)).index
    ), "groups lie in the order they lay in"


def test_renditions_are_left_out_and_the_note_says_so(rich: Good, goods: dict[str, Good]) -> None:
    assert note_of(saved_of(rich.data)) == "its renditions were left out"
    assert note_of(saved_of(goods["cameras"].data)) == "nothing was lost"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_index_alone_loses_nothing(goods: dict[str, Good], layout: str, tmp_path: Path) -> None:
    good = goods[layout]
    saved = saved_of(flipped(good.data, good.tail_start + 80))
    nothing_is_lost(saved, good)
    assert saved.facts == FACTS and saved.episode.notes[:-1] == good.episode.notes
    assert note_of(saved).startswith("its index is gone")
    assert check_bytes("e", written(saved, tmp_path / "e")) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_summary_or_footer_alone_loses_nothing(goods: dict[str, Good], layout: str) -> None:
    good = goods[layout]
    ending = scan("e", good.data).ending
    assert ending is not None
    for at in (ending.summary_start + 20, len(good.data) - FOOTER_BYTES + 9, len(good.data) - 3):
        saved = saved_of(flipped(good.data, at))
        assert numbers_of(saved, good) == everything(good)
        assert saved.facts == FACTS
        # The definitions of extra topics lie in their chunks too.
        nothing_is_lost(saved, good)


def test_damaged_metadata_alone_is_made_up_for_by_the_table(rich: Good) -> None:
    ((at, record),) = scan("e", rich.data).metadata
    for damaged in (flipped(rich.data, at + len(record) - 30), flipped(rich.data, at), flipped(rich.data, at + 3)):
        saved = saved_of(damaged)
        nothing_is_lost(saved, rich)
        assert saved.facts == KNOWN
        assert saved.episode.notes[0] == Note("left_out", "its text was lost with the file's metadata")
        assert "its metadata is gone: facts are those of the table" in note_of(saved)


def test_without_an_index_the_metadata_vouch_for_themselves(rich: Good) -> None:
    damaged = flipped(rich.data, rich.tail_start + 80)
    ((at, record),) = scan("e", rich.data).metadata
    assert saved_of(damaged).facts == FACTS
    for place in range(at + 40, at + len(record), 17):
        assert saved_of(flipped(damaged, place)).facts == KNOWN


@pytest.mark.parametrize("field", [1, 9, 17, 25, 33, 37, 41], ids=str)
def test_a_damaged_head_of_a_chunk_loses_nothing(rich: Good, field: int) -> None:
    """Of a chunk of pictures, messages or rows alike: its data is known by the index."""
    for start, _ in rich.chunks:
        nothing_is_lost(saved_of(flipped(rich.data, start + field)), rich)


def test_damaged_message_indexes_lose_nothing(rich: Good) -> None:
    for (_, end), (start, _) in zip(rich.chunks, rich.chunks[1:], strict=False):
        for at in range(end, start, 29):
            nothing_is_lost(saved_of(flipped(rich.data, at)), rich)


def test_what_lies_elsewhere_now_is_found(rich: Good) -> None:
    for seed in range(10):
        nothing_is_lost(saved_of(swap_chunks(random.Random(seed), rich)), rich)
    first = rich.chunks[0][0]
    for damaged in (
        rich.data[:first] + b"\x00" * 999 + rich.data[first:],
        rich.data[:first] + rich.data[first : first + 500] + rich.data[first:],
        rich.data[first:],
        b"noise" + rich.data,
        rich.data + b"noise",
    ):
        nothing_is_lost(saved_of(damaged), rich)


# Damage to what lies there once.


def test_a_flipped_byte_in_a_picture_loses_the_rest_of_its_gop_of_its_camera(goods: dict[str, Good]) -> None:
    good = goods["cameras"]
    front = good.index.cameras[0]
    assert np.flatnonzero(front.keyframes).tolist() == [0, GOP, 2 * GOP]
    for number, lost in ((6, [6, 7]), (GOP, [4, 5, 6, 7]), (11, [11]), (0, [0, 1, 2, 3])):
        end = int(front.offsets[number] + front.lengths[number])
        saved = saved_of(flipped(good.data, end - 2))
        expected = everything(good)
        expected["front"] = [i for i in range(12) if i not in lost]
        assert numbers_of(saved, good) == expected
        assert note_of(saved) == f"{len(lost)} of 12 pictures of 'front' were lost"


def test_a_flipped_byte_in_a_jpeg_loses_that_picture(rich: Good) -> None:
    wrist = rich.index.cameras[1]
    assert wrist.codec == "jpeg"
    saved = saved_of(flipped(rich.data, int(wrist.offsets[5]) + 100))
    assert picture_numbers(saved, rich)["wrist"] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert "1 of 12 pictures of 'wrist' were lost" in note_of(saved)


def test_a_flipped_byte_in_a_chunk_of_rows_or_messages_loses_that_chunk(rich: Good) -> None:
    for chunk in rich.index.chunks:
        saved = saved_of(flipped(rich.data, chunk.offset + chunk.size_bytes // 2))
        expected = everything(rich)
        for channel, (first, count, _, _) in chunk.channels.items():
            topic = rich.index.by_channel[channel]
            if topic.name in expected:
                del expected[topic.name][first : first + count]
            assert f"{count} of " in note_of(saved) and f"of '{topic.name}' were lost" in note_of(saved)
        assert numbers_of(saved, rich) == expected


def test_zeros_in_the_middle_lose_what_was_there(rich: Good) -> None:
    start, end = rich.chunks[2][0] - 50, rich.chunks[4][0] + 200
    damaged = rich.data[:start] + bytes(end - start) + rich.data[end:]
    saved = saved_of(damaged)
    expected = everything(rich)
    for camera in rich.index.cameras:
        inside = [int(o) < end and int(o + n) > start for o, n in zip(camera.offsets, camera.lengths, strict=True)]
        gone, whole = set(), True
        for i, (key, hit) in enumerate(zip(camera.keyframes.tolist(), inside, strict=True)):
            whole = not hit and (key or whole)
            gone |= set() if whole else {i}
        if not camera.rendition_of:
            expected[camera.name] = [i for i in expected[camera.name] if i not in gone]
    assert numbers_of(saved, rich) == {name: numbers for name, numbers in expected.items() if numbers}
    assert expected != everything(rich)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95])
def test_a_file_cut_short_keeps_its_whole_chunks(rich: Good, share: float, tmp_path: Path) -> None:
    size = int(rich.tail_start * share)
    saved = saved_of(rich.data[:size])
    kept = [chunk for chunk in scan("e", rich.data).chunks if chunk.end <= size]
    messages = {each for m in kept for each in zip(m.messages.channels, m.messages.sequences, strict=True)}
    known = {each.name: number for number, each in rich.index.by_channel.items() if not _is_rendition(each)}
    expected = {
        name: [i for i in numbers if (known[name], i) in messages] for name, numbers in everything(rich).items()
    }
    assert numbers_of(saved, rich) == {name: numbers for name, numbers in expected.items() if numbers}
    assert saved.facts == KNOWN
    assert "its summary is gone: what else it held is not known" in note_of(saved)
    assert check_bytes("e", written(saved, tmp_path / "e")) == []


@pytest.mark.parametrize("index_too", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_summary_describes_what_a_damaged_first_chunk_described(
    goods: dict[str, Good], layout: str, index_too: bool
) -> None:
    """The schemas and channels of a group lie in its first chunk, and once more in the summary."""
    good = goods[layout]
    start, end = good.chunks[0]
    damaged = good.data[:start] + bytes(end - start) + good.data[end:]
    saved = saved_of(flipped(damaged, good.tail_start + 80) if index_too else damaged)
    chunk = scan("e", good.data).chunks[0]
    expected = everything(good)
    for channel, number in zip(chunk.messages.channels.tolist(), chunk.messages.sequences.tolist(), strict=True):
        name = good.index.by_channel[channel].name
        if name in expected:
            expected[name].remove(number)
    assert numbers_of(saved, good) == {name: numbers for name, numbers in expected.items() if numbers}
    assert saved.episode.extras == good.episode.extras


def test_messages_whose_topic_nothing_describes_are_counted(goods: dict[str, Good]) -> None:
    good = goods["numbers"]
    start, end = good.chunks[0]
    damaged = good.data[:start] + bytes(end - start) + good.data[end : good.tail_start]
    saved = saved_of(damaged)
    assert row_numbers(saved, good) == {"state": list(range(60))}
    assert "messages were lost whose topics nothing describes any more" in note_of(saved)
    assert row_numbers(saved_of(good.data[: good.tail_start]), good) == everything(good)


def test_extra_messages_keep_their_order_and_their_topic_s_definition(rich: Good) -> None:
    saved = saved_of(rich.data[: rich.tail_start])
    for topic in rich.episode.extras:
        mine = [each for each in saved.episode.extra_messages() if each.topic == topic.name]
        assert mine == [each for each in messages_of(topic)() if each.topic == topic.name]
    times = [each.time_ns for each in saved.episode.extra_messages()]
    assert times == sorted(times)
    assert saved.episode.extras == rich.episode.extras


# What must not be taken.


def test_a_frame_that_was_never_stored_ends_its_gop(tmp_path: Path) -> None:
    whole = h264_camera("front", pictures(12, 32, 32), gop=6)
    assert whole.coded is not None
    units = list(whole.coded.units())
    del units[8]
    times = np.delete(whole.times_ns, 8)
    lacking = replace(whole, times_ns=times, coded=Coded("h264", lambda: iter(units)))
    episode = replace(raw_episode(12, (32, 32)), cameras=(lacking,))
    write_episode(tmp_path / "e", episode, FACTS, replace(MIXED, pictures="as_coded"))
    saved = saved_of((tmp_path / "e").read_bytes())
    assert saved.episode.cameras[0].times_ns.tolist() == times[:8].tolist()
    assert check_bytes("e", written(saved, tmp_path / "again")) == []


def _of_another(tmp_path: Path, episode_id: str) -> bytes:
    other = replace(raw_episode(12, (32, 32)), cameras=layouts()["cameras"][0].cameras[::-1])
    facts = replace(FACTS, episode_id=episode_id)
    write_episode(tmp_path / "other", other, facts, layouts()["cameras"][1])
    return (tmp_path / "other").read_bytes()


def test_the_damaged_file_of_another_episode_is_refused(tmp_path: Path) -> None:
    data = _of_another(tmp_path, "another")
    with pytest.raises(
        EpisodeError, match="damaged file of another episode, another: put the right one back"
    ) as caught:
        saved_of(flipped(data, 500))
    assert caught.value.reason == "replaced"


def test_a_chunk_of_another_episode_is_not_taken(goods: dict[str, Good], tmp_path: Path) -> None:
    """It lies where one of ours did, whole: only the index knows that it is not ours."""
    good = goods["cameras"]
    other = _of_another(tmp_path, "another")
    (start, end), (foreign_start, foreign_end) = good.chunks[0], _chunks(other)[0]
    damaged = good.data[:start] + other[foreign_start:foreign_end] + good.data[end:]
    saved = saved_of(damaged)
    assert picture_numbers(saved, good) == {"front": list(range(4, 12)), "wrist": list(range(4, 12))}


def _chunks(data: bytes) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.end) for chunk in scan("e", data).chunks]


@pytest.mark.parametrize(
    "data",
    [b"", b"no episode", bytes(50_000), MAGIC, MAGIC + bytes(100) + MAGIC, b"\x06" * 3000],
    ids=["empty", "text", "zeros", "magic", "two magics", "opcodes"],
)
def test_nothing_is_left(data: bytes) -> None:
    with pytest.raises(EpisodeError, match=r"Nothing of e\.mcap can be saved.* Ingest its recording again") as caught:
        saved_of(data)
    assert caught.value.reason == "corrupt"


def test_nothing_whole_is_left(goods: dict[str, Good]) -> None:
    for good in goods.values():
        damaged = bytearray(good.data)
        for start, end in good.chunks:
            damaged[start:end] = bytes(end - start)
        with pytest.raises(EpisodeError, match="no picture, row or message in it is whole"):
            saved_of(bytes(damaged))


def test_a_length_that_spans_what_follows_hides_nothing(rich: Good) -> None:
    """A message index or the header that claims to be longer would swallow the chunks behind it."""
    for at in [8, *(end for _, end in rich.chunks[:-1])]:
        damaged = bytearray(rich.data)
        struct.pack_into("<Q", damaged, at + 1, len(rich.data) // 2)
        nothing_is_lost(saved_of(bytes(damaged)), rich)
        cut = bytes(damaged[: rich.tail_start])
        assert numbers_of(saved_of(cut), rich) == everything(rich)


def test_a_camera_that_lost_nearly_all_does_not_make_one_chunk_of_the_others(tmp_path: Path) -> None:
    """The chunks end where all cameras start anew; a camera with next to no pictures has no say in it."""
    whole, rest = h264_camera("front", pictures(60, 32, 32), 6), h264_camera("wrist", pictures(60, 32, 32), 6)
    assert rest.coded is not None
    units = list(rest.coded.units())[:6]
    short = replace(rest, times_ns=rest.times_ns[:6], coded=Coded("h264", lambda: iter(units)))
    episode: RawEpisode = replace(raw_episode(60, (32, 32)), cameras=(whole, short))
    write_episode(tmp_path / "e", episode, FACTS, replace(MIXED, pictures="as_coded", chunk_bytes=1))
    chunks = scan("e", (tmp_path / "e").read_bytes()).chunks
    assert len([chunk for chunk in chunks if not chunk.compression]) == 10


def test_a_chunk_of_pictures_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megahour.episode import writer

    monkeypatch.setattr(writer, "MOST_CHUNK_BYTES", 2_000)
    write_episode(tmp_path / "e", raw_episode(24, (32, 32)), FACTS, replace(MIXED, gop=24))
    data = (tmp_path / "e").read_bytes()
    chunks = [chunk for chunk in scan("e", data).chunks if not chunk.compression]
    assert len(chunks) > 2 and max(chunk.end - chunk.start for chunk in chunks) < 5_000
    assert check_bytes("e", data) == []


def test_the_same_damage_gives_the_same_file(rich: Good, tmp_path: Path) -> None:
    damaged = flipped(rich.data, rich.chunks[1][0] + 700)
    files: set[Any] = {written(saved_of(damaged), tmp_path / str(i)) for i in range(3)}
    assert len(files) == 1

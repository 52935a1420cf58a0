"""HDF5 files of any layout: known by what lies in them, refused for what lies outside, and never a crash."""

from __future__ import annotations

import json
import struct
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from megahour.episode.model import RawEpisode
from megahour.sources import SourceError, find_recordings, read_recording
from megahour.sources.hdf5.heap import check_heaps
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import write_aloha, write_robomimic


def read(root: Path) -> list[RawEpisode]:
    lake = open_lake(root.as_uri())
    (recording,) = find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))
    return list(read_recording(recording, root.joinpath))


def read_all(root: Path) -> None:
    """Read every byte that an import would."""
    for episode in read(root):
        list(episode.extra_messages())
        for camera in episode.cameras:
            list(camera.frames())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "landing/lab/day/recording.hdf5"


def write_small(path: Path, layout: str) -> Path:
    if layout == "aloha":
        return write_aloha(path, frames=3, size=(8, 8))
    return write_robomimic(path, demos=(0, 1), steps=3, size=(8, 8))


LAYOUTS = ["aloha", "robomimic"]


def test_the_layout_is_known_by_what_lies_in_the_file(tmp_path: Path, path: Path) -> None:
    write_small(path, "aloha")
    assert [episode.format for episode in read(tmp_path)] == ["aloha_hdf5"]
    write_small(path, "robomimic")
    assert [(episode.index, episode.format) for episode in read(tmp_path)] == [
        (0, "robomimic_hdf5"),
        (1, "robomimic_hdf5"),
    ]


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({}, "holds nothing"),
        ({"images": np.zeros(3), "meta/a": np.zeros(1)}, "holds /images, /meta"),
        ({"data": np.zeros(3)}, "holds /data"),
    ],
)
def test_another_layout_is_refused_and_says_what_was_found(
    tmp_path: Path, path: Path, held: dict[str, Any], words: str
) -> None:
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w") as file:
        for name, values in held.items():
            file[name] = values
    with pytest.raises(SourceError, match=f"{words}: .* ALOHA .* robomimic") as caught:
        read(tmp_path)
    assert caught.value.reason == "unknown_format"


def _link(file: h5py.File, place: str, outside: Path) -> None:
    file[place] = h5py.ExternalLink(str(outside), "/action")


def _link_through_a_link(file: h5py.File, place: str, outside: Path) -> None:
    file["zz"] = h5py.ExternalLink(str(outside), "/")
    file[place] = h5py.SoftLink("/zz/action")


def _raw_bytes_elsewhere(file: h5py.File, place: str, outside: Path) -> None:
    file.create_dataset(place, (3, 3), "f4", external=[(str(outside), 0, h5py.h5f.UNLIMITED)])


def _virtual(file: h5py.File, place: str, outside: Path) -> None:
    layout = h5py.VirtualLayout((3, 3), "f4")
    layout[:] = h5py.VirtualSource(str(outside), "action", (3, 3))
    file.create_virtual_dataset(place, layout)


@pytest.mark.parametrize("put", [_link, _link_through_a_link, _raw_bytes_elsewhere, _virtual])
@pytest.mark.parametrize(
    ("layout", "place"),
    [
        ("aloha", "action"),
        ("aloha", "extra/deep"),
        ("robomimic", "data/demo_1/actions"),
        ("robomimic", "data/demo_1/obs/object"),
        ("robomimic", "extra"),
    ],
)
def test_data_in_another_file_is_refused(tmp_path: Path, path: Path, put: Any, layout: str, place: str) -> None:
    outside = write_aloha(tmp_path / "elsewhere.hdf5", frames=3)
    write_small(path, layout)
    with h5py.File(path, "a") as file:
        if place in file:
            del file[place]
        put(file, place, outside)
    with pytest.raises(SourceError, match="lies in another file") as caught:
        read(tmp_path)
    assert caught.value.reason == "external"


def test_a_link_to_a_whole_demonstration_elsewhere_is_refused(tmp_path: Path, path: Path) -> None:
    outside = write_robomimic(tmp_path / "elsewhere.hdf5", demos=(7,))
    write_small(path, "robomimic")
    with h5py.File(path, "a") as file:
        file["data/demo_2"] = h5py.ExternalLink(str(outside), "/data/demo_7")
    with pytest.raises(SourceError, match=r"/data/demo_2 lies in another file, .*elsewhere\.hdf5"):
        read(tmp_path)


def test_a_link_that_leads_out_through_another_demonstration_is_refused_before_that_is_read(
    tmp_path: Path, path: Path
) -> None:
    outside = write_aloha(tmp_path / "elsewhere.hdf5", frames=3)
    write_small(path, "robomimic")
    with h5py.File(path, "a") as file:
        file["data/demo_1/out"] = h5py.ExternalLink(str(outside), "/")
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = h5py.SoftLink("/data/demo_1/out/action")
    with pytest.raises(SourceError, match="/data/demo_0/actions lies in another file"):
        read(tmp_path)


def test_groups_that_hold_each_other_end(tmp_path: Path, path: Path) -> None:
    write_small(path, "aloha")
    with h5py.File(path, "a") as file:
        file["round/again"] = file["/"]
        file["round/and"] = h5py.SoftLink("/round")
    (episode,) = read(tmp_path)
    assert episode.attributes["round/again"] == "the same as /"
    assert episode.attributes["round/and"] == "the same as /round"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path, path: Path, layout: str, share: float) -> None:
    data = write_small(path, layout).read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(SourceError, match=r"Copy it again|Record it again") as caught:
        read_all(tmp_path)
    assert caught.value.reason in ("truncated", "unreadable")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flipped_bytes_give_a_reason_or_other_values_but_never_a_crash(tmp_path: Path, path: Path, layout: str) -> None:
    data = write_small(path, layout).read_bytes()
    # What is not zero is structure or values; of the model's long text one byte is as good as another.
    places = [at for at in range(len(data)) if data[at] and data[at : at + 7] not in b"<body/><body/>"]
    refused = set()
    for at in np.random.default_rng(0).choice(places, 70, replace=False):
        flipped = bytearray(data)
        flipped[at] ^= 0xFF
        path.write_bytes(bytes(flipped))
        try:
            read_all(tmp_path)
        except SourceError as error:
            refused.add(error.reason)
    assert "unreadable" in refused


@pytest.mark.timeout(30)
@pytest.mark.parametrize("room", [0, 1 << 40])
def test_a_heap_without_an_end_is_refused_and_not_read_for_ever(tmp_path: Path, path: Path, room: int) -> None:
    data = bytearray(write_small(path, "aloha").read_bytes())
    start = data.find(b"GCOL")
    at = start + 16
    while (index := int.from_bytes(data[at : at + 2], "little")) != 0:
        at += 16 + -(-int.from_bytes(data[at + 8 : at + 16], "little") // 8) * 8
    assert index == 0, "the room that is left in the heap"
    data[at + 8 : at + 16] = room.to_bytes(8, "little")
    path.write_bytes(bytes(data))
    with pytest.raises(SourceError, match=f"damaged heap of texts at byte {start}") as caught:
        read(tmp_path)
    assert caught.value.reason == "unreadable"


@pytest.mark.parametrize("is_too_long", [False, True])
def test_a_heap_that_claims_the_whole_file_takes_no_memory(tmp_path: Path, is_too_long: bool) -> None:
    size, path = 64 << 20, tmp_path / "x.hdf5"
    with path.open("wb") as file:
        object_size = size - 32 + 8 * is_too_long
        file.write(b"GCOL\x01\0\0\0" + struct.pack("<QHHIQ", size, 1, 1, 0, object_size))
        file.truncate(size)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="at byte 0") if is_too_long else nullcontext():
            check_heaps(path, "x.hdf5")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_names_and_texts_that_are_no_utf_8(tmp_path: Path, path: Path) -> None:
    write_small(path, "aloha")
    with h5py.File(path, "a") as file:
        file.attrs["operator"] = np.array("Jürgen".encode("latin-1"), "S")
        file["shift"] = np.array(["früh".encode("latin-1")] * 3, "S")
        h5py.h5a.create(file.id, "größe".encode("latin-1"), h5py.h5t.NATIVE_INT8, h5py.h5s.create(h5py.h5s.SCALAR))
    (episode,) = read(tmp_path)
    assert "J" in episode.attributes["operator"]
    json.dumps(episode.attributes, ensure_ascii=False).encode()
    assert [note.code for note in episode.notes] == ["left_out"]
    with h5py.File(path, "a") as file:
        file.create_dataset("größe".encode("latin-1"), data=np.zeros(3))
    with pytest.raises(SourceError, match="a name in / is no UTF-8 text") as caught:
        read(tmp_path)
    assert caught.value.reason == "unreadable"


def test_types_that_nothing_else_has(tmp_path: Path, path: Path) -> None:
    write_small(path, "aloha")
    with h5py.File(path, "a") as file:
        file["long"] = np.ones((3, 2), np.longdouble)
        file["long_one"] = np.longdouble(1.5)
        file["complex"] = np.ones(3, np.complex64)
        file["bits"] = np.zeros(3, "V5")
        file["flags"] = np.ones((3, 1, 2), np.bool_)
        lists = np.empty(2, object)
        lists[:] = [np.arange(1, dtype=np.int32), np.arange(2, dtype=np.int32)]
        file.attrs.create("lists", lists, dtype=h5py.vlen_dtype(np.int32))
    (episode,) = read(tmp_path)
    messages = {message.topic: json.loads(message.data)["value"] for message in episode.extra_messages()}
    assert messages == {
        "long": ["1.0", "1.0"],
        "complex": "(1+0j)",
        "bits": "\0" * 5,
        "flags": [[True, True]],
    }
    assert episode.attributes["long_one"] == "1.5"
    assert episode.notes[0].text == "/lists left out: an attribute that is a list of lists"

"""A damaged episode is refused with a sentence; it never gives other pictures or values than were written."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.writer import Writer

from megahour.episode import index as idx
from megahour.episode import tail, writer
from megahour.episode.check import check_bytes
from megahour.episode.model import EpisodeError
from megahour.episode.ranges import MemoryBytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.writer import write_episode
from tests.samples import FACTS, raw_episode


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
    with pytest.raises(EpisodeError, match="Upgrade") as caught:
        _content((tmp_path / "e.mcap").read_bytes())
    assert caught.value.reason == "version"


def test_a_damaged_index_is_refused() -> None:
    for data in (b"", b"nonsense", idx.zstandard.ZstdCompressor().compress(struct.pack("<I", 9) + b"{}")):
        with pytest.raises(EpisodeError) as caught:
            idx.unpack(data)
        assert caught.value.reason == "corrupt"


def test_the_index_returns_as_it_was(episode: bytes) -> None:
    index = EpisodeReader(MemoryBytes("e.mcap", episode)).index
    again = idx.unpack(idx.pack(index))
    assert (again.series, again.chunks, again.metadata_crc) == (index.series, index.chunks, index.metadata_crc)
    for one, other in zip(index.cameras, again.cameras, strict=True):
        for column in ("times_ns", "offsets", "lengths", "crcs", "keyframes"):
            assert np.array_equal(getattr(one, column), getattr(other, column))

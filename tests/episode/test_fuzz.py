"""Whatever happened to an episode's bytes, every read gives exactly what was written, or raises a sentence."""

from __future__ import annotations

import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megahour.episode import index as idx
from megahour.episode import tail, writer
from megahour.episode.check import check_bytes
from megahour.episode.model import EpisodeError
from megahour.episode.profile import MIXED
from megahour.episode.ranges import ByteSource, FileBytes, MappedBytes, MemoryBytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.salvage import salvage
from megahour.episode.writer import write_episode
from tests.episode.damage import Good, damaged_by, good_episodes, reads
from tests.samples import FACTS, raw_episode

CASES, BATCHES = 10_000, 40
CHECKED = 2_000
NAME = "fuzz.mcap"
SMALL_TAIL_BYTES = 400
SPARE_BYTES = 512 * 2**20


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> list[Good]:
    return list(good_episodes(tmp_path_factory.mktemp("good")).values())


def _cases(batch: int, cases: int, folder: Path) -> Iterator[int]:
    """The seeds of a batch. The one being tried is in the file `seed`: a crash leaves nothing else behind."""
    for seed in range(batch, cases, BATCHES):
        (folder / "seed").write_text(str(seed))
        yield seed


def _source(seed: int, data: bytes, folder: Path) -> ByteSource:
    kind = seed % 10
    if kind > 1:
        return MemoryBytes(NAME, data)
    (folder / NAME).write_bytes(data)
    return FileBytes(folder / NAME) if kind else MappedBytes(folder / NAME)


def _outcomes(source: ByteSource, good: Good, what: str) -> Iterator[str]:
    """Of opening and of every read: `raised`, or `right`; anything else fails the test."""
    try:
        reader = EpisodeReader(source)
        found = reads(reader)
    except EpisodeError as error:
        assert error.reason in ("corrupt", "truncated", "version") and NAME in str(error), (what, error)
        yield "not opened"
        return
    for name, read in found.items():
        try:
            answer = read()
        except EpisodeError as error:
            assert error.reason in ("corrupt", "truncated") and NAME in str(error), (what, name, error)
            yield "raised"
        else:
            assert answer == good.answers[name], f"{what}: '{name}' is not what was written, and nobody noticed"
            yield "right"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_damage_is_never_silent(
    goods: list[Good],
    batch: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    counts: Counter[str] = Counter()
    for seed in _cases(batch, CASES, tmp_path):
        # In half of the cases the tail holds the whole file, in the others next to nothing of it.
        monkeypatch.setattr(tail, "TAIL_BYTES", SMALL_TAIL_BYTES if seed // BATCHES % 2 else 64 * 1024)
        good = random.Random(seed).choice(goods)
        damage, data = damaged_by(seed, good)
        counts.update(_outcomes(_source(seed, data, tmp_path), good, f"seed {seed}, {damage}"))
    record_property("outcomes", dict(counts))
    assert min(counts["not opened"], counts["raised"], counts["right"]) > 20, counts


@pytest.mark.timeout(120)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_damage_escapes_the_check(goods: list[Good], batch: int, tmp_path: Path) -> None:
    """There are no bytes that nobody is meant to read: each is under a checksum, and the check reads them all."""
    for seed in _cases(batch, CHECKED, tmp_path):
        damage, data = damaged_by(10**6 + seed, random.Random(seed).choice(goods))
        assert check_bytes(NAME, data), f"seed {seed}, {damage}: the check finds nothing"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_is_saved_is_what_was_written(goods: list[Good], batch: int, tmp_path: Path) -> None:
    for seed in _cases(batch, CHECKED, tmp_path):
        good = random.Random(seed).choice(goods)
        damage, data = damaged_by(2 * 10**6 + seed, good)
        try:
            saved = salvage(NAME, data, FACTS).episode
        except EpisodeError as error:
            assert error.reason == "corrupt" and NAME in str(error)
            continue
        what = f"seed {seed}, {damage}"
        whole = True
        for camera in good.episode.cameras:
            written = dict(zip(camera.times_ns.tolist(), good.answers[f"coded {camera.name}"], strict=True))
            for kept in (each for each in saved.cameras if each.name == camera.name):
                assert kept.coded is not None
                pairs = list(zip(kept.times_ns.tolist(), kept.coded.units(), strict=True))
                assert all(written.pop(time_ns) == unit for time_ns, unit in pairs), f"{what}: '{camera.name}'"
            whole &= not written
        for series in good.episode.series:
            rows = dict(zip(series.times_ns.tolist(), series.values, strict=True))
            for mine in (each for each in saved.series if each.name == series.name):
                assert (mine.names, mine.values.dtype) == (series.names, series.values.dtype)
                found = zip(mine.times_ns.tolist(), mine.values, strict=True)
                assert all(rows.pop(time_ns).tobytes() == row.tobytes() for time_ns, row in found), what
            whole &= not rows
        left = list(good.episode.extra_messages())
        for message in saved.extra_messages():
            left.remove(message)
        note = saved.notes[-1].text
        assert (whole and not left) or "lost" in note or "not known" in note, f"{what}: a loss that no note tells"


@contextmanager
def _little_memory() -> Iterator[None]:
    """Half a GiB more than this process has, so that whoever believes an absurd size fails."""
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + SPARE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _first(columns: Any, value: int) -> Any:
    changed = columns.copy()
    changed[0] = value
    return changed


Change = Callable[[idx.EpisodeIndex], idx.EpisodeIndex]


def _camera(**changes: Any) -> Change:
    def change(index: idx.EpisodeIndex) -> idx.EpisodeIndex:
        one = index.cameras[0]
        made = {name: value(getattr(one, name)) if callable(value) else value for name, value in changes.items()}
        return replace(index, cameras=(replace(one, **made), *index.cameras[1:]))

    return change


def _chunk(**changes: Any) -> Change:
    return lambda index: replace(index, chunks=(replace(index.chunks[0], **changes), *index.chunks[1:]))


ABSURD: dict[str, Change] = {
    "a camera wider than any": _camera(width=2**31),
    "a camera without width": _camera(width=0),
    "a codec nobody has": _camera(codec="av1"),
    "a picture of 4 GiB": _camera(lengths=lambda column: _first(column, 2**32 - 1)),
    "a picture beyond the file": _camera(offsets=lambda column: _first(column, 2**62)),
    "a picture before the file": _camera(offsets=lambda column: _first(column, -5)),
    "times that go back": _camera(times_ns=lambda column: column[::-1]),
    "no keyframe": _camera(keyframes=np.zeros_like),
    "a chunk of a TiB": _chunk(size_bytes=2**40),
    "a chunk that unpacks to a TiB": _chunk(unpacked_bytes=2**40),
    "a chunk that unpacks to 2 GiB": _chunk(unpacked_bytes=2**31),
    "a chunk beyond the file": _chunk(offset=2**62),
    "a chunk of a negative size": _chunk(size_bytes=-1),
    "no chunks": lambda index: replace(index, chunks=()),
    "a series of strings": lambda index: replace(index, series=(replace(index.series[0], dtype="S99999999999"),)),
}


@pytest.mark.parametrize("kind", ABSURD)
def test_an_index_that_asks_for_too_much(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an index has a right checksum, so a program wrote it; it costs no memory and raises a sentence."""
    pack = idx.pack
    monkeypatch.setattr(writer.idx, "pack", lambda index: pack(ABSURD[kind](index)))
    write_episode(tmp_path / NAME, raw_episode(12, (32, 32)), FACTS, replace(MIXED, gop=4))
    monkeypatch.setattr(tail, "TAIL_BYTES", SMALL_TAIL_BYTES)
    refused = 0
    with _little_memory():
        for source in (FileBytes(tmp_path / NAME), MemoryBytes(NAME, (tmp_path / NAME).read_bytes())):
            try:
                found = list(reads(EpisodeReader(source)).values())
            except EpisodeError as error:
                assert error.reason == "corrupt"
                refused += 1
                continue
            for read in found:
                try:
                    read()
                except EpisodeError as error:
                    assert error.reason == "corrupt"
                    refused += 1
        assert check_bytes(NAME, (tmp_path / NAME).read_bytes())
    assert refused >= 2


@pytest.mark.parametrize("claimed", [2**33, 2**50, 2**63])
def test_packed_bytes_that_claim_too_much(claimed: int, tmp_path: Path) -> None:
    """zstd takes the memory that a frame claims before it looks at what is in it."""
    write_episode(tmp_path / NAME, raw_episode(12, (32, 32)), FACTS)
    data = (tmp_path / NAME).read_bytes()
    index = EpisodeReader(MemoryBytes(NAME, data)).index
    # A frame's head that gives its size in 8 bytes, and no more (RFC 8878, 3.1.1.1).
    frame = b"\x28\xb5\x2f\xfd\xe0" + claimed.to_bytes(8, "little")
    chunk = index.chunks[0]
    damaged = bytearray(data)
    damaged[chunk.offset : chunk.offset + len(frame)] = frame
    # The chunk's own record says the same: its size unpacked stands before its CRC, the compression's name and length.
    at = chunk.offset - 8 - 4 - 4 - 4 - 8
    damaged[at : at + 8] = claimed.to_bytes(8, "little")
    with _little_memory():
        with pytest.raises(EpisodeError) as caught:
            idx.unpack(frame)
        assert caught.value.reason == "corrupt"
        assert check_bytes(NAME, bytes(damaged))
        saved = salvage(NAME, bytes(damaged), FACTS).episode
    assert [len(camera.times_ns) for camera in saved.cameras] == [12, 12]
    assert saved.series == ()

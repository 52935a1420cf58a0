"""The episodes that benchmarks measure on: a real robot's, and simulated ones with a sensor's noise.

Pictures are decoded or rendered once and kept in the scratch folder, so that a benchmark pays for them once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import ROOT
from megahour.episode.h264 import scale_frames
from megahour.episode.model import Camera, EpisodeFacts, Frames, RawEpisode, Series
from megahour.files import write_atomically
from megahour.settings import Settings
from megahour.simulators.process import open_simulator
from megahour.sources import find_recordings, read_recording
from megahour.storage import list_files, open_lake, read_bytes

REAL = "unitree_g1_lerobot_v21"

CAMERAS = ("corner2", "gripper", "topview")
SIZE = (480, 640)
TASKS = ("stick-pull-v3", "assembly-v3", "drawer-open-v3")
STEPS_PER_FRAME = 3
MOST_FRAMES = 165
"""Meta-World ends an episode after 500 control steps."""
NOISE = 3.0
"""Standard deviation of the noise on each raw pixel, of 255: a small sensor indoors."""
SIMULATED_VERSION = 1


def facts(episode: RawEpisode, name: str) -> EpisodeFacts:
    """What the container's metadata says of an episode of a benchmark."""
    return EpisodeFacts(name, episode.robot, episode.task, "benchmark", "benchmark", episode.rate_hz, episode.success)


def samples_folder() -> Path:
    """The folder of real recordings, `$MEGAHOUR_SAMPLES` or `../shared/data`.

    Raises:
        SystemExit: it is not there.
    """
    folder = Path(os.environ.get("MEGAHOUR_SAMPLES", ROOT.parent / "shared" / "data"))
    if not (folder / REAL).is_dir():
        raise SystemExit(f"There are no real episodes in {folder / REAL}: set MEGAHOUR_SAMPLES to their folder")
    return folder


def scratch_folder() -> Path:
    """Where benchmarks keep what they made."""
    folder = Settings().scratch.resolve() / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def real_robot(count: int) -> tuple[RawEpisode, ...]:
    """The first `count` episodes of the Unitree G1, one camera of 640x480 at 30 Hz, 26 states and actions."""
    root = samples_folder()
    lake = open_lake(root.as_uri())
    found = find_recordings(list_files(lake, REAL), lambda key: read_bytes(lake, key))
    episodes: list[RawEpisode] = []
    for recording in found[:count]:
        (episode,) = read_recording(recording, root.joinpath)
        said = [(file.key, file.etag, file.size_bytes) for file in recording.files]
        folder = scratch_folder() / REAL / hashlib.sha256(repr((recording.uri, said)).encode()).hexdigest()[:16]
        episodes.append(replace(episode, cameras=tuple(_kept(camera, folder) for camera in episode.cameras)))
    return tuple(episodes)


def simulated(count: int, frames: int = MOST_FRAMES) -> tuple[RawEpisode, ...]:
    """`count` episodes of Meta-World: 3 cameras of 640x480 at 26.7 Hz, 4 states and actions at 80 Hz.

    A scripted expert does its task, then the hand wanders, so that something moves in every picture. On each picture
    lies the noise of a sensor behind a Bayer filter, independent from picture to picture.
    """
    episodes = []
    for number in range(count):
        folder = scratch_folder() / "simulated" / f"v{SIMULATED_VERSION}-{number}-{frames}"
        if not (folder / "done.json").exists():
            _simulate(TASKS[number % len(TASKS)], number, frames, folder)
        episodes.append(_simulated_episode(folder))
    return tuple(episodes)


def at_size(episode: RawEpisode, size: tuple[int, int]) -> RawEpisode:
    """The same episode as if its cameras had recorded at `size` (height, width)."""

    def small(camera: Camera) -> Camera:
        def frames() -> Iterator[Frames]:
            for picture in camera.frames():
                yield scale_frames(picture[None], size)[0]

        return replace(camera, height=size[0], width=size[1], frames=frames, coded=None)

    return replace(episode, cameras=tuple(small(camera) for camera in episode.cameras))


def _simulate(task: str, seed: int, frames: int, folder: Path) -> None:
    steps = frames * STEPS_PER_FRAME
    gl = Settings().mujoco_gl
    with open_simulator("metaworld", task, cameras=(), gl=gl) as hand:
        expert = hand.demonstrate(seed, seed, 0.0, steps, 0)
        actions = _wander(expert.action, steps, seed)
        hand.reset(seed, seed)
        states = [hand.reset(seed, seed).state] + [hand.step(action[None]).state for action in actions[:-1]]
    folder.mkdir(parents=True, exist_ok=True)
    with open_simulator("metaworld", task, size=SIZE, cameras=CAMERAS, gl=gl) as eyes:
        videos = {name: _create(folder / f"{name}.npy", (frames, *SIZE, 3)) for name in CAMERAS}
        seen = eyes.reset(seed, seed)
        for i in range(frames):
            for number, name in enumerate(CAMERAS):
                videos[name][i] = with_noise(seen.pictures[name], np.random.default_rng([seed, number, i]))
            if i + 1 < frames:
                seen = eyes.step(actions[i * STEPS_PER_FRAME : (i + 1) * STEPS_PER_FRAME])
        for video in videos.values():
            video.flush()
        said = {"task": task, "rate_hz": expert.rate_hz, **eyes.versions()}
    np.savez(folder / "rows.npz", state=np.stack(states), action=actions)
    write_atomically(folder / "done.json", json.dumps(said).encode())


def _wander(expert: NDArray[np.float32], steps: int, seed: int) -> NDArray[np.float32]:
    """The expert's actions, and then ones that drift: `(steps, 4)`."""
    random = np.random.default_rng(seed)
    actions = np.zeros((steps, 4), np.float32)
    pull = np.zeros(4)
    for i in range(steps):
        pull = 0.97 * pull + random.normal(0, 0.15, 4)
        actions[i] = expert[i] + random.normal(0, 0.05, 4) if i < len(expert) else pull
    return np.clip(actions, -1, 1)


def with_noise(picture: Frames, random: np.random.Generator) -> Frames:
    """A picture as a sensor with an RGGB filter saw it: noise on each raw pixel, colours interpolated between them."""
    height, width = picture.shape[:2]
    raw = random.normal(0, NOISE, (height, width)).astype(np.float32)
    rows, columns = np.mgrid[0:height, 0:width] % 2
    noise = np.empty((height, width, 3), np.float32)
    for channel, place in enumerate((rows + columns == 0, rows != columns, rows + columns == 2)):
        own = np.where(place, raw, 0)
        across = own + (np.roll(own, 1, 1) + np.roll(own, -1, 1)) / 2
        if channel == 1:
            noise[..., 1] = across + np.where(place, 0, (np.roll(own, 1, 0) + np.roll(own, -1, 0)) / 4 - across / 2)
        else:
            noise[..., channel] = across + (np.roll(across, 1, 0) + np.roll(across, -1, 0)) / 2
    seen: Frames = np.clip(np.rint(picture + noise), 0, 255).astype(np.uint8)
    return seen


def _simulated_episode(folder: Path) -> RawEpisode:
    said = json.loads((folder / "done.json").read_text())
    rows = np.load(folder / "rows.npz")
    rate_hz = float(said["rate_hz"])
    times_ns = np.round(np.arange(len(rows["state"])) * (1e9 / rate_hz)).astype(np.int64)
    cameras = []
    for name in CAMERAS:
        video = np.load(folder / f"{name}.npy", mmap_mode="r")
        cameras.append(Camera(name, SIZE[1], SIZE[0], times_ns[::STEPS_PER_FRAME], _frames_of(video)))
    series = (
        Series("state", times_ns, rows["state"], ("hand.x", "hand.y", "hand.z", "gripper")),
        Series("action", times_ns, rows["action"], ("dx", "dy", "dz", "grip")),
    )
    return RawEpisode(
        index=0,
        robot="sawyer",
        task=said["task"],
        rate_hz=rate_hz / STEPS_PER_FRAME,
        success=None,
        cameras=tuple(cameras),
        series=series,
    )


def _kept(camera: Camera, folder: Path) -> Camera:
    """The same camera, its pictures decoded once and kept in `folder`. Their coded form is left behind."""
    path = folder / f"{camera.name}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.tmp")
        video = _create(partial, (len(camera.times_ns), camera.height, camera.width, 3))
        for i, picture in enumerate(camera.frames()):
            video[i] = picture
        video.flush()
        partial.replace(path)
    return replace(camera, frames=_frames_of(np.load(path, mmap_mode="r")), coded=None)


def _create(path: Path, shape: tuple[int, ...]) -> Any:
    return np.lib.format.open_memmap(path, "w+", np.uint8, shape)


def _frames_of(video: Frames) -> Callable[[], Iterator[Frames]]:
    def frames() -> Iterator[Frames]:
        for picture in video:
            yield np.asarray(picture)

    return frames

"""Records demonstrations of a simulator's scripted expert, one HDF5 per episode in the ALOHA layout."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import h5py

from megahour.files import sync_directory, sync_file
from megahour.simulators.model import Demonstration
from megahour.simulators.process import Simulator, open_simulator

ACTION_NOISE = 0.15
"""Standard deviation of the noise on executed actions: the expert then shows how to come back."""
MAX_STEPS = 300
STEPS_AFTER_SUCCESS = 10


class RecordingError(ValueError):
    """Recording cannot go on; the message says which file is in the way."""


@dataclass(frozen=True)
class RecordedEpisode:
    """One finished file, its control steps, and success at any of them; `written` is false for one kept from before."""

    path: Path
    success: bool
    steps: int
    written: bool = True


def record(
    task: str,
    episodes: int,
    seed: int,
    out: Path,
    *,
    first_init_state: int = 0,
    simulator: str = "metaworld",
    size: tuple[int, int] = (128, 128),
    cameras: tuple[str, ...] = ("corner2", "gripper"),
    workers: int = 2,
    gl: str = "egl",
) -> Iterator[RecordedEpisode]:
    """Record `episodes` demonstrations into `out`, and yield each in order as its file is finished.

    Episode i starts from init state `first_init_state + i`; `seed` draws the noise. A file that is finished is kept,
    so an interrupted recording goes on where it was; the same arguments give the same bytes. A demonstration that
    fails is recorded with `success` false.

    Args:
        size: (height, width) of the pictures.
        workers: simulator processes.
        gl: OpenGL of the simulator, `egl` or `osmesa`.

    Raises:
        RecordingError: a file in `out` comes from other arguments.
        SimulatorError: the simulator did not start, or failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"episode_{index:06d}.hdf5" for index in range(episodes)]
    facts: list[dict[str, str | int]] = [
        {"task": task, "simulator": simulator, "init_state": first_init_state + index, "seed": seed}
        for index in range(episodes)
    ]
    pictures: dict[str, tuple[int, ...]] = dict.fromkeys(cameras, (*size, 3))
    finished = {index: _finished(path, facts[index], pictures) for index, path in enumerate(paths) if path.exists()}
    idle: queue.SimpleQueue[Simulator] = queue.SimpleQueue()
    opened: list[Simulator] = []

    def make(index: int) -> RecordedEpisode:
        if index in finished:
            return finished[index]
        try:
            expert = idle.get_nowait()
        except queue.Empty:
            expert = open_simulator(simulator, task, size=size, cameras=cameras, gl=gl)
            opened.append(expert)
        start = first_init_state + index
        demonstration = expert.demonstrate(start, seed, ACTION_NOISE, MAX_STEPS, STEPS_AFTER_SUCCESS)
        write_recording(paths[index], demonstration, {**facts[index], **expert.versions()})
        idle.put(expert)
        return RecordedEpisode(paths[index], any(demonstration.success), len(demonstration.success))

    try:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(make, range(episodes))
    finally:
        for each in opened:
            each.close()


def write_recording(path: Path, demonstration: Demonstration, facts: dict[str, str | int]) -> None:
    """Write one demonstration so that `path` is whole or absent.

    Layout: `/observations/images/<camera>` uint8 (n, height, width, 3), one chunk per frame; `/observations/qpos` and
    `/action` float32 (n, 4); root attributes `sim`, `robot`, `task`, `success`, `rate_hz`, `action_noise` and `facts`.
    The layout is that of ALOHA (github.com/tonyzhaozh/act).
    """
    partial = path.with_name(f".{path.name}.tmp")
    with h5py.File(partial, "w") as file:
        for camera, frames in demonstration.pictures.items():
            # gzip, for lzf's bytes depend on what its memory held before.
            file.create_dataset(
                f"observations/images/{camera}",
                data=frames,
                chunks=(1, *frames.shape[1:]),
                compression="gzip",
                compression_opts=1,
            )
        file["observations/qpos"] = demonstration.state
        file["action"] = demonstration.action
        file.attrs["sim"] = True
        file.attrs["robot"] = demonstration.robot
        file.attrs["success"] = any(demonstration.success)
        file.attrs["rate_hz"] = demonstration.rate_hz
        file.attrs["action_noise"] = ACTION_NOISE
        for name, value in facts.items():
            file.attrs[name] = value
    sync_file(partial)
    partial.replace(path)
    sync_directory(path.parent)


def _finished(path: Path, facts: dict[str, str | int], pictures: dict[str, tuple[int, ...]]) -> RecordedEpisode:
    try:
        with h5py.File(path, "r") as file:
            found = {name: file.attrs.get(name) for name in facts}
            differing = [f"{name} is {found[name]}, not {facts[name]}" for name in facts if found[name] != facts[name]]
            there = {camera: images.shape[1:] for camera, images in file.get("observations/images", {}).items()}
            if there != pictures:
                differing.append(f"its pictures are {there}, not {pictures}")
            if differing:
                raise RecordingError(f"{path} is another recording: {', '.join(differing)}. Choose another folder")
            return RecordedEpisode(path, bool(file.attrs["success"]), int(file["action"].shape[0]), written=False)
    except OSError as error:
        raise RecordingError(f"{path} is not an HDF5 file ({error}). Remove it, or choose another folder") from error

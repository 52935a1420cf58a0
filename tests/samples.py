"""Inputs of tests: the real recordings beside the repository, and small synthetic ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from megahour.episode.model import Camera, EpisodeFacts, Frames, Note, RawEpisode, Series

G1 = "unitree_g1_lerobot_v21"
FACTS = EpisodeFacts("0123456789abcdef", "sawyer", "press the button", "lab", "aloha_hdf5", 30.0, True, {"seed": "7"})


def samples_dir() -> Path:
    """The folder of real recordings, `$MEGAHOUR_SAMPLES` or `../shared/data`; skips the test where it is missing."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MEGAHOUR_SAMPLES", default))
    if not folder.is_dir():
        pytest.skip(f"the real recordings are not here ({folder}); set MEGAHOUR_SAMPLES to their folder")
    return folder


def copy_g1(target: Path, episodes: Sequence[int] = range(6)) -> Path:
    """Copy these episodes of the real G1 dataset to the folder `target`, metadata last; returns `target`."""
    source = samples_dir() / G1
    wanted = tuple(f"episode_{episode:06d}." for episode in episodes)
    for path in sorted(source.rglob("episode_*.*")):
        if path.name.startswith(wanted):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    (target / "meta").mkdir(parents=True, exist_ok=True)
    lines = (source / "meta" / "episodes.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["episode_index"] in episodes]
    (target / "meta" / "episodes.jsonl").write_text("".join(line + "\n" for line in kept))
    for name in ("tasks.jsonl", "info.json"):
        shutil.copyfile(source / "meta" / name, target / "meta" / name)
    return target


def drop_last_frame(path: Path) -> None:
    """Write a video anew without its last coded frame."""
    import av

    partial = path.with_name(path.name + ".part")
    with av.open(str(path)) as source, av.open(str(partial), "w", format="mp4") as target:
        stream = target.add_stream_from_template(source.streams.video[0], opaque=True)
        packets = [packet for packet in source.demux(video=0) if packet.size]
        for packet in packets[:-1]:
            packet.stream = stream
            target.mux(packet)
    partial.replace(path)


def pictures(frames: int, height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """A smooth background and a square that moves, `(frames, height, width, 3)`."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    phase = rng.uniform(0, 6, 3)
    base = np.stack([110 + 70 * np.sin(x / width * 4 + y / height * 3 + p) for p in phase], axis=-1)
    video = np.repeat(base[None], frames, axis=0)
    side = max(2, min(height, width) // 4)
    for i in range(frames):
        top, left = (3 * i) % max(1, height - side), (2 * i) % max(1, width - side)
        video[i, top : top + side, left : left + side] = rng.integers(60, 200)
    return video.astype(np.uint8)


def camera(name: str, video: NDArray[np.uint8], rate_hz: float = 30.0) -> Camera:
    """A camera that shows `video`."""
    times_ns = np.round(np.arange(len(video)) * (1e9 / rate_hz)).astype(np.int64)

    def frames() -> Iterator[NDArray[np.uint8]]:
        yield from video

    return Camera(name, video.shape[2], video.shape[1], times_ns, frames)


def series(name: str, rows: int, columns: int, rate_hz: float = 30.0, seed: int = 0, dtype: Any = np.float32) -> Series:
    """A low-dimensional topic of random values."""
    times_ns = np.round(np.arange(rows) * (1e9 / rate_hz)).astype(np.int64)
    values = np.random.default_rng(seed).normal(size=(rows, columns)).astype(dtype)
    return Series(name, times_ns, values, tuple(f"{name}_{i}" for i in range(columns)))


def raw_episode(
    frames: int = 24, size: tuple[int, int] = (48, 64), cameras: Sequence[str] = ("front", "wrist")
) -> RawEpisode:
    """A small episode with `state` (4 values) and `action` (3 values)."""
    return RawEpisode(
        index=0,
        robot="sawyer",
        task="press the button",
        rate_hz=30.0,
        success=True,
        cameras=tuple(camera(name, pictures(frames, *size, seed=i)) for i, name in enumerate(cameras)),
        series=(series("state", frames, 4, seed=1), series("action", frames, 3, seed=2)),
        notes=(Note("left_out", "no force sensor"),),
    )


def write_aloha(
    path: Path,
    frames: int = 24,
    size: tuple[int, int] = (48, 64),
    cameras: Sequence[str] = ("front", "wrist"),
    seed: int = 0,
    **attributes: Any,
) -> Path:
    """Write an HDF5 file in the ALOHA layout. Root attributes can be replaced, or left out with None."""
    import h5py

    facts = {"sim": True, "robot": "sawyer", "task": "press-button", "success": True, "rate_hz": 20.0, **attributes}
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, value in facts.items():
            if value is not None:
                file.attrs[name] = value
        for i, name in enumerate(cameras):
            file.create_dataset(
                f"observations/images/{name}",
                data=pictures(frames, *size, seed=seed + i),
                chunks=(1, *size, 3),
                compression="lzf",
            )
        file["observations/qpos"] = series("state", frames, 4, seed=seed).values
        file["action"] = series("action", frames, 3, seed=seed + 1).values
    return path


def psnr_db(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Peak signal-to-noise ratio of pictures of equal shape, in dB."""
    difference = one.astype(np.int32) - other
    error = float(np.mean(difference * difference))
    return float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))


def rgb(frame: av.VideoFrame) -> Frames:
    """A decoded frame as `(height, width, 3)` uint8."""
    return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)

"""Inputs of tests: the real recordings beside the repository, and small synthetic ones."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from megahour.episode.h264 import Settings, encode
from megahour.episode.model import Camera, Coded, EpisodeFacts, Frames, Note, RawEpisode, Series, TimesNs
from megahour.episode.ranges import Buffer, ByteSource

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


def numbered(count: int, height: int = 48, width: int = 64) -> NDArray[np.uint8]:
    """Pictures that show their number as 12 black or white squares, `(count, height, width, 3)`; see `number_of`."""
    bits = (np.arange(count)[:, None] >> np.arange(12)) & 1
    rows, columns = np.arange(height) * 3 // height, np.arange(width) * 4 // width
    grey = (40 + 180 * bits.reshape(count, 3, 4)[:, rows][:, :, columns]).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=-1)


def number_of(picture: NDArray[np.uint8]) -> int:
    """The number that a picture of `numbered` shows, whatever its size and however it was coded."""
    rows = np.array_split(picture.mean(axis=-1), 3)
    bits = [square.mean() > 130 for row in rows for square in np.array_split(row, 4, axis=1)]
    return sum(int(bit) << i for i, bit in enumerate(bits))


def jittered_ns(count: int, rate_hz: float, jitter: float = 0.2, seed: int = 0, start_ns: int = 0) -> TimesNs:
    """Times that wander by up to `jitter` of a period, strictly increasing, `(count,)`."""
    periods = np.arange(count) + np.random.default_rng(seed).uniform(0, jitter, count)
    return start_ns + np.round(periods * (1e9 / rate_hz)).astype(np.int64)


def random_series(name: str, rows: int, columns: int, rate_hz: float = 100.0, seed: int = 0) -> Series:
    """A series of float64 that no compressor makes small: 8 bytes a value."""
    values = np.random.default_rng(seed).uniform(-1, 1, (rows, columns))
    return replace(series(name, rows, columns, rate_hz), values=values)


def jpeg_camera(name: str, video: NDArray[np.uint8], quality: int = 90, subsampling: int = 2) -> Camera:
    """A camera whose source holds JPEG files; `frames()` are those decoded."""
    from PIL import Image

    files = []
    for picture in video:
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "JPEG", quality=quality, subsampling=subsampling)
        files.append(out.getvalue())

    def frames() -> Iterator[Frames]:
        for data in files:
            yield np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    return replace(camera(name, video), frames=frames, coded=Coded("jpeg", lambda: iter(files)))


def h264_camera(name: str, video: NDArray[np.uint8], gop: int = 6) -> Camera:
    """A camera whose source holds H.264, a keyframe every `gop` pictures; `frames()` are the pictures before that."""
    keyframes = [i % gop == 0 for i in range(len(video))]
    units = [unit.data for unit in encode(video, video.shape[1:3], keyframes, Settings(30.0, 18, "veryfast"))]
    return replace(camera(name, video), coded=Coded("h264", lambda: iter(units)))


class CountingBytes:
    """Another source of bytes that remembers what was asked of it: `tails`, and per call of `read` its ranges."""

    def __init__(self, source: ByteSource) -> None:
        self.name = source.name
        self._source = source
        self.tails: list[int] = []
        self.reads: list[list[tuple[int, int]]] = []

    def tail(self, length: int) -> tuple[Buffer, int]:
        self.tails.append(length)
        return self._source.tail(length)

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[Buffer]:
        self.reads.append(list(zip(starts, ends, strict=True)))
        return self._source.read(starts, ends)


def write_robomimic(
    path: Path, demos: Sequence[int] = (0, 1, 2, 10), steps: int = 6, size: tuple[int, int] = (24, 32)
) -> Path:
    """Write an HDF5 file in the robomimic layout, as robosuite's demonstrations of `Lift` are, with two cameras."""
    import h5py

    env_kwargs = {"robots": ["Panda"], "control_freq": 25, "reward_shaping": False}
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = steps * len(demos)
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": env_kwargs})
        for demo in demos:
            group = data.create_group(f"demo_{demo}")
            group.attrs["num_samples"] = steps
            group.attrs["model_file"] = f"<mujoco model='{demo}'>" + "<body/>" * 20_000 + "</mujoco>"
            rng = np.random.default_rng(demo)
            rows = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "object": 10}
            obs: dict[str, NDArray[Any]] = {name: rng.normal(size=(steps + 1, d)) for name, d in rows.items()}
            for i, camera in enumerate(("agentview", "robot0_eye_in_hand")):
                obs[f"{camera}_image"] = pictures(steps + 1, *size, seed=demo + i)
            for name, values in obs.items():
                group[f"obs/{name}"] = values[:-1]
                group[f"next_obs/{name}"] = values[1:]
            group["actions"] = rng.uniform(-1, 1, (steps, 7))
            group["states"] = rng.normal(size=(steps, 32))
            group["rewards"] = np.eye(1, steps, steps - 1)[0]
            group["dones"] = np.eye(1, steps, steps - 1, dtype=np.int64)[0]
        names = np.array([f"demo_{demo}" for demo in demos], "S8")
        file["mask/train"], file["mask/valid"] = names[:-1], names[-1:]
    return path


def rlds_tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    """A tensor as `features.json` describes it; -1 for a dimension that is not known before."""
    return {
        "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
        "tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encoding": encoding},
    }


def rlds_image(*shape: int, dtype: str = "uint8", encoding: str = "png") -> dict[str, Any]:
    """A picture as `features.json` describes it."""
    return {
        "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
        "image": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encodingFormat": encoding},
    }


def rlds_text() -> dict[str, Any]:
    """A text as `features.json` describes it."""
    return {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}


def rlds_dict(**features: Any) -> dict[str, Any]:
    """A table of features as `features.json` describes it."""
    name = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": features}}


def rlds_sequence(feature: dict[str, Any], kind: str = "dataset_feature.Dataset") -> dict[str, Any]:
    """A sequence, such as the steps, as `features.json` describes it."""
    name = f"tensorflow_datasets.core.features.{kind}"
    return {"pythonClassName": name, "sequence": {"feature": feature, "length": "-1"}}


def write_tfrecord(path: Path, records: Sequence[dict[str, list[Any]]]) -> Path:
    """Write a TFRecord file of `tf.train.Example`: each record is a table of lists of bytes, floats or integers."""
    from megahour.sources.rlds.example import example_class
    from megahour.sources.rlds.tfrecord import masked_crc

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        for record in records:
            example = example_class()()
            for name, values in record.items():
                feature = example.features.feature[name]
                first = values[0] if len(values) else 0
                if isinstance(first, bytes):
                    feature.bytes_list.value.extend(values)
                elif isinstance(first, float | np.floating):
                    feature.float_list.value.extend(values)
                else:
                    feature.int64_list.value.extend(values)
            data = example.SerializeToString(deterministic=True)
            head = len(data).to_bytes(8, "little")
            for part in (head, masked_crc(head).to_bytes(4, "little"), data, masked_crc(data).to_bytes(4, "little")):
                out.write(part)
    return path


def careful_rgb(frame: av.VideoFrame) -> Frames:
    """A decoded frame of an episode as RGB, as exactly as swscale can: BT.601, limited range, bicubic colour planes."""
    from av.video.reformatter import Colorspace, Interpolation, VideoReformatter

    how = Interpolation.BICUBIC | Interpolation.ACCURATE_RND
    how |= Interpolation.FULL_CHR_H_INP | Interpolation.FULL_CHR_H_INT
    pixels: Any = VideoReformatter().reformat(
        frame, format="rgb24", src_colorspace=Colorspace.ITU601, src_color_range=1, interpolation=how
    )
    return np.asarray(pixels.to_ndarray(), np.uint8)

"""ALOHA HDF5: one file per episode, `/observations/images/<camera>`, `/observations/qpos`, `/action`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.episode.model import Camera, Frames, Note, RawEpisode, Series
from megahour.sources.model import Recording, SourceError

if TYPE_CHECKING:
    import h5py

FORMAT = "aloha_hdf5"
ALOHA_RATE_HZ = 50.0
"""The control rate of ALOHA's own recorder, which does not write it down."""

SERIES = {
    "observations/qpos": "state",
    "action": "action",
    "observations/qvel": "qvel",
    "observations/effort": "effort",
    "base_action": "base_action",
}
FACTS = ("robot", "task", "success", "rate_hz")
SUCCESS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
RATES_HZ = (0.001, 1_000_000.0)
"""Rates that a recording may have: the times of any other do not fit nanoseconds."""


def read(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The one episode of a file.

    Root attributes `robot`, `task`, `success` and `rate_hz` are its facts, others are kept as text. Pictures are uint8
    `(T, H, W, 3)` RGB, or with `compress=True` JPEG `(T, pad)`; JPEG files of ALOHA's recorder have red and blue
    swapped, and are swapped back unless the attribute `jpeg_order` says `rgb`.

    Raises:
        SourceError: `truncated`, `unreadable`, `missing_feature`, `feature_mismatch`, `frame_count` or `empty`.
    """
    key = recording.files[0].key
    path = local(key)
    with _open(path, key) as file:
        attributes = {name: _plain(value) for name, value in file.attrs.items() if not _is_empty(value)}
        length = _length(file, key)
        rate_hz = _rate_hz(attributes, key)
        times_ns = np.round(np.arange(length) * (1e9 / rate_hz)).astype(np.int64)
        notes = []
        if "rate_hz" not in attributes:
            notes.append(Note("rate_guessed", f"no rate_hz in the file: {ALOHA_RATE_HZ:g} Hz taken, as ALOHA"))
        episode = RawEpisode(
            index=0,
            format=FORMAT,
            robot=str(attributes.get("robot", "aloha")),
            task=str(attributes.get("task", _folder(key))),
            rate_hz=rate_hz,
            success=_success(attributes, key),
            cameras=tuple(_cameras(file, path, key, times_ns, attributes, notes)),
            series=tuple(_series(file, key, times_ns)),
            attributes={name: str(value) for name, value in attributes.items() if name not in FACTS},
            notes=tuple(notes),
        )
    yield episode


def _open(path: Path, key: str) -> h5py.File:
    import h5py

    try:
        return h5py.File(path, "r")
    except OSError as error:
        if "truncated file" in str(error):
            raise SourceError(
                "truncated",
                f"{key} is cut short: it has {path.stat().st_size} bytes, fewer than it says itself. "
                f"Copy it again from where it was recorded ({error})",
            ) from error
        if path.stat().st_size == 0:
            raise SourceError(
                "truncated", f"{key} is an empty file. Copy it again from where it was recorded"
            ) from error
        text = str(error).replace(str(path), key)
        raise SourceError("unreadable", f"{key} cannot be read as HDF5: {text}. Record it again") from error


def _length(file: h5py.File, key: str) -> int:
    """The number of steps, on which all topics must agree."""
    for needed in ("action", "observations/qpos"):
        if file.get(needed) is None:
            raise SourceError("missing_feature", f"{key} has no /{needed}: it is not an episode in the ALOHA layout")
    data = {f"/{name}": file.get(name) for name in SERIES if name in file}
    data |= {f"/observations/images/{name}": each for name, each in _image_sets(file, key).items()}
    for name, each in data.items():
        if not getattr(each, "shape", None):
            raise SourceError("feature_mismatch", f"{key}: {name} is no array with an entry for each step")
    lengths = {name: each.shape[0] for name, each in data.items()}
    length = int(lengths["/action"])
    if length == 0:
        raise SourceError("empty", f"{key} has no steps: its /action is empty")
    others = {name: n for name, n in lengths.items() if n != length}
    if others:
        name, n = next(iter(others.items()))
        raise SourceError("frame_count", f"{key} has {length} actions, but {n} entries in {name}: they must be as many")
    return length


def _image_sets(file: h5py.File, key: str) -> dict[str, Any]:
    images = file.get("observations/images")
    if images is None:
        return {}
    if not hasattr(images, "keys"):
        raise SourceError("feature_mismatch", f"{key}: /observations/images is no folder with a dataset per camera")
    return {name: images.get(name) for name in sorted(images)}


def _series(file: h5py.File, key: str, times_ns: Any) -> Iterator[Series]:
    for dataset, name in SERIES.items():
        if dataset not in file:
            continue
        values = _load(file[dataset], slice(None), key)
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or values.shape[1] == 0 or not np.issubdtype(values.dtype, np.floating):
            raise SourceError(
                "feature_mismatch",
                f"{key}: /{dataset} is {values.dtype} {values.shape}, expected floats (steps, values)",
            )
        # float16 widens to float32 exactly.
        values = values.astype(np.float32 if values.dtype.itemsize <= 4 else np.float64)
        yield Series(name, times_ns, values, tuple(f"{name}_{i}" for i in range(values.shape[1])))


def _cameras(
    file: h5py.File, path: Path, key: str, times_ns: Any, attributes: dict[str, Any], notes: list[Note]
) -> Iterator[Camera]:
    swap = str(attributes.get("jpeg_order", "bgr")) != "rgb"
    for name, data in _image_sets(file, key).items():
        if data.ndim == 4 and data.shape[3] == 3 and data.dtype == np.uint8:
            height, width = int(data.shape[1]), int(data.shape[2])
            if not height or not width:
                raise SourceError("feature_mismatch", f"{key}: pictures of camera {name} are {width}x{height}: empty")
        elif data.ndim == 2 and data.dtype == np.uint8:
            height, width = _jpeg(_load(data, 0, key), swap, key).shape[:2]
            if swap:
                text = f"camera {name}: JPEG taken as ALOHA writes it, with red and blue swapped"
                notes.append(Note("jpeg_order_guessed", text))
        else:
            text = f"camera {name} left out: {data.dtype} {data.shape} is not colour pictures"
            notes.append(Note("left_out", text))
            continue
        yield Camera(name, width, height, times_ns, _frames(path, key, name, swap))


def _frames(path: Path, key: str, name: str, swap: bool) -> Callable[[], Iterator[Frames]]:
    def frames() -> Iterator[Frames]:
        with _open(path, key) as file:
            data = file[f"observations/images/{name}"]
            for i in range(data.shape[0]):
                picture = _load(data, i, key)
                yield picture if data.ndim == 4 else _jpeg(picture, swap, key)

    return frames


def _load(dataset: Any, where: Any, key: str) -> Any:
    try:
        return dataset[where]
    except (OSError, RuntimeError) as error:
        raise SourceError("unreadable", f"{key}: {dataset.name} is damaged and cannot be read: {error}") from error


def _jpeg(padded: Any, swap: bool, key: str) -> Frames:
    from PIL import Image

    try:
        picture = np.asarray(Image.open(io.BytesIO(padded.tobytes())).convert("RGB"))
    except OSError as error:
        raise SourceError("unreadable", f"{key} has a picture that is not a JPEG: {error}") from error
    return np.ascontiguousarray(picture[:, :, ::-1]) if swap else picture


def _rate_hz(attributes: dict[str, Any], key: str) -> float:
    said = attributes.get("rate_hz", ALOHA_RATE_HZ)
    try:
        rate_hz = float(said)
    except (TypeError, ValueError):
        rate_hz = 0.0
    low, high = RATES_HZ
    if not low <= rate_hz <= high:
        raise SourceError(
            "feature_mismatch", f"{key} has the rate {said!r}: `rate_hz` must be a number from {low:g} to {high:g}"
        )
    return rate_hz


def _success(attributes: dict[str, Any], key: str) -> bool | None:
    """What the file says; a text such as `False` is not taken for true."""
    if "success" not in attributes:
        return None
    said = SUCCESS.get(str(attributes["success"]).strip().lower())
    if said is None:
        raise SourceError(
            "feature_mismatch", f"{key} has the success {attributes['success']!r}: `success` must be true or false"
        )
    return said


def _is_empty(value: Any) -> bool:
    import h5py

    return isinstance(value, h5py.Empty)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if isinstance(value, np.generic) else value


def _folder(key: str) -> str:
    """The task of a file that does not say: the name of its folder."""
    return Path(key).parent.name

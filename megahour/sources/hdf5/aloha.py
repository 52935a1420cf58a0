"""ALOHA HDF5: one file per episode, `/observations/images/<camera>`, `/observations/qpos`, `/action`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.episode.model import RawEpisode
from megahour.sources.hdf5.file import Survey, column, opened, survey
from megahour.sources.hdf5.gather import add_dataset, add_facts, note_blank_cameras, text_of
from megahour.sources.model import SourceError
from megahour.sources.options import Options
from megahour.sources.steps import (
    Gathered,
    add_column,
    add_picture_files,
    add_series,
    rate_of,
    steps_of,
    success_of,
    times_of,
)

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
ACTIONS = ("action", "base_action")
IMAGES, OBSERVATIONS, JPEG_LENGTHS = "observations/images", "observations/", "compress_len"
FACTS = ("robot", "task", "success", "rate_hz", "jpeg_order")


def read(path: Path, key: str, options: Options) -> RawEpisode:
    """The one episode of a file.

    Root attributes `robot`, `task`, `success` and `rate_hz` are its facts; `options` stand in for them. Pictures are
    uint8 `(T, H, W, 3)` RGB, or with `compress=True` JPEG `(T, pad)`. Recorders that hand RGB to OpenCV's encoder store
    JPEG with red and blue swapped, as ALOHA's does: swapped back unless the option or the root attribute `jpeg_order`
    says `rgb`. What the layout does not name is kept as `megahour.sources.steps` sorts it.

    Raises:
        SourceError: `truncated`, `unreadable`, `external`, `missing_feature`, `feature_mismatch`, `frame_count` or
            `empty`.
    """
    with opened(path, key) as file:
        found = survey(file, key)
        pictured = [place for place, first in found.aliases.items() if _is_picture(place) and not _is_picture(first)]
        for place in (*SERIES, *pictured):
            found.call(place, keep=SERIES)
        facts = {name: found.attributes[name] for name in FACTS if name in found.attributes}
        steps, trailing = _steps(found, key)
        rate_hz = _rate_hz(facts, options, key)
        into = Gathered(times_of(steps, rate_hz or ALOHA_RATE_HZ))
        if rate_hz is None:
            into.note("rate_guessed", f"no rate_hz in the file: {ALOHA_RATE_HZ:g} Hz taken, as ALOHA")
        if trailing:
            into.note("trimmed", f"observations have an entry more than the {steps} actions: the last one is left out")
        _add_series(into, found, path, key)
        _add_cameras(into, found, path, key, _order(facts, options, key))
        _add_rest(into, found, file, path, key, (steps, steps + 1) if trailing else (steps,))
        add_facts(into, found, without=FACTS)
    note_blank_cameras(into)
    return RawEpisode(
        index=0,
        format=FORMAT,
        robot=text_of(facts["robot"]) if "robot" in facts else options.robot or "aloha",
        task=text_of(facts["task"]) if "task" in facts else options.task or Path(key).parent.name,
        rate_hz=rate_hz or ALOHA_RATE_HZ,
        success=_success(facts, key),
        cameras=tuple(into.cameras),
        series=tuple(into.series),
        attributes=into.attributes,
        notes=tuple(into.notes),
        extras=tuple(into.extras),
        extra_messages=into.messages(),
    )


def _is_picture(place: str) -> bool:
    return place.rpartition("/")[0] == IMAGES


def _steps(found: Survey, key: str) -> tuple[int, bool]:
    """The number of steps, on which all topics must agree; and whether observations have one more."""
    for needed in ("action", "observations/qpos"):
        if needed not in found.datasets and needed not in found.groups:
            raise SourceError("missing_feature", f"{key} has no /{needed}: it is not an episode in the ALOHA layout")
    if IMAGES in found.datasets:
        raise SourceError("feature_mismatch", f"{key}: /{IMAGES} is no folder with a dataset per camera")
    topics = [name for name in SERIES if name in found.datasets or name in found.groups]
    members = found.groups | found.datasets.keys() | found.unusable.keys() | found.aliases.keys()
    topics += sorted(name for name in members if _is_picture(name))
    for name in topics:
        if name not in found.aliases and (name not in found.datasets or found.datasets[name].length < 0):
            raise SourceError("feature_mismatch", f"{key}: /{name} is no array with an entry for each step")
    lengths = {name: found.datasets[name].length for name in topics if name in found.datasets}
    return steps_of(
        {f"/{name}": n for name, n in lengths.items() if name in ACTIONS},
        {f"/{name}": n for name, n in lengths.items() if name not in ACTIONS},
        key,
    )


def _add_series(into: Gathered, found: Survey, path: Path, key: str) -> None:
    for place, name in SERIES.items():
        dataset = found.datasets.get(place)
        if dataset is None:
            continue
        each = column(path, key, dataset, len(into.times_ns), name)
        if each.is_floats and len(each.shape) <= 1:
            add_series(into, name, [each])
        elif name in ("state", "action"):
            raise SourceError(
                "feature_mismatch",
                f"{key}: /{place} is {dataset.dtype} {dataset.shape}, expected floats (steps, values)",
            )
        else:
            add_column(into, each)


def _add_cameras(into: Gathered, found: Survey, path: Path, key: str, order: str | None) -> None:
    for name, dataset in sorted(found.below(IMAGES).items()):
        each = column(path, key, dataset, len(into.times_ns), name, pictured=True)
        if len(each.shape) == 3 and 0 in each.shape[:2]:
            height, width = each.shape[:2]
            raise SourceError("feature_mismatch", f"{key}: pictures of camera {name} are {width}x{height}: empty")
        padded = each.dtype == np.uint8 and len(each.shape) == 1
        if padded or (each.shape == () and each.dtype.kind in "SVO"):
            add_picture_files(into, each, name, swap=order != "rgb")
            if order is None:
                text = f"camera {name}: JPEG taken as ALOHA writes it, with red and blue swapped"
                into.note("jpeg_order_guessed", text)
        else:
            add_column(into, each)


def _add_rest(into: Gathered, found: Survey, file: h5py.File, path: Path, key: str, lengths: tuple[int, ...]) -> None:
    for place, dataset in sorted(found.datasets.items()):
        # The lengths of JPEG files say again what their trailing zeros say.
        if place in SERIES or place.startswith(f"{IMAGES}/") or place == JPEG_LENGTHS:
            continue
        allowed = lengths if place.startswith(OBSERVATIONS) else lengths[:1]
        add_dataset(into, file, path, key, dataset, place.removeprefix(OBSERVATIONS), allowed)


def _rate_hz(facts: dict[str, Any], options: Options, key: str) -> float | None:
    if "rate_hz" in facts:
        return rate_of(facts["rate_hz"], f"{key}: the attribute `rate_hz`")
    return options.rate_hz


def _order(facts: dict[str, Any], options: Options, key: str) -> str | None:
    """Whose word on the order of colours counts: a person's, then the file's."""
    said = options.jpeg_order or (text_of(facts["jpeg_order"]).lower() if "jpeg_order" in facts else None)
    if said not in (None, "rgb", "bgr"):
        raise SourceError("feature_mismatch", f"{key}: the attribute `jpeg_order` must be rgb or bgr, and is {said}")
    return said


def _success(facts: dict[str, Any], key: str) -> bool | None:
    """What the file says; a text such as `False` is not taken for true."""
    if "success" not in facts:
        return None
    said = success_of(facts["success"])
    if said is None:
        raise SourceError(
            "feature_mismatch", f"{key} has the success {text_of(facts['success'])}: `success` must be true or false"
        )
    return said

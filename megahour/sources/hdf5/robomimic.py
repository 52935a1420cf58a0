"""robomimic HDF5: one file of many demonstrations, `/data/demo_<n>/actions`, `obs/*`, `states`, `rewards`, `dones`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.episode.model import RawEpisode
from megahour.sources.hdf5.file import Dataset, Survey, children, column, entries, opened, survey
from megahour.sources.hdf5.gather import add_dataset, add_facts, note_blank_cameras, text_of
from megahour.sources.model import SourceError
from megahour.sources.options import Options
from megahour.sources.steps import (
    MOST_STATE_VALUES,
    Column,
    Gathered,
    add_column,
    add_once,
    add_said,
    add_series,
    is_embedding,
    rate_of,
    steps_of,
    times_of,
)

if TYPE_CHECKING:
    import h5py

FORMAT = "robomimic_hdf5"
RATE_HZ = 20.0
"""robosuite's default control rate."""
PROPRIO = ("eef_pos", "eef_quat", "gripper_qpos")
"""What robomimic's own configurations take of a robot as its state, in their order."""
OBS, NEXT = "obs/", "next_obs/"
MODEL = "model_file"
"""The simulator's model as XML, 100 kB and more."""
PICTURED = re.compile(r"image|depth|rgb")


@dataclass(frozen=True)
class _Shared:
    """What a file says for all its demonstrations: the names of these in order, what stands `around` them and at
    `data`, the `splits` each is in, and `stray` members that are none."""

    demos: tuple[str, ...]
    around: Survey
    data: Survey
    splits: Mapping[str, list[str]]
    stray: tuple[str, ...]


def read(path: Path, key: str, options: Options) -> Iterator[RawEpisode]:
    """The demonstrations of a file, in the order of their numbers.

    `actions` are the series `action`, `states` are `sim_state`. `state` is put together from what the robots feel:
    `robot0_eef_pos`, `robot0_eef_quat`, `robot0_gripper_qpos`, then those of further robots; without them, from all
    rows of floats in `obs` by name, of up to 64 values each. Its values are called `<key>_<i>`, and these keys are no
    series of their own. `next_obs` is `obs` one step later: its last entries are kept alone, as one message, and all
    of a key that disagrees. `success` is true when a reward that is not shaped is above 0, else unknown.

    Raises:
        SourceError: `truncated`, `unreadable`, `external`, `missing_feature`, `feature_mismatch`, `frame_count` or
            `empty`.
    """
    with opened(path, key) as file:
        shared = _shared(file, key)
    for index, demo in enumerate(shared.demos):
        yield _demonstration(path, key, options, shared, index, demo)


def _shared(file: h5py.File, key: str) -> _Shared:
    demos, others = children(file, key, "data")
    if not demos:
        raise SourceError("empty", f"{key} has no demonstration below /data: it holds nothing to ingest")
    around = survey(file, key, without=frozenset({"data", "mask"}))
    data = survey(file, key, "data", without=frozenset(f"data/{name}" for name in (*demos, *others)))
    stray = [f"data/{name}" for name in others]
    splits: dict[str, list[str]] = {}
    if "mask" in children(file, key, "")[0]:
        for name, dataset in sorted(survey(file, key, "mask").below("mask").items()):
            if len(dataset.shape or ()) != 1 or dataset.dtype.kind not in "SO":
                stray.append(f"mask/{name}")
                continue
            for demo in entries(file, key, dataset, ()):
                splits.setdefault(text_of(demo), []).append(name)
    return _Shared(tuple(sorted(demos, key=_number)), around, data, splits, tuple(stray))


def _number(demo: str) -> tuple[float, str]:
    found = re.search(r"(\d+)$", demo)
    return (int(found[1]) if found else float("inf")), demo


def _demonstration(path: Path, key: str, options: Options, shared: _Shared, index: int, demo: str) -> RawEpisode:
    root = f"data/{demo}"
    env_args = _json(shared.data.attributes.get("data/env_args"))
    with opened(path, key) as file:
        found = survey(file, key, root)
        held = found.below(root)
        steps, trailing = _steps(found, held, root, key)
        rate_hz = _rate_hz(env_args, options, key)
        into = Gathered(times_of(steps, rate_hz or RATE_HZ))
        if rate_hz is None:
            into.note("rate_guessed", f"no control_freq in env_args: {RATE_HZ:g} Hz taken, as robosuite")
        if trailing:
            into.note("trimmed", f"observations have an entry more than the {steps} actions: the last one is left out")
        following = {place: held.pop(place) for place in sorted(held) if place.startswith(NEXT)}
        columns = {
            place: column(path, key, dataset, steps, place.removeprefix(OBS), pictured=bool(PICTURED.search(place)))
            for place, dataset in sorted(held.items())
            if dataset.length == steps + (1 if trailing and _is_observation(place) else 0)
        }
        success = _success(columns.get("rewards"), env_args)
        left = _add_main(into, columns, f"{key}: /{root}")
        for place in left:
            add_column(into, columns[place], _topic(place))
        _add_following(into, file, path, key, following, columns)
        for place, dataset in sorted(held.items()):
            if place not in columns:
                add_dataset(into, file, path, key, dataset, _topic(place), ())
        for place, dataset in sorted(shared.around.datasets.items()):
            add_dataset(into, file, path, key, dataset, place, ())
    model = found.attributes.pop(f"{root}/{MODEL}", None)
    if model is not None:
        add_once(into, MODEL, model)
    add_facts(into, shared.around)
    add_facts(into, shared.data, "data")
    add_facts(into, found, root)
    add_said(into, "demo", demo)
    if demo in shared.splits:
        add_said(into, "splits", ", ".join(shared.splits[demo]))
    if shared.stray:
        into.note("left_out", f"left out, for they are no demonstration: {', '.join(shared.stray)}")
    note_blank_cameras(into)
    return RawEpisode(
        index=index,
        format=FORMAT,
        robot=_robot(env_args) or options.robot or "unknown",
        task=_task(env_args, found, root, shared) or options.task or Path(key).stem,
        rate_hz=rate_hz or RATE_HZ,
        success=success,
        cameras=tuple(into.cameras),
        series=tuple(into.series),
        attributes=into.attributes,
        notes=tuple(into.notes),
        extras=tuple(into.extras),
        extra_messages=into.messages(),
    )


def _steps(found: Survey, held: Mapping[str, Dataset], root: str, key: str) -> tuple[int, bool]:
    """The number of steps, on which all topics must agree; and whether observations have one more."""
    actions = held.get("actions")
    if actions is None:
        raise SourceError("missing_feature", f"{key} has no /{root}/actions: robomimic's demonstrations have")
    observations = {f"/{root}/{place}": each.length for place, each in held.items() if place.startswith(OBS)}
    signals = {f"/{root}/{name}": held[name].length for name in ("actions", "rewards", "dones") if name in held}
    if min((*signals.values(), *observations.values())) < 0:
        name = min(signals | observations, key=(signals | observations).__getitem__)
        raise SourceError("feature_mismatch", f"{key}: {name} is no array with an entry for each step")
    steps, trailing = steps_of(signals, observations, f"{key}: /{root}")
    said = found.attributes.get(f"{root}/num_samples")
    if said is not None and text_of(said) != str(steps):
        raise SourceError(
            "frame_count", f"{key}: /{root} has {steps} actions, and its num_samples says {text_of(said)}"
        )
    return steps, trailing


def _is_observation(place: str) -> bool:
    return place.startswith(OBS)


def _topic(place: str) -> str:
    """A topic's name for a place in a demonstration; cameras are called as their camera in the simulator."""
    return "sim_state" if place == "states" else place.removeprefix(OBS).removesuffix("_image")


def _add_main(into: Gathered, columns: Mapping[str, Column], where: str) -> list[str]:
    """Add `state` and `action`; returns the places of the columns that are left."""
    action = columns["actions"]
    if not action.is_floats or len(action.shape) > 1:
        raise SourceError(
            "feature_mismatch", f"{where}/actions is {action.dtype} {action.shape} a step, expected a row of floats"
        )
    rows = [place for place, each in columns.items() if _is_observation(place) and _is_row(each)]
    robots = sorted({name[0] for place in rows if (name := re.match(r"obs/robot\d+_", place))})
    felt = [f"{robot}{part}" for robot in robots for part in PROPRIO if f"{robot}{part}" in rows]
    chosen = felt or rows
    if chosen:
        add_series(into, "state", [columns[place] for place in chosen])
    add_series(into, "action", [action])
    return [place for place in columns if place not in chosen and place != "actions"]


def _is_row(each: Column) -> bool:
    return each.is_floats and len(each.shape) <= 1 and each.size <= MOST_STATE_VALUES and not is_embedding(each.path)


def _add_following(
    into: Gathered,
    file: h5py.File,
    path: Path,
    key: str,
    following: Mapping[str, Dataset],
    columns: Mapping[str, Column],
) -> None:
    """Of `next_obs` what `obs` does not say: the last entry of each key, and all of a key that disagrees."""
    steps = len(into.times_ns)
    last = {}
    for place, dataset in following.items():
        name = place.removeprefix(NEXT)
        now = columns.get(f"{OBS}{name}")
        after = column(path, key, dataset, steps, f"next_obs_{name}", pictured=bool(PICTURED.search(name)))
        if dataset.length != steps or now is None or (now.shape, now.dtype) != (after.shape, after.dtype):
            add_dataset(into, file, path, key, dataset, after.path, (steps,))
        elif _differ(after, now):
            into.note("next_obs", f"{place} is not obs/{name} one step later: kept whole as {after.path}")
            add_column(into, after)
        else:
            last[name] = entries(file, key, dataset, slice(steps - 1, steps))[0]
    if last:
        add_once(into, "next_obs", last, step=-1)


def _differ(after: Column, now: Column) -> bool:
    """Whether a column is another one step later, compared entry by entry."""
    pairs = zip(after.rows(), islice(now.rows(), 1, None), strict=False)
    return any(np.asarray(one).tobytes() != np.asarray(other).tobytes() for one, other in pairs)


def _success(rewards: Column | None, env_args: Mapping[str, Any]) -> bool | None:
    """True when a sparse reward says so. No reward says nothing: conversions write zeros where they know none."""
    if rewards is None or rewards.dtype.kind not in "biuf" or _kwargs(env_args).get("reward_shaping"):
        return None
    return True if (rewards.whole() > 0).any() else None


def _rate_hz(env_args: Mapping[str, Any], options: Options, key: str) -> float | None:
    said = _kwargs(env_args).get("control_freq")
    return options.rate_hz if said is None else rate_of(said, f"{key}: control_freq in env_args")


def _robot(env_args: Mapping[str, Any]) -> str:
    said = _kwargs(env_args).get("robots") or ""
    return said if isinstance(said, str) else ", ".join(map(str, said)) if isinstance(said, list) else ""


def _task(env_args: Mapping[str, Any], found: Survey, root: str, shared: _Shared) -> str:
    """What a demonstration is told to do, in words where there are any: robosuite's `lang`, LIBERO's instruction."""
    told = _json(found.attributes.get(f"{root}/ep_meta")).get("lang")
    told = told or _json(shared.data.attributes.get("data/problem_info")).get("language_instruction")
    told = told or env_args.get("env_name")
    return told.strip() if isinstance(told, str) else ""


def _kwargs(env_args: Mapping[str, Any]) -> Mapping[str, Any]:
    said = env_args.get("env_kwargs")
    return said if isinstance(said, dict) else {}


def _json(said: Any) -> Mapping[str, Any]:
    """A JSON table in an attribute; empty where there is none that can be read."""
    try:
        value = json.loads(said)
    except (TypeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

"""One record of an RLDS shard as an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from megahour.episode.model import RawEpisode
from megahour.sources.options import Options
from megahour.sources.rlds.columns import Table, episode_values, step_columns, undescribed
from megahour.sources.rlds.features import Features, Info
from megahour.sources.steps import (
    MOST_STATE_VALUES,
    Column,
    Gathered,
    add_column,
    add_picture_files,
    add_said,
    add_series,
    as_json,
    blank_note,
    is_embedding,
    times_of,
)

RATE_HZ = 10.0
"""RLDS has no rate; most datasets of Open X-Embodiment lie between 3 and 30 Hz."""
OBSERVATION, ACTION, METADATA = "observation/", "action/", "episode_metadata/"
STATES = ("observation/state", "observation/proprio")
LANGUAGE = (
    "language_instruction",
    "observation/natural_language_instruction",
    "observation/language_instruction",
    "natural_language_instruction",
)
EPISODE_LANGUAGE = ("episode_metadata/language_instruction", "episode_metadata/task", "language_instruction")
SUCCESS = "episode_metadata/success"


def episode(
    table: Table, index: int, features: Features, info: Info, options: Options, key: str, where: str
) -> RawEpisode:
    """The episode of a record.

    `observation/state` or `observation/proprio` is the series `state`, else all rows of floats in the observation by
    name, up to 64 values each. `action` is the series `action`, of a table of actions all rows of numbers by name;
    integers and booleans become the same numbers as floats. Pictures are cameras, and one that shows a single colour
    throughout is left out: datasets fill so what an episode does not have. The instruction is the task.

    Raises:
        SourceError: `missing_feature`, `feature_mismatch`, `empty` or `unreadable`; `where` names the record.
    """
    steps, columns = step_columns(table, features, where)
    said = episode_values(table, features, where)
    into = Gathered(times_of(steps, options.rate_hz or RATE_HZ))
    if options.rate_hz is None:
        into.note("rate_guessed", f"RLDS has no rate: {RATE_HZ:g} Hz taken; `rate_hz` in source.yaml says it")
    _add_main(into, columns)
    task = _task(columns, said)
    for path, each in columns.items():
        name = path.removeprefix(OBSERVATION)
        if each.pictured and not each.shape:
            add_picture_files(into, each, name)
        else:
            add_column(into, each, name)
    _leave_out_blank(into)
    success = _success(said)
    for path, value in said.items():
        if value is not None and as_json(value) != "":
            add_said(into, path.removeprefix(METADATA), value)
    for path in undescribed(table, features):
        into.note("left_out", f"{path} left out: features.json does not describe it")
    facts = {"rlds_dataset": info.name, "rlds_version": info.version, "rlds_split": info.split(key)}
    for name, text in facts.items():
        if text:
            add_said(into, name, text)
    return RawEpisode(
        index=index,
        robot=options.robot or "unknown",
        task=task or options.task or "",
        rate_hz=options.rate_hz or RATE_HZ,
        success=success,
        cameras=tuple(into.cameras),
        series=tuple(into.series),
        attributes=into.attributes,
        notes=tuple(into.notes),
        extras=tuple(into.extras),
        extra_messages=into.messages(),
    )


def _add_main(into: Gathered, columns: dict[str, Column]) -> None:
    """Add `state` and `action`, and take what they are made of out of `columns`."""
    whole = next((path for path in STATES if path in columns and _is_row(columns[path], "f")), None)
    rows = [path for path in sorted(columns) if path.startswith(OBSERVATION) and _is_state_row(columns[path])]
    _add_taken(into, "state", [whole] if whole else rows, columns, OBSERVATION)
    parts = [path for path in sorted(columns) if path.startswith(ACTION) and _is_row(columns[path], "biuf")]
    whole = "action" if "action" in columns and _is_row(columns["action"], "biuf") else None
    _add_taken(into, "action", [whole] if whole else parts, columns, ACTION)


def _add_taken(into: Gathered, name: str, paths: list[str], columns: dict[str, Column], below: str) -> None:
    taken = [columns.pop(path) for path in paths]
    if len(taken) == 1 and taken[0].path in (*STATES, "action"):
        below = taken[0].path
    if taken:
        add_series(into, name, [replace(each, path=each.path.removeprefix(below) or name) for each in taken])


def _is_row(each: Column, kinds: str) -> bool:
    return each.dtype.kind in kinds and len(each.shape) <= 1 and each.size > 0


def _is_state_row(each: Column) -> bool:
    return _is_row(each, "f") and each.size <= MOST_STATE_VALUES and not is_embedding(each.path)


def _task(columns: dict[str, Column], said: Mapping[str, Any]) -> str:
    """What the episode is told to do. An instruction that stays the same is taken out of `columns`."""
    for path in LANGUAGE:
        if path not in columns or columns[path].shape or columns[path].dtype != np.dtype(object):
            continue
        texts = [str(as_json(text)) for text in columns[path].rows()]
        if len(set(texts)) == 1:
            del columns[path]
        told = next((text for text in texts if text.strip()), "")
        if told:
            return told.strip()
    for path in EPISODE_LANGUAGE:
        if isinstance(said.get(path), bytes):
            return str(as_json(said[path])).strip()
    return ""


def _success(said: dict[str, Any]) -> bool | None:
    value = as_json(said.get(SUCCESS))
    return bool(value) if value in (0, 1) else None


def _leave_out_blank(into: Gathered) -> None:
    kept = []
    for camera in into.cameras:
        blank = blank_note(camera)
        if blank is None:
            kept.append(camera)
        else:
            into.note("blank_camera", f"{blank}: left out")
    into.cameras = kept

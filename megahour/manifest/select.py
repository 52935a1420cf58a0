"""What a recipe selects: SQL over the curated episodes, checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from megahour.manifest.load import BATCH_ROWS, ManifestError
from megahour.manifest.recipe import Recipe
from megahour.manifest.statistics import merge_moments

ROWS = pa.schema(
    [
        ("key", pa.int64()),
        ("episode_id", pa.string()),
        ("uri", pa.string()),
        ("etag", pa.string()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("windows", pa.int32()),
        ("weight", pa.float64()),
        ("split", pa.string()),
        ("component", pa.string()),
        ("recording_id", pa.string()),
    ]
)


PLACES = ("uri", "etag")
"""Columns that say where an episode lies in this lake. All others are the content that a digest names."""


@dataclass(frozen=True)
class Facts:
    """What one pass over the selected episodes says about them. Keys below `boundary` are for validation."""

    boundary: int
    too_short: int
    state_dim: int
    action_dim: int
    robots: list[str]


def select(con: duckdb.DuckDBPyConnection, recipe: Recipe) -> None:
    """Make the view `selected`: the recipe's episodes with their component's number and their windows.

    `frames` are those of the timeline that windows count in: the slowest camera that the recipe observes. Where a row
    does not say how many pictures each camera has, it is the slowest of all.
    """
    cases = " ".join(f"WHEN (\n{part.filter}\n) THEN {i}" for i, part in enumerate(recipe.mixture))
    stride, span = recipe.windows.stride, recipe.windows.span
    con.execute(
        f"""
        CREATE TEMP VIEW selected AS SELECT * FROM (
            SELECT * EXCLUDE (timeline), timeline AS frames,
                greatest(0, (timeline - {span} + {stride - 1}) // {stride})::INTEGER AS windows
            FROM (
                SELECT key, episode_id, uri, coalesce(etag, '') AS etag, size_bytes, sha256, recording_id, robot,
                    cameras, state_dim, action_dim, state_stats, action_stats, CASE {cases} END AS component,
                    {_timeline(recipe)} AS timeline
                FROM {_source(con, recipe)} WHERE superseded_by IS NULL
            )
        ) WHERE component IS NOT NULL
        """
    )


def _timeline(recipe: Recipe) -> str:
    """How many frames there are of `megahour.manifest.timeline.Timeline`, in SQL."""
    counts = "".join(
        f"camera_frames[list_position(cameras, {_text(camera)})], " for camera in recipe.observation.cameras
    )
    return f"coalesce(least({counts}NULL), frames)"


def _source(con: duckdb.DuckDBPyConnection, recipe: Recipe) -> str:
    """`episodes` where the filters need no more, else `curated`, which costs a join."""
    sources = {part.name: _source_of_filter(con, part.name, part.filter) for part in recipe.mixture}
    return "curated" if "curated" in sources.values() else "episodes"


def _source_of_filter(con: duckdb.DuckDBPyConnection, name: str, condition: str) -> str:
    reasons = []
    for source in ("episodes", "curated"):
        try:
            con.execute(f"EXPLAIN SELECT 1 FROM {source} WHERE (\n{condition}\n)")
        except duckdb.Error as error:
            reasons.append(str(error))
        else:
            return source
    raise ManifestError(
        "bad_filter", f"The filter of the component {name} is not SQL over curated episodes: {condition}\n{reasons[-1]}"
    )


def blame(con: duckdb.DuckDBPyConnection, recipe: Recipe, message: str) -> str:
    """Which component's filter fails on the data that is there."""
    for part in recipe.mixture:
        try:
            con.execute(f"SELECT count(*) FROM curated WHERE (\n{part.filter}\n)").fetchall()
        except duckdb.Error as error:
            return f"The filter of the component {part.name} fails on the episodes of the lake: {part.filter}\n{error}"
    return f"The query of the recipe {recipe.name} fails: {message}"


def read_facts(con: duckdb.DuckDBPyConnection, recipe: Recipe) -> Facts:
    for series in ("state", "action"):
        if getattr(recipe.observation, series) != series:
            raise ManifestError(
                "series",
                f"The recipe {recipe.name} reads {series} from the topic {getattr(recipe.observation, series)!r}; "
                f"the tables hold statistics of {series!r} alone",
            )
    cameras = ", ".join(
        f"min(episode_id) FILTER (NOT coalesce(list_contains(cameras, {_text(camera)}), false)) AS lacks_{i}"
        for i, camera in enumerate(recipe.observation.cameras)
    )
    found = (
        con.sql(
            f"""
        SELECT count(*) AS rows, min(key) AS lowest, max(key) AS highest,
            list(DISTINCT robot) AS robots, list(DISTINCT coalesce(state_dim, 0)) AS state_dims,
            list(DISTINCT coalesce(action_dim, 0)) AS action_dims{", " + cameras if cameras else ""}
        FROM selected WHERE windows > 0
        """
        )
        .to_arrow_table()
        .to_pylist()[0]
    )
    too_short = con.sql("SELECT count(*) FROM selected WHERE windows = 0").fetchall()[0][0]
    if not found["rows"]:
        raise ManifestError("empty", _why_empty(con, recipe, too_short))
    for i, camera in enumerate(recipe.observation.cameras):
        if found[f"lacks_{i}"] is not None:
            raise ManifestError("missing_camera", _lacks(con, recipe, camera))
    dims = {series: sorted(found[f"{series}_dims"]) for series in ("state", "action")}
    for series, sizes in dims.items():
        if len(sizes) > 1 or sizes[0] == 0:
            raise ManifestError("dimensions", _disagree(con, recipe, series))
    return Facts(
        boundary=_boundary(recipe.validation_share, found["rows"], found["lowest"], found["highest"]),
        too_short=too_short,
        state_dim=dims["state"][0],
        action_dim=dims["action"][0],
        robots=sorted(robot for robot in found["robots"] if robot is not None),
    )


def _boundary(share: float, rows: int, lowest: int, highest: int) -> int:
    """Episodes whose key is below are for validation: `share` of all keys, at least one episode, and never all."""
    if share == 0 or rows < 2:
        return -(2**63)
    return min(max(int(share * 2**64) - 2**63, lowest + 1), highest)


def _why_empty(con: duckdb.DuckDBPyConnection, recipe: Recipe, too_short: int) -> str:
    if too_short:
        return (
            f"All {too_short} episodes that the recipe {recipe.name} selects are shorter than one window, "
            f"{recipe.windows.span + 1} frames: ask for fewer `actions` or nearer `future_frames`"
        )
    there = con.sql("SELECT robot, task, count(*) FROM curated GROUP BY ALL ORDER BY ALL LIMIT 10").fetchall()
    filters = "; ".join(f"{part.name}: {part.filter}" for part in recipe.mixture)
    kinds = ", ".join(f"{count} of {robot} doing {task!r}" for robot, task, count in there)
    return f"The recipe {recipe.name} selects no episode ({filters}). The lake has {kinds or 'no episodes yet'}"


def _lacks(con: duckdb.DuckDBPyConnection, recipe: Recipe, camera: str) -> str:
    count, episode_id, cameras = con.sql(
        "SELECT count(*), min(episode_id), arg_min(cameras, episode_id) FROM selected "
        f"WHERE windows > 0 AND NOT coalesce(list_contains(cameras, {_text(camera)}), false)"
    ).fetchall()[0]
    return (
        f"The recipe {recipe.name} reads the camera {camera}, and {count} of its episodes have none; {episode_id} has "
        f"{', '.join(cameras or ()) or 'no camera'}. Choose other cameras, or filter with "
        f"list_contains(cameras, {_text(camera)})"
    )


def _disagree(con: duckdb.DuckDBPyConnection, recipe: Recipe, series: str) -> str:
    groups = con.sql(
        f"SELECT robot, {series}_dim, count(*) FROM selected WHERE windows > 0 GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    kinds = ", ".join(f"{count} of {robot} with {size or 'none'}" for robot, size, count in groups)
    return (
        f"The recipe {recipe.name} needs one number of {series} values, and its episodes differ: {kinds}. "
        f"Filter on {series}_dim or robot"
    )


def read_normalization(con: duckdb.DuckDBPyConnection, facts: Facts, series: str) -> dict[str, list[float]]:
    columns = facts.state_dim if series == "state" else facts.action_dim
    fields = [f"{series}_stats.{name} AS {name}" for name in ("count", "mean", "m2", "min", "max")]
    reader = con.sql(
        f"SELECT {', '.join(fields)}, episode_id FROM selected WHERE windows > 0 AND key >= {facts.boundary}"
    ).to_arrow_reader(BATCH_ROWS)
    return merge_moments(_moments(batch, series, columns) for batch in reader)


def _moments(batch: pa.RecordBatch, series: str, columns: int) -> tuple[Any, Any, Any, Any, Any]:
    count = batch["count"].fill_null(0).to_numpy(zero_copy_only=False)
    lists = []
    for name in ("mean", "m2", "min", "max"):
        sizes = batch[name].value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        values = batch[name].flatten().to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        wrong = sizes != columns
        if not wrong.any():
            values = values.reshape(-1, columns)
            wrong = ~np.isfinite(values).all(axis=1)
        if (wrong | (count < 1)).any():
            episode_id = batch["episode_id"][int(np.flatnonzero(wrong | (count < 1))[0])]
            raise ManifestError(
                "statistics",
                f"The episode {episode_id} has no finite statistics of its {columns} {series} values: "
                "leave it out with a filter (nan_values = 0), or ingest it again",
            )
        lists.append(values)
    mean, m2, low, high = lists
    return count, mean, m2, low, high


def read_rows(con: duckdb.DuckDBPyConnection, recipe: Recipe, facts: Facts) -> Iterator[pa.RecordBatch]:
    names = " ".join(f"WHEN {i} THEN {_text(part.name)}" for i, part in enumerate(recipe.mixture))
    weights = " ".join(f"WHEN {i} THEN {part.weight!r}::DOUBLE" for i, part in enumerate(recipe.mixture))
    reader = con.sql(
        f"""
        SELECT key, episode_id, uri, etag, size_bytes AS bytes, sha256, 0::INTEGER AS "start", frames AS "end", windows,
            CASE component {weights} END AS weight, if(held_out, 'validation', 'train') AS split,
            CASE component {names} END AS component, recording_id
        FROM (
            SELECT key < {facts.boundary} AS held_out, key, episode_id, uri, etag, size_bytes, sha256, frames, windows,
                component, recording_id
            FROM selected WHERE windows > 0
        ) ORDER BY held_out, key, episode_id
        """
    ).to_arrow_reader(BATCH_ROWS)
    for batch in reader:
        yield batch.cast(ROWS)


def _text(value: str) -> str:
    """`value` as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"

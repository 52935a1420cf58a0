"""Lineage: from a run's checkpoints to the recordings they stand on, and back, from files and tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megahour.manifest.load import Manifest, load_manifest, manifest_keys
from megahour.runs import Json, committed_steps, read_intent, run_dirs
from megahour.storage import Lake
from megahour.warehouse.queries import connect
from megahour.warehouse.tables import stable_key

if TYPE_CHECKING:
    import duckdb

EPISODE_COLUMNS = ("episode_id", "uri", "etag", "sha256", "split", "component", "weight", "recording_id")
RECORDING_COLUMNS = ("recording_id", "uri", "source", "format", "size_bytes", "batch", "landed_at")


class LineageError(LookupError):
    """There is no such run or episode; the message says which there are or how to look."""


def run_lineage(lake: Lake, runs_dir: Path, run_key: str, scratch: Path | None = None) -> Json:
    """What a run's checkpoints were trained on.

    Returns:
        `run` (the intent's fields), `checkpoints` (`step`, `path`), `manifest` (`key`, `digest`, `recipe`,
        `recipe_text`, `table_versions`, `rows_by_split`, `created_at`), `table_versions`, `episodes` (a row of the
        manifest each) and `recordings` (a row of the table each): plain JSON.

    Raises:
        LineageError: there is no such run.
        ManifestError: its manifest is gone or damaged.
    """
    run_dir = runs_dir / run_key
    try:
        intent = read_intent(run_dir)
    except FileNotFoundError as error:
        known = ", ".join(path.name for path in run_dirs(runs_dir)[-5:]) or "none yet"
        raise LineageError(f"There is no run {run_key} in {runs_dir}; the latest are: {known}") from error
    manifest = load_manifest(lake, intent.manifest, scratch)
    episodes = manifest.table().select(EPISODE_COLUMNS)
    with connect(lake) as con:
        recordings = _recordings(con, sorted(set(episodes["recording_id"].to_pylist())))
    return {
        "run": asdict(intent),
        "checkpoints": _checkpoints(run_dir),
        "manifest": _about(manifest),
        "table_versions": manifest.header.table_versions,
        "episodes": episodes.to_pylist(),
        "recordings": recordings,
    }


def episode_lineage(lake: Lake, runs_dir: Path, episode_id: str, scratch: Path | None = None) -> Json:
    """What an episode came from and what used it. The first digits of its id are enough where they are unique.

    Returns:
        `episode` (its row, without statistics), `recording` (its row or None), `manifests` (as in `run_lineage`, with
        `split`, `component`, `weight` and `windows` of the episode in it) and `runs` (`run_key`, `recipe`,
        `manifest_digest`, `split`, `checkpoints`): plain JSON.

    Raises:
        LineageError: no episode has this id, or several do.
    """
    with connect(lake) as con:
        episode = _episode(con, episode_id)
        found = _recordings(con, [episode["recording_id"]])
    manifests = []
    for key in manifest_keys(lake):
        manifest = load_manifest(lake, key, scratch)
        row = find_row(manifest, episode["episode_id"])
        if row is not None:
            used = {name: row[name] for name in ("split", "component", "weight", "windows")}
            manifests.append({**_about(manifest), **used})
    return {
        "episode": episode,
        "recording": found[0] if found else None,
        "manifests": manifests,
        "runs": _runs_of(runs_dir, {manifest["digest"]: manifest["split"] for manifest in manifests}),
    }


def find_row(manifest: Manifest, episode_id: str) -> Json | None:
    """An episode's row in a manifest, by bisection: rows of a split are sorted by key."""
    key = stable_key(episode_id)
    for split in manifest.header.rows_by_split:
        rows = manifest.rows(split)
        low, high = 0, rows.num_rows
        while low < high:
            middle = (low + high) // 2
            if rows["key"][middle].as_py() < key:
                low = middle + 1
            else:
                high = middle
        while low < rows.num_rows and rows["key"][low].as_py() == key:
            row: Json = rows.slice(low, 1).to_pylist()[0]
            if row["episode_id"] == episode_id:
                return row
            low += 1
    return None


def _about(manifest: Manifest) -> Json:
    header = manifest.header
    return {
        "key": manifest.key,
        "digest": header.digest,
        "recipe": header.recipe["name"],
        "recipe_text": header.recipe_text,
        "table_versions": header.table_versions,
        "rows_by_split": header.rows_by_split,
        "created_at": header.created_at,
    }


def _checkpoints(run_dir: Path) -> list[Json]:
    return [{"step": step, "path": str(run_dir / f"step_{step:06d}")} for step in committed_steps(run_dir)]


def _runs_of(runs_dir: Path, splits: dict[str, str]) -> list[Json]:
    found = []
    for run_dir in run_dirs(runs_dir):
        intent = read_intent(run_dir)
        if intent.manifest_digest in splits:
            found.append(
                {
                    "run_key": intent.run_key,
                    "recipe": intent.recipe,
                    "manifest_digest": intent.manifest_digest,
                    "split": splits[intent.manifest_digest],
                    "checkpoints": _checkpoints(run_dir),
                }
            )
    return found


def _episode(con: duckdb.DuckDBPyConnection, episode_id: str) -> Json:
    rows = _plain(
        con,
        "SELECT * EXCLUDE (state_stats, action_stats) FROM measured WHERE starts_with(episode_id, ?) "
        "ORDER BY episode_id LIMIT 5",
        [episode_id],
    )
    if not rows:
        raise LineageError(f"There is no episode {episode_id}: `megahour episodes ls` lists them")
    if len(rows) > 1 and rows[0]["episode_id"] != episode_id:
        raise LineageError(f"Several episodes begin with {episode_id}: {', '.join(row['episode_id'] for row in rows)}")
    return rows[0]


def _recordings(con: duckdb.DuckDBPyConnection, recording_ids: Sequence[str]) -> list[Json]:
    return _plain(
        con,
        f"SELECT {', '.join(RECORDING_COLUMNS)} FROM recordings "
        "WHERE list_contains(?::VARCHAR[], recording_id) ORDER BY recording_id",
        [list(recording_ids)],
    )


def _plain(con: duckdb.DuckDBPyConnection, sql: str, params: list[Any]) -> list[Json]:
    """Rows as JSON has them: times as ISO text."""
    rows = con.sql(sql, params=params).to_arrow_table().to_pylist()
    return [
        {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
        for row in rows
    ]

"""A manifest from a recipe: one query over the curated episodes, written as Arrow rows under their digest."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import yaml

from megahour.files import make_folders, sha256_of
from megahour.manifest.load import Manifest, ManifestError, ManifestHeader, load_manifest
from megahour.manifest.recipe import Recipe
from megahour.manifest.select import Facts, blame, read_facts, read_normalization, read_rows, select
from megahour.manifest.write import ContentHash, content_of, write_rows
from megahour.storage import Lake, head, overwrite, put_file, stage, write_once
from megahour.warehouse.queries import connect, settle_revisions
from megahour.warehouse.tables import table_versions

DIGESTED = ("mixture", "validation_share", "observation", "windows")
"""The parts of a recipe that decide what is trained on."""


def build_manifest(
    lake: Lake, recipe: Recipe, versions: Mapping[str, int] | None = None, scratch: Path | None = None
) -> Manifest:
    """Build the manifest of a recipe, store it, and make it the recipe's latest unless it looks back.

    An episode that several components select belongs to the first of them. The split is by the episode's key, so an
    episode stays on its side as others come, except in sets so small that one side would be empty. The same rows give
    the same digest, whenever, in whichever lake and from whichever table versions; what is stored under it is then
    returned as it is, with the places the episodes had then: files of episodes stay where they are.

    Args:
        versions: table to version, to look back; tables not named, and without this all, are read at their latest.
        scratch: folder of this node for the rows' file, where the lake is remote.

    Raises:
        ManifestError: the recipe selects nothing or not what can be trained on together, or its SQL is wrong.
        ValueError: a table has no such version.
    """
    at = {**table_versions(lake), **(versions or {})}
    folder = f"manifests/{recipe.name}"
    place = lake.local_path(folder)
    if place is not None:
        make_folders(place)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=place) as work:
        path = Path(work) / "rows.arrow"
        with _selected(lake, recipe, at) as (con, facts, normalization):
            written = write_rows(read_rows(con, recipe, facts), path)
        digest = _digest(recipe, written.content, normalization)
        key = f"{folder}/{digest}.arrow"
        if head(lake, f"{folder}/{digest}.json") is None:
            sha256, size_bytes = _store_rows(lake, key, path, written.sha256)
            kept = data_part(recipe)
            header = ManifestHeader(
                recipe=kept,
                recipe_text=yaml.safe_dump(kept, sort_keys=False),
                digest=digest,
                rows=sum(written.rows_by_split.values()),
                rows_by_split=written.rows_by_split,
                windows_by_split=written.windows_by_split,
                rows_by_component={part.name: written.rows_by_component.get(part.name, 0) for part in recipe.mixture},
                too_short=facts.too_short,
                state_dim=facts.state_dim,
                action_dim=facts.action_dim,
                robots=facts.robots,
                normalization=normalization,
                table_versions=at,
                created_at=datetime.now(UTC).isoformat(),
                sha256=sha256,
                size_bytes=size_bytes,
            )
            _store_header(lake, f"{folder}/{digest}.json", header)
    if versions is None:
        overwrite(lake, f"{folder}/latest", digest.encode())
    return load_manifest(lake, key, scratch)


def manifest_digest(lake: Lake, recipe: Recipe, versions: Mapping[str, int] | None = None) -> str:
    """The digest that `build_manifest` would give; nothing is written.

    Raises:
        ManifestError, ValueError: as `build_manifest`.
    """
    content = ContentHash()
    with _selected(lake, recipe, {**table_versions(lake), **(versions or {})}) as (con, facts, normalization):
        for batch in read_rows(con, recipe, facts):
            content.update(batch)
    return _digest(recipe, content.hexdigest(), normalization)


def data_part(recipe: Recipe) -> dict[str, Any]:
    """A recipe's name and what it says about the data, as plain JSON."""
    plain = recipe.model_dump(mode="json")
    return {name: plain[name] for name in ("name", *DIGESTED)}


@contextmanager
def _selected(
    lake: Lake, recipe: Recipe, versions: Mapping[str, int]
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Facts, dict[str, dict[str, list[float]]]]]:
    """A connection in which the recipe's rows are selected, what is known of them, and their normalization."""
    with connect(lake, versions) as con:
        settle_revisions(con, "episodes")
        settle_revisions(con, "episode_quality")
        select(con, recipe)
        try:
            facts = read_facts(con, recipe)
            yield con, facts, {series: read_normalization(con, facts, series) for series in ("state", "action")}
        except duckdb.Error as error:
            raise ManifestError("bad_filter", blame(con, recipe, str(error))) from error


def _store_rows(lake: Lake, key: str, path: Path, sha256: str) -> tuple[str, int]:
    """Store the rows' file under its digest, and return the sha256 and size of what is there.

    A build that died before its header may have stored the same rows with the places that the episodes had then.
    """
    try:
        return sha256, put_file(lake, key, path).size_bytes
    except FileExistsError:
        stored = stage(lake, key, path.parent)
        if content_of(stored) != content_of(path):
            raise
        return sha256_of(stored), stored.stat().st_size


def _store_header(lake: Lake, key: str, header: ManifestHeader) -> None:
    try:
        write_once(lake, key, header.to_json())
    except FileExistsError:
        # Another build of the same rows came first; the two differ in their clock and table versions alone.
        return


def _digest(recipe: Recipe, content: str, normalization: dict[str, Any]) -> str:
    """The name of a manifest: neither the clock nor the table versions are in it, and nothing of the lake it is in."""
    plain = recipe.model_dump(mode="json")
    parts = [{name: plain[name] for name in DIGESTED}, content, normalization]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

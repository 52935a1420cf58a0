"""Whether a recipe selects something else than it did: one cheap query, nothing written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from megahour.manifest.load import ManifestError
from megahour.manifest.recipe import Recipe
from megahour.storage import Lake


@dataclass(frozen=True)
class Selection:
    """How many episodes a recipe selects with at least one window. Equal fingerprints select the same ones alike."""

    rows: int
    fingerprint: str


def peek(lake: Lake, recipe: Recipe, versions: Mapping[str, int] | None = None) -> Selection:
    """What a manifest of this recipe would be built from.

    Raises:
        ManifestError: the recipe's SQL is wrong.
    """
    import duckdb

    from megahour.manifest.build import DIGESTED
    from megahour.manifest.select import blame, select
    from megahour.warehouse.queries import connect

    content = "concat_ws('|', episode_id, sha256, component, windows)"
    with connect(lake, versions) as con:
        select(con, recipe)
        try:
            found = con.sql(
                f"SELECT count(*), bit_xor(md5_number({content}))::VARCHAR FROM selected WHERE windows > 0"
            ).fetchall()
        except duckdb.Error as error:
            raise ManifestError("bad_filter", blame(con, recipe, str(error))) from error
    rows, mixed = found[0]
    parts = [{name: recipe.model_dump(mode="json")[name] for name in DIGESTED}, rows, mixed]
    return Selection(rows, hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16])

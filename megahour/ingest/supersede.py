"""Of the readings of one content the latest is live: a changed `source.yaml` or dataset supersedes older episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from megahour.ingest.land import digest
from megahour.storage import Lake

Row = dict[str, Any]


def supersede(lake: Lake, batch: str, found: Mapping[str, str]) -> None:
    """Make the readings live that a batch found, and no others of the same contents.

    The batch that found a reading last decides: an older one that is run again changes nothing. Killed and run again,
    or run beside others, it comes to the same.

    Args:
        found: `content_id` to the `recording_id` that it has now, with its episodes in the table.
    """
    from megahour.warehouse.tables import append

    rows = changes(_rows(lake, found), found, batch, datetime.now(UTC))
    while rows:
        named = digest(f"{row['episode_id']} {row['revision']} {row['superseded_by']} {row['batch']}" for row in rows)
        append(lake, "episodes", rows, once=f"supersede:{named}")
        # Two that did not see each other's rows may leave two readings, or none: whoever is last finds it.
        rows = changes(_rows(lake, found), {}, batch, datetime.now(UTC))


def changes(rows: Iterable[Row], found: Mapping[str, str], batch: str, now: datetime) -> list[Row]:
    """The revisions of episodes to append so that one reading of each content is live.

    The rows alone decide which: that of the latest batch, in one batch that which is live, of several the one made so
    last. A reading in `found` becomes that where no later batch found another.
    """
    contents: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        contents.setdefault(row["content_id"], {}).setdefault(row["recording_id"], []).append(row)
    changed: list[Row] = []
    for content_id, readings in contents.items():
        order = {recording_id: max(map(_order, each)) for recording_id, each in readings.items()}
        live = max(order, key=lambda recording_id: (order[recording_id], recording_id))
        latest, mine = order[live][0], found.get(content_id)
        made: Row = {}
        if len(readings) > 1 and mine in readings and (latest < batch or (latest == batch and mine != live)):
            live, made = mine, {"batch": batch, "ingested_at": now}
        for recording_id, each in readings.items():
            superseded_by = None if recording_id == live else live
            for row in each:
                is_right = (row["superseded_by"] is None) == (superseded_by is None)
                if not is_right or (made and recording_id == live):
                    revised = {"superseded_by": superseded_by, "revision": row["revision"] + 1}
                    changed.append({**row, **(made if recording_id == live else {}), **revised})
    return changed


def _order(row: Row) -> tuple[str, bool, datetime]:
    return row["batch"], row["superseded_by"] is None, row["ingested_at"]


def _rows(lake: Lake, found: Mapping[str, str]) -> list[Row]:
    """The episodes of those contents that have several readings, nearly always none."""
    from megahour.warehouse.queries import connect, latest

    with connect(lake) as con:
        # Two columns of a large table are read in a tenth of the time of all.
        sql = (
            "SELECT content_id FROM raw_episodes WHERE content_id IN (SELECT unnest(?)) "
            "GROUP BY content_id HAVING count(DISTINCT recording_id) > 1"
        )
        contested = [content_id for (content_id,) in con.execute(sql, [list(found)]).fetchall()]
        if not contested:
            return []
        whole = con.sql(latest("episodes", "content_id IN (SELECT unnest(?))"), params=[contested])
        rows: list[Row] = whole.to_arrow_table().to_pylist()
    return rows

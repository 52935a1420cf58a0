"""Whether batches came through whole, counted from the tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megahour.storage import Lake


@dataclass(frozen=True)
class Audit:
    """Recordings that landed with some batches and what became of them. `lost` are URIs with neither fate, `duplicates`
    ids of episodes that are stored twice, or live in two readings of one recording."""

    recordings: int
    episodes: int
    quarantined: int
    lost: tuple[str, ...]
    duplicates: tuple[str, ...]


def audit_batches(lake: Lake, batches: Sequence[str]) -> Audit:
    """Count the batches' recordings, their episodes, those in quarantine, and episodes that are stored twice."""
    from megahour.warehouse.queries import connect

    with connect(lake) as con:
        con.execute(
            "CREATE TEMP TABLE landed AS SELECT * FROM recordings WHERE list_contains(?, batch)", [list(batches)]
        )
        held = "SELECT uri, recording_id FROM quarantine WHERE state <> 'released'"

        def column(sql: str) -> tuple[Any, ...]:
            return tuple(row[0] for row in con.execute(sql).fetchall())

        return Audit(
            recordings=column("SELECT count(*) FROM landed")[0],
            episodes=column("SELECT count(*) FROM episodes SEMI JOIN landed USING (recording_id)")[0],
            quarantined=column(f"SELECT count(*) FROM landed SEMI JOIN ({held}) AS held USING (uri)")[0],
            lost=column(
                f"""
                SELECT uri FROM landed ANTI JOIN episodes USING (recording_id)
                WHERE uri NOT IN (SELECT uri FROM ({held}))
                    AND recording_id NOT IN (SELECT recording_id FROM ({held}))
                ORDER BY uri
                """
            ),
            duplicates=column(
                """
                SELECT episode_id FROM raw_episodes SEMI JOIN landed USING (recording_id)
                WHERE revision = 1 GROUP BY episode_id HAVING count(*) > 1
                UNION
                SELECT min(episode_id) FROM episodes SEMI JOIN landed USING (recording_id)
                GROUP BY recording_id, "index" HAVING count(*) > 1
                UNION
                SELECT min(episode_id) FROM episodes
                WHERE superseded_by IS NULL
                    AND content_id IN (SELECT content_id FROM episodes SEMI JOIN landed USING (recording_id))
                GROUP BY content_id HAVING count(DISTINCT recording_id) > 1
                ORDER BY 1
                """
            ),
        )


def episodes_of(lake: Lake, batches: Sequence[str], limit: int) -> list[str]:
    """Lake keys of at most `limit` episodes of these batches, the same ones every time."""
    from megahour.warehouse.queries import query

    sql = "SELECT uri FROM episodes WHERE list_contains(?, batch) ORDER BY key LIMIT ?"
    keys: list[str] = query(lake, sql, [list(batches), limit])["uri"].to_pylist()
    return keys

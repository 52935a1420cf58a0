"""What the curated episodes are, in a few numbers: for people who look at the lake, not for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megahour.storage import Lake


@dataclass(frozen=True)
class Kind:
    """Episodes of one source, robot and task. `succeeded` counts those known to have reached their goal."""

    source: str
    robot: str
    task: str
    episodes: int
    hours: float
    frames: int
    succeeded: int


@dataclass(frozen=True)
class Overview:
    """All kinds, the largest first; the lengths of all episodes; a few episode keys of each kind."""

    kinds: tuple[Kind, ...]
    durations_s: tuple[float, ...]
    examples: tuple[str, ...]


def overview(
    lake: Lake,
    versions: Mapping[str, int] | None = None,
    examples: int = 3,
    batches: Sequence[str] | None = None,
) -> Overview:
    """Summarise the view `curated`, or what of it came with some ingest batches.

    At most 100,000 durations are read, and `examples` keys of each of 8 kinds.
    """
    from megahour.warehouse.queries import connect

    with connect(lake, versions) as con:
        con.execute(
            "CREATE TEMP VIEW seen AS SELECT * FROM curated"
            if batches is None
            else "CREATE TEMP TABLE seen AS SELECT * FROM curated WHERE list_contains(?, batch)",
            [] if batches is None else [list(batches)],
        )
        kinds = con.execute(
            """
            SELECT source, robot, task, count(*), coalesce(sum(duration_s), 0) / 3600, coalesce(sum(frames), 0),
                count(*) FILTER (success) FROM seen GROUP BY ALL ORDER BY 4 DESC, 1, 2, 3
            """
        ).fetchall()
        durations = con.execute("SELECT duration_s FROM seen ORDER BY key LIMIT 100000").fetchall()
        keys = con.execute(
            """
            SELECT uri FROM seen
            QUALIFY row_number() OVER (PARTITION BY source, robot, task ORDER BY key) <= ?
            ORDER BY count(*) OVER (PARTITION BY source, robot, task) DESC, source, robot, task, key LIMIT ?
            """,
            [examples, 8 * examples],
        ).fetchall()
    return Overview(
        kinds=tuple(Kind(*kind) for kind in kinds),
        durations_s=tuple(duration for (duration,) in durations if duration is not None),
        examples=tuple(key for (key,) in keys),
    )

"""What Dagster was told before: asked of its instance, so that a lost cursor repeats nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg

PAGE = 1000


def materialized(instance: dg.DagsterInstance, asset: str, partition: str, tag: str) -> set[str]:
    """The values of `tag` over all materializations of an asset's partition."""
    return _tags(
        instance.fetch_materializations, asset, partition, tag, lambda record: record.asset_materialization.tags
    )


def observed(instance: dg.DagsterInstance, asset: str, partition: str, tag: str) -> set[str]:
    """The values of `tag` over all observations of an asset's partition."""
    return _tags(
        instance.fetch_observations,
        asset,
        partition,
        tag,
        lambda record: record.event_log_entry.dagster_event.asset_observation_data.asset_observation.tags,
    )


def _tags(
    fetch: Callable[..., Any], asset: str, partition: str, tag: str, read: Callable[[Any], dict[str, str] | None]
) -> set[str]:
    found: set[str] = set()
    cursor = None
    while True:
        page = fetch(
            dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[partition]),
            limit=PAGE,
            cursor=cursor,
        )
        found |= {value for record in page.records if (value := (read(record) or {}).get(tag)) is not None}
        cursor = page.cursor
        if not page.has_more:
            return found

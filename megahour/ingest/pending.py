"""Batches that are planned and not done: what a person without a running pipeline has to ingest."""

from __future__ import annotations

from collections.abc import Iterable

from megahour.ingest.audit import audit_batches
from megahour.storage import Lake


def pending_batches(lake: Lake, planned: Iterable[str]) -> list[str]:
    """Those of these batches with a recording that became neither an episode nor an entry in quarantine, in order.

    One whose contents were all known from other batches counts as pending: only hashing its files shows that.
    """
    from megahour.warehouse.queries import query

    keys = sorted(planned)
    entered = set(query(lake, "SELECT DISTINCT batch FROM recordings")["batch"].to_pylist())
    lost = list(audit_batches(lake, keys).lost)
    halfway = set(
        query(lake, "SELECT DISTINCT batch FROM recordings WHERE list_contains(?, uri)", [lost])["batch"].to_pylist()
    )
    return [key for key in keys if key not in entered or key in halfway]

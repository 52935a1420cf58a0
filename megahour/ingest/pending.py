"""Which batches are done, as they say themselves: one marker beside the plan once all recordings have their fate in the
tables, and another once their episodes are measured too.
"""

from __future__ import annotations

from typing import Literal

from megahour.ingest.plan import PLANS, list_batches
from megahour.storage import Lake, head, list_files, write_once

Stage = Literal["ingested", "measured"]


def mark(lake: Lake, key: str, stage: Stage) -> None:
    """Say that a batch has come this far. Saying it again changes nothing."""
    write_once(lake, _marker(key, stage), b"")


def is_marked(lake: Lake, key: str, stage: Stage) -> bool:
    """Whether a batch has come this far."""
    return head(lake, _marker(key, stage)) is not None


def pending_batches(lake: Lake) -> list[str]:
    """Keys of the planned batches that did not come to their end, ascending: what a person without a running pipeline
    has to ingest.

    So does every batch of a lake from before there were markers, once: it runs again and finds nothing to change.
    """
    there = {file.key for file in list_files(lake, PLANS)}
    return [key for key in list_batches(lake) if _marker(key, "measured") not in there]


def _marker(key: str, stage: Stage) -> str:
    return f"{PLANS}/{key}.{stage}"

"""Quarantine: bad recordings are held with their reason, tried again when asked, released when they pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from megahour.ingest.discover import LANDING, by_source
from megahour.ingest.identify import Identity
from megahour.ingest.land import digest
from megahour.ingest.plan import Batch, add_batches, cut_batches
from megahour.ingest.verdict import Rejected
from megahour.settings import Settings
from megahour.sources import find_recordings
from megahour.sources.model import Recording
from megahour.storage import Lake, head, list_files, read_bytes

Row = dict[str, Any]
HELD, RETRYING, RELEASED = "held", "retrying", "released"


class QuarantineError(LookupError):
    """A recording cannot be taken out of quarantine; the text says which and why."""


def record_verdicts(lake: Lake, batch: str, verdicts: Sequence[tuple[Identity, Rejected | None]]) -> None:
    """Append what a batch's verdicts change in quarantine. The same verdicts again change nothing.

    Args:
        verdicts: recordings, and why they were rejected or None.
    """
    from megahour.warehouse.tables import append

    names = {name for identity, _ in verdicts for name in _names(identity.recording)}
    latest = _latest(lake, names, [identity.recording_id for identity, _ in verdicts])
    there = {uri: row for uri, row in latest.items() if uri in names or _has_landed(lake, uri)}
    rows = changes(verdicts, there, batch)
    named = digest(f"{row['uri']} {row['recording_id']} {row['reason']} {row['revision']}" for row in rows)
    append(lake, "quarantine", rows, once=f"quarantine:{batch}:{named}")


def changes(verdicts: Iterable[tuple[Identity, Rejected | None]], latest: Mapping[str, Row], batch: str) -> list[Row]:
    """The rows to append, given the latest row of each URI that is still in the landing zone.

    A rejected recording is held, unless it already is with the same content and reason, under this name or another. A
    good one releases what its name held, and what its dataset's name held.
    """
    state = dict(latest)
    rows = []
    for identity, rejected in verdicts:
        recording, recording_id = identity.recording, identity.recording_id
        if rejected is None:
            for name in _names(recording):
                if name in state and state[name]["state"] != RELEASED:
                    state[name] = _next(state[name], RELEASED, batch)
                    rows.append(state[name])
        elif not _is_held(state, recording.uri, recording_id, rejected.reason):
            revision = state[recording.uri]["revision"] if recording.uri in state else 0
            state[recording.uri] = {
                "uri": recording.uri,
                "recording_id": recording_id,
                "format": recording.format,
                "source": recording.source,
                "batch": batch,
                "reason": rejected.reason,
                "error": rejected.error,
                "state": HELD,
                "at": datetime.now(UTC),
                "revision": revision + 1,
            }
            rows.append(state[recording.uri])
    return rows


def retry_quarantined(lake: Lake, settings: Settings, uris: Sequence[str], now: datetime | None = None) -> list[Batch]:
    """Plan batches of quarantined recordings as they are in the landing zone now, within the limits of any batch.

    The next discovery asks for them. They are released once they are ingested, and held again if they fail again.

    Raises:
        QuarantineError: a URI is not in quarantine, its files are gone, or `uris` is empty.
    """
    from megahour.warehouse.tables import append

    latest = _latest(lake, uris, [])
    held = {uri: row for uri, row in latest.items() if row["state"] != RELEASED}
    if strangers := sorted(set(uris) - set(held)):
        raise QuarantineError(f"Not in quarantine: {', '.join(strangers)}. `megahour quarantine ls` lists what is")
    if not held:
        raise QuarantineError("No recording was named to try again. `megahour quarantine ls` lists what is held")
    sources = {uri.split("/")[1] for uri in held}
    landed = by_source(list_files(lake, LANDING))
    files = [file for source, group in landed if source in sources for file in group]
    found = find_recordings(files, partial(read_bytes, lake))
    wanted = {recording.uri: recording for recording in found if recording.uri in held}
    if gone := sorted(set(held) - set(wanted)):
        raise QuarantineError(
            f"No longer in the landing zone: {', '.join(gone)}. What landed in its place is ingested by itself"
        )
    # The plan first: without it a recording would wait in `retrying` for nobody.
    parts = cut_batches(wanted.values(), settings.batch_bytes, settings.batch_recordings)
    batches = add_batches(lake, parts, now or datetime.now(UTC))
    planned = [(recording.uri, batch.key) for batch in batches for recording in batch.recordings]
    rows = [_next(held[uri], RETRYING, key) for uri, key in planned]
    append(lake, "quarantine", rows, once=f"retry:{batches[0].key}")
    return batches


def _has_landed(lake: Lake, uri: str) -> bool:
    """Whether the file, or the dataset, that a URI names is in the landing zone now."""
    name = uri.partition("#")[0]
    return head(lake, name) is not None or next(list_files(lake, name), None) is not None


def _names(recording: Recording) -> tuple[str, ...]:
    return tuple(dict.fromkeys((recording.uri, recording.uri.partition("#")[0])))


def _is_held(state: Mapping[str, Row], uri: str, recording_id: str, reason: str) -> bool:
    same = [row for row in state.values() if row["recording_id"] == recording_id and row["reason"] == reason]
    return any(row["state"] == HELD or (row["state"] == RETRYING and row["uri"] != uri) for row in same)


def _next(row: Row, state: str, batch: str) -> Row:
    following = {**row, "state": state, "batch": batch, "at": datetime.now(UTC), "revision": row["revision"] + 1}
    following.pop("key", None)
    return following


def _latest(lake: Lake, uris: Iterable[str], recording_ids: Iterable[str]) -> dict[str, Row]:
    from megahour.warehouse.queries import query

    sql = "FROM quarantine WHERE uri IN (SELECT unnest(?)) OR recording_id IN (SELECT unnest(?))"
    return {row["uri"]: row for row in query(lake, sql, [list(uris), list(recording_ids)]).to_pylist()}

"""What landed, as rows: one per content, whatever its names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from megahour.ingest.identify import Identity, identify
from megahour.ingest.plan import Batch, write_batch
from megahour.ingest.scratch import scratch_folder
from megahour.ingest.verdict import IngestError
from megahour.settings import Settings
from megahour.storage import Lake


@dataclass(frozen=True)
class LandingReport:
    """Recordings of a batch: how many got a row now, and how many were known by content, from before or twice here.

    Those in neither number are gone or cannot be read: ingest will say so.
    """

    recordings: int
    new: int
    known: int
    files: int
    size_bytes: int


def land_batch(lake: Lake, settings: Settings, batch: Batch) -> LandingReport:
    """Append a row to `recordings` for each content not seen before. Running again changes nothing.

    Raises:
        IngestError: the lake cannot be read or written now.
    """
    try:
        write_batch(lake, batch)
        with scratch_folder(settings.scratch / "ingest") as scratch:
            identities = identify(lake, settings, batch, scratch)
        landed = [one for one in identities if one.rejected is None and not one.superseded]
        new = _append(lake, batch, landed)
    except Exception as error:
        raise IngestError(
            f"The recordings of batch {batch.key} could not be entered: {error}. Nothing is lost; run it again"
        ) from error
    return LandingReport(
        recordings=len(batch.recordings),
        new=new,
        known=len(landed) - new,
        files=sum(len(recording.files) for recording in batch.recordings),
        size_bytes=batch.size_bytes,
    )


def digest(parts: Iterable[str]) -> str:
    """A short name for a set of strings, whatever their order."""
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:16]


def _append(lake: Lake, batch: Batch, identities: list[Identity]) -> int:
    from megahour.warehouse.queries import query
    from megahour.warehouse.tables import append

    sql = "SELECT recording_id FROM recordings WHERE recording_id IN (SELECT unnest(?))"
    ids = [identity.recording_id for identity in identities]
    known = set(query(lake, sql, [ids]).column("recording_id").to_pylist())
    now = datetime.now(UTC)
    rows = {}
    for identity in identities:
        recording, recording_id = identity.recording, identity.recording_id
        if recording_id not in known and recording_id not in rows:
            rows[recording_id] = {
                "recording_id": recording_id,
                "uri": recording.uri,
                "format": recording.format,
                "source": recording.source,
                "files": len(recording.files),
                "size_bytes": recording.size_bytes,
                "batch": batch.key,
                "landed_at": now,
                "revision": 1,
            }
    append(lake, "recordings", list(rows.values()), once=f"land:{batch.key}:{digest(rows)}")
    return len(rows)

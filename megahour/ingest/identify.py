"""What a recording is, whatever it is called: the hash of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from megahour.ingest.plan import Batch, plan_key
from megahour.ingest.verdict import Rejected, judge
from megahour.sources import recording_id
from megahour.sources.model import Recording
from megahour.storage import Lake, head, stage

CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Identity:
    """A recording as its files are now, not as they were planned, and the id of that content.

    `rejected` says why it cannot be hashed or ingested, if that is known. `superseded`: files that were missing when it
    was planned have come, and a later plan has it whole.
    """

    recording: Recording
    recording_id: str
    rejected: Rejected | None = None
    superseded: bool = False


def staged(lake: Lake, scratch: Path) -> Callable[[str], Path]:
    """A function from a lake key to a local path with its bytes."""
    return partial(stage, lake, folder=scratch / "files")


def identify(lake: Lake, batch: Batch, scratch: Path, threads: int) -> list[Identity]:
    """The identities of a batch's recordings, in their order.

    Raises:
        IngestError: the files cannot be read for a reason that is not theirs.
    """
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda recording: _identify(lake, batch, recording, scratch), batch.recordings))


def current(lake: Lake, recording: Recording) -> Recording:
    """The recording with its files as they are now.

    Raises:
        FileNotFoundError: one of them is gone.
    """
    files = {file.key: head(lake, file.key) for file in recording.files}
    if gone := [key for key, file in files.items() if file is None]:
        raise FileNotFoundError(f"{', '.join(gone)} landed and is gone. Land it again")
    # Options that were taken away since are options no more.
    options = None if recording.options is None else head(lake, recording.options.key)
    return replace(recording, files=tuple(file for file in files.values() if file is not None), options=options)


def _identify(lake: Lake, batch: Batch, planned: Recording, scratch: Path) -> Identity:
    local = staged(lake, scratch)
    try:
        recording = current(lake, planned)
        superseded = any(head(lake, key) is not None for key in planned.missing)
        return Identity(recording, recording_id(recording, local), superseded=superseded)
    except Exception as error:
        rejected = judge(error, lake, plan_key(batch.key))
        return Identity(planned, _hash_of_what_there_is(planned, local), rejected)


def _hash_of_what_there_is(recording: Recording, local: Callable[[str], Path]) -> str:
    digest = hashlib.sha256()
    found = False
    for file in recording.files:
        try:
            with local(file.key).open("rb") as data:
                while chunk := data.read(CHUNK_BYTES):
                    digest.update(chunk)
            found = True
        except OSError:
            continue
    if not found:
        digest.update(recording.uri.encode())
    return digest.hexdigest()[:32]


def already_ingested(lake: Lake, ids: Iterable[str]) -> set[str]:
    """Those of these recording ids that have episodes."""
    from megahour.warehouse.queries import query

    sql = "SELECT DISTINCT recording_id FROM episodes WHERE recording_id IN (SELECT unnest(?))"
    return set(query(lake, sql, [list(ids)])["recording_id"].to_pylist())


def lost(lake: Lake, uris: Iterable[str]) -> set[str]:
    """Those of these URIs, whose files are gone, that were entered as recordings and never became episodes.

    Of the others nothing is missed: their content is ingested, under this name or as a copy under another.
    """
    from megahour.warehouse.queries import query

    sql = (
        "SELECT uri FROM recordings ANTI JOIN episodes USING (recording_id) "
        "WHERE uri IN (SELECT unnest(?)) AND uri NOT IN (SELECT recording_uri FROM episodes)"
    )
    return set(query(lake, sql, [list(uris)])["uri"].to_pylist())

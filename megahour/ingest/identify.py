"""What a recording is, whatever it is called: the hash of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from megahour.ingest.plan import Batch, plan_key
from megahour.ingest.pool import Died, run_tasks
from megahour.ingest.steps import IDENTIFY, fitting_workers, machine_memory_mb, time_limit_s
from megahour.ingest.verdict import WORKER_DIED, Rejected, judge
from megahour.settings import Settings
from megahour.sources import ids_of
from megahour.sources.model import Recording
from megahour.sources.options import options_key
from megahour.storage import Lake, StoreError, head, stage

CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Identity:
    """A recording as its files are now, not as they were planned, and its ids, as `ids_of` has them.

    `rejected` says why it cannot be hashed or ingested, if that is known; `content_id` is then empty. `superseded`:
    files that were missing when it was planned have come, and a later plan has it whole.
    """

    recording: Recording
    recording_id: str
    rejected: Rejected | None = None
    superseded: bool = False
    content_id: str = ""


@dataclass(frozen=True)
class Task:
    """A recording to identify, as it was planned with `batch`. `scratch` is a folder for this batch alone."""

    lake: Lake
    recording: Recording
    batch: str
    scratch: Path


def staged(lake: Lake, scratch: Path) -> Callable[[str], Path]:
    """A function from a lake key to a local path with its bytes."""
    return partial(stage, lake, folder=scratch / "files")


def identify(lake: Lake, settings: Settings, batch: Batch, scratch: Path) -> list[Identity]:
    """The identities of a batch's recordings, in their order, found in worker processes: bytes that nobody has looked
    at yet may kill whoever does.

    Raises:
        PoolError: the files cannot be read for a reason that is not theirs.
    """
    tasks = [Task(lake, recording, batch.key, scratch) for recording in batch.recordings]
    limits_s = [time_limit_s(recording.size_bytes, settings.ingest_task_s) for recording in batch.recordings]
    workers = fitting_workers([IDENTIFY], settings.ingest_workers, machine_memory_mb())
    identities: dict[int, Identity] = {}
    with closing(run_tasks(identify_one, tasks, limits_s, workers)) as events:
        for event in events:
            task = tasks[event.index]
            identities[event.index] = _of_the_dead(task, event) if isinstance(event, Died) else event.value
    return [identities[index] for index in range(len(tasks))]


def current(lake: Lake, recording: Recording) -> Recording:
    """The recording with its files as they are now.

    Raises:
        FileNotFoundError: one of them is gone.
    """
    files = {file.key: head(lake, file.key) for file in recording.files}
    if gone := [key for key, file in files.items() if file is None]:
        raise FileNotFoundError(f"{', '.join(gone)} landed and is gone. Land it again")
    # Options may have come or gone since, and so may what lay beside it. A file in no source has none.
    options = None if recording.folder == "landing/" else head(lake, options_key(recording.source))
    beside = tuple(file for each in recording.beside if (file := head(lake, each.key)) is not None)
    there = tuple(file for file in files.values() if file is not None)
    return replace(recording, files=there, options=options, beside=beside)


def identify_one(task: Task) -> Identity:
    """One recording's identity.

    Raises:
        MemoryError: the recording needs more memory than there is.
        IngestError: the files cannot be read for a reason that is not theirs.
    """
    lake, planned = task.lake, task.recording
    local = staged(lake, task.scratch)
    try:
        recording = current(lake, planned)
        superseded = any(head(lake, key) is not None for key in planned.missing)
        ids = ids_of(recording, local)
        return Identity(recording, ids.recording_id, superseded=superseded, content_id=ids.content_id)
    except Exception as error:
        rejected = judge(error, lake, plan_key(task.batch))
        return Identity(planned, _hash_of_what_there_is(planned, local), rejected)


def _of_the_dead(task: Task, died: Died) -> Identity:
    """An identity by the bytes alone: whoever looked into them died."""
    uri = task.recording.uri
    error = f"The process that identified {uri} died twice, the second time running alone: {died.how}"
    digest = _hash_of_what_there_is(task.recording, staged(task.lake, task.scratch))
    return Identity(task.recording, digest, Rejected(WORKER_DIED, error))


def _hash_of_what_there_is(recording: Recording, local: Callable[[str], Path]) -> str:
    digest = hashlib.sha256()
    found = False
    for file in recording.files:
        try:
            with local(file.key).open("rb") as data:
                while chunk := data.read(CHUNK_BYTES):
                    digest.update(chunk)
            found = True
        except StoreError:
            raise
        except OSError:
            continue
    digest.update((recording.place if found else recording.uri).encode())
    return digest.hexdigest()[:32]


def already_ingested(lake: Lake, ids: Iterable[str]) -> set[str]:
    """Those of these recording ids that have episodes, live or superseded."""
    from megahour.warehouse.queries import query

    sql = "SELECT DISTINCT recording_id FROM raw_episodes WHERE recording_id IN (SELECT unnest(?))"
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

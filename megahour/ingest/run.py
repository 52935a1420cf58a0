"""Ingest a batch: every recording becomes episodes or is held in quarantine, once, however often this is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from megahour.episode.profile import Profile, load_profile
from megahour.episode.streams import try_out
from megahour.ingest.identify import Identity, already_ingested, identify, lost
from megahour.ingest.land import digest
from megahour.ingest.pending import mark
from megahour.ingest.plan import Batch, write_batch
from megahour.ingest.pool import Died, run_tasks
from megahour.ingest.quarantine import record_verdicts
from megahour.ingest.scratch import scratch_folder
from megahour.ingest.steps import TRANSCODE, active_steps, fitting_workers, machine_memory_mb, time_limit_s
from megahour.ingest.supersede import supersede
from megahour.ingest.transcode import Ingested, Row, Task, transcode
from megahour.ingest.verdict import GONE, WORKER_DIED, IngestError, Rejected, Skipped
from megahour.settings import Settings
from megahour.storage import Lake

Progress = Callable[[int, int, str], None]
"""Called with recordings done, recordings in all, and what became of the last one."""

Verdict = Ingested | Rejected | Skipped

COMMIT_RECORDINGS = 25
"""Recordings whose rows are appended together: what a killed run has to do again, against a commit's cost."""


@dataclass(frozen=True)
class IngestReport:
    """What became of a batch's recordings: every one is ingested, skipped (known by content) or quarantined.

    `rejected` names the quarantined ones: URI, reason, error. Bytes are those of the ingested.
    """

    ingested: int
    skipped: int
    quarantined: int
    episodes: int
    episodes_bytes: int
    recordings_bytes: int
    seconds: float
    rejected: tuple[tuple[str, str, str], ...]


@dataclass
class _Run:
    """Verdicts of a run as they come in, by the recording's place in its batch."""

    lake: Lake
    batch: Batch
    identities: list[Identity]
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    def ready_groups(self) -> list[range]:
        """Groups of recordings that all have their verdict, in order, for good: a resumed run forms the same."""
        total = len(self.batch.recordings)
        groups = [range(at, min(at + COMMIT_RECORDINGS, total)) for at in range(0, total, COMMIT_RECORDINGS)]
        return [group for group in groups if all(index in self.verdicts for index in group)]

    def commit(self, group: range) -> None:
        """Append the group's rows: the episodes first, so that what is in quarantine by then is known to be bad."""
        from megahour.warehouse.tables import append

        known = already_ingested(self.lake, [self.identities[index].recording_id for index in group])
        now = datetime.now(UTC)
        rows: dict[str, Row] = {}
        for index in group:
            verdict = self.verdicts[index]
            if isinstance(verdict, Ingested) and self.identities[index].recording_id not in known:
                rows |= {row["episode_id"]: {**row, "ingested_at": now} for row in verdict.rows}
        append(self.lake, "episodes", list(rows.values()), once=f"ingest:{self.batch.key}:{digest(rows)}")
        supersede(self.lake, self.batch.key, self._found(group))
        judged = []
        for index in group:
            verdict = self.verdicts[index]
            if not isinstance(verdict, Skipped) or verdict.known:
                judged.append((self.identities[index], verdict if isinstance(verdict, Rejected) else None))
        record_verdicts(self.lake, self.batch.key, judged)

    def _found(self, group: range) -> dict[str, str]:
        """What the group's contents are read as, of several readings in the batch as the last of them."""
        contents = {self.identities[index].content_id for index in group}
        found = {}
        for index, verdict in sorted(self.verdicts.items()):
            identity = self.identities[index]
            is_there = isinstance(verdict, Ingested) or (isinstance(verdict, Skipped) and verdict.known)
            if is_there and identity.content_id in contents:
                found[identity.content_id] = identity.recording_id
        return found


def ingest_batch(lake: Lake, settings: Settings, batch: Batch, progress: Progress | None = None) -> IngestReport:
    """Ingest a batch's recordings in worker processes. Killed at any point and run again, or run twice at once, it
    leaves the same rows, each once.

    Raises:
        IngestError: the disk, the lake or the installation failed; no recording is quarantined for that. What was
            appended stays, and running the batch again goes on from there.
        ValueError: `settings.skip_steps` or `settings.profile` is wrong.
    """
    active_steps(settings.skip_steps)
    profile = load_profile(settings.profile)
    try_out(profile)
    started = time.monotonic()
    try:
        write_batch(lake, batch)
        with scratch_folder(settings.scratch / "ingest") as scratch:
            run = _ingest(lake, settings, profile, batch, scratch, progress or _silent)
        mark(lake, batch.key, "ingested")
    except Exception as error:
        raise IngestError(
            f"Batch {batch.key} could not be ingested: {error}. Nothing is lost and no recording is blamed: "
            "repair that and run the batch again"
        ) from error
    return _report(run, time.monotonic() - started)


def _ingest(lake: Lake, settings: Settings, profile: Profile, batch: Batch, scratch: Path, progress: Progress) -> _Run:
    run = _Run(lake, batch, identify(lake, settings, batch, scratch))
    run.verdicts |= _known_verdicts(lake, run.identities)
    work = _distinct(run)
    cores = settings.encode_cores
    tasks = [Task(lake, run.identities[i], batch.key, batch.date, scratch, profile, cores) for i in work]
    committed: set[range] = set()
    total = len(batch.recordings)
    limits_s = [time_limit_s(task.recording.size_bytes, settings.ingest_task_s) for task in tasks]
    workers = fitting_workers([TRANSCODE], settings.ingest_workers, machine_memory_mb())
    _commit_ready(run, committed)
    with closing(run_tasks(transcode, tasks, limits_s, workers)) as events:
        for event in events:
            index = work[event.index]
            verdict = _of_the_dead(batch, index, event) if isinstance(event, Died) else event.value
            for twin in _twins(run.identities, index):
                run.verdicts[twin] = _for_twin(verdict) if twin != index else verdict
            _commit_ready(run, committed)
            progress(len(run.verdicts), total, _told(batch.recordings[index].uri, verdict))
    return run


def _known_verdicts(lake: Lake, identities: Sequence[Identity]) -> dict[int, Verdict]:
    """Verdicts that need no work: content that has its episodes, and recordings that could not even be hashed."""
    known = already_ingested(lake, [identity.recording_id for identity in identities])
    gone = {one.recording.uri for one in identities if one.rejected is not None and one.rejected.reason == GONE}
    not_missed = gone - lost(lake, gone)
    verdicts: dict[int, Verdict] = {}
    for index, identity in enumerate(identities):
        if identity.recording.uri in not_missed:
            verdicts[index] = Skipped(known=False)
        elif identity.rejected is not None:
            verdicts[index] = identity.rejected
        elif identity.recording_id in known or identity.superseded:
            verdicts[index] = Skipped(known=identity.recording_id in known)
    return verdicts


def _distinct(run: _Run) -> list[int]:
    """Recordings to work on: of several with one content the first."""
    first: dict[str, int] = {}
    for index, identity in enumerate(run.identities):
        if index not in run.verdicts:
            first.setdefault(identity.recording_id, index)
    return list(first.values())


def _twins(identities: Sequence[Identity], index: int) -> list[int]:
    same = identities[index].recording_id
    return [twin for twin, one in enumerate(identities) if one.recording_id == same and one.rejected is None]


def _for_twin(verdict: Ingested | Rejected) -> Verdict:
    return verdict if isinstance(verdict, Rejected) else Skipped(known=True)


def _of_the_dead(batch: Batch, index: int, died: Died) -> Rejected:
    uri = batch.recordings[index].uri
    return Rejected(
        WORKER_DIED, f"The process that ingested {uri} died twice, the second time running alone: {died.how}"
    )


def _commit_ready(run: _Run, committed: set[range]) -> None:
    for group in run.ready_groups():
        if group not in committed:
            run.commit(group)
            committed.add(group)


def _told(uri: str, verdict: Ingested | Rejected) -> str:
    return f"{uri}: {verdict.reason}" if isinstance(verdict, Rejected) else f"{uri}: ingested"


def _report(run: _Run, seconds: float) -> IngestReport:
    recordings = [identity.recording for identity in run.identities]
    done = {index: verdict for index, verdict in run.verdicts.items() if isinstance(verdict, Ingested)}
    bad = {index: verdict for index, verdict in sorted(run.verdicts.items()) if isinstance(verdict, Rejected)}
    rows = [row for verdict in done.values() for row in verdict.rows]
    return IngestReport(
        ingested=len(done),
        skipped=len(recordings) - len(done) - len(bad),
        quarantined=len(bad),
        episodes=len(rows),
        episodes_bytes=sum(row["size_bytes"] for row in rows),
        recordings_bytes=sum(recordings[index].size_bytes for index in done),
        seconds=seconds,
        rejected=tuple((recordings[index].uri, verdict.reason, verdict.error) for index, verdict in bad.items()),
    )


def _silent(done: int, total: int, text: str) -> None:
    """Report nothing."""

"""One recording to its episodes: the critical step, run in a worker process."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.episode.model import EpisodeFacts, RawEpisode
from megahour.episode.profile import CONTAINER_VERSION, MIXED, Profile
from megahour.files import sha256_of
from megahour.ingest.identify import Identity, current, staged
from megahour.ingest.plan import plan_key
from megahour.ingest.verdict import CHANGED, IngestError, Rejected, judge
from megahour.sources.model import Recording
from megahour.storage import FileRef, Lake, put_file, sha256

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A recording to ingest. `date` is the folder its episodes go to, `scratch` a folder for this batch alone.

    Its episodes are laid out by `profile`, their cameras coded on `cores`.
    """

    lake: Lake
    identity: Identity
    batch: str
    date: str
    scratch: Path
    profile: Profile = MIXED
    cores: int = 1

    @property
    def recording(self) -> Recording:
        """The recording, as it was when it was hashed."""
        return self.identity.recording


@dataclass(frozen=True)
class Ingested:
    """Rows of the table `episodes`, whose files are stored; `ingested_at` is set when they are appended."""

    rows: tuple[Row, ...]


def episode_id(recording_id: str, index: int) -> str:
    """The id of a recording's episode: it follows from content alone."""
    return hashlib.sha256(f"{recording_id}:{index}".encode()).hexdigest()[:32]


def transcode(task: Task) -> Ingested | Rejected:
    """Write and store the episodes of one recording, all or none of them referred to.

    Raises:
        MemoryError: the recording needs more memory than there is.
        Exception: the machine failed, not the recording.
    """
    folder = task.scratch / hashlib.sha256(task.recording.uri.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        try:
            written = _write_all(task, folder)
        except Exception as error:
            return judge(error, task.lake, plan_key(task.batch))
        if isinstance(written, Rejected):
            return written
        # From here on nothing is the recording's fault.
        return Ingested(tuple(_store(task, row, path) for row, path in written))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_all(task: Task, folder: Path) -> list[tuple[Row, Path]] | Rejected:
    from megahour.episode.writer import write_episode
    from megahour.sources import read_recording, recording_id

    recording, local = task.recording, staged(task.lake, task.scratch)
    written = []
    for episode in read_recording(recording, local):
        facts = _facts(task, episode)
        path = folder / f"{facts.episode_id}.mcap"
        frames = write_episode(path, episode, facts, task.profile, task.cores).frames
        written.append((_row(task, episode, facts, frames), path))
    if not written:
        return Rejected("empty", f"{recording.uri} holds no episode")
    # What was hashed and what was read may be two things while someone writes over it.
    now = current(task.lake, recording)
    if now != recording and recording_id(now, local) != task.identity.recording_id:
        return Rejected(CHANGED, f"{recording.uri} changed while it was read; its new content is ingested by itself")
    return written


def _store(task: Task, row: Row, path: Path) -> Row:
    key = f"episodes/{task.date}/{row['episode_id']}.mcap"
    content = sha256_of(path)
    try:
        ref = put_file(task.lake, key, path)
    except FileExistsError as error:
        ref = _adopt(task.lake, key, row, error)
        content = sha256(task.lake, key)
    path.unlink()
    return {**row, "uri": key, "etag": ref.etag, "size_bytes": ref.size_bytes, "sha256": content}


def _adopt(lake: Lake, key: str, row: Row, error: FileExistsError) -> FileRef:
    """Take the file that a killed run stored: of the same content under another name, or by another encoder."""
    from megahour.episode.check import check_episode
    from megahour.episode.reader import open_episode
    from megahour.storage import head

    ref = head(lake, key)
    problems = [str(problem) for problem in check_episode(lake, key)]
    if ref is None or problems or open_episode(lake, key).facts.episode_id != row["episode_id"]:
        raise IngestError(
            f"{lake.url(key)} is not the episode that its name says ({'; '.join(problems) or 'another id'}). "
            "No table refers to it: delete it and ingest again"
        ) from error
    return ref


def _facts(task: Task, episode: RawEpisode) -> EpisodeFacts:
    return EpisodeFacts(
        episode_id=episode_id(task.identity.recording_id, episode.index),
        robot=episode.robot,
        task=episode.task,
        source=task.recording.source,
        format=episode.format or task.recording.format,
        rate_hz=episode.rate_hz,
        success=episode.success,
        attributes=episode.attributes,
    )


def _row(task: Task, episode: RawEpisode, facts: EpisodeFacts, frames: int) -> Row:
    return {
        "episode_id": facts.episode_id,
        "recording_id": task.identity.recording_id,
        "content_id": task.identity.content_id,
        "recording_uri": task.recording.uri,
        "index": episode.index,
        "recording_bytes": task.recording.size_bytes,
        "robot": facts.robot,
        "task": facts.task,
        "source": facts.source,
        "format": facts.format,
        "success": facts.success,
        "rate_hz": facts.rate_hz,
        "profile": task.profile.name,
        "batch": task.batch,
        "revision": 1,
        **content_columns(episode, frames),
    }


def content_columns(episode: RawEpisode, frames: int) -> Row:
    """The columns of `episodes` that follow from what an episode's file holds."""
    series = {one.name: one.values for one in episode.series}
    times = [camera.times_ns for camera in episode.cameras] + [one.times_ns for one in episode.series]
    # Of an episode of extra topics alone the length is not known without another pass over them.
    span_ns = max(int(one[-1]) for one in times) - min(int(one[0]) for one in times) if times else 0
    row: Row = {
        "duration_s": span_ns / 1e9,
        "frames": frames,
        "cameras": [camera.name for camera in episode.cameras],
        "camera_frames": [len(camera.times_ns) for camera in episode.cameras],
        "container_version": CONTAINER_VERSION,
        "notes": sorted({note.code for note in episode.notes}),
    }
    for name in ("state", "action"):
        values = series.get(name)
        row[f"{name}_dim"] = None if values is None else values.shape[1]
        row[f"{name}_stats"] = None if values is None else moments(values)
    return row


def moments(values: NDArray[np.floating]) -> dict[str, Any] | None:
    """Count, mean, sum of squared deviations, min and max of each column of `(n, d)`; None when there is nothing.

    A row with a value that is not finite is left out.
    """
    rows = values[np.isfinite(values).all(axis=1)].astype(np.float64)
    if not len(rows):
        return None
    mean = rows.mean(axis=0)
    return {
        "count": len(rows),
        "mean": mean.tolist(),
        "m2": np.square(rows - mean).sum(axis=0).tolist(),
        "min": rows.min(axis=0).tolist(),
        "max": rows.max(axis=0).tolist(),
    }

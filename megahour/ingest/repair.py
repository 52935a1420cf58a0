"""Repair an episode: what its damaged file still holds becomes a new file and a new revision of its row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from megahour.episode.check import Problem, check_bytes, check_episode
from megahour.episode.model import EpisodeError, EpisodeFacts, Note
from megahour.episode.profile import MIXED
from megahour.episode.salvage import Salvaged, salvage
from megahour.episode.writer import WrittenEpisode, write_episode
from megahour.files import sha256_of
from megahour.ingest.measure import SIGNALS, Task, measure
from megahour.ingest.scratch import scratch_folder
from megahour.ingest.transcode import Row, content_columns
from megahour.storage import FileRef, Lake, put_file, read_bytes


@dataclass(frozen=True)
class Repaired:
    """A new revision: its file's key, and the note that says what was lost."""

    uri: str
    note: Note


def repair_episode(lake: Lake, row: Row, scratch: Path) -> Repaired | None:
    """Save what is whole of an episode into a new revision; None when nothing is wrong with it.

    The damaged file stays where it is. Killed at any moment and started again, or run twice, it does it once.

    Args:
        row: the episode's row of the table `episodes`.
        scratch: the node-local folder.

    Raises:
        EpisodeError: `missing`, `replaced` or `version` where a repair is not the answer, `corrupt` when nothing can be
            saved; the text says what to do.
    """
    problems = check_episode(lake, row["uri"], row["sha256"])
    if not problems:
        return None
    if refusal := _refusal(lake, row, problems):
        raise refusal
    saved = salvage(row["uri"], read_bytes(lake, row["uri"]), _known(row), row["notes"] or ())
    with scratch_folder(scratch / "repair") as folder:
        path = folder / "episode.mcap"
        written = _write(row, saved, path)
        content = sha256_of(path)
        revision = row["revision"] + 1
        # Its content is in its name: what a repair of another version left behind is in nobody's way.
        key = f"{row['uri'].rpartition('/')[0]}/{row['episode_id']}.r{revision}-{content[:8]}.mcap"
        ref = put_file(lake, key, path)
    _append(lake, row, {**_columns(saved, written, ref, content), "uri": key, "revision": revision})
    return Repaired(key, saved.episode.notes[-1])


def _refusal(lake: Lake, row: Row, problems: list[Problem]) -> EpisodeError | None:
    """Why an episode with these problems is not to be repaired."""
    url, recording = lake.url(row["uri"]), row["recording_uri"]
    for problem in problems:
        if problem.reason == "missing":
            return EpisodeError("missing", f"{url} is gone: ingest its recording {recording} again")
        if problem.reason == "replaced":
            return EpisodeError(
                "replaced",
                f"{url} is whole, but not what was ingested: nothing of it can be trusted. Put the right file back, or "
                f"ingest {recording} again",
            )
        if problem.reason == "version":
            return EpisodeError("version", f"{problem.message}: repair it with the Megahour that wrote it")
    return None


def _write(row: Row, saved: Salvaged, path: Path) -> WrittenEpisode:
    profile = replace(MIXED, name=row["profile"], pictures="as_coded", groups=saved.groups)
    written = write_episode(path, saved.episode, saved.facts, profile)
    if left := check_bytes(row["uri"], path.read_bytes()):
        raise EpisodeError("corrupt", f"What was saved of {row['uri']} is not whole either: {left[0].message}")
    return written


def _columns(saved: Salvaged, written: WrittenEpisode, ref: FileRef, sha256: str) -> Row:
    return {
        **content_columns(saved.episode, written.frames),
        "etag": ref.etag,
        "size_bytes": ref.size_bytes,
        "sha256": sha256,
    }


def _known(row: Row) -> EpisodeFacts:
    return EpisodeFacts(
        episode_id=row["episode_id"],
        robot=row["robot"],
        task=row["task"],
        source=row["source"],
        format=row["format"],
        rate_hz=row["rate_hz"],
        success=row["success"],
    )


def _append(lake: Lake, row: Row, columns: Row) -> None:
    """Append what is new: the signals first, so that no reader sees the new file beside those of the old one."""
    from megahour.warehouse.queries import query
    from megahour.warehouse.tables import append

    now, once = datetime.now(UTC), f"repair:{columns['uri']}"
    measured = query(lake, "FROM episode_quality WHERE episode_id = ?", [row["episode_id"]]).to_pylist()
    if measured:
        signals = measure(Task(lake, row["episode_id"], columns["uri"], row["batch"], SIGNALS))
        new = {**signals, "measured_at": now, "revision": measured[0]["revision"] + 1}
        append(lake, "episode_quality", [new], once=f"{once}:quality")
    # Saving takes a while, in which another reading of the recording may have taken this one's place, or given it back.
    (now_there,) = query(lake, "FROM episodes WHERE episode_id = ?", [row["episode_id"]]).to_pylist()
    standing = {name: now_there[name] for name in ("superseded_by", "batch")}
    revised = {**row, **columns, **standing, "ingested_at": now, "revision": now_there["revision"] + 1}
    append(lake, "episodes", [revised], once=once)

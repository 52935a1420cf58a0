"""Repair an episode: what its damaged file still holds becomes a new file and a new revision of its row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from megahour.episode.check import check_bytes, check_episode
from megahour.episode.model import EpisodeError, EpisodeFacts, Note
from megahour.episode.profile import MIXED, PROFILES
from megahour.episode.salvage import salvage
from megahour.episode.writer import write_episode
from megahour.files import sha256_of
from megahour.ingest.scratch import scratch_folder
from megahour.ingest.transcode import Row, content_columns
from megahour.storage import Lake, put_file, read_bytes


@dataclass(frozen=True)
class Repaired:
    """A new revision: its file's key, and the note that says what was lost."""

    uri: str
    note: Note


def repair_episode(lake: Lake, row: Row, scratch: Path) -> Repaired | None:
    """Save what is whole of an episode into a new revision; None when nothing is wrong with it.

    The damaged file stays where it is. Done twice, it is done once: the second time the new file is good.

    Args:
        row: the episode's row of the table `episodes`.
        scratch: the node-local folder.

    Raises:
        EpisodeError: `missing`, or `corrupt` when nothing can be saved: ingest the recording again.
    """
    problems = check_episode(lake, row["uri"], row["sha256"])
    if not problems:
        return None
    if any(problem.reason == "missing" for problem in problems):
        raise EpisodeError(
            "missing", f"{lake.url(row['uri'])} is gone: ingest its recording {row['recording_uri']} again"
        )
    if any(problem.reason == "replaced" for problem in problems):
        raise EpisodeError(
            "replaced",
            f"{lake.url(row['uri'])} is whole, but not what was ingested: nothing of it can be trusted. Put the right "
            f"file back, or ingest {row['recording_uri']} again",
        )
    saved = salvage(row["uri"], read_bytes(lake, row["uri"]), _known(row))
    revision = row["revision"] + 1
    key = f"{row['uri'].rpartition('/')[0]}/{row['episode_id']}.r{revision}.mcap"
    profile = replace(PROFILES.get(row["profile"], MIXED), name=row["profile"], pictures="as_coded", rendition=None)
    with scratch_folder(scratch / "repair") as folder:
        path = folder / "episode.mcap"
        written = write_episode(path, saved.episode, saved.facts, profile)
        if left := check_bytes(key, path.read_bytes()):
            raise EpisodeError("corrupt", f"What was saved of {row['uri']} is not whole either: {left[0].message}")
        ref = put_file(lake, key, path)
        content = sha256_of(path)
    _append(
        lake,
        {
            **row,
            **content_columns(saved.episode, written.frames),
            "uri": key,
            "etag": ref.etag,
            "size_bytes": ref.size_bytes,
            "sha256": content,
            "ingested_at": datetime.now(UTC),
            "revision": revision,
        },
    )
    return Repaired(key, saved.episode.notes[-1])


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


def _append(lake: Lake, row: Row) -> None:
    from megahour.warehouse.tables import append

    append(lake, "episodes", [row], once=f"repair:{row['episode_id']}:{row['revision']}")

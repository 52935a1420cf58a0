"""Ingest batches: recordings cut into sets of equal bytes, and the immutable plans that name them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from megahour.sources.model import Recording
from megahour.storage import FileRef, Lake, list_files, read_bytes, write_once

PLANS = "batches"
_KEY = re.compile(r"^\d{8}T\d{4}-\d{4}$")
_PER_MINUTE = 9999


@dataclass(frozen=True)
class Batch:
    """Recordings that are ingested together. Keys sort by time: `20261129T1500-0007`."""

    key: str
    recordings: tuple[Recording, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all recordings."""
        return sum(recording.size_bytes for recording in self.recordings)

    @property
    def date(self) -> str:
        """The day in the key, `2026-11-29`: the folder of this batch's episodes."""
        return f"{self.key[:4]}-{self.key[4:6]}-{self.key[6:8]}"


def cut_batches(
    recordings: Iterable[Recording], batch_bytes: int, batch_recordings: int
) -> list[tuple[Recording, ...]]:
    """Cut recordings, in order of URI, into as few batches as the limits allow, of bytes as equal as the order allows.

    A recording larger than `batch_bytes` is a batch of its own. The order of the input does not matter.
    """
    ordered = sorted(recordings, key=lambda recording: (recording.uri, recording.fingerprint))
    if not ordered:
        return []
    sizes = [recording.size_bytes for recording in ordered]
    fewest = len(_fill(sizes, batch_bytes, batch_recordings))
    low, high = 0, batch_bytes
    while low < high:
        middle = (low + high) // 2
        if len(_fill(sizes, middle, batch_recordings)) <= fewest:
            high = middle
        else:
            low = middle + 1
    lengths = _fill(sizes, high, batch_recordings)
    batches, start = [], 0
    for length in lengths:
        batches.append(tuple(ordered[start : start + length]))
        start += length
    return batches


def _fill(sizes: Sequence[int], batch_bytes: int, batch_recordings: int) -> list[int]:
    """Lengths of consecutive batches when each takes what fits."""
    lengths, filled_bytes = [0], 0
    for size in sizes:
        if lengths[-1] and (filled_bytes + size > batch_bytes or lengths[-1] == batch_recordings):
            lengths.append(0)
            filled_bytes = 0
        lengths[-1] += 1
        filled_bytes += size
    return lengths


def next_key(last: str, now: datetime) -> str:
    """The batch key that follows `last` (empty: none yet). Keys only grow, even when the clock goes back."""
    minute = now.strftime("%Y%m%dT%H%M")
    last_minute, _, number = last.partition("-")
    if minute > last_minute:
        return f"{minute}-0001"
    if int(number) < _PER_MINUTE:
        return f"{last_minute}-{int(number) + 1:04d}"
    following = datetime.strptime(last_minute, "%Y%m%dT%H%M") + timedelta(minutes=1)
    return f"{following.strftime('%Y%m%dT%H%M')}-0001"


def list_batches(lake: Lake, after: str = "") -> list[str]:
    """Keys of all planned batches greater than `after`, ascending."""
    offset = plan_key(after) if after else ""
    names = (file.key.rpartition("/")[2].removesuffix(".json") for file in list_files(lake, PLANS, offset))
    return [name for name in names if _KEY.match(name)]


def read_batch(lake: Lake, key: str) -> Batch:
    """The plan of a batch.

    Raises:
        FileNotFoundError: no batch has this key.
        ValueError: the plan is damaged.
    """
    data = read_bytes(lake, plan_key(key))
    try:
        plan = json.loads(data)
        return Batch(plan["key"], tuple(_recording(recording) for recording in plan["recordings"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{lake.url(plan_key(key))} is not a batch's plan: {error}. Restore it, or remove it: what landed with it "
            "is then planned again, and what is ingested already is known by its content"
        ) from error


def write_batch(lake: Lake, batch: Batch) -> None:
    """Store a batch's plan. Storing the same plan again changes nothing, also where an earlier version wrote it.

    Raises:
        FileExistsError: another plan has this key.
        ValueError: the plan that is there is damaged.
    """
    plan = {"key": batch.key, "recordings": [_plain(recording) for recording in batch.recordings]}
    try:
        write_once(lake, plan_key(batch.key), json.dumps(plan, separators=(",", ":")).encode())
    except FileExistsError:
        if read_batch(lake, batch.key) != batch:
            raise


def add_batches(lake: Lake, parts: Iterable[tuple[Recording, ...]], now: datetime) -> list[Batch]:
    """Store each part as a new batch under the next free key; a key taken by another process is passed over."""
    added: list[Batch] = []
    last = max(list_batches(lake), default="")
    for recordings in parts:
        while True:
            last = next_key(last, now)
            batch = Batch(last, recordings)
            try:
                write_batch(lake, batch)
            except FileExistsError:
                continue
            added.append(batch)
            break
    return added


def plan_key(key: str) -> str:
    """Where the plan of a batch is stored."""
    return f"{PLANS}/{key}.json"


def _plain(recording: Recording) -> dict[str, Any]:
    return {
        "uri": recording.uri,
        "format": recording.format,
        "source": recording.source,
        "files": [_plain_file(file) for file in recording.files],
        "missing": list(recording.missing),
        "options": None if recording.options is None else _plain_file(recording.options),
        "own_bytes": recording.own_bytes,
        "beside": [_plain_file(file) for file in recording.beside],
        "said": recording.said,
    }


def _recording(plain: dict[str, Any]) -> Recording:
    return Recording(
        uri=plain["uri"],
        format=plain["format"],
        source=plain["source"],
        files=tuple(_file(each) for each in plain["files"]),
        missing=tuple(plain["missing"]),
        options=None if plain["options"] is None else _file(plain["options"]),
        own_bytes=plain["own_bytes"],
        # Plans of before have neither.
        beside=tuple(_file(each) for each in plain.get("beside", ())),
        said=plain.get("said", ""),
    )


def _plain_file(file: FileRef) -> list[Any]:
    return [file.key, file.size_bytes, file.etag, file.modified_at.isoformat()]


def _file(plain: list[Any]) -> FileRef:
    key, size_bytes, etag, modified_at = plain
    return FileRef(key, size_bytes, etag, datetime.fromisoformat(modified_at))

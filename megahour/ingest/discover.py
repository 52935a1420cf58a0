"""Discovery: what is new in the landing zone, as batch plans, and which plans nobody asked to ingest yet."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache, partial
from itertools import groupby

from megahour.ingest.land import digest
from megahour.ingest.plan import add_batches, cut_batches, list_batches, read_batch
from megahour.settings import Settings
from megahour.sources import find_recordings
from megahour.sources.model import Recording
from megahour.storage import FileRef, Lake, list_files, read_bytes

LANDING = "landing"
LATE_PLAN = timedelta(minutes=10)
"""How late a plan may appear under an older key, its writer having paused between choosing the key and writing, and be
asked for alone. A later one is seen too, and then all batches are asked for again."""
CLOCK_SKEW_S = 300.0
"""A file this far in the future has a wrong time, and its age says nothing."""


@dataclass(frozen=True)
class Discovery:
    """Keys of batches to ingest, ascending, and the cursor to keep once they are asked for."""

    batches_to_request: tuple[str, ...]
    cursor: str


@dataclass(frozen=True)
class Cursor:
    """Every batch up to `requested` was asked for, and those in `recent` too. At `source` time ran out.

    `planned` is a digest of the keys up to `requested`: with another one a plan came later than all expect.
    """

    requested: str = ""
    planned: str = ""
    recent: tuple[str, ...] = field(default=())
    source: str = ""

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor of the last tick; an empty or unreadable one starts over, which asks twice and changes nothing."""
        try:
            plain = json.loads(text)
            recent = tuple(map(str, plain["recent"]))
            return cls(str(plain["requested"]), str(plain["planned"]), recent, str(plain["source"]))
        except (ValueError, KeyError, TypeError):
            return cls()

    def text(self) -> str:
        """The cursor as it is stored."""
        return json.dumps(asdict(self))


def discover(lake: Lake, settings: Settings, cursor: str, now: datetime, deadline: float) -> Discovery:
    """Plan batches for new recordings and name every batch not asked for yet.

    Whole sources (`landing/<source>/`) are looked at until `deadline` (seconds of `time.monotonic()`), at least one,
    from where the last tick stopped; none while plans are still to be read, which may take a process several ticks. A
    crash before the cursor is kept loses nothing: plans are found again.
    """
    seen = Cursor.parse(cursor)
    try:
        known = known_recordings(lake, deadline)
    except TimeoutError:
        return _requests(list_batches(lake), seen, seen.source, now)
    last = seen.source
    for source, files in _from_source(by_source(list_files(lake, LANDING)), seen.source):
        _plan_source(lake, settings, source, files, known, now)
        if time.monotonic() >= deadline:
            last = source
            break
    else:
        last = ""
    return _requests(list_batches(lake), seen, last, now)


def by_source(files: Iterable[FileRef]) -> list[tuple[str, list[FileRef]]]:
    """Landed files by the folder below `landing/` they are in, in order of its name."""

    def source(file: FileRef) -> str:
        return file.key.split("/")[1]

    return [(name, list(group)) for name, group in groupby(sorted(files, key=source), key=source)]


def known_recordings(lake: Lake, deadline: float = math.inf) -> dict[str, str]:
    """URI and fingerprint of every recording in a plan, as it was planned last: what went back since is new again.

    Raises:
        TimeoutError: it is past `deadline` (seconds of `time.monotonic()`), and plans are left to read. At least one
            was read, and the next call goes on from there.
    """
    keys = list_batches(lake)
    if not _memory_of(lake).plans.issubset(keys):
        # A plan was taken away, so that what it held is planned again.
        _memory_of.cache_clear()
    memory = _memory_of(lake)
    unread = [key for key in keys if key not in memory.plans]
    for number, key in enumerate(unread):
        if number and time.monotonic() >= deadline:
            raise TimeoutError(f"{len(unread) - number} of {len(keys)} batch plans are still to be read")
        memory.recordings |= {each.uri: each.fingerprint for each in read_batch(lake, key).recordings}
        memory.plans.add(key)
    return memory.recordings


def is_settled(file: FileRef, now: datetime, settle_s: float) -> bool:
    """Whether the file did not change in the last `settle_s` seconds."""
    return not -CLOCK_SKEW_S < (now - file.modified_at).total_seconds() < settle_s


def _may_change(recording: Recording, young: set[str]) -> bool:
    """Whether a file is young that the recording holds or that says how to read it; of a recording that misses some,
    any in its folder: they may be coming."""
    options = (recording.options,) if recording.options else ()
    if any(file.key in young for file in (*recording.files, *recording.beside, *options)):
        return True
    return bool(recording.missing) and any(key.startswith(recording.folder) for key in young)


def _plan_source(
    lake: Lake, settings: Settings, source: str, files: list[FileRef], known: Mapping[str, str], now: datetime
) -> None:
    """Plan batches for what is new in a source, unless its files are those of a time when nothing was left to plan."""
    finished = _memory_of(lake).finished
    listing = digest(f"{file.key} {file.size_bytes} {file.etag}" for file in files)
    if finished.get(source) == listing:
        return
    found = find_recordings(files, partial(read_bytes, lake))
    young = {file.key for file in files if not is_settled(file, now, settings.settle_s)}
    settled = [recording for recording in found if not _may_change(recording, young)]
    new = [recording for recording in settled if known.get(recording.uri) != recording.fingerprint]
    add_batches(lake, cut_batches(new, settings.batch_bytes, settings.batch_recordings), now)
    if not new and len(settled) == len(found):
        finished[source] = listing


@dataclass
class _Memory:
    """What this process read of a lake and need not read again: the plans, and what they hold; and a digest of each
    source's files when all recordings in them were in these plans."""

    plans: set[str] = field(default_factory=set)
    recordings: dict[str, str] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)


@lru_cache(maxsize=8)
def _memory_of(lake: Lake) -> _Memory:
    return _Memory()


def _from_source(sources: list[tuple[str, list[FileRef]]], last: str) -> Iterator[tuple[str, list[FileRef]]]:
    """All sources once, beginning behind `last`."""
    yield from (item for item in sources if item[0] > last)
    yield from (item for item in sources if item[0] <= last)


def _requests(keys: list[str], seen: Cursor, source: str, now: datetime) -> Discovery:
    if digest(key for key in keys if key <= seen.requested) != seen.planned:
        seen = Cursor()
    floor = (now - LATE_PLAN).strftime("%Y%m%dT%H%M")
    wanted = tuple(key for key in keys if key > seen.requested and key not in seen.recent)
    requested = max(seen.requested, max((key for key in keys if key < floor), default=""))
    recent = tuple(key for key in keys if key > requested)
    planned = digest(key for key in keys if key <= requested)
    return Discovery(wanted, Cursor(requested, planned, recent, source).text())

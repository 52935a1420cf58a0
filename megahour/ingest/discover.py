"""Discovery: what is new in the landing zone, as batch plans, and which plans nobody asked to ingest yet."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
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
    from where the last tick stopped. A crash before the cursor is kept loses nothing: plans are found again.
    """
    seen = Cursor.parse(cursor)
    known = known_recordings(lake)
    last = seen.source
    for source, files in _from_source(by_source(list_files(lake, LANDING)), seen.source):
        found = find_recordings(files, partial(read_bytes, lake))
        young = {file.key for file in files if not is_settled(file, now, settings.settle_s)}
        new = [
            recording
            for recording in found
            if (recording.uri, recording.fingerprint) not in known and not _may_change(recording, young)
        ]
        add_batches(lake, cut_batches(new, settings.batch_bytes, settings.batch_recordings), now)
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


def known_recordings(lake: Lake) -> set[tuple[str, str]]:
    """URI and fingerprint of every recording in a plan."""
    return set().union(*(_planned(lake, key) for key in list_batches(lake)))


def is_settled(file: FileRef, now: datetime, settle_s: float) -> bool:
    """Whether the file did not change in the last `settle_s` seconds."""
    return not -CLOCK_SKEW_S < (now - file.modified_at).total_seconds() < settle_s


def _may_change(recording: Recording, young: set[str]) -> bool:
    """Whether a file of the recording is young; of one that misses some, any of its dataset: they may be coming."""
    if any(file.key in young for file in recording.files):
        return True
    folder = recording.uri.partition("#")[0] + "/"
    return bool(recording.missing) and any(key.startswith(folder) for key in young)


@lru_cache(maxsize=10_000)
def _planned(lake: Lake, key: str) -> frozenset[tuple[str, str]]:
    return frozenset((recording.uri, recording.fingerprint) for recording in read_batch(lake, key).recordings)


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

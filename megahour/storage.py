"""The lake's files: read ranges, list, and write once, on a local folder or an S3 bucket alike.

A *key* is a path relative to the lake's root (`episodes/2026-11-29/<id>.mcap`). Tables and manifests hold keys, so a
lake moves from a laptop to a bucket as it is. Keys and etags are all that identifies bytes: a key written by
`write_once` or `put_file` never changes its content.

Every function that takes a key raises ValueError for what is none (`is_key`), and StoreError when the disk or the
object store fails.
"""

from __future__ import annotations

import fcntl
import filecmp
import hashlib
import io
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import LocalStore, S3Store

from megahour.files import make_folders, sha256_of, sync_directory, sync_file, unfinished, write_atomically
from megahour.upload import open_upload_store, put_in_parts

if TYPE_CHECKING:
    from obstore.store import ObjectStore

STAGE_RANGE_BYTES = 8 * 2**20
STAGE_THREADS = 8
# Up to here one request holds a whole file in memory; a larger one costs a handful of requests more.
ONE_PUT_BYTES = 64 * 2**20

KEY_RULE = (
    "Names in a lake are UTF-8, at most 200 bytes each and 1,000 with their folders, hold no control characters, are "
    "not '.' or '..', and do not end in '#' and digits"
)
MOST_KEY_BYTES = 1000
"""S3 takes 1,024."""
MOST_NAME_BYTES = 200
"""Disks take 255; a temporary name beside a file's own is longer."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Names that obstore keeps to itself on a local disk.
_NUMBERED = re.compile(r"#[0-9]+$")
_log = logging.getLogger(__name__)


class ForkedError(RuntimeError):
    """A forked process cannot use its parent's object store; the text says how to start it instead."""


class StoreError(OSError):
    """The lake's disk or object store did not do what it was asked to; the text names the file and says what to do."""


@dataclass(frozen=True)
class FileRef:
    """A file of the lake. `key` is relative to the lake's root, `modified_at` is aware of its time zone."""

    key: str
    size_bytes: int
    etag: str
    modified_at: datetime


@dataclass(frozen=True)
class Lake:
    """The lake's root, `file:///folder` or `s3://bucket/prefix`; only the URI, so it travels between processes."""

    uri: str

    @property
    def store(self) -> ObjectStore:
        """The obstore store of this root, made once per process.

        Raises:
            ForkedError: this process was forked from one that had used a store.
        """
        if _store_lost:
            raise ForkedError(
                f"This process was forked from one that had used the object store, and cannot use it: {self.uri}. "
                "Start processes by 'spawn' or 'forkserver' (multiprocessing_context of a DataLoader)"
            )
        return _open_store(self.uri)

    @property
    def root(self) -> Path | None:
        """The root as a folder, or None on an object store."""
        return Path(unquote(urlsplit(self.uri).path)) if self.uri.startswith("file://") else None

    def local_path(self, key: str) -> Path | None:
        """Where `key` lies in the file system, or None on an object store.

        Raises:
            ValueError: this is no key.
        """
        root = self.root
        return None if root is None else root / _checked(key)

    def url(self, key: str) -> str:
        """The address of `key` for other programs: a path, or an `s3://` URL."""
        return f"{self.uri}/{key}" if self.root is None else str(self.root / key)


def open_lake(uri: str) -> Lake:
    """The lake at `uri`; its folder is made when it is a local one. Credentials of S3 come from `AWS_*`.

    Raises:
        ValueError: the URI is neither `file:///...` nor `s3://bucket...`, or its path cannot serve.
        OSError: its folder cannot be made.
    """
    lake = _lake_at(uri)
    if lake.root is not None:
        try:
            make_folders(lake.root)
        except OSError as error:
            reason = "a file is there" if isinstance(error, FileExistsError) else error.strerror
            raise OSError(
                f"The lake's folder {lake.root} cannot be made: {reason}. Set MEGAHOUR_LAKE to one you may write to"
            ) from error
    return lake


def find_lake(uri: str) -> Lake:
    """The lake at `uri`, for those who only read: the folder of a local one is there already.

    Raises:
        ValueError: as of `open_lake`.
        FileNotFoundError: there is no such folder.
    """
    lake = _lake_at(uri)
    if lake.root is not None and not lake.root.is_dir():
        raise FileNotFoundError(
            f"There is no lake at {lake.root}: set MEGAHOUR_LAKE to where it is, or begin one there with "
            "`megahour land SRC`"
        )
    return lake


def _lake_at(uri: str) -> Lake:
    parts = urlsplit(uri)
    if parts.scheme not in ("file", "s3") or (parts.scheme == "s3") != bool(parts.netloc):
        raise ValueError(f"A lake is a folder, file:///folder or s3://bucket/prefix; {uri!r} is none of them")
    lake = Lake(uri.rstrip("/"))
    # The Delta kernel decodes a percent sign twice, and duckdb takes the others for patterns.
    if found := set(lake.url("")) & set("%*?["):
        raise ValueError(f"The lake's path {lake.url('')} holds {' '.join(sorted(found))}: choose one without")
    return lake


def read_bytes(lake: Lake, key: str) -> bytes:
    """All bytes of a file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with _told(lake, key):
        return bytes(obstore.get(lake.store, _checked(key)).bytes())


def read_range(lake: Lake, key: str, start: int, end: int) -> bytes:
    """Bytes `start` to `end` (exclusive) of a file.

    Raises:
        FileNotFoundError: there is no such file.
        EOFError: the file ends before `end`.
    """
    return read_ranges(lake, key, [start], [end])[0]


def read_ranges(lake: Lake, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    """Several ranges of one file, each a request of its own, all at once.

    Raises:
        FileNotFoundError: there is no such file.
        EOFError: the file ends before one of the ranges does.
    """
    wanted = [(start, end) for start, end in zip(starts, ends, strict=True) if end > start]
    if not wanted:
        return [b"" for _ in starts]
    try:
        starts_ends = {"starts": [s for s, _ in wanted], "ends": [e for _, e in wanted]}
        with _told(lake, key):
            found = iter(obstore.get_ranges(lake.store, _checked(key), coalesce=0, **starts_ends))
    except StoreError as error:
        ref = head(lake, key)
        if ref is not None and ref.size_bytes < max(end for _, end in wanted):
            raise EOFError(_cut_short(lake, key, ref.size_bytes, max(end for _, end in wanted))) from error
        raise
    parts = [bytes(next(found)) if end > start else b"" for start, end in zip(starts, ends, strict=True)]
    for part, start, end in zip(parts, starts, ends, strict=True):
        if len(part) < end - start:
            raise EOFError(_cut_short(lake, key, start + len(part), end))
    return parts


def read_tail(lake: Lake, key: str, length: int) -> tuple[bytes, int]:
    """The last `length` bytes of a file, or all it has, and its size; one request.

    Raises:
        FileNotFoundError: there is no such file.
    """
    options: Any = {"range": {"suffix": length}}
    try:
        with _told(lake, key):
            answer = obstore.get(lake.store, _checked(key), options=options)
            return bytes(answer.bytes()), answer.meta["size"]
    except StoreError:
        # Servers refuse a suffix of an empty file.
        ref = head(lake, key)
        if ref is not None and ref.size_bytes == 0:
            return b"", 0
        raise


def _cut_short(lake: Lake, key: str, size_bytes: int, end: int) -> str:
    return f"{lake.url(key)} ends at byte {size_bytes}, and bytes up to {end} were asked for: it is cut short"


def head(lake: Lake, key: str) -> FileRef | None:
    """What is known about a file without reading it, or None when there is no such file."""
    try:
        with _told(lake, key):
            return _ref(obstore.head(lake.store, _checked(key)))
    except FileNotFoundError:
        return None


def is_key(key: str) -> bool:
    """Whether a file of a lake, local or not, may be called so: `KEY_RULE` says what is asked of it."""
    try:
        parts = [part.encode() for part in key.split("/")]
    except UnicodeEncodeError:
        return False
    if len(key.encode()) > MOST_KEY_BYTES or max(map(len, parts)) > MOST_NAME_BYTES:
        return False
    return not (_CONTROL.search(key) or _NUMBERED.search(key) or {"", ".", ".."} & set(key.split("/")))


def _checked(key: str) -> str:
    if not is_key(key):
        raise ValueError(f"{key!r} cannot be a key: it is no path below the lake's root. {KEY_RULE}")
    return key


@contextmanager
def _told(lake: Lake, key: str) -> Iterator[None]:
    """What the client raises, in the errors of this module."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no {lake.url(key)}") from error
    except AlreadyExistsError as error:
        raise FileExistsError(f"There is a {lake.url(key)} already") from error
    except PreconditionError as error:
        raise StoreError(f"{lake.url(key)} changed while it was read: read it again") from error
    except BaseError as error:
        said = " ".join(str(error).partition("\n\nDebug source")[0].split()).rstrip(": ")
        raise StoreError(
            f"The lake failed on {lake.url(key)}: {said}. Check that it can be reached and that you may use it, and "
            "try again"
        ) from error


def list_files(lake: Lake, prefix: str, after: str = "") -> Iterator[FileRef]:
    """The files below the folder `prefix`, sorted by key; of a folder without folders in it, those after `after`.

    Names that start with a dot or end in `.tmp`, and whatever lies in folders so named, are passed over. So is, with a
    warning, what a person put into a local lake and nobody can read: a name that is no key, a link that leads nowhere.
    """
    folder = _checked(prefix.rstrip("/")) if prefix else ""
    try:
        with _told(lake, folder):
            listed = obstore.list(lake.store, folder or None, offset=after or None, chunk_size=1000)
            metas = [meta for chunk in listed for meta in chunk]
    except StoreError:
        if lake.root is None:
            raise
        # One bad name fails the whole listing.
        metas = [meta for meta in _walk(lake, lake.root, folder) if meta["path"] > after]
    # Not every S3 server lists in the order of bytes, and a local disk lists in none.
    metas.sort(key=lambda meta: meta["path"])
    for meta in metas:
        inner = meta["path"][len(folder) :].split("/")
        if not any(name.startswith(".") or name.endswith(".tmp") for name in inner):
            yield _ref(meta)


def _walk(lake: Lake, root: Path, prefix: str) -> Iterator[Any]:
    for name, folders, names in os.walk(root / prefix, onerror=_passed_over, followlinks=True):
        folder = Path(name)
        folders[:] = [each for each in folders if not _leads_back(folder, each)]
        for path in map(folder.joinpath, names):
            key = path.relative_to(root).as_posix()
            if not is_key(key) or not path.exists():
                _log.warning(
                    "%r is passed over: its name cannot be kept, or the link leads nowhere. Rename or remove it. %s",
                    str(path),
                    KEY_RULE,
                )
            elif path.is_file():
                try:
                    with _told(lake, key):
                        yield obstore.head(lake.store, key)
                except FileNotFoundError:
                    continue


def _leads_back(folder: Path, name: str) -> bool:
    """Whether a link leads to a folder that it lies in."""
    path = folder / name
    return path.is_symlink() and folder.resolve().is_relative_to(path.resolve())


def _passed_over(error: OSError) -> None:
    if isinstance(error, PermissionError):
        _log.warning("%r is passed over, it may not be read: %s", error.filename, error.strerror)
    elif not isinstance(error, FileNotFoundError):
        raise error


def write_once(lake: Lake, key: str, data: bytes) -> FileRef:
    """Put `data` at `key` unless a file is there. All of it appears at once, and it lasts through a power cut.

    Raises:
        FileExistsError: a file with other content is stored under this key.
    """

    def same() -> bool:
        stored = head(lake, key)
        return stored is not None and stored.size_bytes == len(data) and read_bytes(lake, key) == data

    return _create(lake, key, io.BytesIO(data), len(data), same)


def put_file(lake: Lake, key: str, path: Path) -> FileRef:
    """Copy the file at `path` to `key` unless a file is there; as `write_once`, without holding it in memory.

    On an object store, one of more than 5 GiB may overwrite what another writer puts there at its end: `put_in_parts`.

    Raises:
        FileExistsError: a file with other content is stored under this key.
    """
    with path.open("rb") as data:
        return _create(lake, key, data, path.stat().st_size, lambda: _equals_file(lake, key, path))


def overwrite(lake: Lake, key: str, data: bytes) -> FileRef:
    """Put `data` at `key` over what is there: for the few small files that point at others."""
    target = lake.local_path(key)
    if target is None:
        with _told(lake, key):
            obstore.put(lake.store, _checked(key), data)
    else:
        make_folders(target.parent)
        write_atomically(target, data)
    return _require(lake, key)


def sha256(lake: Lake, key: str) -> str:
    """The sha256 of a file's bytes, in hexadecimal.

    Raises:
        FileNotFoundError: there is no such file.
    """
    digest = hashlib.sha256()
    with _told(lake, key):
        for part in obstore.get(lake.store, _checked(key)).stream(min_chunk_size=STAGE_RANGE_BYTES):
            digest.update(part)
    return digest.hexdigest()


def stage(lake: Lake, key: str, folder: Path, sha256: str = "") -> Path:
    """A local path with the bytes of `key`: the file itself on a local lake, else a download below `folder`.

    A download is kept under the file's etag and made once, however many processes ask; it appears whole or not at all.
    Where its `sha256` is given, a download must have it.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: the file changed while it was read (a StoreError), or its bytes are not those of `sha256`.
    """
    ref = _require(lake, key)
    local = lake.local_path(key)
    if local is not None:
        return local
    name = hashlib.sha256(f"{lake.uri}\n{key}\n{ref.etag}".encode()).hexdigest()[:16]
    target = folder / name / Path(key).name
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _download(lake, ref, target, sha256)
    return target


def _download(lake: Lake, ref: FileRef, target: Path, expected: str) -> None:
    partial = target.with_name(f".{target.name}.tmp")
    with partial.open("wb") as out:
        out.truncate(ref.size_bytes)

        def fetch(start: int) -> None:
            end = min(start + STAGE_RANGE_BYTES, ref.size_bytes)
            options: Any = {"range": (start, end), "if_match": ref.etag}
            with _told(lake, ref.key):
                data = bytes(obstore.get(lake.store, ref.key, options=options).bytes())
            if len(data) != end - start:
                raise OSError(_cut_short(lake, ref.key, start + len(data), end))
            os.pwrite(out.fileno(), data, start)

        with ThreadPoolExecutor(STAGE_THREADS) as threads:
            list(threads.map(fetch, range(0, ref.size_bytes, STAGE_RANGE_BYTES)))
        os.fsync(out.fileno())
    if expected and (found := sha256_of(partial)) != expected:
        raise OSError(f"{lake.url(ref.key)} was read with the sha256 {found}, and {expected} was stored: read it again")
    partial.rename(target)
    sync_directory(target.parent)


def _create(lake: Lake, key: str, data: IO[bytes], size_bytes: int, same: Callable[[], bool]) -> FileRef:
    target = lake.local_path(key)
    try:
        if target is None:
            _put_new(lake, key, data, size_bytes)
        else:
            _link_new(target, data)
    except FileExistsError as error:
        # A put whose answer was lost is tried again by the client, and then finds its own bytes.
        if not same():
            if head(lake, key) is None:
                raise StoreError(f"Another is writing {lake.url(key)}: try again") from error
            raise FileExistsError(
                f"{lake.url(key)} is stored already with other content; files of the lake never change. "
                "Write the new content under another key"
            ) from error
    return _require(lake, key)


def _put_new(lake: Lake, key: str, data: IO[bytes], size_bytes: int) -> None:
    with _told(lake, key):
        if size_bytes <= ONE_PUT_BYTES:
            obstore.put(lake.store, _checked(key), data.read(), mode="create")
        elif head(lake, key) is None:
            put_in_parts(_open_upload_store(lake.uri), key, data, size_bytes)
        else:
            raise FileExistsError(key)


def _link_new(target: Path, data: IO[bytes]) -> None:
    if target.exists():
        raise FileExistsError(target)
    make_folders(target.parent)
    with unfinished(target) as partial:
        with partial.open("wb") as out:
            shutil.copyfileobj(data, out, STAGE_RANGE_BYTES)
        sync_file(partial)
        # A link, unlike a rename, fails when the name is taken.
        os.link(partial, target)
    sync_directory(target.parent)


def _equals_file(lake: Lake, key: str, path: Path) -> bool:
    stored = head(lake, key)
    size_bytes = path.stat().st_size
    if stored is None or stored.size_bytes != size_bytes:
        return False
    local = lake.local_path(key)
    if local is not None:
        return filecmp.cmp(path, local, shallow=False)
    with path.open("rb") as ours:
        for start in range(0, size_bytes, STAGE_RANGE_BYTES):
            theirs = read_range(lake, key, start, min(start + STAGE_RANGE_BYTES, size_bytes))
            if ours.read(len(theirs)) != theirs:
                return False
    return True


def _require(lake: Lake, key: str) -> FileRef:
    ref = head(lake, key)
    if ref is None:
        raise FileNotFoundError(f"There is no {lake.url(key)}")
    return ref


def _ref(meta: Any) -> FileRef:
    return FileRef(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"])


_store_opened = False
_store_lost = False


def _after_fork() -> None:
    global _store_lost
    _store_lost = _store_opened


# The client's threads stay behind in the parent, and a call in the child would wait for them for ever.
os.register_at_fork(after_in_child=_after_fork)


@lru_cache(maxsize=32)
def _open_store(uri: str) -> ObjectStore:
    global _store_opened
    _store_opened = True
    root = Lake(uri).root
    return LocalStore(prefix=root) if root is not None else S3Store.from_url(uri)


_open_upload_store = lru_cache(maxsize=32)(open_upload_store)

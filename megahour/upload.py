"""Large files reach an object store in parts: a key holds all of a file or nothing, and the first to come keeps it.

S3 makes one request conditional, and obstore sends parts without a condition. So the parts become a file below
`.unfinished/`, and S3 copies it to its key on condition that nothing is there. What a killed process left below
`.unfinished/` is removed by later uploads; parts that it never put together show in no listing, and go by the bucket's
lifecycle rule for incomplete multipart uploads.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import IO, Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

UNFINISHED = ".unfinished"
PART_BYTES = 8 * 2**20
# Limits of S3: https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
MAX_PARTS = 10_000
MAX_COPY_BYTES = 5 * 2**30
# A copy of 5 GiB takes S3 longer than the client's 30 seconds.
TIMEOUT = "5 minutes"
# Amazon has it since October 2025. "multipart", the older way, SeaweedFS lets two writers pass at once.
CONDITION = "header:if-none-match:*"
# From its last part to its copy no living upload takes as long.
LEFT_FOR_DEAD = timedelta(days=1)

# What the client reads from `AWS_<NAME>` unless it is given options of its own.
_CLIENT_OPTIONS = (
    *(
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_only",
    ),
    *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_max_frame_size"),
    *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url"),
    *("randomize_addresses", "read_timeout", "timeout", "user_agent"),
)

_log = logging.getLogger(__name__)


def open_upload_store(uri: str) -> S3Store:
    """The store at `uri` for `put_in_parts`: as patient as a copy asks for, unless `AWS_TIMEOUT` says otherwise.

    `AWS_COPY_IF_NOT_EXISTS` names the condition of a server that does not know Amazon's.
    """
    said = {name: os.environ[f"AWS_{name.upper()}"] for name in _CLIENT_OPTIONS if f"AWS_{name.upper()}" in os.environ}
    options: Any = {"timeout": TIMEOUT, **said}
    condition = os.environ.get("AWS_COPY_IF_NOT_EXISTS", CONDITION)
    return S3Store.from_url(uri, copy_if_not_exists=condition, client_options=options)


def put_in_parts(store: S3Store, key: str, data: IO[bytes], size_bytes: int) -> None:
    """Store what `data` still holds, about `size_bytes`, at `key` unless something is there; a few parts are in memory.

    S3 copies at most 5 GiB. A larger file goes to its key directly, which is looked at once more before the last part:
    what another writer puts there after that, in the seconds until the parts are put together, is overwritten.

    Raises:
        AlreadyExistsError, FileExistsError: something is stored under this key.
        BaseError: the store failed.
    """
    part_bytes = max(PART_BYTES, -(-size_bytes // MAX_PARTS))
    parts = iter(lambda: data.read(part_bytes), b"")
    if size_bytes > MAX_COPY_BYTES:
        obstore.put(store, key, _while_free(store, key, parts), chunk_size=part_bytes)
        return
    _sweep(store)
    partial = f"{UNFINISHED}/{secrets.token_hex(8)}"
    obstore.put(store, partial, parts, chunk_size=part_bytes)
    try:
        obstore.copy(store, partial, key, overwrite=False)
    finally:
        _remove(store, [partial])


def _while_free(store: S3Store, key: str, parts: Iterator[bytes]) -> Iterator[bytes]:
    last = next(parts, b"")
    for part in parts:
        yield last
        last = part
    # The client waits for this part in its own thread, and serves no other call there.
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(_is_there, store, key).result()
    if found:
        # An error in place of the last part makes the client give up the others.
        raise FileExistsError(key)
    yield last


def _is_there(store: S3Store, key: str) -> bool:
    try:
        obstore.head(store, key)
    except FileNotFoundError:
        return False
    return True


def _sweep(store: S3Store) -> None:
    dead_since = datetime.now(UTC) - LEFT_FOR_DEAD
    found = [meta for chunk in obstore.list(store, UNFINISHED) for meta in chunk]
    _remove(store, [meta["path"] for meta in found if meta["last_modified"] < dead_since])


def _remove(store: S3Store, keys: list[str]) -> None:
    try:
        obstore.delete(store, keys)
    except BaseError as error:
        _log.warning("%s cannot be removed and takes up space: %s. Remove it", ", ".join(keys), error)

"""Delta tables of the lake: idempotent appends, and which version a table is at."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megahour.storage import Lake
from megahour.warehouse.schemas import IDENTITY, TABLES

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

COMMIT_ATTEMPTS = 20

RETENTION = {
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": "interval 3650 days",
}
"""A pinned version must be readable as long as a manifest stands on it; Delta's own default is 30 days."""

GROWN = "megahour.grown"
"""A property of tables that got columns after their first files: these have fewer than the table."""


def stable_key(text: str) -> int:
    """A signed 64-bit integer from the sha256 of `text`: the same on every machine and in every engine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def append(lake: Lake, table: str, rows: Sequence[Mapping[str, Any]], *, once: str) -> int:
    """Append rows in one commit, once: a later append under the same `once` writes nothing.

    Args:
        rows: column to value; columns left out are NULL. `key` is computed here, from the row's identity.
        once: name of this append for ever, such as `ingest:20261129T1500-0007:episodes`.

    Returns:
        The number of rows this call wrote: all, or 0.

    Raises:
        ValueError: a column does not exist, or a row lacks its identity or its revision.
        RuntimeError: other writers won every attempt.
    """
    if not rows:
        return 0
    data = _to_arrow(table, rows)

    from deltalake import CommitProperties, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError

    properties = CommitProperties(app_transactions=[Transaction(once, 0)])
    for attempt in range(COMMIT_ATTEMPTS):
        try:
            delta = _open_or_create(lake, table)
            # Only the snapshot that was asked may be written from: a rival's commit after it then fails this one.
            if delta.transaction_version(once) is not None:
                return 0
            write_deltalake(delta, data, mode="append", commit_properties=properties)
        except CommitFailedError:
            time.sleep(random.uniform(0, 0.02 * 2 ** min(attempt, 6)))
            continue
        return len(rows)
    raise RuntimeError(
        f"{COMMIT_ATTEMPTS} attempts to append {len(rows)} rows to {_url(lake, table)} lost to other writers. "
        "Start fewer writers at once, and append again: nothing was written"
    )


def table_version(lake: Lake, table: str) -> int:
    """The latest version of a table, -1 when it does not exist yet."""
    from deltalake import DeltaTable

    url = _url(lake, table)
    return int(DeltaTable(url, without_files=True).version()) if DeltaTable.is_deltatable(url) else -1


def table_versions(lake: Lake) -> dict[str, int]:
    """The latest version of every table by name."""
    return {table: table_version(lake, table) for table in TABLES}


def open_table(lake: Lake, table: str, version: int | None = None) -> DeltaTable | None:
    """The table at a version, or at its latest; None when it does not exist (or `version` is -1).

    Raises:
        ValueError: the table has no such version, its files were vacuumed away, or its log is damaged.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    url = _url(lake, table)
    if version == -1 or not DeltaTable.is_deltatable(url):
        if version is not None and version >= 0:
            raise ValueError(f"{url} does not exist, and its version {version} was asked for")
        return None
    try:
        return DeltaTable(url, version=version)
    except DeltaError as error:
        if version is None:
            said = str(error).partition("\n")[0]
            raise ValueError(f"{url} cannot be read, its log is damaged: {said}. Restore its files") from error
        raise ValueError(
            f"{url} has no version {version}: {error}. It is at version {table_version(lake, table)}; "
            "versions older than the table's retention are gone"
        ) from error


def _url(lake: Lake, table: str) -> str:
    if table not in TABLES:
        raise ValueError(f"There is no table {table!r}; there are {', '.join(TABLES)}")
    return lake.url(f"tables/{table}")


def _open_or_create(lake: Lake, table: str) -> DeltaTable:
    from deltalake import DeltaTable

    url = _url(lake, table)
    if not DeltaTable.is_deltatable(url):
        # Two may get here; one of the two creations fails or changes nothing, and both open the same table.
        from deltalake.exceptions import DeltaError

        try:
            DeltaTable.create(url, schema=TABLES[table], mode="ignore", name=table, configuration=RETENTION)
        except DeltaError:
            if not DeltaTable.is_deltatable(url):
                raise
    delta = DeltaTable(url)
    _grow(delta, table)
    return delta


def _grow(delta: DeltaTable, table: str) -> None:
    """Give a table from before some columns these columns, NULL in the rows it has. Rivals fail as any commit does."""
    from deltalake import Schema

    there = {field.name for field in delta.schema().fields}
    absent = [field for field in Schema.from_arrow(TABLES[table]).fields if field.name not in there]
    if absent:
        # The property first: whoever finds the columns then knows that not all files have them.
        delta.alter.set_table_properties({GROWN: "true"}, raise_if_not_exists=False)
        delta.alter.add_columns(absent)


def _to_arrow(table: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    import pyarrow as pa

    schema = TABLES.get(table)
    if schema is None:
        raise ValueError(f"There is no table {table!r}; there are {', '.join(TABLES)}")
    identity = IDENTITY[table]
    keyed = []
    for row in rows:
        unknown = sorted(set(row) - set(schema.names))
        if unknown:
            raise ValueError(f"The table {table} has no column {', '.join(unknown)}; it has {', '.join(schema.names)}")
        missing = [name for name in (*identity, "revision") if row.get(name) is None]
        if missing:
            raise ValueError(f"A row for the table {table} lacks {', '.join(missing)}: {dict(row)}")
        keyed.append({**row, "key": stable_key("\n".join(str(row[name]) for name in identity))})
    return pa.Table.from_pylist(keyed, schema=schema)

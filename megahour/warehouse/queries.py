"""SQL over the tables: one view per table that holds the latest revision of each row, and `curated` over episodes."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from megahour.storage import Lake
from megahour.warehouse.schemas import EPISODE_QUALITY, EPISODES, IDENTITY, TABLES, TIME
from megahour.warehouse.tables import GROWN, open_table

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from deltalake import DeltaTable

QUALITY_COLUMNS = tuple(name for name in EPISODE_QUALITY.names if name not in EPISODES.names)

PLAIN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Reader features that leave the rows of a table equal to the rows of its files."""


def connect(lake: Lake, versions: Mapping[str, int] | None = None) -> duckdb.DuckDBPyConnection:
    """A connection with a view per table (`recordings`, `episodes`, ...), and the views `measured` and `curated`.

    A view holds one row per identity: the latest revision, of these the latest in time, of these the greatest content,
    so that neither the order of rows nor the layout of files decides. An absent table is an empty view, and a column
    that its files are older than is NULL. `measured` is `episodes` with the signals of `episode_quality` beside, NULL
    where none were measured; `curated` is what of it no later reading of the same recording superseded.

    Args:
        versions: table to version; tables not named are read at their latest.

    Raises:
        ValueError: a table has no such version.
    """
    import duckdb

    # A folder of its own, which duckdb makes when it must spill: two databases in one take each other's files.
    spill = Path(tempfile.gettempdir()) / f"megahour-duckdb-{secrets.token_hex(8)}"
    con = duckdb.connect(config={"temp_directory": str(spill), "python_enable_replacements": "false"})
    con.execute("SET TimeZone = 'UTC'")
    for table in TABLES:
        _create_raw(con, table, open_table(lake, table, (versions or {}).get(table)))
        con.execute(_latest(table))
    signals = ", ".join(f"quality.{name}" for name in QUALITY_COLUMNS)
    con.execute(
        f"CREATE VIEW measured AS SELECT episodes.*, {signals} FROM episodes LEFT JOIN episode_quality AS quality "
        "ON episodes.key = quality.key AND episodes.episode_id = quality.episode_id"
    )
    con.execute("CREATE VIEW curated AS FROM measured WHERE superseded_by IS NULL")
    return con


def query(lake: Lake, sql: str, params: Sequence[Any] = (), versions: Mapping[str, int] | None = None) -> pa.Table:
    """The result of one SELECT over the views of `connect`; `?` in it stand for `params`."""
    with connect(lake, versions) as con:
        return con.sql(sql, params=list(params)).to_arrow_table()


def settle_revisions(con: duckdb.DuckDBPyConnection, table: str) -> None:
    """Find the outdated rows of `table` once, for all queries of this connection that follow.

    The view that `connect` makes finds them in every query, and reads all columns to do so. After this call a query
    reads the columns it names. Only rows that tie in revision and time are compared by content.
    """
    located = f"located_{table}"
    if not con.execute("SELECT 1 FROM duckdb_views() WHERE view_name = ?", [located]).fetchall():
        return
    identity, order = _identity(table), _order(table)
    con.execute(
        f"""
        CREATE TEMP TABLE {table}_places AS
        SELECT key, {identity}, file_index, file_row_number,
            rank() OVER (PARTITION BY {identity} ORDER BY {order}) AS place
        FROM {located} WHERE key IN (SELECT key FROM {located} GROUP BY key HAVING count(*) > 1)
        """
    )
    position = "key, file_index, file_row_number"
    con.execute(f"CREATE TEMP TABLE {table}_outdated AS SELECT {position} FROM {table}_places WHERE place > 1")
    tied = f"SELECT key FROM {table}_places WHERE place = 1 GROUP BY key, {identity} HAVING count(*) > 1"
    if con.execute(f"{tied} LIMIT 1").fetchall():
        con.execute(
            f"""
            INSERT INTO {table}_outdated SELECT {position} FROM (
                SELECT {position}, row_number() OVER (PARTITION BY {identity} ORDER BY {order}, content DESC) AS place
                FROM {located} WHERE key IN ({tied})
            ) WHERE place > 1
            """
        )
    con.execute(
        f"""
        CREATE OR REPLACE VIEW {table} AS
        SELECT * EXCLUDE (file_index, file_row_number, content) FROM {located} AS entry WHERE NOT EXISTS (
            FROM {table}_outdated AS outdated WHERE outdated.key = entry.key
            AND outdated.file_index = entry.file_index AND outdated.file_row_number = entry.file_row_number
        )
        """
    )


def latest(table: str, condition: str) -> str:
    """SELECT the latest revisions of rows that meet a condition, on which all revisions of a row must agree.

    Other rows are not looked at, where the view of the table would sort all that have several revisions.
    """
    return f"""
        SELECT * FROM raw_{table} AS entry WHERE {condition}
        QUALIFY row_number() OVER (PARTITION BY {_identity(table)} ORDER BY {_order(table)}, entry DESC) = 1
    """


def _latest(table: str) -> str:
    """The view over `raw_<table>`. Rows whose key is alone, nearly all, pass by without being sorted."""
    return f"""
        CREATE VIEW {table} AS
        WITH duplicates AS (SELECT key FROM raw_{table} GROUP BY key HAVING count(*) > 1)
        SELECT * FROM raw_{table} WHERE key NOT IN (FROM duplicates)
        UNION ALL
        {latest(table, "key IN (FROM duplicates)")}
    """


def _identity(table: str) -> str:
    return ", ".join(f'"{name}"' for name in IDENTITY[table])


def _order(table: str) -> str:
    time = next(field.name for field in TABLES[table] if field.type == TIME)
    return f'revision DESC, "{time}" DESC NULLS LAST'


def _create_raw(con: duckdb.DuckDBPyConnection, table: str, delta: DeltaTable | None) -> None:
    if delta is None or not (files := delta.file_uris()):
        con.register(f"raw_{table}", TABLES[table].empty_table())
    elif not _is_plain(delta):
        con.register(f"raw_{table}", _read_with_datafusion(delta, TABLES[table]))
    elif "://" in files[0]:
        # duckdb reads buckets only with an extension it would have to download.
        con.register(f"raw_{table}", delta.to_pyarrow_dataset(schema=TABLES[table]))
    else:
        # Local files are listed as URLs without their scheme.
        names = ", ".join("'" + unquote(name).replace("'", "''") + "'" for name in sorted(files))
        # Schemas are compared file by file only where they may differ: that reads every file's end twice.
        grown = GROWN in delta.metadata().configuration
        source = f"read_parquet([{names}], hive_partitioning = false, union_by_name = {grown})"
        whole = not grown and {field.name for field in delta.schema().fields} >= set(TABLES[table].names)
        absent = "" if whole else _absent(con, table, source)
        con.execute(
            f"CREATE VIEW located_{table} AS SELECT entry.*{absent}, entry AS content, file_index, file_row_number "
            f"FROM {source} AS entry"
        )
        con.execute(
            f"CREATE VIEW raw_{table} AS SELECT * EXCLUDE (content, file_index, file_row_number) FROM located_{table}"
        )


def _absent(con: duckdb.DuckDBPyConnection, table: str, source: str) -> str:
    """NULL for each column that the files of a table are older than, for a SELECT."""
    there = con.sql(f"FROM {source}").columns
    wanted = con.from_arrow(TABLES[table].empty_table())
    types = zip(wanted.columns, wanted.types, strict=True)
    return "".join(f', NULL::{kind} AS "{name}"' for name, kind in types if name not in there)


def _is_plain(delta: DeltaTable) -> bool:
    """Whether the table is its parquet files as they are: no deletion vectors, no column mapping, nothing unknown."""
    protocol = delta.protocol()
    settings = delta.metadata().configuration
    mapped = settings.get("delta.columnMapping.mode", "none") != "none"
    if protocol.min_reader_version < 3:
        return not mapped
    return not mapped and set(protocol.reader_features or ()) <= PLAIN_FEATURES


def _read_with_datafusion(delta: DeltaTable, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa
    from deltalake import QueryBuilder

    found = pa.table(QueryBuilder().register("entries", delta).execute("SELECT * FROM entries").read_all())
    for field in schema:
        if field.name not in found.schema.names:
            found = found.append_column(field, pa.nulls(found.num_rows, field.type))
    # DataFusion answers with string views, which swell an Arrow file a hundredfold.
    return found.select(schema.names).cast(schema)

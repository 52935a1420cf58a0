"""An episode's rows in a Parquet file: found by its number, read by range, never the whole file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.sources.model import SourceError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

NUMBER = "episode_index"
BATCH_ROWS = 4096
BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` of a Parquet file, and the schema of its columns."""

    path: Path
    key: str
    start: int
    stop: int
    schema: pa.Schema

    def __len__(self) -> int:
        return self.stop - self.start


def all_rows(path: Path, key: str) -> Rows:
    """The rows of a file that holds one episode.

    Raises:
        SourceError: `truncated`, `unreadable` or `empty`.
    """
    with _opened(path, key) as file:
        return _refuse_none(Rows(path, key, 0, file.metadata.num_rows, file.schema_arrow))


def rows_of_episode(keys: Sequence[str], local: Callable[[str], Path], number: int) -> Rows:
    """The rows with the number of the episode, in the first of these files that has some. Only the column of numbers is
    read, and of that what may hold it.

    Raises:
        SourceError: `truncated` or `unreadable`, `missing_feature` without numbers, `feature_mismatch` when there are
            no such rows or they do not follow each other.
    """
    for key in keys:
        with _opened(local(key), key) as file:
            if NUMBER not in file.schema_arrow.names:
                raise SourceError("missing_feature", f"{key} has no column '{NUMBER}': whose its rows are is not known")
            at = _rows_with(file, number)
            if len(at):
                if at[-1] - at[0] != len(at) - 1:
                    raise SourceError(
                        "feature_mismatch",
                        f"{key}: the {len(at)} rows of episode {number} are scattered over rows {at[0]} to {at[-1]}: "
                        "which of them are its own cannot be known. Export the dataset again",
                    )
                return Rows(local(key), key, int(at[0]), int(at[-1]) + 1, file.schema_arrow)
    raise SourceError(
        "feature_mismatch",
        f"No row of {' or '.join(keys)} has the {NUMBER} {number}, and the dataset's metadata says that episode "
        f"{number} lies there. Export the dataset again",
    )


def batches(rows: Rows, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most `batch_rows`, in order, these columns alone.

    Raises:
        SourceError: `truncated` or `unreadable`.
    """
    with _opened(rows.path, rows.key) as file:
        groups, at = [], 0
        first = None
        for group in range(file.metadata.num_row_groups):
            n = file.metadata.row_group(group).num_rows
            if at < rows.stop and at + n > rows.start:
                groups.append(group)
                first = at if first is None else first
            at += n
        at = first or 0
        for batch in file.iter_batches(batch_rows, row_groups=groups, columns=list(columns)):
            start, stop = max(rows.start - at, 0), min(rows.stop - at, batch.num_rows)
            at += batch.num_rows
            if start < stop:
                yield batch.slice(start, stop - start)
            if at >= rows.stop:
                return


def load(rows: Rows, columns: Sequence[str]) -> pa.Table:
    """The rows as one table, these columns alone; raises as `batches`."""
    import pyarrow as pa

    schema = pa.schema([rows.schema.field(name) for name in columns])
    return pa.Table.from_batches(batches(rows, columns), schema).combine_chunks()


def _rows_with(file: pq.ParquetFile, number: int) -> Any:
    found, at = [np.zeros(0, np.int64)], 0
    for group in range(file.metadata.num_row_groups):
        facts = file.metadata.row_group(group)
        bounds = _bounds(facts)
        if bounds is None or bounds[0] <= number <= bounds[1]:
            numbers = file.read_row_group(group, columns=[NUMBER])[NUMBER].to_numpy()
            found.append(np.flatnonzero(numbers == number) + at)
        at += facts.num_rows
    return np.concatenate(found)


def _bounds(group: Any) -> tuple[int, int] | None:
    """The least and the greatest number in a group of rows, where the file says so."""
    for i in range(group.num_columns):
        facts = group.column(i)
        if facts.path_in_schema == NUMBER and facts.statistics is not None and facts.statistics.has_min_max:
            return facts.statistics.min, facts.statistics.max
    return None


def _refuse_none(rows: Rows) -> Rows:
    if len(rows) == 0:
        raise SourceError("empty", f"{rows.key} has no rows")
    return rows


@contextmanager
def _opened(path: Path, key: str) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Without its own read-ahead, which would hold all columns of a group, pictures too, in memory.
        with pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if not _has_end(path):
            raise SourceError(
                "truncated",
                f"{key} is cut short: a Parquet file ends in PAR1, and this one after {path.stat().st_size} bytes does "
                "not. Copy it again from where it was recorded",
            ) from error
        text = str(error).replace(str(path), key)
        raise SourceError("unreadable", f"{key} cannot be read as Parquet: {text}. Export it again") from error


def _has_end(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-min(4, path.stat().st_size), 2)
        return file.read() == b"PAR1"

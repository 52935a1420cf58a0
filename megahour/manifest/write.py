"""The file of a manifest: rows in Arrow batches, and the hash of what they say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from megahour.files import sha256_of
from megahour.manifest.load import BATCH_ROWS, SPLITS
from megahour.manifest.select import PLACES, ROWS


@dataclass(frozen=True)
class Written:
    """What a manifest's file holds. `content` is a hash of the rows' values, whatever the batches."""

    content: str
    sha256: str
    rows_by_split: dict[str, int]
    windows_by_split: dict[str, int]
    rows_by_component: dict[str, int]


def write_rows(batches: Iterable[pa.RecordBatch], path: Path) -> Written:
    """Write record batches of one schema, uncompressed so that they can be memory-mapped, and say what was written."""
    content = ContentHash()
    rows, windows = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    components: dict[str, int] = {}
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, ROWS) as writer:
        for batch in rechunk(batches):
            writer.write_batch(batch)
            content.update(batch)
            groups = pa.Table.from_batches([batch]).group_by(["split", "component"])
            for group in groups.aggregate([([], "count_all"), ("windows", "sum")]).to_pylist():
                rows[group["split"]] += group["count_all"]
                windows[group["split"]] += group["windows_sum"]
                components[group["component"]] = components.get(group["component"], 0) + group["count_all"]
    return Written(content.hexdigest(), sha256_of(path), rows, windows, components)


def content_of(path: Path) -> str:
    """The content hash of a file that `write_rows` wrote."""
    content = ContentHash()
    with pa.memory_map(str(path)) as source:
        for batch in pa.ipc.open_file(source).read_all().to_batches():
            content.update(batch)
    return content.hexdigest()


class ContentHash:
    """A hash per column over its values, and over the lengths of its strings: where a batch ends does not matter, nor
    where the episodes lie.
    """

    def __init__(self) -> None:
        self._values = {name: hashlib.sha256() for name in ROWS.names if name not in PLACES}
        self._lengths = {name: hashlib.sha256() for name in self._values if ROWS.field(name).type == pa.string()}

    def update(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(ROWS.names, batch.columns, strict=True):
            if column.null_count:
                raise ValueError(f"The manifest's column {name} has {column.null_count} empty values")
            if name in PLACES:
                continue
            if name in self._lengths:
                _, offsets_buffer, text = column.buffers()
                offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
                self._lengths[name].update(np.diff(offsets).tobytes())
                self._values[name].update(memoryview(text)[offsets[0] : offsets[-1]] if text is not None else b"")
            else:
                self._values[name].update(column.to_numpy().tobytes())

    def hexdigest(self) -> str:
        parts = [digest.hexdigest() for digest in (*self._values.values(), *self._lengths.values())]
        return hashlib.sha256(json.dumps([list(self._values), parts]).encode()).hexdigest()


def rechunk(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly `BATCH_ROWS`, and a last shorter one."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS:
            whole = pa.Table.from_batches(waiting).combine_chunks().to_batches(BATCH_ROWS)
            waiting = [whole.pop()] if rows % BATCH_ROWS else []
            rows %= BATCH_ROWS
            yield from whole
    if rows:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches(BATCH_ROWS)

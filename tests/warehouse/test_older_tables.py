"""Tables from before a column: they are read and written as those of today."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from megahour.storage import Lake
from megahour.warehouse.queries import connect, query, settle_revisions
from megahour.warehouse.schemas import EPISODES
from megahour.warehouse.tables import RETENTION, append, stable_key, table_version
from tests.lake import Row, episode_row, make_lake

NEW = "camera_frames"
OLDER = pa.schema([field for field in EPISODES if field.name != NEW])
EVERYTHING = f"SELECT episode_id, frames, {NEW} FROM episodes ORDER BY episode_id"


def old_lake(folder: Path, **settings: str) -> Lake:
    """A lake whose episodes were written before there was the newest column."""
    lake = make_lake(folder)
    url = lake.url("tables/episodes")
    DeltaTable.create(url, schema=OLDER, configuration={**RETENTION, **settings})
    rows = [{**episode_row(i), "key": stable_key(f"e{i:05d}")} for i in range(2)]
    write_deltalake(DeltaTable(url), pa.Table.from_pylist(rows, OLDER), mode="append")
    return lake


def found(lake: Lake, version: int | None = None) -> list[Row]:
    pinned = None if version is None else {"episodes": version}
    rows: list[Row] = query(lake, EVERYTHING, versions=pinned).to_pylist()
    with connect(lake, pinned) as con:
        settle_revisions(con, "episodes")
        assert con.sql(EVERYTHING).to_arrow_table().to_pylist() == rows
    return rows


OLD = [{"episode_id": f"e{i:05d}", "frames": 50 + i, NEW: None} for i in range(2)]
WITH_SETTINGS: list[dict[str, str]] = [{}, {"delta.enableDeletionVectors": "true"}]


@pytest.mark.parametrize("settings", WITH_SETTINGS, ids=["files", "another engine"])
def test_an_older_table_reads_as_one_of_today_before_and_after_it_grows(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    lake = old_lake(tmp_path, **settings)
    before = table_version(lake, "episodes")
    assert found(lake) == OLD
    revised = {**episode_row(1, revision=2), NEW: [51, 60]}
    new = {**episode_row(2), NEW: [52, 70]}
    assert append(lake, "episodes", [revised, new], once="grown") == 2
    assert append(lake, "episodes", [revised, new], once="grown") == 0
    assert found(lake) == [
        OLD[0],
        {"episode_id": "e00001", "frames": 51, NEW: [51, 60]},
        {"episode_id": "e00002", "frames": 52, NEW: [52, 70]},
    ]
    assert found(lake, before) == OLD


def test_a_writer_that_died_between_the_column_and_its_rows_left_a_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltalake

    lake = old_lake(tmp_path)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deltalake, "write_deltalake", die)
        with pytest.raises(KeyboardInterrupt):
            append(lake, "episodes", [episode_row(2)], once="a")
    assert found(lake) == OLD
    append(lake, "episodes", [episode_row(2, **{NEW: [1, 2]})], once="a")
    assert [row[NEW] for row in found(lake)] == [None, None, [1, 2]]


def test_a_rival_that_grows_the_table_first_costs_another_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megahour.warehouse import tables

    lake = old_lake(tmp_path)
    grow: Callable[[DeltaTable, str], None] = tables._grow
    attempts = 0

    def too_late(delta: DeltaTable, table: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            grow(DeltaTable(lake.url("tables/episodes")), table)
        grow(delta, table)

    monkeypatch.setattr(tables, "_grow", too_late)
    append(lake, "episodes", [episode_row(2, **{NEW: [1, 2]})], once="a")
    assert attempts == 2
    assert [row[NEW] for row in found(lake)] == [None, None, [1, 2]]

"""Queries: the latest revision of each row, by a total order, at the versions that were pinned."""

import itertools
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from megahour.storage import Lake
from megahour.warehouse.queries import connect, query, settle_revisions
from megahour.warehouse.schemas import EPISODES, TABLES
from megahour.warehouse.tables import append, open_table, table_version
from tests.lake import INGESTED_AT, episode_row, make_lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path / "lake")


def test_absent_tables_are_empty_views_of_the_right_columns(lake: Lake) -> None:
    for table, schema in TABLES.items():
        found = query(lake, f"FROM {table}")
        assert (found.num_rows, found.schema.names) == (0, schema.names)
    assert query(lake, "SELECT count(*) FROM curated")[0][0].as_py() == 0


def test_what_is_read_has_the_types_of_the_schema(lake: Lake) -> None:
    append(lake, "episodes", [episode_row(3)], once="a")
    found = query(lake, "FROM episodes")
    plain = {field.name: field.type for field in EPISODES if not pa.types.is_nested(field.type)}
    assert {name: found.schema.field(name).type for name in plain} == plain
    row = found.to_pylist()[0]
    assert {name: row[name] for name in episode_row(3)} == episode_row(3)


LATER = INGESTED_AT + timedelta(seconds=1)
REVISIONS = [
    episode_row(0, revision=1, ingested_at=LATER, frames=1),
    episode_row(0, revision=2, ingested_at=INGESTED_AT, frames=2),
    episode_row(0, revision=2, ingested_at=LATER, frames=3),
    episode_row(0, revision=2, ingested_at=LATER, frames=4),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_the_latest_revision_wins_in_any_order_of_arrival(lake: Lake, order: tuple[int, ...]) -> None:
    for i in order:
        append(lake, "episodes", [REVISIONS[i], episode_row(10 + i)], once=str(i))
    found = query(lake, "SELECT frames FROM episodes WHERE episode_id = 'e00000'").to_pylist()
    assert found == [{"frames": 4}]
    assert query(lake, "SELECT count(*) FROM episodes")[0][0].as_py() == 5
    with connect(lake) as con:
        settle_revisions(con, "episodes")
        assert con.sql("SELECT frames FROM episodes WHERE episode_id = 'e00000'").fetchall() == [(4,)]
        assert con.sql("SELECT count(*) FROM episodes").fetchall() == [(5,)]


def test_compaction_and_settling_revisions_change_no_row(lake: Lake) -> None:
    for i, row in enumerate(REVISIONS):
        append(lake, "episodes", [row, episode_row(10 + i)], once=str(i))
    everything = "SELECT * FROM episodes ORDER BY episode_id"
    before = query(lake, everything)
    delta = open_table(lake, "episodes")
    assert delta is not None
    assert delta.optimize.compact()["numFilesRemoved"] == 4
    assert query(lake, everything).equals(before)
    with connect(lake) as con:
        settle_revisions(con, "episodes")
        assert con.sql(everything).to_arrow_table().equals(before)


def test_rows_whose_keys_collide_are_both_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.warehouse.tables.stable_key", lambda text: 7)
    append(lake, "episodes", [episode_row(0), episode_row(1), episode_row(1, revision=2)], once="a")
    found = query(lake, "SELECT episode_id, revision FROM episodes ORDER BY 1").to_pylist()
    assert found == [{"episode_id": "e00000", "revision": 1}, {"episode_id": "e00001", "revision": 2}]


def test_a_pinned_version_stays_as_it_was(lake: Lake) -> None:
    append(lake, "episodes", [episode_row(0, frames=10)], once="a")
    pinned = {"episodes": table_version(lake, "episodes")}
    append(lake, "episodes", [episode_row(0, frames=20, revision=2), episode_row(1)], once="b")
    sql = "SELECT frames FROM episodes ORDER BY episode_id"
    assert query(lake, sql, versions=pinned)["frames"].to_pylist() == [10]
    assert query(lake, sql)["frames"].to_pylist() == [20, 51]
    assert query(lake, sql, versions={"episodes": -1}).num_rows == 0


def test_quality_stands_beside_the_episode_it_measures(lake: Lake) -> None:
    append(lake, "episodes", [episode_row(0), episode_row(1)], once="a")
    measured = {"episode_id": "e00001", "idle_share": 0.5, "measured_at": INGESTED_AT, "revision": 1}
    append(lake, "episode_quality", [measured, {**measured, "idle_share": 0.25, "revision": 2}], once="b")
    found = query(lake, "SELECT episode_id, idle_share, revision, batch FROM curated WHERE frames > ? ORDER BY 1", [10])
    assert found["idle_share"].to_pylist() == [None, 0.25]
    assert found["revision"].to_pylist() == [1, 1]


def test_a_table_that_is_more_than_its_files_is_read_by_the_engine_that_knows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"delta.enableDeletionVectors": "true"}
    url = lake.url("tables/episodes")
    DeltaTable.create(url, schema=EPISODES, configuration=settings)
    assert "deletionVectors" in (DeltaTable(url).protocol().reader_features or ())
    append(lake, "episodes", [episode_row(0), episode_row(1)], once="a")
    opened: list[int] = []
    register = query.__globals__["_read_with_datafusion"]

    def read(delta: DeltaTable, schema: pa.Schema) -> pa.Table:
        table = register(delta, schema)
        assert table.schema.equals(schema), "string views would swell what is written from them"
        opened.append(table.num_rows)
        return table

    monkeypatch.setattr("megahour.warehouse.queries._read_with_datafusion", read)
    assert query(lake, "SELECT count(*) FROM episodes WHERE robot = 'sawyer'")[0][0].as_py() == 2
    assert opened == [2]


def test_a_variable_of_the_program_is_no_table(lake: Lake) -> None:
    import duckdb

    secret = pa.table({"x": [1]})
    with pytest.raises(duckdb.Error):
        query(lake, "FROM secret")
    assert secret.num_rows == 1

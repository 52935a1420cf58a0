"""Tables: an append happens once, whoever repeats it and however many write at the same time."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError

from megahour.storage import Lake
from megahour.warehouse.queries import query
from megahour.warehouse.tables import append, open_table, stable_key, table_version, table_versions
from tests.lake import episode_row, make_lake

WRITERS = 4


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path / "lake")


def count(lake: Lake) -> int:
    return query(lake, "SELECT count(*) FROM raw_episodes")[0][0].as_py()


def test_an_append_happens_once(lake: Lake) -> None:
    rows = [episode_row(i) for i in range(3)]
    assert append(lake, "episodes", rows, once="ingest:b:1") == 3
    version = table_version(lake, "episodes")
    assert append(lake, "episodes", rows, once="ingest:b:1") == 0
    assert table_version(lake, "episodes") == version
    assert append(lake, "episodes", [], once="ingest:b:2") == 0
    assert append(lake, "episodes", rows, once="ingest:b:2") == 3
    assert count(lake) == 6


def test_a_commit_reported_as_failed_is_not_written_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    import deltalake

    write = deltalake.write_deltalake

    def write_and_lose_the_answer(*args: Any, **kwargs: Any) -> None:
        write(*args, **kwargs)
        raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(deltalake, "write_deltalake", write_and_lose_the_answer)
    append(lake, "episodes", [episode_row(0)], once="a")
    assert count(lake) == 1


def _append_all(uri: str, writer: int, start: Any) -> int:
    lake = Lake(uri)
    start.wait()
    written = 0
    for i in range(5):
        written += append(lake, "episodes", [episode_row(i)], once=f"shared:{i}")
        written += append(lake, "episodes", [episode_row(100 + 10 * writer + i)], once=f"own:{writer}:{i}")
    return written


def test_processes_that_race_on_a_new_table_write_each_append_once(lake: Lake) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(WRITERS, context) as pool:
        start = manager.Barrier(WRITERS)
        written = list(pool.map(_append_all, [lake.uri] * WRITERS, range(WRITERS), [start] * WRITERS))
    assert sum(written) == 5 + 5 * WRITERS
    assert count(lake) == 5 + 5 * WRITERS
    rows = query(lake, "SELECT count(DISTINCT episode_id) FROM raw_episodes")[0][0].as_py()
    assert rows == 5 + 5 * WRITERS


def test_keys_are_stable_and_come_from_the_identity(lake: Lake) -> None:
    assert stable_key("e00000") == -7724654023003390669
    append(lake, "episodes", [episode_row(0, key=7)], once="a")
    rollout = {"run_key": "r", "step": 100, "policy": "blind", "rollout": 3, "revision": 1}
    append(lake, "evaluations", [rollout], once="b")
    keys = query(lake, "SELECT (SELECT key FROM episodes) AS episode, (SELECT key FROM evaluations) AS rollout")
    assert keys.to_pylist() == [{"episode": stable_key("e00000"), "rollout": stable_key("r\n100\nblind\n3")}]


def test_rows_that_do_not_fit_are_refused_before_anything_is_written(lake: Lake) -> None:
    with pytest.raises(ValueError, match="no column colour"):
        append(lake, "episodes", [episode_row(0, colour="red")], once="a")
    with pytest.raises(ValueError, match="lacks episode_id"):
        append(lake, "episodes", [episode_row(0, episode_id=None)], once="a")
    with pytest.raises(ValueError, match="no table 'episode'"):
        append(lake, "episode", [episode_row(0)], once="a")
    assert set(table_versions(lake).values()) == {-1}


def test_a_version_that_is_not_there_is_named(lake: Lake) -> None:
    assert open_table(lake, "episodes") is None
    with pytest.raises(ValueError, match="does not exist"):
        open_table(lake, "episodes", 3)
    append(lake, "episodes", [episode_row(0)], once="a")
    with pytest.raises(ValueError, match="no version 9"):
        open_table(lake, "episodes", 9)

"""Of the readings of one content one is live, the latest; a changed `source.yaml` or dataset adds no second copy."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from megahour.ingest.audit import audit_batches
from megahour.ingest.plan import list_batches
from megahour.ingest.pool import run_tasks
from megahour.ingest.run import ingest_batch
from megahour.ingest.supersede import Row, changes, supersede
from megahour.settings import Settings
from megahour.storage import Lake
from megahour.warehouse import tables
from megahour.warehouse.queries import query
from megahour.warehouse.tables import table_version
from tests.ingest.recordings import NOON, contents, discovered, ingest_all, landing, make_lake, write_recording
from tests.ingest.test_kill import PARTS, finish, start, told

RGB, BGR = "jpeg_order: rgb\n", "jpeg_order: bgr\n"


def say(lake: Lake, text: str, source: str = "toys") -> None:
    """Write a source's `source.yaml`."""
    path = landing(lake) / source / "source.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)


def live(lake: Lake, version: int | None = None) -> dict[str, str]:
    """The recording that each content is curated as."""
    pinned = None if version is None else {"episodes": version}
    rows = query(lake, "SELECT content_id, recording_id FROM curated", versions=pinned).to_pylist()
    found = {row["content_id"]: row["recording_id"] for row in rows}
    assert len(found) == len(rows), "no content is live twice"
    return found


def toys(tmp_path: Path, count: int = 3) -> tuple[Lake, Settings]:
    lake, settings = make_lake(tmp_path)
    for seed in range(count):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
    return lake, settings


def test_changed_options_supersede_and_earlier_ones_make_the_earlier_episodes_live_again(tmp_path: Path) -> None:
    lake, settings = toys(tmp_path)
    ingest_all(lake, settings)
    plain, version = live(lake), table_version(lake, "episodes")
    assert len(plain) == 3
    say(lake, RGB)
    ingest_all(lake, settings)
    rgb = live(lake)
    assert rgb.keys() == plain.keys() and not set(rgb.values()) & set(plain.values())
    assert query(lake, "SELECT count(*) AS n FROM episodes")["n"].to_pylist() == [6], "the earlier ones stay known"
    assert live(lake, version) == plain, "a pinned version is as it was"

    (landing(lake) / "toys/source.yaml").unlink()
    ingest_all(lake, settings)
    assert live(lake) == plain
    say(lake, RGB)
    ingest_all(lake, settings)
    assert live(lake) == rgb
    assert audit_batches(lake, list_batches(lake)).duplicates == ()
    before = contents(lake)
    ingest_all(lake, settings)
    assert contents(lake) == before, "old batches that run again change nothing"


def test_a_batch_that_runs_again_before_the_change_is_discovered_leaves_one_reading(tmp_path: Path) -> None:
    lake, settings = toys(tmp_path)
    (batch,) = discovered(lake, settings)
    ingest_batch(lake, settings, batch)
    plain = live(lake)
    say(lake, RGB)
    ingest_batch(lake, settings, batch)
    rgb = live(lake)
    assert rgb != plain
    (landing(lake) / "toys/source.yaml").unlink()
    ingest_batch(lake, settings, batch)
    assert live(lake) == plain
    say(lake, RGB)
    ingest_all(lake, settings)
    assert live(lake) == rgb


def test_the_same_files_in_another_source_are_live_as_they_landed_last(tmp_path: Path) -> None:
    lake, settings = toys(tmp_path)
    say(lake, BGR)
    ingest_all(lake, settings)
    first = live(lake)
    shutil.copytree(landing(lake) / "toys", landing(lake) / "again")
    say(lake, RGB, "again")
    ingest_all(lake, settings)
    second = live(lake)
    assert second.keys() == first.keys() and second != first
    # All batches run again, the older ones too, and each reads what its own source says.
    before = contents(lake)
    ingest_all(lake, settings)
    assert contents(lake) == before


@pytest.mark.parametrize(("order", "rows"), [(list, 3), (reversed, 4)], ids=["first first", "last first"])
def test_two_readings_in_one_batch_leave_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Callable[[list[Any]], Iterable[Any]], rows: int
) -> None:
    """Whichever is committed first; committed first, the last one is made live again by a row more."""
    from tests.lerobot_v30 import Take, rows_of, write_v30

    def ordered(*arguments: Any) -> Generator[Any]:
        events = sorted(run_tasks(*arguments), key=lambda event: event.index)
        yield from order(events)

    monkeypatch.setattr("megahour.ingest.run.run_tasks", ordered)
    monkeypatch.setattr("megahour.ingest.run.COMMIT_RECORDINGS", 1)
    lake, settings = make_lake(tmp_path)
    values = [[float(i), 1.0] for i in range(9)]
    one = Take({"observation.state": rows_of(values), "action": rows_of(values)}, {}, ["push"] * 9)
    for name, robot in (("a", "sawyer"), ("b", "franka")):
        write_v30(landing(lake) / f"lab/{name}", [one], info={"robot_type": robot})
    (batch,) = discovered(lake, settings)
    assert len(batch.recordings) == 2
    for _ in range(2):
        ingest_batch(lake, settings, batch)
        assert query(lake, "SELECT robot FROM curated")["robot"].to_pylist() == ["franka"]
    assert len(contents(lake)["episodes"]) == rows
    (landing(lake) / "lab/b/meta/info.json").write_text(
        (landing(lake) / "lab/b/meta/info.json").read_text().replace("franka", "panda")
    )
    ingest_all(lake, settings)
    assert query(lake, "SELECT robot FROM curated")["robot"].to_pylist() == ["panda"]


def changed(tmp_path: Path) -> tuple[Lake, Settings, str]:
    """A lake with ingested episodes, and a batch planned after its `source.yaml` came."""
    lake, settings = toys(tmp_path, count=5)
    (first,) = discovered(lake, settings)
    ingest_batch(lake, settings, first)
    say(lake, RGB)
    second = discovered(lake, settings)[-1]
    assert len(second.recordings) == 5 and second.key != first.key
    return lake, settings, second.key


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Row]], int]:
    lake, settings, batch = changed(tmp_path_factory.mktemp("undisturbed"))
    steps = int(finish(start(lake, settings, batch)))
    rows = told(lake)
    assert len(live(lake)) == 5 and len(rows["episodes"]) == 15
    return rows, steps


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_a_step_and_run_again(
    tmp_path: Path, undisturbed: tuple[dict[str, list[Row]], int], part: int
) -> None:
    rows, steps = undisturbed
    lake, settings, batch = changed(tmp_path)
    victim = start(lake, settings, batch, die_at=1 + (steps - 1) * (2 * part + 1) // (2 * PARTS))
    victim.communicate(timeout=120)
    assert victim.returncode == -signal.SIGKILL
    finish(start(lake, settings, batch))
    assert told(lake) == rows


def test_two_at_once_give_each_row_once(tmp_path: Path, undisturbed: tuple[dict[str, list[Row]], int]) -> None:
    lake, settings, batch = changed(tmp_path)
    both = [start(lake, settings, batch) for _ in range(2)]
    for process in both:
        finish(process)
    assert told(lake) == undisturbed[0]


def test_two_batches_of_one_content_at_once_leave_the_later_ones_reading(tmp_path: Path) -> None:
    lake, settings = toys(tmp_path, count=5)
    shutil.copytree(landing(lake) / "toys", landing(lake) / "zoo")
    say(lake, RGB, "zoo")
    early, late = discovered(lake, settings)
    assert {one.source for one in late.recordings} == {"zoo"}
    both = [start(lake, settings, batch.key) for batch in (late, early)]
    for process in both:
        finish(process)
    assert query(lake, "SELECT DISTINCT source FROM curated")["source"].to_pylist() == ["zoo"]
    assert len(live(lake)) == 5


def test_a_reading_that_a_rival_appends_in_between_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, _ = make_lake(tmp_path)

    def reading(number: int) -> Row:
        one = {"episode_id": f"e{number}", "recording_id": f"r{number}", "batch": f"b{number}"}
        return one | {"uri": "", "index": 0, "content_id": "c", "ingested_at": NOON, "revision": 1}

    append = tables.append
    append(lake, "episodes", [reading(1), reading(2)], once="two at once")

    def after_the_rival(*args: Any, **kwargs: Any) -> int:
        append(lake, "episodes", [reading(3)], once="rival")
        return append(*args, **kwargs)

    monkeypatch.setattr(tables, "append", after_the_rival)
    supersede(lake, "b2", {"c": "r2"})
    assert live(lake) == {"c": "r3"}


class Table:
    """The table `episodes` of one content, in memory: appends under a name happen once, and views see the latest."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.names: set[str] = set()

    def latest(self) -> list[Row]:
        found: dict[str, Row] = {}
        for row in sorted(self.rows, key=lambda row: (row["revision"], row["ingested_at"], repr(row))):
            found[row["episode_id"]] = row
        return list(found.values())

    def append(self, rows: Sequence[Row]) -> None:
        name = repr([(row["episode_id"], row["revision"], row["superseded_by"], row["batch"]) for row in rows])
        if name not in self.names:
            self.names.add(name)
            self.rows += rows


def running(table: Table, batch: str, recording_id: str, second: int) -> Iterator[None]:
    """What a batch does with one recording, with a pause wherever another may come between."""
    now = NOON + timedelta(seconds=second)
    known = {row["recording_id"] for row in table.latest()}
    yield
    if recording_id not in known:
        new = {"content_id": "c", "superseded_by": None, "batch": batch, "ingested_at": now, "revision": 1}
        table.append([{"episode_id": f"{recording_id}-{i}", "recording_id": recording_id, **new} for i in range(2)])
    found = {"c": recording_id}
    while True:
        yield
        rows = changes(table.latest(), found, batch, now)
        found = {}
        yield
        if not rows:
            return
        table.append(rows)


def test_in_any_order_of_steps_the_latest_batch_decides() -> None:
    for seed in range(300):
        run_in_any_order(random.Random(seed))


def run_in_any_order(order: random.Random) -> None:
    table = Table()
    batches = [(f"b{i}", order.choice(["r1", "r2", "r3"])) for i in range(4)]
    at_once = [running(table, *batch, second) for second, batch in enumerate([*batches, batches[-1]])]
    order.shuffle(at_once)
    while at_once:
        one = order.choice(at_once)
        if next(one, "done") == "done":
            at_once.remove(one)
    readings = {row["recording_id"] for row in table.latest() if row["superseded_by"] is None}
    assert len(readings) == 1
    assert sum(row["superseded_by"] is None for row in table.latest()) == 2, "whole"
    # Where a batch found its reading known and alone it left no trace: then what others found since may be live.
    for _ in running(table, *batches[-1], 9):
        pass
    assert {row["recording_id"] for row in table.latest() if row["superseded_by"] is None} == {batches[-1][1]}
    before = len(table.rows)
    for batch in batches[:-1]:
        for _ in running(table, *batch, 10):
            pass
    assert len(table.rows) == before, "older batches change nothing"

"""A worker's death, or its staying away, costs its task a second try alone; all else goes on. Errors not a task's own
stop all.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from megahour.ingest.pool import Died, Done, PoolError, run_tasks
from tests.ingest import tasks

LIMIT_S = 60.0


def test_a_dying_task_is_tried_twice_and_named_and_the_others_finish() -> None:
    events = list(run_tasks(tasks.double, [1, 100, 2, 3, 4], [LIMIT_S] * 5, workers=2))
    assert sorted(event.value for event in events if isinstance(event, Done)) == [2, 4, 6, 8]
    (died,) = [event for event in events if isinstance(event, Died)]
    assert died.index == 1
    assert "SIGKILL" in died.how


def test_a_task_that_fails_for_want_of_memory_has_died() -> None:
    assert list(run_tasks(tasks.allocate, [1], [LIMIT_S], workers=1)) == [Died(0, "it ran out of memory")]


def test_a_task_that_does_not_come_back_is_killed_in_time_and_has_died() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    events = list(run_tasks(tasks.double, [1, 300, 2, 3], [LIMIT_S, 0.2, LIMIT_S, LIMIT_S], workers=2))
    assert sorted(event.value for event in events if isinstance(event, Done)) == [2, 4, 6]
    (died,) = [event for event in events if isinstance(event, Died)]
    assert died.index == 1
    assert "still at work" in died.how and "MEGAHOUR_INGEST_TASK_S" in died.how
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_a_worker_that_never_gets_ready_is_an_error_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "stuck.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tasks.double, "__module__", "stuck")
    monkeypatch.setitem(sys.modules, "stuck", tasks)
    monkeypatch.setattr("megahour.ingest.pool.START_S", 0.2)
    with pytest.raises(PoolError, match="not ready to work"):
        list(run_tasks(tasks.double, [1], [LIMIT_S], workers=1))


def test_an_error_of_the_machine_stops_everything_and_leaves_no_process() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(PoolError, match="No space left on device"):
        list(run_tasks(tasks.double, [1, 2, 200, 3], [LIMIT_S] * 4, workers=2))
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_a_function_that_cannot_be_loaded_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.double, "__module__", "tests.ingest.gone")
    monkeypatch.setitem(sys.modules, "tests.ingest.gone", tasks)
    with pytest.raises(PoolError, match="before it could work"):
        list(run_tasks(tasks.double, [1], [LIMIT_S], workers=1))


def test_closing_early_ends_the_workers(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    before = psutil.Process().children()
    with closing(run_tasks(tasks.double, list(range(50)), [LIMIT_S] * 50, workers=2)) as events:
        next(events)
        workers = [child for child in psutil.Process().children() if child not in before]
    assert not mark.exists()
    assert all(not psutil.pid_exists(worker.pid) for worker in workers)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = (
        "from megahour.ingest.pool import run_tasks; from tests.ingest import tasks; "
        f"list(run_tasks(tasks.report_and_wait, [{str(mark)!r}], [60.0], 1))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    _until(lambda: mark.exists() and mark.read_text() != "")
    worker = psutil.Process(int(mark.read_text()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    worker.wait(timeout=10)


def _until(condition, limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)

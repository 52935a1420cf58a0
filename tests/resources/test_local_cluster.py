"""The local cluster: a job outlives its submitter, is started once, and is never taken for another process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from resources.clusters.local import LocalCluster, mark
from resources.clusters.processes import marked, start_time
from resources.clusters.protocol import JobSpec, JobState
from resources.clusters.supervise import MARK

RUN = "0123456789abcdef"


def wait_for(what: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "runs", tmp_path / "slots")
    yield cluster
    for run_dir in cluster.runs_dir.glob("*"):
        for attempt in range(1, 4):
            for pid in marked(MARK, mark(run_dir, attempt)):
                os.kill(pid, signal.SIGKILL)


def spec(cluster: LocalCluster, script: str, attempt: int = 1, run_key: str = RUN) -> JobSpec:
    return JobSpec(run_key, attempt, (sys.executable, "-c", script), cluster.runs_dir / run_key)


COUNT_AND_WAIT = """
import os, pathlib, time
with open(os.environ["MEGAHOUR_JOB"].split("#")[0] + "/starts", "a") as f: f.write(f"{os.getpid()}\\n")
while not pathlib.Path(os.environ["MEGAHOUR_JOB"].split("#")[0], "go").exists(): time.sleep(0.02)
print("went")
"""


def starts(cluster: LocalCluster, run_key: str = RUN) -> list[int]:
    path = cluster.runs_dir / run_key / "starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def go(cluster: LocalCluster, run_key: str = RUN) -> None:
    (cluster.runs_dir / run_key / "go").touch()


def all_gone(cluster: LocalCluster) -> bool:
    return not marked(MARK, mark(cluster.runs_dir / RUN, 1))


def supervisor(cluster: LocalCluster) -> int:
    pid: int = json.loads((cluster.runs_dir / RUN / "job.json").read_text())["pid"]
    return pid


@pytest.mark.parametrize(("script", "state"), [("print('hello')", JobState.SUCCEEDED), ("1/0", JobState.FAILED)])
def test_a_job_ends_with_its_exit_code(cluster: LocalCluster, script: str, state: JobState) -> None:
    job = cluster.submit(spec(cluster, script))
    wait_for(lambda: not cluster.state(job).live)
    assert cluster.state(job) is state
    assert cluster.find(RUN) == job
    assert "hello" in cluster.logs(job) or "ZeroDivisionError" in cluster.logs(job)


def test_an_unknown_job_is_gone(cluster: LocalCluster) -> None:
    assert cluster.find(RUN) is None
    assert cluster.state(f"{RUN}.1") is JobState.GONE


def test_submitting_twice_attaches(cluster: LocalCluster) -> None:
    first = cluster.submit(spec(cluster, COUNT_AND_WAIT))
    wait_for(lambda: bool(starts(cluster)))
    assert cluster.submit(spec(cluster, COUNT_AND_WAIT)) == first
    assert cluster.submit(spec(cluster, COUNT_AND_WAIT, attempt=2)) == first, "the first attempt is still alive"
    go(cluster)
    wait_for(lambda: cluster.state(first) is JobState.SUCCEEDED)
    assert cluster.submit(spec(cluster, COUNT_AND_WAIT)) == first, "an attempt that ended is not started again"
    second = cluster.submit(spec(cluster, COUNT_AND_WAIT, attempt=2))
    assert second != first
    wait_for(lambda: cluster.state(second) is JobState.SUCCEEDED)
    assert len(starts(cluster)) == 2
    assert cluster.state(first) is JobState.SUCCEEDED


def test_concurrent_submits_start_one_job(cluster: LocalCluster) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = set(pool.map(lambda _: cluster.submit(spec(cluster, COUNT_AND_WAIT)), range(8)))
    assert len(jobs) == 1
    wait_for(lambda: bool(starts(cluster)))
    go(cluster)
    wait_for(lambda: cluster.state(next(iter(jobs))) is JobState.SUCCEEDED)
    assert len(starts(cluster)) == 1


def test_the_job_survives_the_submitting_process(cluster: LocalCluster) -> None:
    program = f"""
import os, sys, pathlib
from resources.clusters.local import LocalCluster
from resources.clusters.protocol import JobSpec
cluster = LocalCluster(pathlib.Path({str(cluster.runs_dir)!r}), pathlib.Path({str(cluster.slots_dir)!r}))
cluster.submit(JobSpec({RUN!r}, 1, (sys.executable, "-c", {COUNT_AND_WAIT!r}), cluster.runs_dir / {RUN!r}))
os.killpg(0, 9)
"""
    died = subprocess.run([sys.executable, "-c", program], start_new_session=True)
    assert died.returncode == -signal.SIGKILL
    job = cluster.find(RUN)
    assert job is not None
    wait_for(lambda: bool(starts(cluster)))
    assert cluster.state(job) is JobState.RUNNING
    go(cluster)
    wait_for(lambda: cluster.state(job) is JobState.SUCCEEDED)


@pytest.mark.parametrize("after_ms", [0, 20, 40, 60, 80, 120])
def test_a_submitter_killed_at_any_time_leaves_no_unrecorded_job(cluster: LocalCluster, after_ms: int) -> None:
    program = f"""
import sys, pathlib
from resources.clusters.local import LocalCluster
from resources.clusters.protocol import JobSpec
cluster = LocalCluster(pathlib.Path({str(cluster.runs_dir)!r}), pathlib.Path({str(cluster.slots_dir)!r}))
print("ready", flush=True)
cluster.submit(JobSpec({RUN!r}, 1, (sys.executable, "-c", {COUNT_AND_WAIT!r}), cluster.runs_dir / {RUN!r}))
"""
    submitter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert submitter.stdout is not None
    submitter.stdout.readline()
    time.sleep(after_ms / 1000)
    submitter.kill()
    submitter.communicate()
    job = cluster.submit(spec(cluster, COUNT_AND_WAIT))
    wait_for(lambda: bool(starts(cluster)))
    go(cluster)
    wait_for(lambda: cluster.state(job) is JobState.SUCCEEDED)
    assert len(starts(cluster)) == 1


def test_a_killed_supervisor_leaves_a_running_job_that_fails_when_it_vanishes(cluster: LocalCluster) -> None:
    job = cluster.submit(spec(cluster, COUNT_AND_WAIT))
    wait_for(lambda: bool(starts(cluster)))
    os.kill(supervisor(cluster), signal.SIGKILL)
    wait_for(lambda: start_time(supervisor(cluster)) is None)
    assert cluster.state(job) is JobState.RUNNING, "the command itself is alive"
    assert cluster.submit(spec(cluster, COUNT_AND_WAIT, attempt=2)) == job
    os.kill(starts(cluster)[0], signal.SIGKILL)
    wait_for(lambda: cluster.state(job) is JobState.FAILED)
    assert cluster.submit(spec(cluster, COUNT_AND_WAIT, attempt=2)) != job


def test_another_process_with_the_same_number_is_not_the_job(cluster: LocalCluster) -> None:
    job = cluster.submit(spec(cluster, "pass"))
    wait_for(lambda: cluster.state(job) is JobState.SUCCEEDED and all_gone(cluster))
    record = cluster.runs_dir / RUN / "job.json"
    (cluster.runs_dir / RUN / "attempt_1.exit").unlink()
    stored = json.loads(record.read_text())

    record.write_text(json.dumps(stored | {"pid": os.getpid(), "start_time": start_time(os.getpid())}))
    assert cluster.state(job) is JobState.RUNNING, "number, start time and boot agree"
    record.write_text(json.dumps(stored | {"pid": os.getpid(), "start_time": 1}))
    assert cluster.state(job) is JobState.FAILED
    same = {"pid": os.getpid(), "start_time": start_time(os.getpid()), "boot_id": "an earlier boot"}
    record.write_text(json.dumps(stored | same))
    assert cluster.state(job) is JobState.FAILED


def test_a_job_of_another_machine_is_unknown_and_not_started_here(cluster: LocalCluster) -> None:
    job = cluster.submit(spec(cluster, "pass"))
    wait_for(lambda: cluster.state(job) is JobState.SUCCEEDED and all_gone(cluster))
    record = cluster.runs_dir / RUN / "job.json"
    (cluster.runs_dir / RUN / "attempt_1.exit").unlink()
    record.write_text(json.dumps(json.loads(record.read_text()) | {"host": "elsewhere", "boot_id": "another"}))
    assert cluster.state(job) is JobState.UNKNOWN
    assert cluster.submit(spec(cluster, COUNT_AND_WAIT, attempt=2)) == job
    assert starts(cluster) == []


SAVE_ON_SIGTERM = """
import os, signal, sys, time, pathlib
folder = pathlib.Path(os.environ["MEGAHOUR_JOB"].split("#")[0])
signal.signal(signal.SIGTERM, lambda *_: ((folder / "saved").touch(), sys.exit(0)))
(folder / "starts").write_text(f"{os.getpid()}\\n")
time.sleep(60)
"""


def test_cancelling_lets_the_job_save_and_is_not_a_failure(cluster: LocalCluster) -> None:
    job = cluster.submit(spec(cluster, SAVE_ON_SIGTERM))
    wait_for(lambda: bool(starts(cluster)))
    cluster.cancel(job)
    wait_for(lambda: not cluster.state(job).live)
    assert cluster.state(job) is JobState.CANCELLED
    assert (cluster.runs_dir / RUN / "saved").exists()


def test_a_stopped_supervisor_passes_the_signal_on_and_the_job_is_not_cancelled(cluster: LocalCluster) -> None:
    job = cluster.submit(spec(cluster, SAVE_ON_SIGTERM.replace("sys.exit(0)", "sys.exit(1)")))
    wait_for(lambda: bool(starts(cluster)))
    os.kill(supervisor(cluster), signal.SIGTERM)
    wait_for(lambda: not cluster.state(job).live)
    assert cluster.state(job) is JobState.FAILED
    assert (cluster.runs_dir / RUN / "saved").exists()


def test_processes_left_behind_by_the_command_end_with_it(cluster: LocalCluster) -> None:
    script = """
import os, subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
with open(os.environ["MEGAHOUR_JOB"].split("#")[0] + "/starts", "a") as f: f.write(f"{left.pid}\\n")
os.kill(os.getpid(), 9)
"""
    job = cluster.submit(spec(cluster, script))
    wait_for(lambda: cluster.state(job) is JobState.FAILED)
    assert start_time(starts(cluster)[0]) is None


def test_a_second_job_waits_for_the_slot(cluster: LocalCluster) -> None:
    first = cluster.submit(spec(cluster, COUNT_AND_WAIT))
    wait_for(lambda: cluster.state(first) is JobState.RUNNING)
    second = cluster.submit(spec(cluster, "pass", run_key="another"))
    assert cluster.state(second) is JobState.PENDING
    third = cluster.submit(spec(cluster, "pass", run_key="cancelled"))
    cluster.cancel(third)
    wait_for(lambda: cluster.state(third) is JobState.CANCELLED)
    go(cluster)
    wait_for(lambda: cluster.state(second) is JobState.SUCCEEDED)
    assert [node.state for node in cluster.nodes()] == ["up"]

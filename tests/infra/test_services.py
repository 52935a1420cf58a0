"""What was started for an instance is found and ended; a job of the cluster is not touched."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.laptop.services import MARK, ROOT, Home, home_of, kill_all, leftovers, running_address
from resources.clusters.supervise import MARK as JOB_MARK


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "dagster")


@pytest.fixture
def children(home: Home) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    mine, other = {MARK: str(home.folder)}, {MARK: f"{home.folder}-of-somebody-else"}
    wanted = {"service": mine, "job": {**mine, JOB_MARK: "runs/a#1"}, "stranger": other}
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    started = {
        name: subprocess.Popen(command, env={**os.environ, **marks}, stdout=subprocess.PIPE, start_new_session=True)
        for name, marks in wanted.items()
    }
    for child in started.values():
        assert child.stdout is not None
        child.stdout.readline()
    yield started
    for child in started.values():
        child.kill()
        child.wait()


def test_only_what_belongs_to_the_instance_is_killed(home: Home, children: dict[str, subprocess.Popen[bytes]]) -> None:
    assert leftovers(home) == [children["service"].pid]
    began = time.monotonic()
    kill_all(home)
    assert time.monotonic() - began < 5
    assert children["service"].wait(5) != 0
    assert children["job"].poll() is None
    assert children["stranger"].poll() is None


def test_services_end_when_whoever_started_them_is_gone(home: Home) -> None:
    services = subprocess.Popen(
        [sys.executable, "-m", "infra.laptop.services", "--until-closed"],
        cwd=ROOT,
        env={**os.environ, "DAGSTER_HOME": str(home.folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert services.stdin is not None
    while not (home.folder / "services" / "code-server.log").exists():
        assert services.poll() is None
        time.sleep(0.05)
    services.stdin.close()
    assert services.wait(30) == 0
    assert leftovers(home) == []


def test_the_instance_is_where_the_environment_says(tmp_path: Path) -> None:
    assert home_of({"DAGSTER_HOME": str(tmp_path)}).folder == tmp_path
    assert home_of({}).folder.name == ".dagster"


def test_nobody_runs_where_nobody_holds_the_lock(home: Home) -> None:
    assert running_address(home) is None
    home.folder.mkdir()
    home.lock.touch()
    home.address.write_text('{"url": "http://127.0.0.1:1"}')
    assert running_address(home) is None


@pytest.mark.parametrize("program", ["services", "demo"])
def test_a_wrong_setting_is_one_sentence(tmp_path: Path, program: str) -> None:
    wrong = {"DAGSTER_HOME": str(tmp_path), "MEGAHOUR_SCRATCH": str(tmp_path), "MEGAHOUR_BATCH_BYTES": "lots"}
    ended = subprocess.run(
        [sys.executable, "-m", f"infra.laptop.{program}"],
        cwd=ROOT,
        env={**os.environ, **wrong},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "MEGAHOUR_BATCH_BYTES is 'lots': " in ended.stderr
    assert "Traceback" not in ended.stderr

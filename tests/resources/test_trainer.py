"""The trainer's programs: their lines reach the log, their last word the caller, and their failure says why."""

import logging
import subprocess
import sys
import time

import pytest

from resources.clusters.processes import start_time
from resources.trainer import TrainerError, stream

LOG = logging.getLogger("test")


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_json_lines_are_logged_and_the_last_is_returned(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "test")
    script = """
print('{"kind": "rollout", "policy": "blind", "done": 1, "of": 2}')
print("a warning of some library")
print('{"finite": true}')
print("{no json}")
"""
    assert stream(python(script), LOG) == {"finite": True}
    assert [record.message for record in caplog.records] == ["rollout policy=blind done=1 of=2", "result finite=True"]


def test_a_failure_tells_the_last_lines() -> None:
    with pytest.raises(TrainerError, match=r"(?s)code 1.*no such checkpoint"):
        stream(python("raise SystemExit('no such checkpoint')"), LOG)


def test_an_interrupted_call_leaves_no_process() -> None:
    class Stop(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            self.pid = int(record.getMessage().rpartition("=")[2])
            raise KeyboardInterrupt

    stop = Stop()
    log = logging.Logger("interrupted")
    log.addHandler(stop)
    script = """
import json, os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the caller of these tests ignores
print(json.dumps({"pid": os.getpid()}), flush=True)
time.sleep(60)
"""
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        stream(python(script), log)
    assert time.monotonic() - began < 15
    assert start_time(stop.pid) is None


def test_a_killed_caller_leaves_no_process() -> None:
    inner = "import os, json, time; print(json.dumps({'pid': os.getpid()}), flush=True); time.sleep(60)"
    program = f"""
import logging, sys
from resources.trainer import stream
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
stream([sys.executable, "-c", {inner!r}], logging.getLogger())
"""
    caller = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    pid = int(caller.stdout.readline().rpartition("=")[2])
    assert start_time(pid) is not None
    caller.kill()
    caller.communicate()
    deadline = time.monotonic() + 10
    while start_time(pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)

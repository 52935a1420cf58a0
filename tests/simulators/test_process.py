"""The child process: it ends with its parent, however that ends, and says why it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

pytest.importorskip("metaworld", reason="the simulation extra is not installed")

from megahour.settings import Settings
from megahour.simulators.model import SimulatorError
from megahour.simulators.process import open_simulator

pytestmark = pytest.mark.simulator

TASK = "button-press-topdown-v3"


def gone(pid: int, within_s: float) -> bool:
    """Whether a process that is not our child has ended, or is a zombie nobody reaps."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
                if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "working"])
@pytest.mark.parametrize("fork", [False, True], ids=["alone", "with a fork that holds the pipe"])
def test_child_dies_with_a_parent_killed_hard(busy: bool, fork: bool) -> None:
    program = f"""
        import os, sys, threading, time
        import numpy as np
        from megahour.simulators.process import open_simulator
        simulator = open_simulator("metaworld", {TASK!r}, cameras=(), gl={Settings().mujoco_gl!r})
        simulator.reset(0, 0)
        other = os.fork() if {fork} else -1
        if other == 0:
            time.sleep(30)
            os._exit(0)
        print(simulator.pid, other, flush=True)
        if {busy}:
            simulator.demonstrate(0, 0, 0.1, 490, 490)
        time.sleep(30)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        child, other = map(int, parent.stdout.readline().split())
        os.kill(child, 0)
        parent.kill()
        parent.wait()
        assert gone(child, within_s=10)
    finally:
        parent.kill()
        parent.wait()
        if other > 0:
            os.kill(other, signal.SIGKILL)


def test_child_survives_the_thread_that_started_it() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        simulator = pool.submit(open_simulator, "metaworld", TASK, cameras=(), gl=Settings().mujoco_gl).result()
    with simulator:
        assert simulator.reset(0, 0).success == (False,)


def test_a_killed_child_is_reported_with_its_signal_and_the_next_call_too() -> None:
    with open_simulator("metaworld", TASK, cameras=(), gl=Settings().mujoco_gl) as simulator:
        os.kill(simulator.pid, signal.SIGKILL)
        with pytest.raises(SimulatorError, match="ended by SIGKILL during 'reset'"):
            simulator.reset(0, 0)
        with pytest.raises(SimulatorError, match="closed"):
            simulator.reset(0, 0)


def test_an_opengl_that_is_not_there_is_answered_with_what_to_do() -> None:
    with pytest.raises(SimulatorError, match=r"failed at 'open'.*vulkan.*MEGAHOUR_MUJOCO_GL"):
        open_simulator("metaworld", TASK, gl="vulkan")


def test_closing_ends_the_child() -> None:
    simulator = open_simulator("metaworld", TASK, cameras=(), gl=Settings().mujoco_gl)
    pid = simulator.pid
    simulator.close()
    simulator.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_two_simulators_give_the_same_pictures_and_trajectory() -> None:
    options = {"size": (64, 64), "gl": Settings().mujoco_gl}
    with (
        open_simulator("metaworld", TASK, **options) as one,  # type: ignore[arg-type]
        open_simulator("metaworld", TASK, **options) as other,  # type: ignore[arg-type]
    ):
        other.reset(3, 9)
        runs = [each.demonstrate(1000, 5, 0.15, 40, 0) for each in (one, other)]
    np.testing.assert_array_equal(runs[0].state, runs[1].state)
    np.testing.assert_array_equal(runs[0].action, runs[1].action)
    for camera in ("corner2", "gripper"):
        np.testing.assert_array_equal(runs[0].pictures[camera], runs[1].pictures[camera])

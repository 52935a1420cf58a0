"""Meta-World: starts by number, honest success, a state without the object, pictures a CPU can afford."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("metaworld", reason="the simulation extra is not installed")

from megahour.settings import Settings
from megahour.simulators.model import SimulatorError
from megahour.simulators.process import Simulator, open_simulator

pytestmark = pytest.mark.simulator

TASK = "button-press-topdown-v3"
DOWN = np.tile(np.array([0.2, 1, 0.3, 1], np.float32), (6, 1))


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with open_simulator("metaworld", TASK, size=(96, 128), gl=Settings().mujoco_gl) as opened:
        yield opened


def test_pictures_have_the_size_asked_for_and_state_has_four_numbers(simulator: Simulator) -> None:
    seen = simulator.reset(0, 0)
    assert {name: picture.shape for name, picture in seen.pictures.items()} == {
        "corner2": (96, 128, 3),
        "gripper": (96, 128, 3),
    }
    assert all(picture.dtype == np.uint8 for picture in seen.pictures.values())
    assert seen.state.shape == (4,) and seen.state.dtype == np.float32


def test_a_start_is_the_same_after_any_history(simulator: Simulator) -> None:
    def run() -> tuple[list[np.ndarray], list[np.ndarray]]:
        seen = [simulator.reset(7, 0), simulator.step(DOWN), simulator.step(DOWN)]
        return [s.state for s in seen], [p for s in seen for p in s.pictures.values()]

    first = run()
    simulator.reset(8, 0)
    simulator.step(-DOWN)
    again = run()
    for one, other in zip(first[0] + first[1], again[0] + again[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_starts_differ_and_only_the_pictures_show_it(simulator: Simulator) -> None:
    one, other = simulator.reset(0, 0), simulator.reset(1, 0)
    assert not np.array_equal(one.pictures["corner2"], other.pictures["corner2"])
    np.testing.assert_array_equal(one.state, other.state)


def test_state_holds_nothing_of_the_object() -> None:
    from megahour.simulators.metaworld import MetaWorld

    inside = MetaWorld(TASK, (64, 64), ())
    before = inside.reset(0, 0).state
    env = inside._env
    env.model.body("box").pos += [0.05, -0.02, 0.03]
    import mujoco

    mujoco.mj_forward(env.model, env.data)
    moved = env._get_obs()
    assert not np.array_equal(moved[4:7], inside._observation[4:7])
    inside._observation = moved
    np.testing.assert_array_equal(inside._state(), before)


def test_success_is_checked_before_the_first_action() -> None:
    from megahour.simulators.metaworld import MetaWorld

    inside = MetaWorld(TASK, (64, 64), ())
    assert inside.reset(0, 0).success == (False,)
    judge = inside._env.evaluate_state
    calls: list[int] = []

    def pressed(observation: np.ndarray, action: np.ndarray) -> tuple[float, dict[str, float]]:
        calls.append(1)
        reward, facts = judge(observation, action)
        return reward, {**facts, "success": 1.0}

    inside._env.evaluate_state = pressed
    assert inside.reset(0, 0).success == (True,)
    assert len(calls) == 1, "success at the start is judged without a step"


def test_every_step_of_a_chunk_reports_its_success(simulator: Simulator) -> None:
    demonstration = simulator.demonstrate(0, 0, noise=0.0, max_steps=120, steps_after_success=0)
    assert demonstration.success[-1] and not any(demonstration.success[:-1])
    start = simulator.reset(0, 0)
    assert start.success == (False,)
    seen = simulator.step(demonstration.action)
    assert seen.success == demonstration.success


def test_shadows_reflections_and_multisampling_are_off_where_it_renders() -> None:
    """In a process of its own, as the child does it: two OpenGL libraries in one process abort."""
    program = f"""
        import mujoco
        from megahour.simulators.metaworld import MetaWorld
        inside = MetaWorld({TASK!r}, (64, 64), ("corner2",))
        inside.reset(0, 0)
        flags, context = inside._renderer.scene.flags, inside._renderer._mjr_context
        print(flags[mujoco.mjtRndFlag.mjRND_SHADOW], flags[mujoco.mjtRndFlag.mjRND_REFLECTION])
        print(context.offSamples, context.shadowSize, context.offWidth, context.offHeight)
    """
    gl = Settings().mujoco_gl
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={**os.environ, "MUJOCO_GL": gl, "PYOPENGL_PLATFORM": gl},
        timeout=120,
    )
    assert done.stdout.split() == ["0", "0", "0", "0", "64", "64"], done.stderr


def test_errors_reach_the_caller_in_the_childs_words_and_leave_it_usable(simulator: Simulator) -> None:
    simulator.reset(0, 0)
    with pytest.raises(SimulatorError, match="not finite"):
        simulator.step(np.full((2, 4), np.nan, np.float32))
    with pytest.raises(SimulatorError, match=r"shape \(2, 3\); expected \(k, 4\)"):
        simulator.step(np.zeros((2, 3), np.float32))
    assert simulator.step(np.zeros((1, 4), np.float32)).success == (False,)


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(SimulatorError, match=r"no task 'press-the-button'.*button-press-topdown-v3"):
        open_simulator("metaworld", "press-the-button", gl=Settings().mujoco_gl)
    with pytest.raises(SimulatorError, match="no simulator 'doom'; there is: metaworld"):
        open_simulator("doom", TASK)


def test_versions_say_what_moves_a_score(simulator: Simulator) -> None:
    versions = simulator.versions()
    assert versions["mujoco"].startswith("3.") and versions["metaworld"].startswith("3.")
    assert versions["gl"] == Settings().mujoco_gl and versions["gl_renderer"]

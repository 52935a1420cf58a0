"""Meta-World in this process: starts by number, cheap pictures, the scripted expert. Imported by the child alone."""

from __future__ import annotations

import os
import pickle
import warnings
import zlib
from importlib.metadata import version
from typing import Any

import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.policies import ENV_POLICY_MAP
from metaworld.types import Task
from numpy.typing import NDArray

from megahour.simulators.model import Demonstration, Snapshot

CAMERAS = {"corner2": "corner2", "gripper": "gripperPOV", "corner": "corner", "topview": "topview"}
"""The camera of the model behind each of our names."""

CORNER2_POSITION = (0.75, 0.075, 0.7)
"""Closer than in the model, so that arm and object fill the picture: the place the field's benchmarks use."""

STATE_COLUMNS = 4
"""Hand position and gripper opening lead Meta-World's observation; the object's pose follows and is left out."""


class MetaWorld:
    """One task of Meta-World 3 (MuJoCo), stepped at its control rate, rendered off screen.

    Args:
        task: a name such as `button-press-topdown-v3`.
        size: (height, width) of the pictures.
        cameras: names from `CAMERAS`.

    Raises:
        ValueError: the task or a camera is unknown.
    """

    def __init__(self, task: str, size: tuple[int, int], cameras: tuple[str, ...]) -> None:
        if task not in ALL_V3_ENVIRONMENTS:
            tasks = ", ".join(sorted(ALL_V3_ENVIRONMENTS))
            raise ValueError(f"Meta-World has no task {task!r}. Its tasks are: {tasks}")
        unknown = [camera for camera in cameras if camera not in CAMERAS]
        if unknown:
            raise ValueError(f"There is no camera {unknown[0]!r}. Cameras are: {', '.join(CAMERAS)}")
        self.task = task
        self.cameras = cameras
        self._env: Any = ALL_V3_ENVIRONMENTS[task]()
        self._renderer = _renderer(self._env.model, size) if cameras else None
        self._observation: NDArray[np.float64] = np.zeros(0)

    @property
    def rate_hz(self) -> float:
        """Control steps per simulated second."""
        return float(round(1.0 / self._env.dt, 6))

    def versions(self) -> dict[str, str]:
        """What moves a score between machines: versions and the OpenGL in use."""
        return {
            "metaworld": version("metaworld"),
            "mujoco": mujoco.__version__,
            "gl": os.environ.get("MUJOCO_GL", ""),
            "gl_renderer": _gl_renderer() if self._renderer is not None else "",
        }

    def reset(self, init_state: int, seed: int) -> Snapshot:
        """Go to start number `init_state`, the same on every machine and after any history.

        The start is drawn from the task's reset space by a generator of its own. `seed` seeds what a task may draw
        later; Meta-World's tasks draw nothing.
        """
        success = self._start(init_state, seed)
        return Snapshot(self._pictures(), self._state(), (success,))

    def step(self, actions: NDArray[np.float32]) -> Snapshot:
        """Run `(k, 4)` actions in [-1, 1] and look once, after the last of the k control steps.

        Success does not end it.

        Raises:
            ValueError: the actions have another shape or are not finite, or there was no reset yet.
        """
        if not self._observation.size:
            raise ValueError("Reset the simulator before the first step")
        actions = np.asarray(actions, np.float32)
        if actions.ndim != 2 or actions.shape[0] < 1 or actions.shape[1] != 4:
            raise ValueError(f"Actions have shape {actions.shape}; expected (k, 4) with k of at least 1")
        if not np.isfinite(actions).all():
            raise ValueError("Actions are not finite numbers: the policy has diverged")
        success = tuple(self._act(action) for action in actions)
        return Snapshot(self._pictures(), self._state(), success)

    def demonstrate(
        self, init_state: int, seed: int, noise: float, max_steps: int, steps_after_success: int
    ) -> Demonstration:
        """Let the scripted expert do the task from a start, with N(0, `noise`) on what is executed.

        Ends `steps_after_success` steps after the first success, or after `max_steps`.
        """
        warnings.filterwarnings("ignore", "Constant", module="metaworld.policies")
        expert_class: Any = ENV_POLICY_MAP[self.task]
        expert = expert_class()
        random = np.random.default_rng([seed, init_state])
        done = self._start(init_state, seed)
        left = steps_after_success
        pictures: list[dict[str, NDArray[np.uint8]]] = []
        states: list[NDArray[np.float32]] = []
        actions: list[NDArray[np.float32]] = []
        success: list[bool] = []
        while len(actions) < max_steps and (not done or left > 0):
            left -= done
            pictures.append(self._pictures())
            states.append(self._state())
            wanted = np.clip(expert.get_action(self._observation), -1, 1).astype(np.float32)
            actions.append(wanted)
            executed = np.clip(wanted + random.normal(0, noise, 4), -1, 1).astype(np.float32)
            success.append(self._act(executed))
            done = done or success[-1]
        return Demonstration(
            pictures={name: np.stack([each[name] for each in pictures]) for name in self.cameras},
            state=np.stack(states),
            action=np.stack(actions),
            success=tuple(success),
            rate_hz=self.rate_hz,
            robot="sawyer",
        )

    def _start(self, init_state: int, seed: int) -> bool:
        env = self._env
        # A task rejects starts that are too easy by drawing again, so the draw is left to the task, and what it
        # settled on is then pinned: one reset alone draws twice.
        env.np_random = np.random.default_rng([zlib.crc32(self.task.encode()), init_state])
        env.seeded_rand_vec, env._freeze_rand_vec, env._set_task_called = True, False, True
        mujoco.mj_resetData(env.model, env.data)
        env.reset_model()
        start = {"rand_vec": env._last_rand_vec, "env_cls": type(env), "partially_observable": False}
        env.sawyer_observation_space  # noqa: B018  set_task deletes the cached value, which must exist
        env.set_task(Task(self.task, pickle.dumps(start)))
        env.seed(seed)
        mujoco.mj_resetData(env.model, env.data)
        self._observation, _ = env.reset()
        mujoco.mj_forward(env.model, env.data)
        _, facts = env.evaluate_state(self._observation, np.zeros(4, np.float32))
        return bool(facts["success"])

    def _act(self, action: NDArray[np.float32]) -> bool:
        self._observation, _, _, _, facts = self._env.step(action)
        return bool(facts["success"])

    def _state(self) -> NDArray[np.float32]:
        return self._observation[:STATE_COLUMNS].astype(np.float32)

    def _pictures(self) -> dict[str, NDArray[np.uint8]]:
        pictures = {}
        for name in self.cameras:
            assert self._renderer is not None
            self._renderer.update_scene(self._env.data, CAMERAS[name])
            picture = self._renderer.render()
            # The model's corner2 hangs upside down.
            pictures[name] = np.ascontiguousarray(picture[::-1, ::-1]) if name == "corner2" else picture
        return pictures


def prepare_model(model: Any, size: tuple[int, int]) -> None:
    """Make a model's pictures cheap: on llvmpipe multisampling costs 10 ms a picture, shadows 50, reflections 7."""
    model.cam("corner2").pos = CORNER2_POSITION
    model.vis.quality.offsamples = 0
    model.vis.quality.shadowsize = 0
    model.vis.global_.offheight, model.vis.global_.offwidth = size


def prepare_scene(scene: Any) -> None:
    """Switch shadows and reflections off."""
    scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0


def _renderer(model: Any, size: tuple[int, int]) -> Any:
    prepare_model(model, size)
    renderer = mujoco.Renderer(model, *size)
    prepare_scene(renderer.scene)
    return renderer


def _gl_renderer() -> str:
    from OpenGL import GL

    return str(GL.glGetString(GL.GL_RENDERER).decode())

"""A simulator in a child process: OpenGL and CUDA in one process abort, and a crash there must not end a run here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from megahour.simulators.model import Demonstration, SimulatorError, Snapshot

START_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 60.0
DEMONSTRATION_TIMEOUT_S = 600.0


class Simulator:
    """The parent's handle on one simulator. Not for two threads at once; several simulators work in parallel."""

    def __init__(self, child: subprocess.Popen[bytes], connection: Connection[Any, Any], log: IO[bytes]) -> None:
        self._child = child
        self._connection = connection
        self._log = log
        self._versions: dict[str, str] = {}

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def versions(self) -> dict[str, str]:
        """What moves a score between machines: `metaworld`, `mujoco`, `gl` and `gl_renderer`."""
        return dict(self._versions)

    def reset(self, init_state: int, seed: int) -> Snapshot:
        """Go to a start by its number; `success` holds one value, the success before the first action.

        Raises:
            SimulatorError: the simulator failed, died or did not answer in time.
        """
        return cast(Snapshot, self._ask("reset", STEP_TIMEOUT_S, init_state=init_state, seed=seed))

    def step(self, actions: NDArray[np.float32]) -> Snapshot:
        """Run `(k, 4)` float32 actions, k control steps, and look once, after the last.

        Raises:
            SimulatorError: as for `reset`, and for actions of another shape or that are not finite.
        """
        return cast(Snapshot, self._ask("step", STEP_TIMEOUT_S, actions=np.asarray(actions, np.float32)))

    def demonstrate(
        self, init_state: int, seed: int, noise: float, max_steps: int, steps_after_success: int
    ) -> Demonstration:
        """Let the simulator's scripted expert do the task; see `Demonstration`.

        Raises:
            SimulatorError: as for `reset`.
        """
        answer = self._ask(
            "demonstrate",
            DEMONSTRATION_TIMEOUT_S,
            init_state=init_state,
            seed=seed,
            noise=noise,
            max_steps=max_steps,
            steps_after_success=steps_after_success,
        )
        return cast(Demonstration, answer)

    def close(self) -> None:
        """End the child. Closing twice is fine."""
        self._connection.close()
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        self._log.close()

    def __enter__(self) -> Simulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, timeout_s: float, **arguments: Any) -> Any:
        if self._connection.closed:
            raise SimulatorError("The simulator is closed: open a new one")
        try:
            self._connection.send((method, arguments))
            if not self._connection.poll(timeout_s):
                self.close()
                raise SimulatorError(f"The simulator did not finish {method!r} in {timeout_s:.0f} s and was ended")
            done, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise SimulatorError(self._epitaph(method)) from error
        if not done:
            raise SimulatorError(f"The simulator failed at {method!r}: {answer}")
        return answer

    def _epitaph(self, method: str) -> str:
        code = self._child.wait()
        cause = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self.close()
        said = f", and said: {' | '.join(lines[-5:])}" if lines else ", and said nothing"
        return f"The simulator {cause} during {method!r}{said}"


def open_simulator(
    name: str,
    task: str,
    *,
    size: tuple[int, int] = (128, 128),
    cameras: tuple[str, ...] = ("corner2", "gripper"),
    gl: str = "egl",
) -> Simulator:
    """Start a simulator in a fresh interpreter; it ends with this process, however that ends.

    Args:
        name: `metaworld`.
        task: the simulator's name of a task.
        size: (height, width) of the pictures.
        cameras: names of the cameras to render.
        gl: OpenGL to render with, `egl` or `osmesa`.

    Raises:
        SimulatorError: it did not start; the message says what it said and what to do.
    """
    ours, theirs = Pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the simulator
    # One rasterizer thread per child: pictures this small gain nothing from more, and workers share the cores.
    env = {**os.environ, "MUJOCO_GL": gl, "PYOPENGL_PLATFORM": gl, "LP_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "megahour.simulators.worker", str(theirs.fileno()), str(os.getpid())]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, pass_fds=(theirs.fileno(),)
    )
    theirs.close()
    simulator = Simulator(child, ours, log)
    try:
        simulator._versions = simulator._ask(
            "open", START_TIMEOUT_S, name=name, task=task, size=tuple(size), cameras=tuple(cameras)
        )
    except SimulatorError as error:
        simulator.close()
        raise SimulatorError(f"{error}{_advice(str(error), gl)}") from error.__cause__
    except BaseException:
        simulator.close()
        raise
    return simulator


def _advice(error: str, gl: str) -> str:
    if "No module named" in error:
        return ". Install the simulator: pip install 'megahour[simulation]'"
    if any(word in error for word in ("EGL", "egl", "OpenGL", "OSMesa", "osmesa", "glGetError", "MUJOCO_GL")):
        other = "osmesa" if gl == "egl" else "egl"
        package = "libegl1 libgl1-mesa-dri" if gl == "egl" else "libosmesa6"
        return f". Install the OpenGL it needs (Debian: apt-get install {package}), or set MEGAHOUR_MUJOCO_GL={other}"
    return ""

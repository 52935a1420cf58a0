"""What a simulator answers: snapshots and demonstrations, as plain data that crosses a pipe."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class SimulatorError(RuntimeError):
    """The simulator could not do what was asked; the message holds the child's own error text."""


@dataclass(frozen=True)
class Snapshot:
    """What a policy may see now, and what came of the steps before it.

    `pictures` is `(height, width, 3)` uint8 RGB by camera; `state` `(4,)` float32: the hand's x, y, z in meters and
    the gripper's opening from 0 to 1, nothing of the object. `success` has one value per control step run; after a
    reset it has one, the success before the first action.
    """

    pictures: dict[str, NDArray[np.uint8]]
    state: NDArray[np.float32]
    success: tuple[bool, ...]


@dataclass(frozen=True)
class Demonstration:
    """One run of the scripted expert, `n` control steps long; row t is what was seen and wanted before step t.

    `pictures` is `(n, height, width, 3)` uint8 by camera, `state` and `action` are `(n, 4)` float32. `action` is what
    the expert wanted; what was executed had noise on top. `success` is the success after each step.
    """

    pictures: dict[str, NDArray[np.uint8]]
    state: NDArray[np.float32]
    action: NDArray[np.float32]
    success: tuple[bool, ...]
    rate_hz: float
    robot: str

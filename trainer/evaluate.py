"""Prove a checkpoint: `python -m trainer.evaluate --run-dir DIR --step N`, after `trainer.export`.

Rollouts in the recipe's simulator by the trained policy and its controls, and prediction of held-out pictures. Writes
`DIR/evaluation/step_N/`: `rollouts.jsonl` (a row per rollout), `videos/*.mp4`, `prediction.png` and, last,
`summary.json`. Says how far it is in JSON lines on standard output.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megahour.episode.h264 import encode_video
from megahour.files import write_atomically
from megahour.manifest.load import load_manifest
from megahour.manifest.recipe import Evaluate
from megahour.runs import read_intent
from megahour.settings import Settings
from megahour.simulators.model import SimulatorError, Snapshot
from megahour.simulators.process import Simulator, open_simulator
from megahour.storage import open_lake
from megahour.success import wilson
from trainer.flow import seeded
from trainer.policy import Policy, load_policies
from trainer.predict import draw_foresight, foresee

RENDER_SIZE = (128, 128)
CONTROL_RATE_HZ = 80
FILMED = {"trained": 3, "untrained": 1, "blind": 1}


@dataclass(frozen=True)
class Rollout:
    """One rollout: what was asked and what came of it. An error counts as a failure and is told apart."""

    policy: str
    rollout: int
    init_state: int
    env_seed: int
    policy_seed: int
    success_once: bool
    success_at_end: bool
    success_at_reset: bool
    steps: int
    error: str | None
    video: str | None


class Simulators:
    """A few simulators for many rollouts; one that failed is replaced by a fresh one."""

    def __init__(self, plan: Evaluate, cameras: tuple[str, ...], gl: str, count: int) -> None:
        self._open = partial(open_simulator, plan.simulator, plan.task, size=RENDER_SIZE, cameras=cameras, gl=gl)
        self._idle: queue.Queue[Simulator | None] = queue.Queue()
        for _ in range(count):
            self._idle.put(None)
        self.versions: dict[str, str] = {}

    def take(self) -> Simulator:
        """A simulator that nobody uses, opened where none is.

        Raises:
            SimulatorError: it cannot be opened. No rollout is to blame for that.
        """
        simulator = self._idle.get()
        if simulator is None:
            try:
                simulator = self._open()
            except SimulatorError:
                self._idle.put(None)
                raise
            self.versions = simulator.versions()
        return simulator

    def give_back(self, simulator: Simulator, *, usable: bool) -> None:
        if not usable:
            simulator.close()
        self._idle.put(simulator if usable else None)

    def close(self) -> None:
        while not self._idle.empty():
            simulator = self._idle.get()
            if simulator is not None:
                simulator.close()


def roll_out(
    simulators: Simulators, name: str, policy: Policy, plan: Evaluate, number: int, seed: int, videos: Path
) -> Rollout:
    """One rollout of `plan.max_steps` control steps, to its end whatever happens on the way.

    Raises:
        SimulatorError: no simulator can be opened.
    """
    init_state = plan.first_init_state + number
    policy_seed = seed * 1_000_000 + number
    asked: dict[str, Any] = {
        "policy": name,
        "rollout": number,
        "init_state": init_state,
        "env_seed": init_state,
        "policy_seed": policy_seed,
    }
    success: list[bool] = []
    film: list[NDArray[np.uint8]] = []
    simulator, usable = simulators.take(), True
    try:
        generator = seeded(torch.device("cpu"), policy_seed)
        seen = simulator.reset(init_state, seed=init_state)
        at_reset = seen.success[-1]
        film.append(_side_by_side(seen, policy))
        while len(success) < plan.max_steps:
            count = min(plan.execute, plan.max_steps - len(success))
            seen = simulator.step(policy.act(seen.pictures, seen.state, generator)[:count])
            success += seen.success
            film.append(_side_by_side(seen, policy))
    except SimulatorError as error:
        usable = False
        return Rollout(
            **asked,
            success_once=False,
            success_at_end=False,
            success_at_reset=False,
            steps=len(success),
            error=str(error),
            video=None,
        )
    finally:
        simulators.give_back(simulator, usable=usable)
    video = None
    if number < FILMED[name]:
        video = f"videos/{name}_{number:02d}.mp4"
        encode_video(videos / f"{name}_{number:02d}.mp4", film, CONTROL_RATE_HZ / plan.execute)
    return Rollout(
        **asked,
        success_once=at_reset or any(success),
        success_at_end=success[-1],
        success_at_reset=at_reset,
        steps=len(success),
        error=None,
        video=video,
    )


def _side_by_side(seen: Snapshot, policy: Policy) -> NDArray[np.uint8]:
    return np.concatenate([seen.pictures[name] for name in policy.observation.cameras], axis=1)


def roll_out_all(
    plan: Evaluate, policies: dict[str, Policy], seed: int, settings: Settings, videos: Path
) -> Iterator[tuple[Rollout, dict[str, str]]]:
    """All rollouts of all policies, as they finish, with the simulator's versions.

    Raises:
        SimulatorError: no simulator can be opened; rollouts that have not begun are then left.
    """
    cameras = policies["trained"].observation.cameras
    simulators = Simulators(plan, cameras, settings.mujoco_gl, settings.rollout_workers)
    names = ("trained", *plan.controls)
    pool = ThreadPoolExecutor(settings.rollout_workers)
    try:
        waiting = [
            pool.submit(roll_out, simulators, name, policies[name], plan, number, seed, videos)
            for name in names
            for number in range(plan.rollouts)
        ]
        for done in as_completed(waiting):
            yield done.result(), simulators.versions
    finally:
        pool.shutdown(cancel_futures=True)
        simulators.close()


def summarize(rollouts: list[Rollout]) -> dict[str, dict[str, float]]:
    """Successes per policy: k of n, the 95% Wilson interval, and how many rollouts failed by an error."""
    summary = {}
    for name in dict.fromkeys(r.policy for r in rollouts):
        mine = [r for r in rollouts if r.policy == name]
        k, n = sum(r.success_once for r in mine), len(mine)
        low, high = wilson(k, n)
        summary[name] = {
            "k": k,
            "n": n,
            "low": low,
            "high": high,
            "at_end": sum(r.success_at_end for r in mine),
            "at_reset": sum(r.success_at_reset for r in mine),
            "errors": sum(r.error is not None for r in mine),
        }
    return summary


def evaluate(run_dir: Path, step: int, settings: Settings) -> dict[str, Any]:
    """Evaluate an exported checkpoint, write its folder and return the summary."""
    intent = read_intent(run_dir)
    folder = run_dir / "evaluation" / f"step_{step:06d}"
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "videos").mkdir(parents=True)
    export_dir = run_dir / "export" / f"step_{step:06d}"
    facts = json.loads((export_dir / "export.json").read_text())
    policies = load_policies(export_dir, intent.seed)
    versions = {"torch": torch.__version__, "code": intent.code_version}

    rollouts: list[Rollout] = []
    if intent.config.get("evaluate"):
        plan = Evaluate.model_validate(intent.config["evaluate"])
        for rollout, simulator_versions in roll_out_all(plan, policies, intent.seed, settings, unfinished / "videos"):
            versions.update(simulator_versions)
            rollouts.append(rollout)
            mine = [r for r in rollouts if r.policy == rollout.policy]
            _say(
                "rollout",
                policy=rollout.policy,
                done=len(mine),
                of=plan.rollouts,
                successes=sum(r.success_once for r in mine),
            )
        rollouts.sort(key=lambda r: (list(policies).index(r.policy), r.rollout))
        _write_rows(unfinished / "rollouts.jsonl", rollouts, plan, intent.run_key, step, versions)

    lake = open_lake(intent.lake)
    torch.set_num_threads(settings.rollout_workers)
    foresight = foresee(
        lake, load_manifest(lake, intent.manifest, settings.scratch), policies["trained"].model, facts, intent.seed
    )
    if foresight is not None:
        _say("prediction", model_db=foresight.model_db, copy_last_db=foresight.copy_last_db)
        title = f"{intent.recipe}, step {step}: {foresight.windows} held-out windows"
        (unfinished / "prediction.png").write_bytes(draw_foresight(foresight, title))
    success = summarize(rollouts)
    summary = {
        "run_key": intent.run_key,
        "recipe": intent.recipe,
        "step": step,
        "success": success,
        "errors": {name: entry["errors"] for name, entry in success.items()},
        "video_db": foresight and {"model": foresight.model_db, "copy_last": foresight.copy_last_db},
        "video_db_by_frame": foresight and foresight.by_frame,
        "validation_loss": foresight and foresight.loss,
        "validation_windows": foresight and foresight.windows,
        "versions": versions,
    }
    write_atomically(unfinished / "summary.json", json.dumps(summary, indent=1).encode())
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return summary


def _write_rows(
    path: Path, rollouts: list[Rollout], plan: Evaluate, run_key: str, step: int, versions: dict[str, str]
) -> None:
    """The rows of the table `evaluations`, whose `key` the append adds; `video` becomes the lake's key."""
    now = datetime.now(UTC).isoformat()
    lines = []
    for rollout in rollouts:
        row = {
            **asdict(rollout),
            "run_key": run_key,
            "step": step,
            "simulator": plan.simulator,
            "task": plan.task,
            "video": rollout.video and f"runs/{run_key}/evaluation/step_{step:06d}/{rollout.video}",
            "versions": json.dumps(versions, sort_keys=True),
            "evaluated_at": now,
            "revision": 1,
        }
        lines.append(json.dumps(row))
    path.write_text("".join(line + "\n" for line in lines))


_speaking = threading.Lock()


def _say(kind: str, **fields: Any) -> None:
    with _speaking:
        print(json.dumps({"kind": kind, **fields}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate an exported checkpoint.")
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's directory")
    parser.add_argument("--step", type=int, required=True, help="the checkpoint's step")
    arguments = parser.parse_args()
    # rollouts run side by side, each on a core of its own
    torch.set_num_threads(1)
    summary = evaluate(arguments.run_dir, arguments.step, Settings())
    _say("summary", **summary)


if __name__ == "__main__":
    main()

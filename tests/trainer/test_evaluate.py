"""Rollouts, counted as the conventions say, and held-out prediction. The simulator here is a fake; a real one is driven
in `tests/integration`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megahour.manifest.build import build_manifest
from megahour.manifest.recipe import Evaluate, Observation
from megahour.settings import Settings
from megahour.simulators.model import SimulatorError, Snapshot
from megahour.storage import Lake
from megahour.warehouse.schemas import EVALUATIONS
from tests.trainer.toy import RECIPE
from trainer import evaluate as evaluation
from trainer.config import model_config
from trainer.data import Normalization
from trainer.flow import seeded
from trainer.model import WorldActionModel
from trainer.policy import Policy
from trainer.predict import draw_foresight, foresee

PLAN = Evaluate(simulator="metaworld", task="fake", rollouts=4, first_init_state=10, max_steps=6, execute=2)


class FakeSimulator:
    """A script of successes by init state; `None` in it is a crash."""

    opened = 0

    def __init__(self, script: dict[int, list[bool | None]]) -> None:
        self.script = script
        FakeSimulator.opened += 1

    def versions(self) -> dict[str, str]:
        return {"fake": "1"}

    def reset(self, init_state: int, seed: int) -> Snapshot:
        self.left = list(self.script[init_state])
        return self.look(1)

    def step(self, actions: np.ndarray) -> Snapshot:
        assert actions.shape == (2, 2) and np.isfinite(actions).all()
        return self.look(len(actions))

    def look(self, count: int) -> Snapshot:
        success, self.left = self.left[:count], self.left[count:]
        if None in success:
            raise SimulatorError("The fake crashed")
        picture = np.full((128, 128, 3), 90, np.uint8)
        return Snapshot({"front": picture}, np.zeros(2, np.float32), tuple(bool(s) for s in success))

    def close(self) -> None:
        self.script = {}


def make_policy(*, blind: bool = False, cameras: tuple[str, ...] = ("front",)) -> Policy:
    torch.manual_seed(0)
    overrides = {"dim": 32, "ffn_dim": 64, "layers": 1, "heads": 2, "actions_per_block": 2, "adapter_dim": 16}
    model = WorldActionModel(model_config("nano", state_dim=2, action_dim=2, overrides=overrides)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    numbers = {"mean": [50.0, -20.0], "std": [2.0, 3.0]}
    normalization = Normalization.of({"state": numbers, "action": numbers})
    return Policy(model.requires_grad_(False), Observation(cameras=cameras, size=(32, 32)), normalization, 2, 2, blind)


def roll_out_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: dict[int, list[bool | None]]) -> Any:
    FakeSimulator.opened = 0
    monkeypatch.setattr(evaluation, "open_simulator", lambda *_, **__: FakeSimulator(script))
    (tmp_path / "videos").mkdir()
    policies = {"trained": make_policy(), "untrained": make_policy(), "blind": make_policy(blind=True)}
    found = evaluation.roll_out_all(PLAN, policies, 7, Settings(rollout_workers=2), tmp_path / "videos")
    return sorted((rollout for rollout, _ in found), key=lambda r: (r.policy != "trained", r.policy, r.rollout))


SCRIPT: dict[int, list[bool | None]] = {
    10: [False] * 7,
    11: [False, False, True, False, False, False, False],
    12: [True, False, False, False, False, False, True],
    13: [False, False, None, False, False, False, False],
}


def test_success_once_at_end_and_at_reset_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rollouts = roll_out_script(monkeypatch, tmp_path, SCRIPT)
    trained = [r for r in rollouts if r.policy == "trained"]
    assert [(r.success_once, r.success_at_end, r.success_at_reset) for r in trained] == [
        (False, False, False),
        (True, False, False),
        (True, True, True),
        (False, False, False),
    ]
    assert [r.init_state for r in trained] == [10, 11, 12, 13]
    assert len({r.policy_seed for r in trained}) == 4


def test_an_error_is_a_failure_told_apart_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rollouts = roll_out_script(monkeypatch, tmp_path, SCRIPT)
    failed = [r for r in rollouts if r.error]
    assert [(r.policy, r.rollout, r.error) for r in failed] == [
        (policy, 3, "The fake crashed") for policy in ("trained", "blind", "untrained")
    ]
    summary = evaluation.summarize(rollouts)
    assert summary["trained"]["k"] == 2 and summary["trained"]["n"] == 4 and summary["trained"]["errors"] == 1
    # each crash costs one simulator, and a fresh one replaces it
    assert FakeSimulator.opened >= 3


def test_without_a_simulator_there_is_no_evaluation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def refuse(*_: object, **__: object) -> FakeSimulator:
        asked.append(1)
        raise SimulatorError("There is no OpenGL")

    monkeypatch.setattr(evaluation, "open_simulator", refuse)
    policies = {name: make_policy() for name in ("trained", "untrained", "blind")}
    with pytest.raises(SimulatorError, match="no OpenGL"):
        list(evaluation.roll_out_all(PLAN, policies, 7, Settings(rollout_workers=1), tmp_path))
    assert len(asked) < PLAN.rollouts, "it goes on asking for what is not there"


def test_some_rollouts_of_each_policy_are_filmed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rollouts = roll_out_script(monkeypatch, tmp_path, SCRIPT)
    filmed = {r.video for r in rollouts if r.video}
    assert filmed == {
        f"videos/{name}.mp4" for name in ("trained_00", "trained_01", "trained_02", "untrained_00", "blind_00")
    }
    assert all((tmp_path / video).stat().st_size > 500 for video in filmed)


def test_rows_have_the_columns_of_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rollouts = roll_out_script(monkeypatch, tmp_path, SCRIPT)
    evaluation._write_rows(tmp_path / "rollouts.jsonl", rollouts, PLAN, "run", 3, {"fake": "1"})
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 12
    assert all(set(row) == set(EVALUATIONS.names) - {"key"} for row in rows)
    assert rows[0]["video"] == "runs/run/evaluation/step_000003/videos/trained_00.mp4"


def test_actions_follow_from_the_seed_and_stand_on_the_datas_scale() -> None:
    policy = make_policy()
    picture = np.random.default_rng(0).integers(0, 255, (128, 128, 3), np.uint8)

    def act(seed: int) -> np.ndarray:
        return policy.act({"front": picture}, np.zeros(2, np.float32), seeded(torch.device("cpu"), seed))

    assert act(1).shape == (2, 2)
    assert np.array_equal(act(1), act(1)) and not np.array_equal(act(1), act(2))
    spread = np.stack([act(seed) for seed in range(60)]).reshape(-1, 2)
    assert spread.mean(axis=0) == pytest.approx([50.0, -20.0], abs=3)


def test_a_blind_policy_does_not_see_and_another_does() -> None:
    dark, bright = (np.full((128, 128, 3), level, np.uint8) for level in (0, 200))
    for blind in (True, False):
        policy = make_policy(blind=blind)
        one, other = (
            policy.act({"front": picture}, np.zeros(2, np.float32), seeded(torch.device("cpu"), 0))
            for picture in (dark, bright)
        )
        assert np.array_equal(one, other) == blind


def test_a_missing_camera_is_named() -> None:
    policy = make_policy(cameras=("front", "wrist"))
    with pytest.raises(KeyError, match="trained with cameras \\['wrist'\\]"):
        policy.act({"front": np.zeros((8, 8, 3), np.uint8)}, np.zeros(2, np.float32), seeded(torch.device("cpu"), 0))


def test_an_untrained_model_foresees_exactly_a_copy(toy_lake: Lake) -> None:
    manifest = build_manifest(toy_lake, RECIPE)
    header = manifest.header
    overrides = {"dim": 32, "layers": 1, "heads": 2, "actions_per_block": 2}
    model = WorldActionModel(model_config("nano", state_dim=2, action_dim=2, overrides=overrides)).eval()
    facts = {**header.recipe, "normalization": header.normalization, "copy_error": 1.0}
    foresight = foresee(toy_lake, manifest, model, facts, seed=0)
    assert foresight is not None
    assert foresight.model_db == pytest.approx(foresight.copy_last_db, abs=1e-3)
    assert foresight.by_frame[0]["copy_last"] > foresight.by_frame[1]["copy_last"]
    assert foresight.shown.shape[1] == 1 + 3 * 2
    png = draw_foresight(foresight, "toy")
    assert png.startswith(b"\x89PNG") and len(png) > 5000

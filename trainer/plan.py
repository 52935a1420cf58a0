"""What a run is, read and checked before anything is allocated."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from megahour.manifest.load import Manifest
from megahour.manifest.recipe import Observation, Train, Windows
from megahour.runs import Intent
from trainer.config import ModelConfig, OptimizerConfig, model_config


class TrainingError(RuntimeError):
    """A run cannot start or go on; the message says what to change."""


@dataclass(frozen=True)
class Plan:
    """A run, read and checked: the pure part of what a rank needs to know."""

    intent: Intent
    train: Train
    observation: Observation
    windows: Windows
    model: ModelConfig
    optimizer: OptimizerConfig
    manifest: Manifest

    def facts(self, copy_error: float) -> dict[str, Any]:
        """What every checkpoint says about itself: lineage lives in the data."""
        header = self.manifest.header
        return {
            "run_key": self.intent.run_key,
            "recipe": self.intent.recipe,
            "manifest": self.intent.manifest,
            "manifest_digest": header.digest,
            "table_versions": self.intent.table_versions,
            "code_version": self.intent.code_version,
            "seed": self.intent.seed,
            "model": asdict(self.model),
            "observation": self.observation.model_dump(mode="json"),
            "windows": self.windows.model_dump(mode="json"),
            "normalization": header.normalization,
            "state_dim": header.state_dim,
            "action_dim": header.action_dim,
            "copy_error": copy_error,
        }


def make_plan(intent: Intent, manifest: Manifest) -> Plan:
    """Check a run before anything is allocated.

    Raises:
        TrainingError: the recipe and the manifest do not fit the model.
    """
    header = manifest.header
    train = Train.model_validate(intent.config["train"])
    observation = Observation.model_validate(header.recipe["observation"])
    windows = Windows.model_validate(header.recipe["windows"])
    if header.digest != intent.manifest_digest:
        raise TrainingError(f"The run wants manifest {intent.manifest_digest}, and {manifest.key} is {header.digest}")
    overrides = {
        "frames_per_block": len(windows.future_frames),
        "actions_per_block": windows.actions,
        **train.overrides,
    }
    try:
        model = model_config(
            train.preset, state_dim=header.state_dim, action_dim=header.action_dim, overrides=overrides
        )
    except ValueError as error:
        raise TrainingError(str(error)) from error
    frames, actions = model.frames_per_block, model.actions_per_block
    if (frames, actions) != (len(windows.future_frames), windows.actions):
        raise TrainingError(
            f"The model denoises {frames} pictures and {actions} actions per block, and the recipe's windows hold "
            f"{len(windows.future_frames)} and {windows.actions}: leave both out of train.overrides"
        )
    if model.text_dim:
        raise TrainingError(
            f"Preset {train.preset} sees pictures through frozen video, image and text encoders, whose weights are not "
            "installed here: use preset nano, or a shape of your own with text_dim: 0 in train.overrides"
        )
    if not observation.cameras:
        raise TrainingError(f"The recipe {intent.recipe} names no cameras, and a world model needs one: add some")
    _, patch_height, patch_width = model.patch
    height, width = observation.size
    for name, size, patch in (("height", height, patch_height), ("width", width, patch_width)):
        if size % (patch * model.future_scale):
            raise TrainingError(
                f"The recipe's pictures have a {name} of {size}, which is no multiple of {patch * model.future_scale}, "
                f"the model's patch at its future scale: change observation.size"
            )
    return Plan(intent, train, observation, windows, model, OptimizerConfig(), manifest)

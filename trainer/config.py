"""Model shapes: from one that a laptop trains in minutes to the published 14B, all of one kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a world-action model.

    A picture is all cameras side by side. The clean past is seen at its full size, the future is denoised at
    `1/future_scale` of it. `text_dim` and `image_dim` are widths of frozen encoders' tokens; 0 leaves them out.
    `video_target` is what the video head predicts: the `velocity` noise - data, as published, or the `residual` on the
    last clean picture, which starts as its exact copy.
    """

    dim: int
    ffn_dim: int
    layers: int
    heads: int
    latent_channels: int
    patch: tuple[int, int, int]
    condition_channels: int = 0
    text_dim: int = 0
    image_dim: int = 0
    state_dim: int = 64
    action_dim: int = 32
    adapter_dim: int = 1024
    frequency_dim: int = 256
    frames_per_block: int = 2
    actions_per_block: int = 24
    future_scale: int = 1
    video_target: Literal["velocity", "residual"] = "velocity"


PRESETS: dict[str, ModelConfig] = {
    "nano": ModelConfig(
        dim=128,
        ffn_dim=512,
        layers=4,
        heads=4,
        latent_channels=3,
        patch=(1, 16, 16),
        adapter_dim=128,
        actions_per_block=8,
        future_scale=2,
        video_target="residual",
    ),
    # DreamZero on Wan2.2-TI2V-5B: 48 latent channels, the first picture enters through its image tokens alone
    "5b": ModelConfig(
        dim=3072,
        ffn_dim=14336,
        layers=30,
        heads=24,
        latent_channels=48,
        patch=(1, 2, 2),
        text_dim=4096,
        image_dim=1280,
    ),
    # DreamZero on Wan2.1-I2V-14B: 16 latent channels beside 20 that hold the first picture and its mask
    "14b": ModelConfig(
        dim=5120,
        ffn_dim=13824,
        layers=40,
        heads=40,
        latent_channels=16,
        condition_channels=20,
        patch=(1, 2, 2),
        text_dim=4096,
        image_dim=1280,
    ),
}


@dataclass(frozen=True)
class OptimizerConfig:
    """Muon for the matrices of blocks, AdamW for the rest; linear warm-up, linear decay over the last half."""

    muon_rate: float = 3e-3
    adamw_rate: float = 1e-3
    muon_momentum: float = 0.95
    warmup_steps: int = 20
    clip_norm: float = 1.0


def model_config(
    preset: str, *, state_dim: int, action_dim: int, overrides: dict[str, Any] | None = None
) -> ModelConfig:
    """The shape of a run: a preset, fitted to the data's dimensions, with single fields replaced.

    Presets with encoders keep their published padded widths; smaller data is padded with zeros.

    Raises:
        ValueError: the preset is unknown, an override is not a field, or the data does not fit.
    """
    if preset not in PRESETS:
        raise ValueError(f"There is no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    config = PRESETS[preset]
    if not config.text_dim:
        config = replace(config, state_dim=state_dim, action_dim=action_dim)
    try:
        config = replace(config, **(overrides or {}))
    except TypeError as error:
        raise ValueError(f"The recipe's train.overrides name a field that no model has: {error}") from error
    if state_dim > config.state_dim or action_dim > config.action_dim:
        raise ValueError(
            f"The data has {state_dim} states and {action_dim} actions, and preset {preset} takes up to "
            f"{config.state_dim} and {config.action_dim}: raise state_dim and action_dim in train.overrides"
        )
    return config

"""A trained model as a policy: what the cameras see and the joints say in, the next actions out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from megahour.episode.h264 import scale_frames
from megahour.manifest.recipe import Observation
from trainer.config import ModelConfig
from trainer.data import Normalization, picture_batch
from trainer.export import load_export
from trainer.flow import DENOISE_STEPS, copy_last, sample
from trainer.model import WorldActionModel


@dataclass(frozen=True)
class Policy:
    """Weights and all they need. A `blind` policy sees black pictures: it shows what a task gives away."""

    model: WorldActionModel
    observation: Observation
    normalization: Normalization
    state_dim: int
    action_dim: int
    blind: bool = False

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def act(
        self, pictures: dict[str, NDArray[np.uint8]], state: NDArray[np.float32], generator: Generator
    ) -> NDArray[np.float32]:
        """The next actions `(actions_per_block, action_dim)` from one look.

        Args:
            pictures: `(height, width, 3)` uint8 per camera, of any size.
            state: `(state_dim,)`.
            generator: the source of the draw; the same seed gives the same actions.
        """
        clean = self._see(pictures)
        known = (
            torch.from_numpy(state.astype(np.float32)) - self.normalization.state_mean
        ) / self.normalization.state_std
        known = torch.nn.functional.pad(known, (0, self.config.state_dim - self.state_dim))
        past = self.model.remember(clean, known[None, None])
        copy = copy_last(clean, self.config.future_scale, self.config.frames_per_block)
        _, actions = sample(
            lambda x, a, level: self.model.denoise(x, a, level, past),
            self.config,
            copy,
            steps=DENOISE_STEPS,
            generator=generator,
        )
        n = self.normalization
        return (actions[0, :, : self.action_dim] * n.action_std + n.action_mean).numpy()

    def _see(self, pictures: dict[str, NDArray[np.uint8]]) -> Tensor:
        missing = [name for name in self.observation.cameras if name not in pictures]
        if missing:
            raise KeyError(f"The policy was trained with cameras {missing}, and sees only {sorted(pictures)}")
        seen = np.stack(
            [scale_frames(pictures[name][None], self.observation.size)[0] for name in self.observation.cameras]
        )
        if self.blind:
            seen = np.zeros_like(seen)
        return picture_batch(torch.from_numpy(seen)[None, None])


def load_policies(folder: Path, seed: int) -> dict[str, Policy]:
    """`trained` from an export, and its two controls: `untrained` (first weights) and `blind` (no pictures)."""
    model, facts = load_export(folder)
    torch.manual_seed(seed)
    untrained = WorldActionModel(model.config).eval().requires_grad_(False)

    def policy(weights: WorldActionModel, *, blind: bool = False) -> Policy:
        return Policy(
            weights,
            Observation.model_validate(facts["observation"]),
            Normalization.of(facts["normalization"]),
            facts["state_dim"],
            facts["action_dim"],
            blind,
        )

    return {"trained": policy(model), "untrained": policy(untrained), "blind": policy(model, blind=True)}

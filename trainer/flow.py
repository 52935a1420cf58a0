"""Flow matching over pictures and actions at once: what is noised, what is learned, how a future is drawn.

A value x is noised to `x_s = (1 - s) x + s e` with e ~ N(0, 1); its velocity is `e - x`. The pictures and actions of a
block share one level s. (Lipman et al., "Flow Matching for Generative Modeling"; coupled levels as in DreamZero.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from trainer.config import ModelConfig
from trainer.model import Prediction, WorldActionModel

DENOISE_STEPS = 2


@dataclass(frozen=True)
class Batch:
    """Samples ready for the model: pictures in [-1, 1], states and actions normalised. Shapes as the model's.

    `clean` is at full size, `future` already divided by the model's `future_scale`.
    """

    clean: Tensor
    future: Tensor
    actions: Tensor
    states: Tensor


@dataclass(frozen=True)
class Noise:
    """A draw of everything random in one training step: levels `(b, n)`, and noise shaped like future and actions."""

    level: Tensor
    video: Tensor
    actions: Tensor


@dataclass(frozen=True)
class Losses:
    """`dynamics` is about pictures, `action` about actions; each is a mean over the batch, near 1 at the start."""

    dynamics: Tensor
    action: Tensor

    @property
    def total(self) -> Tensor:
        return self.dynamics + self.action


def seeded(device: torch.device, *numbers: int) -> Generator:
    """A generator whose stream is set by several numbers: seed, step, rank."""
    state = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))


def draw_noise(batch: Batch, generator: Generator) -> Noise:
    """Uniform levels and normal noise for a batch, from one generator: the same seed gives the same draw."""
    device = batch.future.device
    return Noise(
        torch.rand(batch.states.shape[:2], generator=generator, device=device),
        torch.randn(batch.future.shape, generator=generator, device=device),
        torch.randn(batch.actions.shape, generator=generator, device=device),
    )


def last_clean(batch: Batch, frames_per_block: int) -> Tensor:
    """For each future picture the last clean one before its block, at the future's size: the copy to beat."""
    scale = batch.clean.shape[-1] // batch.future.shape[-1]
    return copy_last(batch.clean[:, :, ::frames_per_block], scale, frames_per_block)


def copy_last(last: Tensor, scale: int, frames_per_block: int) -> Tensor:
    """Last clean pictures `(b, c, blocks, h, w)` at `1/scale` of their size, each repeated over its block."""
    return shrink(last, scale).repeat_interleave(frames_per_block, dim=2)


def shrink(pictures: Tensor, scale: int) -> Tensor:
    """Pictures at `1/scale` of their size, by averaging: the size at which the future is denoised."""
    return pictures if scale == 1 else F.avg_pool3d(pictures, (1, scale, scale))


def losses(model: WorldActionModel, batch: Batch, noise: Noise, copy_error: float) -> Losses:
    """The two losses of a training step.

    Args:
        copy_error: mean squared error of copying the last clean picture, over the training data. It scales the loss of
            a model that predicts the residual on that copy; others do not use it.
    """
    config = model.config
    video_level = noise.level.repeat_interleave(config.frames_per_block, dim=1)[:, None, :, None, None]
    action_level = noise.level.repeat_interleave(config.actions_per_block, dim=1)[..., None]
    noisy = torch.lerp(batch.future, noise.video, video_level)
    noisy_actions = torch.lerp(batch.actions, noise.actions, action_level)
    predicted = model(batch.clean, noisy, noisy_actions, batch.states, noise.level)
    if config.video_target == "residual":
        target = batch.future - last_clean(batch, config.frames_per_block)
        dynamics = F.mse_loss(predicted.video, target) / copy_error
    else:
        dynamics = F.mse_loss(predicted.video, noise.video - batch.future)
    return Losses(dynamics, F.mse_loss(predicted.actions, noise.actions - batch.actions))


@torch.no_grad()
def sample(
    predict: Callable[[Tensor, Tensor, Tensor], Prediction],
    config: ModelConfig,
    copy: Tensor,
    *,
    steps: int,
    generator: Generator,
) -> tuple[Tensor, Tensor]:
    """Draw the next block's pictures and actions in `steps` joint Euler steps from noise.

    Args:
        predict: the model on top of its clean past: noisy pictures, noisy actions, levels `(b, 1)`.
        copy: the last clean picture at the future's size, repeated over the block: `(b, channels, frames, h, w)`.

    Returns:
        Pictures like `copy` and normalised actions `(b, actions_per_block, action_dim)`.
    """
    x = torch.randn(copy.shape, generator=generator, device=copy.device)
    shape = (copy.shape[0], config.actions_per_block, config.action_dim)
    actions = torch.randn(shape, generator=generator, device=copy.device)
    levels = torch.linspace(1.0, 0.0, steps + 1).tolist()
    for now, after in itertools.pairwise(levels):
        level = torch.full((copy.shape[0], 1), now, device=copy.device)
        predicted = predict(x, actions, level)
        velocity = (x - copy - predicted.video) / now if config.video_target == "residual" else predicted.video
        x = x + (after - now) * velocity
        actions = actions + (after - now) * predicted.actions
    return x, actions


def mean_squared_error_by_frame(pictures: Tensor, real: Tensor) -> Tensor:
    """Mean squared error per future picture `(frames,)`, on the scale of pixels in [0, 1]."""
    return (((pictures - real) / 2) ** 2).mean(dim=(0, 1, 3, 4))


def decibels(mean_squared_error: float) -> float:
    """Peak signal-to-noise ratio of pixels in [0, 1]."""
    return -10 * math.log10(max(mean_squared_error, 1e-10))

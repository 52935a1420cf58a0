"""What the ranks measure together beside the training loss: held-out losses, and pictures foreseen."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trainer.data import Normalization, WindowReader, to_batch
from trainer.flow import (
    DENOISE_STEPS,
    Batch,
    decibels,
    draw_noise,
    last_clean,
    losses,
    mean_squared_error_by_frame,
    sample,
    seeded,
)
from trainer.model import WorldActionModel
from trainer.plan import Plan
from trainer.ranks import Place

VALIDATION_WINDOWS = 128
COPY_ERROR_WINDOWS = 256


def measure_copy_error(reader: WindowReader, plan: Plan, place: Place) -> float:
    """Mean squared error of copying the last picture, over all ranks: the scale of the video loss."""
    normalization = Normalization.of(plan.manifest.header.normalization).to(place.device)
    windows = reader.spread(max(1, COPY_ERROR_WINDOWS // place.world))
    batch = to_batch(reader.read(windows), normalization, plan.model, place.device)
    error = (batch.future - last_clean(batch, plan.model.frames_per_block)).square().mean()
    dist.all_reduce(error)
    # pictures that never change have nothing to predict, and must not divide by zero
    return max(float(error) / place.world, 1e-4)


@torch.no_grad()
def validate(
    model: WorldActionModel, batches: list[Batch], seed: int, copy_error: float, place: Place
) -> dict[str, float]:
    """Held-out losses with fixed noise, and predicted pictures against copies of the last, over all ranks."""
    model.eval()
    config = model.config
    totals = torch.zeros(5, device=place.device)
    for number, batch in enumerate(batches):
        generator = seeded(place.device, seed, number, place.rank)
        noise = draw_noise(batch, generator)
        copy = last_clean(batch, config.frames_per_block)
        with place.autocast():
            loss = losses(model, batch, noise, copy_error)
            video, _ = sample(
                lambda x, actions, level, b=batch: model(b.clean, x, actions, b.states, level),  # type: ignore[misc]
                config,
                copy,
                steps=DENOISE_STEPS,
                generator=generator,
            )
        errors = [mean_squared_error_by_frame(pictures, batch.future).mean() for pictures in (video, copy)]
        totals += torch.stack([loss.dynamics, loss.action, *errors, torch.ones((), device=place.device)])
    dist.all_reduce(totals)
    dynamics, action, model_error, copied_error = (totals[:4] / totals[4]).tolist()
    model.train()
    return {
        "loss": dynamics + action,
        "dynamics_loss": dynamics,
        "action_loss": action,
        "psnr_model_db": decibels(model_error),
        "psnr_copy_db": decibels(copied_error),
    }


def validation_batches(plan: Plan, reader: WindowReader | None, place: Place) -> list[Batch]:
    """This rank's fixed validation windows: the same number on every rank, so that collectives meet."""
    if reader is None:
        return []
    normalization = Normalization.of(plan.manifest.header.normalization).to(place.device)
    count = max(1, VALIDATION_WINDOWS // place.world)
    windows = reader.spread(count)
    windows = windows[[i % len(windows) for i in range(count)]]
    size = min(count, plan.train.batch)
    return [
        to_batch(reader.read(windows[i : i + size]), normalization, plan.model, place.device)
        for i in range(0, count - size + 1, size)
    ]

"""How well a model foresees: predicted pictures against real ones and against copies of the last one seen."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megahour.manifest.load import Manifest
from megahour.manifest.recipe import Observation, Windows
from megahour.storage import Lake
from trainer.data import Normalization, WindowReader, rank_share, to_batch
from trainer.flow import (
    DENOISE_STEPS,
    decibels,
    draw_noise,
    last_clean,
    losses,
    mean_squared_error_by_frame,
    sample,
    seeded,
)
from trainer.model import WorldActionModel

HELD_OUT_WINDOWS = 96
SHOWN_WINDOWS = 4
PICTURE_WIDTH_PX = 1100
"""What a browser shows of a picture without scrolling."""


@dataclass(frozen=True)
class Foresight:
    """Held-out prediction: decibels by future picture and over all, the loss, and pictures to show.

    `shown` is `(rows, 1 + 3 frames, height, width, 3)` uint8: the last picture seen, then real, predicted and copied
    ones in turn, at the size the future is denoised at.
    """

    model_db: float
    copy_last_db: float
    by_frame: list[dict[str, float]]
    loss: float
    windows: int
    shown: NDArray[np.uint8]


def foresee(
    lake: Lake, manifest: Manifest, model: WorldActionModel, facts: dict[str, Any], seed: int
) -> Foresight | None:
    """Predict the held-out windows of a manifest, or None where it holds none out."""
    rows = manifest.rows("validation")
    if rows.num_rows == 0:
        return None
    windows = Windows.model_validate(facts["windows"])
    reader = WindowReader(
        lake, rank_share(rows, 0, 1), Observation.model_validate(facts["observation"]), windows, memory_bytes=2**28
    )
    samples = reader.read(reader.spread(HELD_OUT_WINDOWS))
    batch = to_batch(samples, Normalization.of(facts["normalization"]), model.config, torch.device("cpu"))
    copy = last_clean(batch, model.config.frames_per_block)
    generator = seeded(batch.clean.device, seed, 0)
    with torch.no_grad():
        loss = losses(model, batch, draw_noise(batch, generator), facts["copy_error"]).total
        past = model.remember(batch.clean, batch.states)
        video, _ = sample(
            lambda x, actions, level: model.denoise(x, actions, level, past),
            model.config,
            copy,
            steps=DENOISE_STEPS,
            generator=generator,
        )
    errors = mean_squared_error_by_frame(video, batch.future), mean_squared_error_by_frame(copy, batch.future)
    by_frame = [
        {"frames_ahead": ahead, "model": decibels(float(m)), "copy_last": decibels(float(c))}
        for ahead, m, c in zip(windows.future_frames, *errors, strict=True)
    ]
    chosen = torch.linspace(0, len(video) - 1, min(SHOWN_WINDOWS, len(video))).long()
    shown = [copy[chosen, :, :1]]
    for frame in range(video.shape[2]):
        shown += [part[chosen, :, frame : frame + 1] for part in (batch.future, video, copy)]
    return Foresight(
        model_db=decibels(float(errors[0].mean())),
        copy_last_db=decibels(float(errors[1].mean())),
        by_frame=by_frame,
        loss=float(loss),
        windows=len(video),
        shown=_pixels(torch.cat(shown, dim=2)),
    )


def _pixels(pictures: Tensor) -> NDArray[np.uint8]:
    """`(n, 3, frames, h, w)` in [-1, 1] to `(n, frames, h, w, 3)` uint8."""
    return ((pictures.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).numpy()


def draw_foresight(foresight: Foresight, title: str) -> bytes:
    """A PNG with one row per held-out window: what was seen, then real and predicted pictures side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = ["seen last"]
    for entry in foresight.by_frame:
        ahead = entry["frames_ahead"]
        labels += [
            f"real, t+{ahead}",
            f"predicted, t+{ahead}\n{entry['model']:.1f} dB",
            f"copied\n{entry['copy_last']:.1f} dB",
        ]
    rows, columns = foresight.shown.shape[:2]
    height, width = foresight.shown.shape[2:4]
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(1.5 * columns * width / height / 1.6, 1.05 * rows + 0.7), squeeze=False
    )
    for row in range(rows):
        for column in range(columns):
            axis = axes[row][column]
            axis.imshow(foresight.shown[row, column], interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            if row == 0:
                axis.set_title(labels[column], fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=min(110, PICTURE_WIDTH_PX / figure.get_figwidth()))
    pyplot.close(figure)
    return out.getvalue()

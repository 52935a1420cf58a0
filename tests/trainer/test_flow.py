"""Flow matching: what is drawn from an oracle is the data, and what is random follows from seeds."""

from __future__ import annotations

import math

import torch

from trainer.config import ModelConfig, model_config
from trainer.flow import Batch, decibels, draw_noise, last_clean, losses, mean_squared_error_by_frame, sample, seeded
from trainer.model import Prediction, WorldActionModel

NANO = model_config("nano", state_dim=4, action_dim=4)
VELOCITY = ModelConfig(**{**vars(NANO), "video_target": "velocity"})


def make_batch() -> Batch:
    torch.manual_seed(3)
    return Batch(torch.randn(2, 3, 1, 32, 32), torch.randn(2, 3, 2, 16, 16), torch.randn(2, 8, 4), torch.randn(2, 1, 4))


def test_sampling_from_an_oracle_gives_the_data_in_any_number_of_steps() -> None:
    batch = make_batch()
    copy = torch.randn_like(batch.future)

    def oracle(config: ModelConfig) -> object:
        def predict(x: torch.Tensor, actions: torch.Tensor, level: torch.Tensor) -> Prediction:
            s = level[..., None]
            action_velocity = (actions - batch.actions) / s
            video_velocity = (x - batch.future) / s[..., None, None]
            residual = batch.future - copy
            return Prediction(residual if config.video_target == "residual" else video_velocity, action_velocity)

        return predict

    for config in (NANO, VELOCITY):
        for steps in (1, 2, 7):
            generator = seeded(torch.device("cpu"), 5)
            video, actions = sample(oracle(config), config, copy, steps=steps, generator=generator)  # type: ignore[arg-type]
            torch.testing.assert_close(video, batch.future, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(actions, batch.actions, atol=1e-4, rtol=1e-4)


def test_a_new_residual_model_has_a_video_loss_of_copy_error_over_itself() -> None:
    batch = make_batch()
    copy_error = float((batch.future - last_clean(batch, 2)).square().mean())
    loss = losses(WorldActionModel(NANO), batch, draw_noise(batch, seeded(torch.device("cpu"), 0)), copy_error)
    assert math.isclose(loss.dynamics.item(), 1.0, rel_tol=1e-5)


def test_the_same_numbers_draw_the_same_noise_and_any_other_number_another() -> None:
    batch, cpu = make_batch(), torch.device("cpu")
    first = draw_noise(batch, seeded(cpu, 1, 2, 3))
    again = draw_noise(batch, seeded(cpu, 1, 2, 3))
    assert torch.equal(first.video, again.video) and torch.equal(first.level, again.level)
    for numbers in ((1, 2, 4), (1, 3, 2), (0, 2, 3)):
        assert not torch.equal(first.actions, draw_noise(batch, seeded(cpu, *numbers)).actions)


def test_decibels_are_those_of_pixels_between_zero_and_one() -> None:
    real = torch.zeros(1, 3, 2, 4, 4)
    off = real.clone()
    off[:, :, 1] = 0.2  # a tenth of the range from -1 to 1
    errors = mean_squared_error_by_frame(off, real)
    assert decibels(float(errors[1])) == 20.0 or math.isclose(decibels(float(errors[1])), 20.0, rel_tol=1e-5)
    assert decibels(0.0) == 100.0

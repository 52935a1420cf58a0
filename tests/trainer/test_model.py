"""The model's shape, who sees whom, and that a rollout computes what training computed."""

from __future__ import annotations

import pytest
import torch

from trainer.config import PRESETS, ModelConfig, model_config
from trainer.flow import Batch, last_clean
from trainer.model import Prediction, WorldActionModel, count_parameters

SMALL = ModelConfig(
    dim=32,
    ffn_dim=64,
    layers=3,
    heads=2,
    latent_channels=2,
    patch=(1, 4, 4),
    state_dim=3,
    action_dim=2,
    adapter_dim=16,
    frequency_dim=16,
    frames_per_block=2,
    actions_per_block=3,
    future_scale=2,
)
BLOCKS = 3


def make_model(config: ModelConfig = SMALL) -> WorldActionModel:
    """A model none of whose weights are zero, so that every path through it shows."""
    torch.manual_seed(0)
    model = WorldActionModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def make_inputs(config: ModelConfig = SMALL) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    frames, actions = config.frames_per_block, config.actions_per_block
    return {
        "clean": normal(2, config.latent_channels, 1 + (BLOCKS - 1) * frames, 16, 16),
        "noisy": normal(2, config.latent_channels, BLOCKS * frames, 8, 8),
        "actions": normal(2, BLOCKS * actions, config.action_dim),
        "states": normal(2, BLOCKS, config.state_dim),
        "noise_level": torch.rand(2, BLOCKS, generator=generator),
    }


def blocks_that_change(name: str, index: tuple[slice | int, ...]) -> list[int]:
    """Which blocks' predictions change when one part of an input does."""
    model, inputs = make_model(), make_inputs()
    with torch.no_grad():
        before = model(**inputs)
        inputs[name] = inputs[name].clone()
        inputs[name][index] += 1.0
        after = model(**inputs)
    changed = []
    for block in range(BLOCKS):
        frames = slice(block * SMALL.frames_per_block, (block + 1) * SMALL.frames_per_block)
        steps = slice(block * SMALL.actions_per_block, (block + 1) * SMALL.actions_per_block)
        video = not torch.equal(before.video[:, :, frames], after.video[:, :, frames])
        actions = not torch.equal(before.actions[:, steps], after.actions[:, steps])
        assert video == actions
        if video:
            changed.append(block)
    return changed


@pytest.mark.parametrize(("preset", "parameters"), [("14b", 16_484_292_448), ("5b", 5_606_692_832)])
def test_published_presets_have_exactly_the_published_parameters(preset: str, parameters: int) -> None:
    assert count_parameters(PRESETS[preset]) == parameters


def test_the_14b_preset_holds_nearly_all_parameters_in_480_block_matrices() -> None:
    with torch.device("meta"):
        model = WorldActionModel(PRESETS["14b"])
    matrices = [p for name, p in model.named_parameters() if name.startswith("blocks.") and name.endswith("weight")]
    matrices = [p for p in matrices if p.ndim == 2]
    assert len(matrices) == 480
    assert sum(p.numel() for p in matrices) > 0.97 * 16_484_292_448


def test_the_nano_preset_has_57_tokens_on_two_cameras_of_64_pixels() -> None:
    config = model_config("nano", state_dim=4, action_dim=4)
    model = WorldActionModel(config)
    clean, noisy = torch.zeros(1, 3, 1, 64, 128), torch.zeros(1, 3, 2, 32, 64)
    past, *_ = model._past_tokens(clean, torch.zeros(1, 1, 4), None, first_block=-1)
    future, *_ = model._noisy_tokens(noisy, torch.zeros(1, 8, 4), torch.zeros(1, 1), None, first_block=0)
    assert (past.shape[1], future.shape[1]) == (33, 24)


def test_a_first_clean_picture_is_seen_by_every_block() -> None:
    assert blocks_that_change("clean", (slice(None), slice(None), 0)) == [0, 1, 2]


def test_clean_pictures_of_a_block_are_seen_by_later_blocks_alone() -> None:
    assert blocks_that_change("clean", (slice(None), slice(None), slice(1, 3))) == [1, 2]
    assert blocks_that_change("clean", (slice(None), slice(None), slice(3, 5))) == [2]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_noisy_pictures_actions_states_and_levels_touch_their_own_block_alone(block: int) -> None:
    frames = slice(block * SMALL.frames_per_block, (block + 1) * SMALL.frames_per_block)
    steps = slice(block * SMALL.actions_per_block, (block + 1) * SMALL.actions_per_block)
    assert blocks_that_change("noisy", (slice(None), slice(None), frames)) == [block]
    assert blocks_that_change("actions", (slice(None), steps)) == [block]
    assert blocks_that_change("states", (slice(None), block)) == [block]
    assert blocks_that_change("noise_level", (slice(None), block)) == [block]


def test_a_rollout_on_remembered_keys_computes_what_training_computes() -> None:
    model, inputs = make_model(), make_inputs()
    frames, steps = SMALL.frames_per_block, SMALL.actions_per_block
    with torch.no_grad():
        whole = model(**inputs)
    past = None
    for block in range(BLOCKS):
        seen = slice(0, 1) if block == 0 else slice(1 + (block - 1) * frames, 1 + block * frames)
        past = model.remember(inputs["clean"][:, :, seen], inputs["states"][:, block : block + 1], past)
        got: Prediction = model.denoise(
            inputs["noisy"][:, :, block * frames : (block + 1) * frames],
            inputs["actions"][:, block * steps : (block + 1) * steps],
            inputs["noise_level"][:, block : block + 1],
            past,
        )
        torch.testing.assert_close(got.video, whole.video[:, :, block * frames : (block + 1) * frames])
        torch.testing.assert_close(got.actions, whole.actions[:, block * steps : (block + 1) * steps])


def test_a_new_nano_model_predicts_an_exact_copy_of_the_last_picture() -> None:
    config = model_config("nano", state_dim=4, action_dim=4)
    model = WorldActionModel(config)
    batch = Batch(
        torch.randn(2, 3, 1, 64, 128), torch.randn(2, 3, 2, 32, 64), torch.randn(2, 8, 4), torch.randn(2, 1, 4)
    )
    with torch.no_grad():
        residual = model(batch.clean, batch.future, batch.actions, batch.states, torch.rand(2, 1)).video
    copy = last_clean(batch, 2)
    assert torch.equal(copy + residual, copy)


def test_a_model_with_encoders_sees_text_images_and_conditions() -> None:
    config = ModelConfig(**{**vars(SMALL), "text_dim": 12, "image_dim": 10, "condition_channels": 3, "future_scale": 1})
    model, inputs = make_model(config), make_inputs(config)
    inputs["noisy"] = torch.randn(2, 2, BLOCKS * 2, 16, 16)
    conditions = (torch.randn(2, 3, 5, 16, 16), torch.randn(2, 3, 6, 16, 16))
    text, image = torch.randn(2, 5, 12), torch.randn(2, 7, 10)
    with torch.no_grad():
        base = model(**inputs, condition=conditions, text=text, image=image).video
        other_text = model(**inputs, condition=conditions, text=text + 1, image=image).video
        other_image = model(**inputs, condition=conditions, text=text, image=image * 2).video
        other_condition = model(**inputs, condition=(conditions[0] + 1, conditions[1]), text=text, image=image).video
    for other in (other_text, other_image, other_condition):
        assert not torch.equal(base, other)
    with pytest.raises(ValueError, match="pass the encoders' outputs"):
        model(**inputs, condition=conditions)


def test_a_wrong_preset_or_override_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="choose one of nano, 5b, 14b"):
        model_config("huge", state_dim=4, action_dim=4)
    with pytest.raises(ValueError, match="a field that no model has"):
        model_config("nano", state_dim=4, action_dim=4, overrides={"depth": 3})
    with pytest.raises(ValueError, match="raise state_dim and action_dim"):
        model_config("5b", state_dim=80, action_dim=4)

"""Recipes: the small YAML file that says which episodes to train on, in which mix and in which windows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Component(_Part):
    """One part of the mix: the episodes that `filter` (SQL over curated episodes) selects, drawn with `weight`."""

    name: str
    filter: str
    weight: float = Field(1.0, gt=0)


class Windows(_Part):
    """What a sample is: the picture and state at t, pictures `future_frames` steps later, and the next `actions`.

    All steps are frames of the slowest camera that the recipe observes, of the slowest of all where it observes none.
    """

    future_frames: tuple[int, ...] = Field((4, 8), min_length=1)
    actions: int = Field(8, gt=0)
    stride: int = Field(1, gt=0)

    @model_validator(mode="after")
    def _future_comes_later(self) -> Windows:
        if not all(before < after for before, after in pairwise((0, *self.future_frames))):
            raise ValueError(f"future_frames count from the first picture on, ascending: {self.future_frames} do not")
        return self

    @property
    def span(self) -> int:
        """Frames a window covers after its first."""
        return max((self.actions, *self.future_frames))


class Observation(_Part):
    """Which topics a sample reads, and the size (height, width) its pictures are scaled to."""

    cameras: tuple[str, ...]
    size: tuple[PositiveInt, PositiveInt] = (64, 64)
    state: str = "state"
    action: str = "action"


class Train(_Part):
    """How to train: handed to the trainer as it is. `launch: true` lets a new manifest start a run by itself."""

    launch: bool = False
    preset: str = "nano"
    steps: int = Field(300, gt=0)
    batch: int = Field(64, gt=0)
    seed: int = Field(0, ge=0)
    checkpoint_every: int = Field(100, gt=0)
    validate_every: int = Field(100, gt=0)
    overrides: dict[str, Any] = Field(default_factory=dict)


class Evaluate(_Part):
    """Which simulator proves the checkpoint. Rollout i starts from init state `first_init_state + i`."""

    simulator: Literal["metaworld"]
    task: str
    rollouts: int = Field(20, gt=0)
    first_init_state: int = Field(0, ge=0)
    max_steps: int = Field(200, gt=0)
    execute: int = Field(4, gt=0)
    controls: tuple[Literal["untrained", "blind"], ...] = ("untrained", "blind")


class Recipe(_Part):
    """A recipe file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_]*$")
    description: str = ""
    mixture: tuple[Component, ...] = Field(min_length=1)
    validation_share: float = Field(0.1, ge=0, lt=1)
    observation: Observation
    windows: Windows = Windows()
    train: Train | None = None
    evaluate: Evaluate | None = None

    @model_validator(mode="after")
    def _components_differ(self) -> Recipe:
        names = [component.name for component in self.mixture]
        if len(set(names)) != len(names):
            raise ValueError(f"two components of the mixture share a name: {names}")
        return self


class RecipeError(ValueError):
    """A recipe file cannot be used; the message names the file, the field and what was expected."""


def load_recipe(path: Path) -> Recipe:
    """Read one recipe file.

    Raises:
        RecipeError: the file is not YAML, or a field is missing, unknown or out of range.
    """
    try:
        recipe = Recipe.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'recipe'}: {e['msg']}" for e in error.errors())
        raise RecipeError(f"{path} is not a recipe: {lines}") from error
    if recipe.name != path.stem:
        raise RecipeError(f"{path} is named {path.stem}, and the recipe in it {recipe.name}: give both one name")
    return recipe

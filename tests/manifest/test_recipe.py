"""Recipes: what they refuse, in words that name the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from megahour.manifest.recipe import RecipeError, load_recipe

GOOD = """
name: arm
mixture: [{name: all, filter: "true"}]
observation: {cameras: [front]}
windows: {future_frames: [4, 8]}
train: {seed: 0}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "arm.yaml"
    path.write_text(text)
    return path


def test_a_recipe_is_read(tmp_path: Path) -> None:
    assert load_recipe(written(tmp_path, GOOD)).windows.span == 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[4, 8]", "[8, 4]", r"windows: .*ascending: \(8, 4\) do not"),
        ("[4, 8]", "[0, 8]", r"windows: .*ascending: \(0, 8\) do not"),
        ("[4, 8]", "[-4, 8]", r"windows: .*ascending: \(-4, 8\) do not"),
        ("[4, 8]", "[]", "windows.future_frames: .*at least 1 item"),
        ("seed: 0", "seed: -1", "train.seed: .*greater than or equal to 0"),
        ("seed: 0", "sede: 0", "train.sede: Extra"),
        ("name: arm", "name: leg", "named arm, and the recipe in it leg"),
        ("name: arm", "name: [", "is not YAML"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        load_recipe(written(tmp_path, GOOD.replace(old, new)))


def test_a_recipe_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "arm.yaml").write_bytes(b"name: \xff")
    with pytest.raises(RecipeError, match=r"arm\.yaml is not YAML"):
        load_recipe(tmp_path / "arm.yaml")

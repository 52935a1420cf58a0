"""The recipes that can be used, and what is wrong with the others: one broken file stops none of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.manifest.recipe import Recipe, RecipeError, load_recipe
from megahour.storage import Lake

if TYPE_CHECKING:
    from megahour.manifest.peek import Selection


def usable_recipes(folder: Path) -> tuple[dict[str, Recipe], list[str]]:
    """Recipes by name, and a sentence for each file that is none."""
    found, problems = {}, []
    for path in sorted(folder.glob("*.yaml")):
        try:
            found[path.stem] = load_recipe(path)
        except (RecipeError, OSError, ValueError) as error:
            problems.append(str(error))
    return found, problems


def selections(
    lake: Lake, recipes: Mapping[str, Recipe], versions: Mapping[str, int] | None = None
) -> tuple[dict[str, Selection], list[str]]:
    """What each recipe selects, and a sentence for each whose SQL is wrong."""
    from megahour.manifest.peek import peek

    found, problems = {}, []
    for name, recipe in recipes.items():
        try:
            found[name] = peek(lake, recipe, versions)
        except Exception as error:
            problems.append(f"The recipe {name} cannot be used: {error}")
    return found, problems

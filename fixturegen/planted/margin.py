"""placeholder, replaced below"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fixturegen.recipe import Recipe


def guaranteed_margin(recipe: Recipe) -> float:
    """To be derived."""
    return recipe.planted.logit_scale * (1 - recipe.planted.decoy) / 2

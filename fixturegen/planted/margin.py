"""The guaranteed margin: how far the right token stays ahead, worked out from the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from fixturegen.errors import RecipeError
from fixturegen.planted.deviation import Deviations, Errors
from fixturegen.planted.weights import LAYER_NAMES, PlantedWeights

if TYPE_CHECKING:
    from fixturegen.recipe import Recipe

#: The margin that the weights leave must be so many times what rounding can take away.
SAFETY = 1.25


@dataclass(frozen=True)
class Margin:
    """The margin of a recipe, in logits."""

    nominal: float  #: without any error: logit_scale * (1 - decoy)
    weights: float  #: what noise and rounding of the weights can take away
    rounding: float  #: what an engine's rounding can take away

    @property
    def guaranteed(self) -> float:
        """What is left in the worst case."""
        return self.nominal - self.weights - self.rounding


@lru_cache(maxsize=8)
def margin(recipe: Recipe) -> Margin:
    """The worst-case margin of ``recipe``, over its target and its draft."""
    knobs = recipe.planted
    lost = []
    for plan in recipe.checkpoints:
        weights = PlantedWeights(recipe, plan)
        deviations = Deviations(weights, plan)
        paths: list[tuple[str, ...]] = [] if weights.is_draft else [LAYER_NAMES[:3]]
        if weights.is_draft or plan.config.num_nextn_predict_layers:
            paths.append(("draft",))
        for path in paths:
            by_weights, by_all = (
                deviations.lost(path, Errors.of(recipe, computing)) for computing in (False, True)
            )
            lost.append((by_weights, by_all - by_weights))
    return Margin(
        knobs.logit_scale * (1 - knobs.decoy), max(w for w, _ in lost), max(r for _, r in lost)
    )


def guaranteed_margin(recipe: Recipe) -> float:
    """The guaranteed margin in logits, with activations in the recipe's dtype or a finer one.

    Raises RecipeError when it is too small for the recipe to claim planted weights.
    """
    m = margin(recipe)
    if m.nominal - m.weights < SAFETY * m.rounding:
        raise RecipeError(
            f"{recipe.name}: no margin can be guaranteed: of {m.nominal:.1f} logits, weights may "
            f"take {m.weights:.1f} and rounding {m.rounding:.1f}, and what weights leave must be "
            f"{SAFETY:g} times rounding; lower planted.noise ({recipe.planted.noise:g}) or raise "
            f"hidden_size ({recipe.model.hidden_size})"
        )
    return round(m.guaranteed, 2)

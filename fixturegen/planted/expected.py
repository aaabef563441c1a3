"""``expected.json``: golden prompts, so that any engine can test itself without fixturegen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fixturegen.planted.draws import Draws
from fixturegen.planted.margin import guaranteed_margin
from fixturegen.planted.oracle import EXPECTED, Oracle, total
from fixturegen.planted.weights import planted_function

if TYPE_CHECKING:
    from fixturegen.recipe import Plan, Recipe

#: Lengths of the golden prompts, bos included.
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
MAX_TOKENS = 32
SPECULATIVE_TOKENS = (1, 2, 3)


def golden_prompts(recipe: Recipe) -> list[list[int]]:
    """Seeded random prompts, one of each length."""
    draws, tokens = Draws(recipe.seed), planted_function(recipe).tokens
    prompts = []
    for length in LENGTHS:
        words = draws.words(f"prompt:{length}", length - 1)
        prompts.append([0, *(3 + int(w) % (tokens - 3) for w in words)])
    return prompts


def extra_files(recipe: Recipe, plan: Plan) -> dict[str, bytes]:
    """``expected.json`` of a planted checkpoint.

    Raises RecipeError when the recipe's worst-case margin is too small to claim planted weights.
    """
    function = planted_function(recipe)
    margin = guaranteed_margin(recipe)
    oracle = Oracle(function, margin)
    prompts = golden_prompts(recipe)
    outputs = oracle.continuation(prompts, MAX_TOKENS)
    data: dict[str, Any] = {
        "format": 1,
        "tokens": function.tokens,
        "guaranteed_margin": margin,
        "max_tokens": MAX_TOKENS,
        "prompts": [
            {"prompt_ids": prompt, "output_ids": output}
            for prompt, output in zip(prompts, outputs, strict=True)
        ],
        "speculation": {},
    }
    if recipe.draft != "none":
        for k in SPECULATIVE_TOKENS:
            counters = oracle.speculate(prompts, MAX_TOKENS, k)
            whole = total(counters, k)
            data["speculation"][str(k)] = {
                "drafts": whole.drafts,
                "draft_tokens": whole.draft_tokens,
                "accepted_tokens": whole.accepted_tokens,
                "accepted_per_position": list(whole.accepted_per_position),
                "accepted_of_prompt": [c.accepted_tokens for c in counters],
            }
    return {EXPECTED: (json.dumps(data, indent=1) + "\n").encode()}

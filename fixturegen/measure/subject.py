"""What is measured: a checkpoint, its prompts, and what they should give."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixturegen.inspection import checkpoint_folders
from fixturegen.manifest import Manifest
from fixturegen.measure.reference import (
    Batch,
    Ids,
    Reference,
    count,
    greedy,
    hidden_states,
    propose,
)
from fixturegen.planted.oracle import Oracle, Speculation
from fixturegen.recipe import Recipe


@dataclass(frozen=True)
class Subject:
    """A loaded checkpoint with the right answers.

    ``generated`` are the right tokens, ``steps - 1`` more than ``max_tokens`` for each prompt;
    ``hidden`` the clean model's states of the whole texts; ``counters`` what speculation with
    ``steps`` drafted tokens should count for each prompt (empty without a draft). The right answers
    are the oracle's, or, for random weights, the clean model's own.
    """

    reference: Reference
    recipe: Recipe
    prompts: Sequence[Ids]
    max_tokens: int
    steps: int
    generated: Sequence[Ids]
    batch: Batch
    hidden: Any
    counters: Sequence[Speculation]

    @property
    def planted(self) -> bool:
        """Whether an oracle gave the right answers."""
        return self.recipe.weights == "planted"

    @classmethod
    def load(cls, path: str | Path, prompts: Sequence[Ids], max_tokens: int, steps: int) -> Subject:
        """Load the checkpoint at ``path`` in float32 (bfloat16 takes CPUs four times as long)."""
        reference = Reference.load(path, "float32")
        recipe = Manifest.load(checkpoint_folders(path)[0]).load_recipe()
        oracle = Oracle.load(path) if recipe.weights == "planted" else None
        length = max_tokens + steps - 1
        generated = (
            oracle.continuation(prompts, length)
            if oracle
            else greedy(reference.target, prompts, length)
        )
        batch = Batch.of(prompts, generated)
        hidden = hidden_states(reference.target, batch)
        counters: Sequence[Speculation] = ()
        if reference.draft and oracle:
            counters = oracle.speculate(prompts, max_tokens, steps)
        elif reference.draft:
            proposed = propose(reference.draft, batch, hidden, steps).tolist()
            counters = [
                count([tokens], [chains], max_tokens)
                for tokens, chains in zip(generated, proposed, strict=True)
            ]
        return cls(
            reference, recipe, prompts, max_tokens, steps, generated, batch, hidden, counters
        )

    def part(self, start: int, stop: int, tokens: int | None = None) -> Batch:
        """The texts ``start`` to ``stop``, with their first ``tokens`` generated tokens."""
        columns = None if tokens is None else self.batch.prompt + tokens
        return Batch(
            self.batch.ids[start:stop, :columns],
            self.batch.padding[start:stop],
            self.batch.prompt,
        )

    @property
    def offsets(self) -> list[int]:
        """Distances at which a planted checkpoint of this recipe reads earlier tokens."""
        knobs = self.recipe.planted
        far = (knobs.offset_y, knobs.offset_y_far, knobs.offset_z, knobs.offset_q, knobs.offset_w)
        return sorted({1, 2, *far})


def random_prompts(recipe: Recipe, number: int, seed: int) -> list[list[int]]:
    """Prompts of bos and random ids, all longer than the longest distance the heads read at."""
    draw = random.Random(seed)
    knobs = recipe.planted
    least = max(knobs.offset_w, knobs.offset_y_far, knobs.offset_q + 1) + 2
    bos = recipe.model.bos_token_id or 0
    ids = range(3, recipe.tokenizer_vocab_size)
    return [
        [bos, *(draw.choice(ids) for _ in range(draw.randrange(least, least + 30)))]
        for _ in range(number)
    ]

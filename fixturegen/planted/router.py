"""The planted router: which experts serve which class, with every rule of noaux_tc needed.

Scores are planted one by one, for the router reads the class alone. A class uses ``topk_group``
groups; slots 1 to 4 are served by k / 4 experts each. Elsewhere a rival scores above all chosen
experts in a group whose sum of two is too low, and the correction bias turns several comparisons
round, so that ignoring group limit, group sum or bias changes the choice.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fixturegen.config import ModelConfig
from fixturegen.errors import RecipeError
from fixturegen.planted.draws import Draws, dyadic
from fixturegen.planted.function import SLOTS

Floats = npt.NDArray[np.float64]

#: Correction biases of the first experts of a group; further ones alternate between the last two.
BIASES = (0.3, -0.2, 0.05, -0.05)
#: Biased score of a chosen expert by its bias, of a companion, of a rival; plain score of others.
CHOSEN = {0.3: 0.80, -0.2: 0.72, 0.05: 0.75, -0.05: 0.75}
COMPANION, RIVAL, LOW = 0.50, 0.92, 0.04


def require(config: ModelConfig, where: str) -> None:
    """Raise RecipeError when routing is of a kind that cannot be planted."""

    def need(good: bool, text: str) -> None:
        if not good:
            raise RecipeError(f"{where}: planted weights need {text}")

    experts, k = config.n_routed_experts, config.num_experts_per_tok
    groups, top = config.n_group or 1, config.topk_group or 1
    need(config.topk_method == "noaux_tc", f"topk_method noaux_tc, got {config.topk_method}")
    need(config.scoring_func == "sigmoid", f"scoring_func sigmoid, got {config.scoring_func}")
    assert experts is not None and k is not None
    need(k in (SLOTS, 2 * SLOTS), f"num_experts_per_tok 4 or 8, got {k}")
    need(k % top == 0, f"num_experts_per_tok a multiple of topk_group, got {k} and {top}")
    need(
        experts // groups > k // top,
        f"more experts in a group than are chosen there, got {experts // groups} and {k // top}",
    )


class Router:
    """The router of one MoE layer."""

    def __init__(self, config: ModelConfig, num_classes: int, draws: Draws, layer: str) -> None:
        self.config, self.num_classes, self.draws = config, num_classes, draws
        self.label = f"router:{layer}"
        assert config.n_routed_experts is not None and config.num_experts_per_tok is not None
        self.experts, self.k = config.n_routed_experts, config.num_experts_per_tok
        self.groups, self.top = config.n_group or 1, config.topk_group or 1
        self.size = self.experts // self.groups

    @cached_property
    def bias(self) -> Floats:
        """``e_score_correction_bias``, ``[n_routed_experts]``."""
        pattern = [BIASES[i] if i < 4 else BIASES[2 + i % 2] for i in range(self.size)]
        rows = [
            np.array(pattern)[self.draws.permutation(f"{self.label}:bias:{g}", self.size)]
            for g in range(self.groups)
        ]
        return np.concatenate(rows)

    @cached_property
    def chosen(self) -> npt.NDArray[np.intp]:
        """Experts of each class, ``[K, k]``; expert i serves slot i // (k / 4)."""
        offsets = self.draws.permutation(f"{self.label}:groups", self.groups)[: self.top]
        order = self.draws.permutation(f"{self.label}:order", self.experts)
        rank = np.argsort(order)
        each, per_group = self.k // SLOTS, self.k // self.top
        used = np.zeros((each, self.experts), np.intp)
        pairs: set[tuple[int, int]] = set()
        table = np.full((self.num_classes, self.k), -1, np.intp)

        def cost(e: int, member: int, partner: int) -> tuple[int, ...]:
            """Prefer new pairs, then experts that serve little, then a seeded order."""
            known = member > 0 and (min(e, partner), max(e, partner)) in pairs
            return int(known), int(used[:, e].sum()), int(used[member, e]), int(rank[e])

        for c in range(self.num_classes):
            for i in range(self.k):
                group = (c + offsets[i // per_group]) % self.groups
                member, partner = i % each, int(table[c, i - 1])
                free = set(range(group * self.size, (group + 1) * self.size)) - set(table[c])
                best = min(free, key=lambda e: cost(e, member, partner))
                table[c, i] = best
                used[member, best] += 1
                if member:
                    pairs.add((min(best, partner), max(best, partner)))
        return table

    @cached_property
    def scores(self) -> Floats:
        """Sigmoid scores, ``[K, n_routed_experts]``."""
        scores = np.full((self.num_classes, self.experts), LOW)
        for c in range(self.num_classes):
            mine = set(self.chosen[c].tolist())
            for e in mine:
                scores[c, e] = CHOSEN[float(self.bias[e])] - self.bias[e]
            groups = {e // self.size for e in mine}
            shift = c
            for g in range(self.groups):
                members = range(g * self.size, (g + 1) * self.size)
                lowest = min(members, key=lambda e: self.bias[e])
                highest = max(members, key=lambda e: self.bias[e])
                if g not in groups:
                    shift += 1
                    if shift % 4:
                        scores[c, highest] = RIVAL - self.bias[highest]
                elif lowest not in mine:
                    scores[c, lowest] = COMPANION - self.bias[lowest] + 0.1
                elif highest not in mine:
                    scores[c, highest] = COMPANION - self.bias[highest]
        return scores

    @cached_property
    def logits(self) -> Floats:
        """What the router's matrix must give for each class, ``[K, n_routed_experts]``."""
        return dyadic(np.log(self.scores / (1 - self.scores)), 16)

    def weight(self, c: int, expert: int) -> float:
        """The weight that an engine gives ``expert`` for class ``c``."""
        mine = self.scores[c, self.chosen[c]]
        total = float(mine.sum()) if self.config.norm_topk_prob else 1.0
        return self.config.routed_scaling_factor * float(self.scores[c, expert]) / total

    def servers(self, expert: int) -> list[tuple[int, int, int, float]]:
        """(class, slot, member, weight) of everything that ``expert`` serves."""
        classes, places = np.nonzero(self.chosen == expert)
        each = self.k // SLOTS
        return [
            (int(c), int(i) // each, int(i) % each, self.weight(int(c), expert))
            for c, i in zip(classes, places, strict=True)
        ]

    def margin(self) -> float:
        """Least distance, in biased scores, of any comparison that decides the choice."""
        smallest = math.inf
        biased = self.scores + self.bias
        for c in range(self.num_classes):
            grouped = biased[c].reshape(self.groups, self.size)
            two = np.sort(grouped, axis=1)[:, -2:].sum(axis=1)
            groups = sorted({int(e) // self.size for e in self.chosen[c]})
            others = [g for g in range(self.groups) if g not in groups]
            if others:
                smallest = min(smallest, two[groups].min() - two[others].max())
            rest = [
                e
                for g in groups
                for e in range(g * self.size, (g + 1) * self.size)
                if e not in self.chosen[c]
            ]
            smallest = min(smallest, biased[c, self.chosen[c]].min() - biased[c, rest].max())
        return smallest

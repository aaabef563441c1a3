"""Which part of an engine a difference points to.

The signature of a fault is where tokens or counters first leave the expected ones, and whether the
same engine gives the right token when that position comes out of a prefill instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

FORWARD = "target forward pass"
DECODE = "target decode"
LONG = "chunked prefill or long context"
PREFIX = "prefix cache"
BATCHING = "batching"
SAMPLER = "random sampler"
ACCEPTANCE = "acceptance bookkeeping"
BONUS = "recovered or bonus token"
REJECTION = "state after verification"
DRAFT = "draft forward pass"
DRAFT_STEPS = "later draft steps"
DRAFT_STATE = "draft state"
PREDICTION = "backend prediction"
ENGINE = "engine"

#: Place -> what a fault there may be.
PLACES = {
    FORWARD: "weights, softmax scale, rotary embedding, norms, routing or its scale",
    DECODE: "KV slots, positions or block tables of decoded tokens",
    LONG: "chunk boundaries, context lengths or positions far from the start",
    PREFIX: "blocks taken from the prefix cache",
    BATCHING: "one request reads what belongs to another",
    SAMPLER: "temperature, seeds or the random rejection sampler",
    ACCEPTANCE: "number of accepted tokens: a token is lost or comes twice",
    BONUS: "the token sampled after the accepted ones; the state behind it is right",
    REJECTION: "KV slots, positions or stale entries after drafts were accepted or rejected",
    DRAFT: "hidden state, embedding, positions or weights of the draft",
    DRAFT_STEPS: "what the draft hands from one of its steps to the next",
    DRAFT_STATE: "KV entries of the draft",
    PREDICTION: "the catalogue of kernel bounds, or the engine's choice, has changed",
    ENGINE: "the engine did not answer as asked",
}


#: Place -> beginnings of the scenarios that alone are wrong when the fault is there.
_ONLY_THERE = {
    SAMPLER: ("temperature",),
    PREFIX: ("prefix cache",),
    LONG: ("long", "prefix cache", "up to"),
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One output that is not the expected one."""

    scenario: str
    prompt: int
    position: int
    expected: Sequence[int]
    got: Sequence[int]
    #: What the same engine gives at that position out of a prefill; None when it was not asked.
    recomputed: int | None = None

    @property
    def prefill_is_right(self) -> bool:
        """Whether the engine knows better when it computes the position afresh."""
        at = self.position
        return at < len(self.expected) and self.recomputed == self.expected[at]

    @property
    def is_shift(self) -> bool:
        """Whether the token that came is the one expected a place or two later, or just before."""
        at, want = self.position, self.expected
        near = [want[i] for i in (at - 1, at + 1, at + 2) if 0 <= i < len(want)]
        return at < len(self.got) and self.got[at] in near


def of_tokens(
    differences: Sequence[Difference],
    *,
    speculative: bool,
    scenarios: Sequence[str],
    continuation: Callable[[Difference], Sequence[int]] | None = None,
) -> str:
    """The place that wrong tokens point to.

    ``scenarios``: those that ran, in order, the plain batch first. ``continuation`` gives, for a
    planted fixture, what a right engine says after the wrong token.
    """
    wrong = {d.scenario for d in differences}
    if scenarios[0] not in wrong:
        for place, names in _ONLY_THERE.items():
            if all(scenario.startswith(names) for scenario in wrong):
                return place
        return REJECTION if speculative else DECODE
    asked = [d for d in differences if d.recomputed is not None]
    if sum(not d.prefill_is_right for d in asked) * 2 > len(asked):
        return FORWARD
    if wrong == {scenarios[0]}:
        return BATCHING
    if not speculative:
        return DECODE
    if sum(d.is_shift for d in differences) * 2 > len(differences):
        return ACCEPTANCE
    if continuation is not None and all(_goes_on(d, continuation) for d in asked):
        return BONUS
    return REJECTION


def _goes_on(
    difference: Difference, continuation: Callable[[Difference], Sequence[int]], length: int = 2
) -> bool:
    """Whether what follows the wrong token is right, given that token."""
    after = list(difference.got[difference.position + 1 :][:length])
    return after == list(continuation(difference))[: len(after)]


def of_counters(expected: dict[str, Any], got: dict[str, Any]) -> str:
    """The place that wrong counters point to, where all tokens are right."""
    if not got["accepted_tokens"]:
        return DRAFT
    want_pos, got_pos = expected["accepted_per_pos"], got["accepted_per_pos"]
    first = got_pos[0] / max(1, got["drafts"]), want_pos[0] / max(1, expected["drafts"])
    if first[0] < 0.5 * first[1]:
        return DRAFT
    if len(want_pos) > 1 and want_pos[1] and got_pos[0]:
        kept = got_pos[1] / got_pos[0], want_pos[1] / max(1, want_pos[0])
        if kept[0] < 0.5 * kept[1]:
            return DRAFT_STEPS
    return DRAFT_STATE

"""What a planted checkpoint generates and how much of its draft is accepted, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from fixturegen.errors import CheckpointError
from fixturegen.inspection import checkpoint_folders
from fixturegen.manifest import Manifest
from fixturegen.planted.fields import STEPS
from fixturegen.planted.function import DECOY, Function, Ints

EXPECTED = "expected.json"


@dataclass(frozen=True)
class Speculation:
    """vLLM's speculative-decoding counters (``vllm:spec_decode_num_*``)."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per step: 1 + accepted / drafts."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    def __add__(self, other: Speculation) -> Speculation:
        pairs = zip(self.accepted_per_position, other.accepted_per_position, strict=True)
        return Speculation(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(a + b for a, b in pairs),
        )


@dataclass(frozen=True)
class Oracle:
    """The planted function of one checkpoint.

    ``margin`` is the guaranteed distance, in logits, between the right token and any other, at
    every step of every prompt for which :meth:`guaranteed` is empty.
    """

    function: Function
    margin: float
    bos_token_id: int = 0
    has_draft: bool = True

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Oracle:
        """Read the oracle of a planted checkpoint or pair: its manifest and ``expected.json``.

        Raises CheckpointError when ``path`` holds no planted checkpoint.
        """
        folder = checkpoint_folders(path)[0]
        recipe = Manifest.load(folder).load_recipe()
        if recipe.weights != "planted":
            raise CheckpointError(
                f"{folder}: {recipe.name} has {recipe.weights} weights; only planted ones have an "
                "oracle"
            )
        return cls.read(Path(folder))

    @classmethod
    def read(cls, folder: Path) -> Oracle:
        """As :meth:`load`, for one checkpoint folder that is known to be planted."""
        recipe = Manifest.load(folder).load_recipe()
        try:
            expected = json.loads((folder / EXPECTED).read_text(encoding="utf-8"))
            tokens, margin = expected["tokens"], expected["guaranteed_margin"]
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointError(f"{folder / EXPECTED}: missing or malformed") from None
        function = Function(recipe.planted, recipe.seed, recipe.model.vocab_size, tokens)
        has_draft = recipe.draft != "none"
        return cls(function, margin, recipe.model.bos_token_id or 0, has_draft)

    def guaranteed(
        self,
        prompt: Sequence[int],
        max_tokens: int = 0,
        k: int = 0,
        *,
        fp8_activations: bool = False,
    ) -> str:
        """Why the oracle does not vouch for ``prompt``; empty when it does.

        ``max_tokens`` are generated after it, with ``k`` speculative tokens, by an engine that
        computes in the checkpoint's dtype or a finer one. ``fp8_activations``: it quantises the
        inputs of FP8 matrices too, as vLLM does on GPUs.
        """
        vocab, context = self.function.vocab_size, self.function.knobs.context
        if fp8_activations:
            return "with FP8 activations the margin is measured only (docs/planted.md, Margin)"
        if not prompt or prompt[0] != self.bos_token_id:
            return f"the prompt must start with bos, id {self.bos_token_id}"
        if self.bos_token_id in prompt[1:]:
            return f"bos, id {self.bos_token_id}, may stand at the start only"
        if min(prompt) < 0 or max(prompt) >= vocab:
            return f"ids must be 0 to {vocab - 1}"
        if len(prompt) + max_tokens + k > context:
            return f"only the first {context} tokens are guaranteed (planted.context)"
        if k and not self.has_draft:
            return f"the checkpoint has no draft, so {k} speculative tokens are not known"
        limit = self.draft_limit
        if k > limit:
            return f"the draft is known for {limit} speculative tokens or fewer, got {k}"
        return ""

    @property
    def draft_limit(self) -> int:
        """Most speculative tokens whose acceptance is known.

        A drafted slot has no valid Q and M5, so the draft's heads must not reach back to one.
        """
        knobs = self.function.knobs
        return min(STEPS, knobs.offset_z, knobs.offset_q)

    def continuation(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """Greedy continuations of ``max_tokens`` ids, end-of-sequence ignored."""
        if not prompts:
            return []
        history, lengths = self._history(prompts, max_tokens)
        self._extend(history, lengths, max_tokens)
        return [history[i, n : n + max_tokens].tolist() for i, n in enumerate(lengths.tolist())]

    def speculate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, k: int
    ) -> list[Speculation]:
        """Counters of each prompt with ``k`` drafted tokens a step, as vLLM counts them.

        The prefill emits one token. Then, until ``max_tokens`` are out, k tokens are drafted, the
        leading ones that equal the target's are accepted, and one more is emitted; the last step
        counts whole, even where it overshoots.
        """
        if not prompts:
            return []
        f = self.function
        history, lengths = self._history(prompts, max_tokens + k + 1)
        self._extend(history, lengths, max_tokens + k + 1)
        out = np.ones(len(prompts), np.intp)
        drafts = np.zeros(len(prompts), np.intp)
        accepted = np.zeros((len(prompts), k), np.intp)
        while (active := np.flatnonzero(out < max_tokens)).size:
            rows = history[active].copy()
            p = lengths[active] + out[active] - 1  # position of the newest token
            truth = np.stack([rows[np.arange(len(p)), p + s + 1] for s in range(k)], axis=1)
            right = np.ones(len(active), bool)
            for s in range(k):
                digits = f.draft_digits(rows, p + s, s)
                # after a lone bos the draft has nothing to go by and proposes a decoy
                digits[(p + s == 1) & (s == 0)] = DECOY
                proposal = f.id_of_digits[tuple(digits.T)]
                rows[np.arange(len(p)), p + s + 1] = proposal
                right &= proposal == truth[:, s]
                accepted[active, s] += right
                out[active] += right
            out[active] += 1
            drafts[active] += 1
        return [
            Speculation(int(d), int(d) * k, int(a.sum()), tuple(a.tolist()))
            for d, a in zip(drafts, accepted, strict=True)
        ]

    def _history(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[Ints, Ints]:
        lengths = np.array([len(p) for p in prompts], np.intp)
        history = np.zeros((len(prompts), max(lengths, default=0) + room), np.intp)
        for row, prompt in zip(history, prompts, strict=True):
            row[: len(prompt)] = prompt
        return history, lengths

    def _extend(self, history: Ints, lengths: Ints, count: int) -> None:
        rows = np.arange(len(lengths))
        for step in range(count):
            p = lengths + step - 1
            digits = self.function.target_digits(history, p)
            history[rows, p + 1] = self.function.id_of_digits[tuple(digits.T)]


def total(counters: Sequence[Speculation], k: int) -> Speculation:
    """Sum over prompts."""
    return sum(counters, Speculation(0, 0, 0, (0,) * k))

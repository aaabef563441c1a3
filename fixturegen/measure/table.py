"""Which faults a checkpoint shows, and what it calls a fault that is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fixturegen.measure.faults import Fault, draft_faults, target_faults
from fixturegen.measure.reference import Batch, Reference, count, greedy, next_logits, propose
from fixturegen.measure.subject import Subject

#: Share of prompts that vLLM's speculative-decoding tests want equal to a run without.
VLLM_RULE = 0.6


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one fault, or one harmless change, did.

    ``equal`` of ``of`` prompts gave the right tokens. ``counters`` is how many drafted tokens were
    accepted, None where nothing was drafted. ``found``: the checkpoint's rule raised an alarm.
    """

    name: str
    kind: str
    equal: int
    of: int
    found: bool
    accepted: int | None = None
    limit: str = ""


def alarm(planted: bool, equal: int, of: int) -> bool:
    """Whether a test fails: planted, on one wrong prompt; random, below vLLM's 60 %."""
    return equal < of if planted else equal <= int(VLLM_RULE * of)


def faults(subject: Subject) -> list[Fault]:
    """All faults that can be put into this checkpoint's models."""
    draft = subject.reference.draft
    return [
        *target_faults(subject.reference.target, subject.offsets, subject.batch.prompt),
        *(draft_faults(draft, subject.offsets) if draft else ()),
    ]


def measure_faults(subject: Subject, chosen: Sequence[Fault]) -> Iterator[Row]:
    """Inject each fault alone and compare with the right answers.

    A target's fault is found by its tokens. A draft's fault leaves the output right (wrong drafts
    are rejected), so a planted checkpoint finds it by the counters; with random weights nothing is
    accepted to begin with, and the rule looks at the output alone.
    """
    right = torch.tensor(subject.generated)[:, : subject.max_tokens]
    texts = Batch.of(subject.prompts, right.tolist())
    of = len(subject.prompts)
    for fault in chosen:
        if not fault.name.startswith("draft: "):
            with fault.inject(subject.reference.target):
                tokens = next_logits(subject.reference.target, texts).argmax(-1)
            equal = int((tokens == right).all(1).sum())
            found = alarm(subject.planted, equal, of)
            yield Row(
                name=fault.name, kind=fault.kind, equal=equal, of=of, found=found, limit=fault.limit
            )
            continue
        draft = subject.reference.draft
        assert draft is not None
        with fault.inject(draft):
            proposed = propose(draft, subject.batch, subject.hidden, subject.steps)
        counters = count(subject.generated, proposed.tolist(), subject.max_tokens)
        yield Row(
            name=fault.name,
            kind=f"draft {fault.kind}",
            equal=of,
            of=of,
            found=subject.planted and counters != subject.counters,
            accepted=counters.accepted_tokens,
            limit=fault.limit,
        )


def measure_false_alarms(
    path: str | Path, subject: Subject, progress: Callable[[str], None]
) -> list[Row]:
    """Change what must not matter and compare with the right answers.

    bfloat16, eager attention and one batch are the base; one thing changes at a time. Tokens are
    generated one by one over a KV cache. With random weights the right answers are the base's.
    """
    low = Reference.load(path, "bfloat16")
    full = subject.reference
    whole = len(subject.prompts)
    runs: list[tuple[str, Reference, str, int, int]] = [
        (f"bfloat16, eager, batch {whole}", low, "eager", whole, 0),
        ("batch 1", low, "eager", 1, 0),
        ("SDPA", low, "sdpa", whole, 0),
        ("prefill in pieces of 16", low, "eager", whole, 16),
        ("float32", full, "eager", whole, 0),
        ("float32, SDPA", full, "sdpa", whole, 0),
    ]
    right = [list(tokens[: subject.max_tokens]) for tokens in subject.generated]
    rows: list[Row] = []
    for name, reference, attention, size, chunk in runs:
        progress(name)
        reference.set_attention(attention)
        tokens = [
            row
            for start in range(0, whole, size)
            for row in greedy(
                reference.target, subject.prompts[start : start + size], subject.max_tokens, chunk
            )
        ]
        reference.set_attention("eager")
        if not rows and not subject.planted:
            right = tokens
        equal = sum(a == b for a, b in zip(tokens, right, strict=True))
        found = alarm(subject.planted, equal, whole)
        rows.append(Row(name=name, kind="harmless", equal=equal, of=whole, found=found))
    if subject.reference.draft:
        rows += _false_alarms_of_draft(low, subject)
    return rows


def _false_alarms_of_draft(low: Reference, subject: Subject) -> Iterator[Row]:
    """Counters of the clean draft, by dtype and attention."""
    of = len(subject.prompts)
    for dtype, reference in (("bfloat16", low), ("float32", subject.reference)):
        for attention in ("eager", "sdpa"):
            reference.set_attention(attention)
            assert reference.draft is not None
            hidden = subject.hidden.to(reference.target.model.dtype)
            proposed = propose(reference.draft, subject.batch, hidden, subject.steps)
            reference.set_attention("eager")
            counters = count(subject.generated, proposed.tolist(), subject.max_tokens)
            yield Row(
                name=f"draft: {dtype}, {attention}",
                kind="harmless",
                equal=of,
                of=of,
                found=subject.planted and counters != subject.counters,
                accepted=counters.accepted_tokens,
            )

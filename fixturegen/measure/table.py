"""Which faults a checkpoint shows, and what it calls a fault that is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fixturegen.measure.faults import Fault, draft_faults, target_faults
from fixturegen.measure.reference import Reference, count, greedy, next_logits, propose
from fixturegen.measure.subject import Subject
from fixturegen.planted.oracle import total

#: Share of prompts that vLLM's speculative-decoding tests want equal to a run without.
VLLM_RULE = 0.6

#: Prompts that run together.
SLICE = 4


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one fault, or one harmless change, did.

    ``equal`` of the ``of`` prompts that ran gave the right tokens. ``accepted`` counts accepted
    draft tokens, None where nothing was drafted. ``found``: the checkpoint's rule raised an alarm.
    """

    name: str
    kind: str
    equal: int
    of: int
    found: bool
    accepted: int | None = None
    limit: str = ""


def needed(planted: bool, of: int) -> int:
    """Prompts that must be right: all of a planted checkpoint's, more than 60 % of a random's."""
    return of if planted else int(VLLM_RULE * of) + 1


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
    are rejected), so a planted checkpoint finds it by the counters. With random weights nothing is
    accepted to begin with and the rule looks at the output alone: no draft fault can be found.

    Prompts run in slices, until more of them could not change the verdict.
    """
    for fault in chosen:
        if not fault.name.startswith("draft: "):
            yield _target_row(subject, fault)
        elif subject.planted:
            yield _draft_row(subject, fault)
        else:
            of = len(subject.prompts)
            yield Row(name=fault.name, kind=f"draft {fault.kind}", equal=of, of=of, found=False)


def _target_row(subject: Subject, fault: Fault) -> Row:
    target, of = subject.reference.target, len(subject.prompts)
    enough = needed(subject.planted, of)
    equal = tried = 0
    with fault.inject(target):
        while equal < enough <= equal + of - tried:
            batch = subject.part(tried, tried + SLICE, subject.max_tokens)
            right = batch.ids[:, batch.prompt :]
            equal += int((next_logits(target, batch).argmax(-1) == right).all(1).sum())
            tried += len(batch.ids)
    return Row(
        name=fault.name,
        kind=fault.kind,
        equal=equal,
        of=tried,
        found=equal < enough,
        limit=fault.limit,
    )


def _draft_row(subject: Subject, fault: Fault) -> Row:
    draft, of = subject.reference.draft, len(subject.prompts)
    assert draft is not None
    accepted, tried, found = 0, 0, False
    with fault.inject(draft):
        while tried < of and not found:
            stop = min(tried + SLICE, of)
            batch = subject.part(tried, stop)
            proposed = propose(draft, batch, subject.hidden[tried:stop], subject.steps).tolist()
            counters = count(subject.generated[tried:stop], proposed, subject.max_tokens)
            found = counters != total(subject.counters[tried:stop], subject.steps)
            accepted += counters.accepted_tokens
            tried = stop
    return Row(
        name=fault.name,
        kind=f"draft {fault.kind}",
        equal=tried,
        of=tried,
        found=found,
        accepted=accepted,
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
        found = equal < needed(subject.planted, whole)
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
                found=subject.planted and counters != total(subject.counters, subject.steps),
                accepted=counters.accepted_tokens,
            )

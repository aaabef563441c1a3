"""The faults: distinct, undone afterwards, and made of hooks that change nothing by themselves."""

from __future__ import annotations

import contextlib

import pytest
import torch

from fixturegen.measure.faults import Fault, Routing, attention, foreign, rope
from fixturegen.measure.reference import Batch, greedy, next_logits, propose
from fixturegen.measure.table import faults, measure_faults, needed
from tests.measure.conftest import STEPS, TOKENS

pytestmark = pytest.mark.slow


def test_many_distinct_faults_of_every_class(subject):
    table = faults(subject)
    names = [fault.name for fault in table]
    assert len(names) == len(set(names)) >= 60
    kinds = {f.kind for f in table if not f.name.startswith("draft: ")}
    assert kinds >= {"softmax", "mask", "rope", "kv", "values", "latent", "heads", "router"}
    assert kinds >= {"experts", "mlp", "norms", "head", "embedding", "fp8"}
    draft = {f.kind for f in table if f.name.startswith("draft: ")}
    assert draft >= {"wiring", "chain", "norms", "kv", "rope", "router", "experts"}


def test_a_fault_leaves_no_trace(subject):
    """After every fault was injected once, both models compute what they did before."""
    reference = subject.reference
    short = Batch(subject.batch.ids[:1, :-6], subject.batch.padding[:1], subject.batch.prompt)
    before = next_logits(reference.target, short)
    drafted = propose(reference.draft, subject.batch, subject.hidden, STEPS)
    for fault in faults(subject):
        draft = fault.name.startswith("draft: ")
        with fault.inject(reference.draft if draft else reference.target):
            pass
    assert torch.equal(next_logits(reference.target, short), before)
    after = propose(reference.draft, subject.batch, subject.hidden, STEPS)
    assert torch.equal(after, drafted)


@pytest.mark.parametrize(
    "inject",
    [
        attention(lambda call: None),
        foreign(lambda call: torch.zeros_like(call.visible)),
        rope(lambda right, *args: right(*args)),
    ],
)
def test_hooks_alone_change_nothing(subject, inject):
    target = subject.reference.target
    texts = subject.part(0, 2, TOKENS)
    right = next_logits(target, texts)
    with inject(target):
        assert torch.allclose(next_logits(target, texts), right, atol=1e-3)


def test_the_default_router_is_the_models_own(subject):
    gate = subject.reference.target.layers[1].mlp.gate
    hidden = subject.hidden[0]
    with torch.inference_mode():
        logits, weights, indices = Routing()(gate, hidden)
        right_logits, right_weights, right_indices = gate(hidden)
    assert torch.allclose(logits, right_logits, atol=1e-5)
    order, right_order = indices.argsort(-1), right_indices.argsort(-1)
    assert torch.equal(indices.gather(1, order), right_indices.gather(1, right_order))
    assert torch.allclose(weights.gather(1, order), right_weights.gather(1, right_order))


@pytest.mark.parametrize(
    "name", ["rope: key position + 1", "correction bias ignored", "layer 1: head 3 dropped"]
)
def test_whole_texts_give_the_verdict_of_generation(subject, name):
    """A prompt's first wrong token is the same whether its text is given or generated."""
    (fault,) = [f for f in faults(subject) if f.name == name]
    target = subject.reference.target
    right = subject.part(0, 4, TOKENS).ids[:, subject.batch.prompt :]
    with fault.inject(target):
        generated = torch.tensor(greedy(target, subject.prompts, TOKENS))
        given = next_logits(target, subject.part(0, 4, TOKENS)).argmax(-1)
    first_wrong = [row.int().argmin() if not row.all() else -1 for row in generated == right]
    assert first_wrong == [r.int().argmin() if not r.all() else -1 for r in given == right]
    assert max(first_wrong) >= 0


def test_faults_are_found_and_none_is_not(subject):
    chosen = {
        "softmax scale x0.7",
        "no causal mask in the prefill",
        "rope: halves instead of interleaved pairs",
        "KV 17 back of another request, while there",
        "layer 2: experts 8 and 9 swapped",
        "layer 0: heads 4 and 5 swapped",
        "group limit ignored",
        "final norm left out",
        "draft: hidden state recycled before the norm",
        "draft: position 0 not blanked",
    }
    none = contextlib.nullcontext
    table = [f for f in faults(subject) if f.name in chosen]
    assert len(table) == len(chosen)
    rows = list(measure_faults(subject, table))
    assert [row.name for row in rows if not row.found] == []
    clean = [
        Fault("nothing", "none", lambda model: none()),
        Fault("draft: nothing", "none", lambda model: none()),
    ]
    target, draft = measure_faults(subject, clean)
    assert (target.found, target.equal, target.of) == (False, 4, 4)
    assert not draft.found
    assert draft.accepted == sum(c.accepted_tokens for c in subject.counters)


def test_random_weights_follow_vllms_rule(subjects):
    random = subjects("deepseek-v3-mtp-random")
    assert (needed(True, 24), needed(False, 24)) == (24, 15)
    table = [f for f in faults(random) if f.name in {"rope: none", "draft: enorm left out"}]
    draft, target = sorted(measure_faults(random, table), key=lambda row: row.name)
    assert target.equal <= target.of
    assert not draft.found  # rejection hides it

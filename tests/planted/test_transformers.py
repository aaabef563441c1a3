"""The oracle against transformers' own model, and its draft as vLLM runs it."""

from __future__ import annotations

import pytest

from fixturegen import Oracle
from fixturegen.planted.oracle import total
from tests.planted.conftest import random_prompts

LENGTHS = [1, 2, 3, 5, 7, 8, 12, 18, 19, 24, 33, 34, 35, 40, 52, 61, 68, 69, 70, 90, 110, 130]
TOKENS = 12


def compare(path, dtype=None, lengths=LENGTHS, tokens=TOKENS, k=3, prepare=None) -> float:
    """Check tokens and counters; returns the smallest margin."""
    from fixturegen.measure import reference

    oracle = Oracle.load(path)
    prompts = random_prompts(lengths)
    assert not any(oracle.guaranteed(p, tokens + k, k) for p in prompts)
    model = reference.Reference.load(path, dtype)
    if prepare:
        prepare(model)
    half = len(prompts) // 2  # of like lengths, for less padding
    parts = [part for part in (prompts[:half], prompts[half:]) if part]
    return min(compare_batch(oracle, model, part, tokens, k) for part in parts)


def compare_batch(oracle, model, prompts, tokens, k) -> float:
    """Check one batch; returns its smallest margin."""
    import torch

    from fixturegen.measure import reference

    truth = oracle.continuation(prompts, tokens + k)
    batch = reference.Batch.of(prompts, truth)
    hidden = reference.hidden_states(model.target, batch)
    with torch.inference_mode():
        logits = model.target.head(hidden[:, batch.prompt - 1 : -1]).float()
        assert logits.argmax(-1).tolist() == truth
        top = logits.topk(2).values
    if model.draft:
        proposed = reference.propose(model.draft, batch, hidden, k).tolist()
        counted = reference.count(truth, proposed, tokens)
        assert counted == total(oracle.speculate(prompts, tokens, k), k)
        assert 0 < counted.accepted_tokens < counted.draft_tokens
    return float((top[..., 0] - top[..., 1]).min())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tokens_margins_and_counters(built, dtype):
    path = built()
    assert compare(path, dtype) >= Oracle.load(path).margin


@pytest.mark.slow
def test_an_eagle_draft_is_known_as_well(built):
    path = built("deepseek-v3-eagle")
    assert compare(path) >= Oracle.load(path).margin


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("rope_scaling=null",),
        ("n_routed_experts=64", "num_experts_per_tok=4", "num_attention_heads=8"),
        ("n_routed_experts=256", "moe_intermediate_size=256", "num_attention_heads=32"),
        ("acceptance=[0.9, 0.6, 0.3]", "seed=5"),
    ],
    ids=["default-rope", "top4-of-64", "256-experts", "rates-by-position"],
)
def test_other_dimensions_keep_their_guarantee(built, overrides):
    path = built("deepseek-v3-mtp", *overrides)
    assert compare(path, "float32", k=3) >= Oracle.load(path).margin


@pytest.mark.slow
def test_a_token_a_thousand_places_back_counts(built):
    path = built("deepseek-v3-mtp", "offset_w=1021", "context=4096")
    assert compare(path, "float32", [1, 1030, 2300], 6, 2) >= Oracle.load(path).margin


@pytest.mark.slow
def test_fp8_weights_keep_the_guarantee_and_fp8_activations_the_output(built):
    """Inputs of FP8 matrices are rounded as engines do, in groups of 128 with a scale each."""
    from tests.planted.run_transformers import round_activations

    def prepare(model):
        assert round_activations([*model.target.layers, *model.draft.layers]) == 4 * 5 + 4 * 3 + 3

    path = built("deepseek-v3-mtp-fp8")
    assert compare(path) >= Oracle.load(path).margin
    assert compare(path, prepare=prepare) > 0

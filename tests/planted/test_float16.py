"""Why vLLM accepts no float16 draft: its rule against overflow, put into the draft here."""

from __future__ import annotations

import pytest

from fixturegen import Oracle
from fixturegen.planted.oracle import total
from tests.planted.conftest import random_prompts

K, TOKENS = 3, 12
PROMPTS = random_prompts([2, 7, 18, 35, 70, 90])


def accepted(model, oracle, *, outputs: bool, residual: bool) -> int:
    """Tokens accepted when a draft divides outputs of sublayers, and its first residual, by 2.5.

    vLLM's ``DeepseekV2DecoderLayer.forward`` does the first in every layer and the second in layer
    0 alone, which a draft's is not.
    """
    from fixturegen.measure import reference

    (layer,) = model.draft.layers
    factor = 1 / model.target.config.routed_scaling_factor
    truth = oracle.continuation(PROMPTS, TOKENS + K)
    batch = reference.Batch.of(PROMPTS, truth)
    hidden = reference.hidden_states(model.target, batch)
    hooks = []
    if outputs:
        hooks += [
            layer.self_attn.register_forward_hook(lambda *a: (a[2][0] * factor, *a[2][1:])),
            layer.mlp.register_forward_hook(lambda *a: a[2] * factor),
        ]
    if residual:  # a layer's input is its first residual; the norm before attention undoes it there
        hooks.append(
            layer.register_forward_pre_hook(
                lambda _, args, kwargs: ((args[0] * factor, *args[1:]), kwargs), with_kwargs=True
            )
        )
    proposed = reference.propose(model.draft, batch, hidden, K).tolist()
    for hook in hooks:
        hook.remove()
    return reference.count(truth, proposed, TOKENS).accepted_tokens


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["deepseek-v3-mtp", "deepseek-v3-eagle"])
def test_unscaled_residual_of_a_draft_loses_every_acceptance(built, recipe):
    from fixturegen.measure.reference import Reference

    path = built(recipe)
    model, oracle = Reference.load(path, "float16"), Oracle.load(path)
    expected = total(oracle.speculate(PROMPTS, TOKENS, K), K).accepted_tokens
    assert accepted(model, oracle, outputs=False, residual=False) == expected > 20
    assert accepted(model, oracle, outputs=True, residual=True) == expected
    assert accepted(model, oracle, outputs=True, residual=False) == 0

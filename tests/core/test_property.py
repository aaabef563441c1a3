"""Random legal recipes: build, inspect, verify, and load with safetensors and transformers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from fixturegen import build, inspect, load_recipe, verify
from fixturegen.load import transformers_model
from tests.conftest import TINY


@st.composite
def overrides(draw: st.DrawFn) -> list[str]:
    """Dims and choices within what a recipe may say, small enough to build in a moment."""
    groups = draw(st.sampled_from([1, 2, 4, 8]))
    experts = groups * draw(st.integers(2, 4))
    topk_group = draw(st.integers(1, groups))
    layers = draw(st.integers(1, 3))
    values = {
        "hidden_size": draw(st.sampled_from([64, 96, 128, 192])),
        "intermediate_size": draw(st.integers(8, 200)),
        "moe_intermediate_size": draw(st.integers(8, 140)),
        "num_hidden_layers": layers,
        "first_k_dense_replace": draw(st.integers(0, layers)),
        "num_nextn_predict_layers": draw(st.integers(1, 2)),
        "num_attention_heads": draw(st.integers(1, 4)),
        "q_lora_rank": draw(st.sampled_from(["null", 32, 128])),
        "kv_lora_rank": draw(st.sampled_from([64, 512])),
        "v_head_dim": draw(st.sampled_from([32, 128])),
        "n_routed_experts": experts,
        "n_shared_experts": draw(st.integers(0, 2)),
        "n_group": groups,
        "topk_group": topk_group,
        "num_experts_per_tok": draw(st.integers(1, topk_group * experts // groups)),
        "mtp_embeddings": draw(st.sampled_from(["copy", "omit"])),
        "rope_scaling": draw(st.sampled_from(["null", "{type: yarn, factor: 40}"])),
        "seed": draw(st.integers(0, 2**62)),
    }
    if draw(st.booleans()):
        values["quantization"] = "{method: fp8}"
    return [*TINY, *(f"{name}={value}" for name, value in values.items())]


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(overrides())
def test_any_legal_recipe(chosen):
    recipe = load_recipe("deepseek-v3-mtp-random", chosen)
    with tempfile.TemporaryDirectory() as folder:
        path = build(recipe, Path(folder) / "x", check=False, max_shard_size=400_000).path
        assert verify(path, regenerate=True) == []
        (inspection,) = inspect(path)
        assert inspection.config == recipe.model
        stored = set()
        for file in path.glob("*.safetensors"):
            with safe_open(file, "pt") as tensors:
                stored |= set(tensors.keys())
        assert {t.name for t in recipe.checkpoints[0].tensors} <= stored
        if recipe.model.n_shared_experts:  # transformers always makes one
            model = transformers_model(path)
            assert model.config.hidden_size == recipe.model.hidden_size

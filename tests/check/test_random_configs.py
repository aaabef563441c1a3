"""Random configs: only typed errors, and never accepted where the engine's function refuses."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import sources
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixturegen.check import Target, check
from fixturegen.check.attention import BACKENDS, MLA_BACKENDS
from fixturegen.check.inputs import FlashAttention
from fixturegen.check.releases import VLLM
from fixturegen.check.report import VERDICTS
from fixturegen.check.target import GPUS
from fixturegen.config import ModelConfig
from fixturegen.errors import FixturegenError

SIZES = st.one_of(
    st.integers(-1, 9), st.sampled_from([16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 576, 2048])
)
ODD = st.one_of(st.none(), st.booleans(), st.text(max_size=4), st.floats(), st.just(10**40))

#: Any config.json: mostly sizes, now and then something else.
RAW = st.fixed_dictionaries(
    {"model_type": st.sampled_from(["deepseek_v3", "deepseek_v2", "kimi_k2", "deepseek_v32"])},
    optional={
        f.name: st.one_of(SIZES, SIZES, SIZES, ODD)
        for f in dataclasses.fields(ModelConfig)
        if "int" in str(f.type)
    }
    | {
        "topk_method": st.one_of(st.sampled_from(["noaux_tc", "greedy"]), ODD),
        "scoring_func": st.sampled_from(["sigmoid", "softmax"]),
        "dtype": st.one_of(st.sampled_from(["bfloat16", "float32"]), ODD),
        "rope_scaling": st.one_of(st.none(), st.just({"type": "yarn", "factor": 40}), ODD),
        "quantization_config": st.one_of(
            st.none(),
            st.just({"quant_method": "fp8", "weight_block_size": [128, 128]}),
            st.just({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            ODD,
        ),
    },
)

#: A well-formed config, so that rules and not the reader see it.
WELL_FORMED = st.builds(
    lambda experts, groups, **sizes: (
        {
            "model_type": "deepseek_v3",
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "n_routed_experts": experts * groups,
            "n_group": groups,
        }
        | sizes
    ),
    experts=st.integers(1, 40),
    groups=st.integers(1, 33),
    topk_group=st.integers(1, 9),
    num_experts_per_tok=st.integers(1, 33),
    qk_nope_head_dim=st.integers(1, 40).map(lambda n: 8 * n),
    qk_rope_head_dim=st.integers(1, 40).map(lambda n: 2 * n),
    v_head_dim=st.integers(1, 40).map(lambda n: 8 * n),
    kv_lora_rank=st.sampled_from([64, 128, 256, 448, 512, 576]),
    num_attention_heads=st.integers(1, 130),
    num_key_value_heads=st.none(),
    hidden_size=st.integers(1, 80).map(lambda n: 32 * n),
    moe_intermediate_size=st.integers(1, 80).map(lambda n: 32 * n),
)

TARGETS = st.builds(
    Target,
    vllm=st.sampled_from([*VLLM, "0.18.0", "0.21.0", "0.27.0", "0.29.1", "0.34.0"]),
    gpu=st.sampled_from([*GPUS, "sm75"]),
    tp=st.sampled_from([1, 2, 4, 8, 3]),
    ep=st.sampled_from([1, 1, 1, 4]),
    attention=st.sampled_from(["auto", "auto", *BACKENDS, *MLA_BACKENDS, "OTHER"]),
    moe=st.sampled_from(["auto", "auto", "triton", "flashinfer_trtllm", "other"]),
    env=st.sampled_from([(), (("VLLM_MLA_DISABLE", "1"),), (("VLLM_BATCH_INVARIANT", "1"),)]),
    kv_cache_dtype=st.sampled_from(["auto", "fp8", "bfloat16", "fp8_e5m2", "other"]),
    speculation=st.sampled_from(["none", "mtp:1", "mtp:3", "eagle:2"]),
    block_size=st.sampled_from([0, 16, 17, 64, 128]),
)

MANY = settings(
    max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def answer(data: dict[str, Any], target: Target) -> None:
    try:
        config = ModelConfig.from_dict(data)
        report = check(config, target)
    except FixturegenError as error:
        assert str(error) and "\n" not in str(error)
        return
    assert report.verdict in VERDICTS
    if target.vllm in ("0.18.0", "0.34.0") or target.gpu == "sm75":
        assert report.verdict == "unknown"


@pytest.mark.slow
@MANY
@given(RAW, TARGETS)
def test_any_config(data: dict[str, Any], target: Target) -> None:
    answer(data, target)


@pytest.mark.slow
@MANY
@given(WELL_FORMED, TARGETS)
def test_any_well_formed_config(data: dict[str, Any], target: Target) -> None:
    answer(data, target)


@pytest.mark.slow
@pytest.mark.parametrize("vllm", ["0.20.2", "0.26.0", "0.33.0"])
def test_never_accepted_where_fa4_refuses(vllm: str) -> None:
    """Whole checks against FA4's own function: what reaches FA4 accepted, FA4 accepts."""
    from test_attention_truth import function

    path = "vllm/vllm_flash_attn/cute/interface.py"
    validate = function(sources.wheel_file("vllm", vllm, path).read_text(), "_validate_head_dims")
    draw = random.Random(vllm)
    reached = {True: 0, False: 0}
    for _ in range(2000):
        nope, rope, v = (draw.choice((8, 16, 32, 64, 96, 128, 192)) for _ in range(3))
        config = ModelConfig(qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=v)
        env = draw.choice(((), (("VLLM_MLA_DISABLE", "1"),)))
        gpu = draw.choice(("sm90", "sm100", "sm103", "sm110"))
        target = Target(vllm=vllm, gpu=gpu, env=env, flash_attn_version=draw.choice((0, 4)))
        report = check(config, target)
        for call in (k for k in report.kernels if isinstance(k, FlashAttention) and k.version == 4):
            try:
                validate(call.head_size, call.head_size_v, target.capability[0], 8)
                accepts = True
            except AssertionError:
                accepts = False
            refused = any(f.rule.startswith("fa4-head-dims") for f in report.rejections)
            assert accepts is not refused, (call, target)
            reached[accepts] += 1
    assert reached[True] > 100
    assert reached[False] > 20 or vllm == "0.33.0"

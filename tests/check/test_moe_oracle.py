"""The MoE backend that each vLLM release's own oracle chooses, against ``moe.derive``."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import vllm_source

from fixturegen.check import moe, releases
from fixturegen.check.catalogue import broken
from fixturegen.check.inputs import Routing
from fixturegen.check.target import GPUS, Target
from fixturegen.config import ModelConfig, Quantization

PROBE = Path(__file__).with_name("oracle_probe.py")
SCHEMES = {
    "bf16": None,
    "fp8": Quantization(method="fp8", weight_block_size=(128, 128)),
    "nvfp4": Quantization(method="nvfp4", weight_block_size=None),
}
#: Routers: DeepSeek-V3's, V2's, and the ones between that a config can spell.
ROUTERS = [
    {"topk_method": method, "scoring_func": score, "norm_topk_prob": norm, "num_experts_per_tok": k}
    for method in ("noaux_tc", "greedy")
    for score in ("sigmoid", "softmax")
    for norm in (True, False)
    for k in (1, 8)
]
ENVIRONMENTS = [
    {"VLLM_BATCH_INVARIANT": "1"},
    {"VLLM_USE_DEEP_GEMM": "0"},
    {"VLLM_USE_DEEP_GEMM": "1"},
    {"VLLM_MOE_USE_DEEP_GEMM": "0"},
    {"VLLM_TEST_FORCE_FP8_MARLIN": "1"},
    {"VLLM_USE_FLASHINFER_MOE_FP16": "1"},
    {"VLLM_USE_FLASHINFER_MOE_FP16": "0"},
    {"VLLM_USE_FLASHINFER_MOE_FP8": "1"},
    {"VLLM_USE_FLASHINFER_MOE_FP8": "0"},
    {"VLLM_USE_FLASHINFER_MOE_FP4": "1"},
    {"VLLM_USE_FLASHINFER_MOE_FP4": "0"},
    {"VLLM_USE_FLASHINFER_MOE_FP16": "1", "VLLM_FLASHINFER_MOE_BACKEND": "throughput"},
    {"VLLM_USE_FLASHINFER_MOE_FP8": "1", "VLLM_FLASHINFER_MOE_BACKEND": "throughput"},
    {"VLLM_USE_FLASHINFER_MOE_FP4": "1", "VLLM_FLASHINFER_MOE_BACKEND": "throughput"},
]


def cases(version: str) -> Iterator[tuple[ModelConfig, Target]]:
    """GPUs x schemes x backends x parallelism, then routers, sizes and environments."""
    gpus = [g for g in GPUS if g != "cpu"]
    for quantization in SCHEMES.values():
        base = ModelConfig(quantization=quantization)
        for gpu in gpus:
            target = Target(vllm=version, gpu=gpu)
            for asked in ("auto", *moe.NAMES):
                for ep in (1, 8):
                    yield base, dataclasses.replace(target, moe=asked, ep=ep, tp=ep)
            for env in ENVIRONMENTS:
                yield base, dataclasses.replace(target, env=tuple(env.items()))
        for dtype in ("float16", "float32"):
            yield dataclasses.replace(base, dtype=dtype), Target(vllm=version)
        for router in ROUTERS:
            config = dataclasses.replace(base, **router)
            for gpu in ("sm90", "sm100"):
                for asked in ("auto", "flashinfer_trtllm"):
                    yield config, Target(vllm=version, gpu=gpu, moe=asked)
        for changes in (
            {"n_routed_experts": 2048},
            {"n_routed_experts": 2056},
            {"hidden_size": 512},
            {"hidden_size": 640},
        ):
            config = dataclasses.replace(base, **changes)
            yield config, Target(vllm=version, moe="flashinfer_trtllm")
        for width in (64, 96, 128, 192, 200, 256, 384):
            config = dataclasses.replace(base, moe_intermediate_size=width, hidden_size=512)
            for tp in (1, 2):
                for asked in ("auto", "triton", "marlin", "flashinfer_trtllm"):
                    yield config, Target(vllm=version, moe=asked, tp=tp)


def question(config: ModelConfig, target: Target) -> dict[str, object]:
    return {
        "capability": target.capability,
        "scheme": moe.weight_scheme(config),
        "backend": target.moe,
        "ep": target.ep,
        "tp": target.tp,
        "dtype": config.dtype,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.moe_intermediate_size // (target.tp if target.ep == 1 else 1),
        "n_routed_experts": config.n_routed_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "n_group": config.n_group,
        "topk_group": config.topk_group,
        "scoring_func": config.scoring_func,
        "norm_topk_prob": config.norm_topk_prob,
        "bias": config.topk_method == "noaux_tc",
        "env": dict(target.env),
    }


@pytest.mark.slow
@pytest.mark.parametrize("version", releases.VLLM)
def test_oracle(version: str) -> None:
    """Backend, routing method and who does the routing, for every question."""
    asked = list(cases(version))
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON"))}
    run = subprocess.run(
        [sys.executable, str(PROBE), str(vllm_source(version))],
        input=json.dumps([question(*case) for case in asked]),
        env=clean,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    answers = json.loads(run.stdout)
    chosen: Counter[str] = Counter()
    wrong = []
    for (config, target), answer in zip(asked, answers, strict=True):
        real = "none" if answer["backend"].startswith("error") else answer["backend"]
        derived = moe.derive(config, target)
        ours = derived.choices["moe"]
        if "Block-aligned FP8 TP sharding" in answer["backend"]:
            # raised while the blocks are split, before selection: a rule's case, not a choice
            refused = [r.id for x in derived.inputs for r in broken(x, target)]
            ours = "none" if "fp8-moe-blocks" in refused else ours
        method = moe.routing_method(config, version)
        if real == "FLASHINFER_TRTLLM" and answer["fused_routing"] is not None:
            kernels = [x.backend for x in derived.inputs if isinstance(x, Routing)]
            if (kernels == ["trtllm"]) is not answer["fused_routing"]:
                wrong.append((str(target), question(config, target), answer, kernels, method))
        if real != ours or answer["routing"] != method:
            wrong.append((str(target), question(config, target), answer, ours, method))
        chosen[real] += 1
    assert not wrong, f"{len(wrong)} of {len(asked)}: {wrong[:3]}"
    assert len(chosen) > 4
    print(f"vLLM {version} MoE oracle: {len(asked)} of {len(asked)} agree, {dict(chosen)}")

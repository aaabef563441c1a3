"""The derivations: what becomes of a config's experts and linear layers on a target."""

from __future__ import annotations

import dataclasses

import pytest

from fixturegen.check import linears, moe
from fixturegen.check.catalogue import broken, settle
from fixturegen.check.inputs import Linear, MoE, Routing
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig, Quantization

V3 = ModelConfig()
FP8 = dataclasses.replace(V3, quantization=Quantization(method="fp8", weight_block_size=(128, 128)))
#: The checkpoint of vLLM's MTP test that failed on Blackwell: 8 experts, 8 groups, top-4 of 4.
EIGHT = dataclasses.replace(FP8, n_routed_experts=8, num_experts_per_tok=4)


def derived(config: ModelConfig, target: str) -> tuple[dict[str, str], MoE, Routing]:
    result = moe.derive(config, Target.parse(target))
    backend, routing = result.inputs
    assert isinstance(backend, MoE) and isinstance(routing, Routing)
    return result.choices, backend, routing


@pytest.mark.parametrize(
    ("config", "target", "backend", "kernel"),
    [
        (FP8, "vllm==0.33.0,gpu=sm100", "FLASHINFER_TRTLLM", "trtllm"),
        (FP8, "vllm==0.33.0,gpu=sm90", "TRITON", "vllm"),
        (FP8, "vllm==0.33.0,gpu=sm90,tp=8,ep=8", "FLASHINFER_CUTLASS", "vllm"),
        (FP8, "vllm==0.33.0,gpu=sm80", "MARLIN", "vllm"),
        (FP8, "vllm==0.22.1,gpu=sm120", "TRITON", "vllm"),
        (FP8, "vllm==0.24.0,gpu=sm120", "DEEPGEMM", "vllm"),
        (V3, "vllm==0.19.1,gpu=sm100", "TRITON", "vllm"),
        (V3, "vllm==0.20.2,gpu=sm100", "FLASHINFER_TRTLLM", "trtllm"),
        (V3, "vllm==0.22.1,gpu=sm90", "FLASHINFER_CUTLASS", "vllm"),
        (V3, "vllm==0.33.0,gpu=sm100,moe=triton", "TRITON", "vllm"),
    ],
)
def test_choice(config: ModelConfig, target: str, backend: str, kernel: str) -> None:
    choices, candidate, routing = derived(config, target)
    assert choices == {"moe": backend}
    assert candidate.backend == backend
    assert routing.backend == kernel


def test_deepseek_v2_routing() -> None:
    """Softmax without a bias: TRTLLM's FP8 class lets vLLM choose, its bf16 class is not asked."""
    v2 = dataclasses.replace(
        FP8, topk_method="greedy", scoring_func="softmax", norm_topk_prob=False, n_group=1
    )
    choices, candidate, routing = derived(v2, "vllm==0.33.0,gpu=sm100")
    assert (choices["moe"], candidate.routing, routing.backend) == (
        "FLASHINFER_TRTLLM",
        "Default",
        "torch",
    )
    choices, *_ = derived(dataclasses.replace(v2, quantization=None), "vllm==0.33.0,gpu=sm100")
    assert choices["moe"] == "FLASHINFER_CUTLASS"


@pytest.mark.parametrize("vllm", ["0.19.1", "0.20.2", "0.33.0"])
def test_the_mtp_test_that_failed_on_blackwell(vllm: str) -> None:
    """4 < 4 on SM100; on SM90 the groups are ignored and nothing is said."""
    target = Target(vllm=vllm, gpu="sm100")
    _, candidate, routing = derived(EIGHT, str(target))
    assert candidate.backend == "FLASHINFER_TRTLLM"
    assert "moe-trtllm-topk-strict" in [r.id for r in broken(routing, target)]
    for change in ({"n_routed_experts": 32}, {"num_experts_per_tok": 3}):
        _, _, routing = derived(dataclasses.replace(EIGHT, **change), str(target))
        assert "moe-trtllm-topk-strict" not in [r.id for r in broken(routing, target)]
    hopper = Target(vllm=vllm, gpu="sm90")
    _, _, routing = derived(EIGHT, str(hopper))
    final, taken = settle(routing, hopper)
    assert [r.id for r in taken] == ["moe-grouped-topk-fallback"]
    assert isinstance(final, Routing) and final.backend == "topk"


def test_widths_under_parallelism() -> None:
    """TP splits an expert's width; EP splits the experts and leaves their width alone."""
    _, split, _ = derived(FP8, "vllm==0.33.0,gpu=sm90,tp=4")
    assert (split.intermediate_size, split.tp, split.ep) == (512, 4, 1)
    _, whole, _ = derived(FP8, "vllm==0.33.0,gpu=sm90,tp=4,ep=4")
    assert (whole.intermediate_size, whole.tp, whole.ep) == (2048, 1, 4)


def test_blocks_that_tp_cuts_through() -> None:
    """Refused until 0.28, finer blocks on TRITON from 0.30, padded for a forced one from 0.32."""
    config = dataclasses.replace(FP8, moe_intermediate_size=256, hidden_size=512)
    for vllm, asked, backend, width, block, refused in (
        ("0.28.0", "auto", "FLASHINFER_TRTLLM", 64, 128, True),
        ("0.30.0", "auto", "TRITON", 64, 64, False),
        ("0.32.0", "flashinfer_trtllm", "FLASHINFER_TRTLLM", 128, 128, False),
    ):
        target = Target(vllm=vllm, gpu="sm100", tp=4, moe=asked)
        _, x, _ = derived(config, str(target))
        assert (x.backend, x.intermediate_size, x.block) == (backend, width, block)
        assert ("fp8-moe-blocks" in [r.id for r in broken(x, target)]) is refused


def test_no_experts_and_no_groups() -> None:
    dense = dataclasses.replace(V3, n_routed_experts=None)
    assert moe.derive(dense, Target()).inputs == ()
    (router,) = moe.derive(dataclasses.replace(V3, n_group=None, topk_group=None), Target()).inputs
    assert [r.id for r in broken(router, Target())] == ["moe-groups-given"]


def test_unknown() -> None:
    """A backend or a weight format that the catalogue has not read is never "fine"."""
    assert moe.derive(FP8, Target(moe="humming")).choices == {"moe": "unknown"}
    assert moe.derive(FP8, Target(moe="humming")).unknown
    assert moe.derive(FP8, Target(gpu="cpu")).unknown
    odd = dataclasses.replace(FP8, quantization=Quantization(weight_block_size=(64, 64)))
    assert moe.derive(odd, Target()).unknown and linears.derive(odd, Target()).unknown


def test_production_layers() -> None:
    """DeepSeek-V3's own layers on 8 ranks, on the 128 grid everywhere but for 576 rows."""
    target = Target(tp=8)
    found = {x.name: x for x in linears.derive(FP8, target).inputs if isinstance(x, Linear)}
    assert {n: (x.split, x.input_size, x.output_sizes) for n, x in found.items()} == {
        "self_attn.fused_qkv_a_proj": ("replicated", 7168, (1536, 576)),
        "self_attn.q_b_proj": ("column", 1536, (3072,)),
        "self_attn.kv_b_proj": ("column", 512, (4096,)),
        "self_attn.o_proj": ("row", 2048, (7168,)),
        "mlp.gate_up_proj": ("column", 7168, (2304, 2304)),
        "mlp.down_proj": ("row", 2304, (7168,)),
        "mlp.shared_experts.gate_up_proj": ("column", 7168, (256, 256)),
        "mlp.shared_experts.down_proj": ("row", 256, (7168,)),
    }
    assert not [r.id for x in found.values() for r in broken(x, target)]


def test_layers_that_depend_on_the_target() -> None:
    sparse = dataclasses.replace(FP8, index_topk=2048, index_n_heads=64, index_head_dim=128)
    names = [x.name for x in linears.derive(sparse, Target(vllm="0.19.1")).inputs]  # type: ignore[attr-defined]
    assert "self_attn.indexer.wk" in names
    off = Target(env=(("VLLM_MLA_DISABLE", "1"),))
    names = [x.name for x in linears.derive(sparse, off).inputs]  # type: ignore[attr-defined]
    assert "self_attn.q_a_proj" in names and "self_attn.indexer.wk" not in names
    assert linears.derive(V3, Target()).inputs == ()


def test_cpu_routing_for_real() -> None:
    """vLLM's CPU router in torch, called on both sides of its two rules."""
    torch = pytest.importorskip("torch")
    from python_source import compiled, function
    from sources import vllm_source

    path = "vllm/model_executor/layers/fused_moe/router/cpu_router.py"
    grouped = compiled(
        function((vllm_source("0.33.0") / path).read_text(), "_grouped_topk"), torch=torch
    )
    target = Target(vllm="0.33.0", gpu="cpu")
    torch.manual_seed(0)
    for experts, groups, chosen, top_k in (
        (16, 8, 4, 8),
        (16, 8, 4, 9),
        (16, 8, 1, 2),
        (16, 8, 1, 3),
        (8, 8, 4, 4),
        (32, 8, 4, 8),
        (32, 1, 1, 8),
    ):
        x = Routing(
            backend="cpu",
            n_routed_experts=experts,
            n_group=groups,
            topk_group=chosen,
            num_experts_per_tok=top_k,
        )
        ours = {r.id for r in broken(x, target)}
        values = {
            "gating_output": torch.randn(64, experts),
            "router_logits": torch.randn(64, experts),
            "topk": top_k,
            "renormalize": True,
            "num_expert_group": groups,
            "topk_group": chosen,
            "scoring_func": "sigmoid",
            "routed_scaling_factor": 1.0,
            "e_score_correction_bias": torch.zeros(experts),
        }
        wanted = grouped.__code__.co_varnames[: grouped.__code__.co_argcount]
        try:
            _, ids = grouped(**{n: values[n] for n in wanted if n in values})
        except RuntimeError as error:
            assert "selected index k out of range" in str(error)
            assert "moe-cpu-group-score" in ours
            continue
        assert "moe-cpu-group-score" not in ours
        used = max(len(set((row // (experts // groups)).tolist())) for row in ids)
        assert ("moe-cpu-chosen" in ours) is (used > chosen)

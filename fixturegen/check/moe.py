"""Routed experts: which backend the engine chooses, and what its routing kernel receives.

Source: ``select_*_moe_backend`` and ``_get_priority_backends`` in vLLM's
model_executor/layers/fused_moe/oracle/{unquantized,fp8,nvfp4}.py; the routing method is
``get_routing_method_type`` in fused_moe/config.py. What a candidate takes (its class's
``is_supported_config``) is in the ``moe-*`` rules.

The oracle's candidates for ROCm, XPU, TPU and the batched ones of DeepEP's low latency kernels are
left out: no target can ask for them.
"""

from __future__ import annotations

import dataclasses
import math

from fixturegen.check.inputs import Derived, KernelInput, MoE, Routing
from fixturegen.check.releases import within
from fixturegen.check.selection import select
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig

#: ``moe_backend`` names that the catalogue covers.
NAMES = {
    "triton": "TRITON",
    "deep_gemm": "DEEPGEMM",
    "cutlass": "VLLM_CUTLASS",
    "flashinfer_trtllm": "FLASHINFER_TRTLLM",
    "flashinfer_cutlass": "FLASHINFER_CUTLASS",
    "flashinfer_cutedsl": "FLASHINFER_CUTEDSL",
    "marlin": "MARLIN",
    "emulation": "EMULATION",
}

#: *auto*'s order by weight scheme, before the GPU and the environment change it.
ORDER = {
    "bf16": ("FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS", "TRITON"),
    "fp8": ("FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS", "DEEPGEMM", "TRITON", "MARLIN"),
    "nvfp4": (
        "FLASHINFER_TRTLLM",
        "FLASHINFER_CUTEDSL",
        "FLASHINFER_CUTLASS",
        "VLLM_CUTLASS",
        "MARLIN",
        "EMULATION",
    ),
}

#: The variable that asks for FlashInfer's MoE, read until vLLM 0.22.1.
FLASHINFER_VARIABLE = {
    "bf16": "VLLM_USE_FLASHINFER_MOE_FP16",
    "fp8": "VLLM_USE_FLASHINFER_MOE_FP8",
    "nvfp4": "VLLM_USE_FLASHINFER_MOE_FP4",
}

#: Its companion's values: ``VLLM_FLASHINFER_MOE_BACKEND``.
FLASHINFER_KIND = {
    "throughput": "FLASHINFER_CUTLASS",
    "latency": "FLASHINFER_TRTLLM",
    "masked_gemm": "FLASHINFER_CUTEDSL",
}

#: Routing methods that TRTLLM's kernel does itself, with the first release; for all others vLLM
#: chooses the experts and TRTLLM only computes them. (bf16 has no such second way: see the rules.)
FUSED_ROUTING: dict[str, dict[str, str | None]] = {
    "bf16": {
        "DeepSeekV3": None,
        "Llama4": None,
        "Renormalize": None,
        "RenormalizeNaive": None,
        "SigmoidRenorm": None,
        "Sigmoid": None,
        "Default": None,
    },
    "fp8": {
        "DeepSeekV3": None,
        "Renormalize": "0.20.2",
        "RenormalizeNaive": "0.20.2",
        "SigmoidRenorm": "0.22.1",
        "Sigmoid": "0.24.0",
    },
    "nvfp4": {
        "DeepSeekV3": None,
        "Llama4": None,
        "Renormalize": None,
        "RenormalizeNaive": None,
        "SigmoidRenorm": "0.22.1",
        "Sigmoid": "0.24.0",
    },
}


def derive(config: ModelConfig, target: Target, part: str = "target") -> Derived:
    """The MoE layers of a model; all of them, its MTP layers included, have the same dims."""
    if config.n_routed_experts is None or not has_moe_layer(config):
        return Derived(choices={}, inputs=())
    scheme = weight_scheme(config)
    if scheme not in ORDER:
        text = f"MoE weights in {scheme} are not covered"
        return Derived(choices={"moe": "unknown"}, inputs=(), unknown=(text,))
    routing = Routing(
        part=part,
        scheme=scheme,
        n_routed_experts=config.n_routed_experts,
        n_group=config.n_group or 0,
        topk_group=config.topk_group or 0,
        num_experts_per_tok=config.num_experts_per_tok or 0,
        bias=config.topk_method == "noaux_tc",
    )
    if not (routing.n_group and routing.topk_group and routing.num_experts_per_tok):
        # the engine refuses to build such a router, so nothing after it is reached
        router = dataclasses.replace(routing, backend="none")
        return Derived(choices={"moe": "none"}, inputs=(router,))
    if target.gpu == "cpu" and scheme != "bf16":
        text = f"MoE weights in {scheme} on a CPU are not covered"
        return Derived(choices={"moe": "unknown"}, inputs=(), unknown=(text,))
    if target.gpu == "cpu":
        router = dataclasses.replace(routing, backend="cpu")
        return Derived(choices={"moe": "CPU"}, inputs=(router,))
    method = routing_method(config, target.vllm)
    asked = asked_backend(scheme, target)
    base = MoE(
        part=part,
        scheme=scheme,
        dtype=config.dtype,
        capability=10 * target.capability[0] + target.capability[1],
        hidden_size=config.hidden_size,
        intermediate_size=config.moe_intermediate_size // (target.tp if target.ep == 1 else 1),
        full_intermediate_size=config.moe_intermediate_size,
        n_routed_experts=config.n_routed_experts,
        routing=method,
        tp=target.tp if target.ep == 1 else 1,
        ep=target.ep,
    )
    candidate = split_blocks(base, asked, target.vllm) if scheme == "fp8" else base
    names = order(scheme, target)
    others = tuple(n for n in NAMES.values() if n not in names)
    selection = select(candidate, names, asked, target, others=others)
    inputs: list[KernelInput] = [*selection.checked]
    if selection.name not in ("none", "unknown"):
        (chosen,) = selection.checked
        kernel = routing_kernel(chosen, routing.bias, target.vllm)
        grouped = method == "DeepSeekV3"
        inputs.append(dataclasses.replace(routing, backend=kernel, grouped=grouped))
    return Derived(
        choices={"moe": selection.name},
        inputs=tuple(inputs),
        passed_over=selection.reasons,
        unknown=selection.unknown,
    )


def has_moe_layer(config: ModelConfig) -> bool:
    """Whether any layer has routed experts.

    An Eagle draft's layers are numbered after its target's, so they have: the one exception, a
    ``first_k_dense_replace`` beyond the target's depth, cannot be seen from the draft alone.
    """
    layers = config.num_hidden_layers + config.num_nextn_predict_layers
    return config.is_eagle_draft or any(config.is_moe_layer(i) for i in range(layers))


def has_dense_layer(config: ModelConfig) -> bool:
    """Whether any layer has a plain MLP."""
    sparse = has_moe_layer(config)
    return not sparse or config.first_k_dense_replace > 0 or config.moe_layer_freq > 1


def dense_widths(config: ModelConfig) -> tuple[int, ...]:
    """Widths of the MLPs that every token goes through: dense layers' and the shared experts'."""
    dense = (config.intermediate_size,) if has_dense_layer(config) else ()
    shared = (config.n_shared_experts or 0) * config.moe_intermediate_size
    return (*dense, shared) if has_moe_layer(config) and shared else dense


def weight_scheme(config: ModelConfig) -> str:
    """``bf16``, ``fp8``, ``nvfp4``, or a description of one that is not covered."""
    quantization = config.quantization
    if quantization is None:
        return "bf16"
    if quantization.method == "fp8" and quantization.weight_block_size != (128, 128):
        return f"FP8 with weight_block_size {quantization.weight_block_size}"
    return quantization.method


def routing_method(config: ModelConfig, vllm: str) -> str:
    """The name by which vLLM tells kernels how experts are chosen."""
    since = {v: within(vllm, v, None) for v in ("0.22.1", "0.24.0")}
    sigmoid, norm = config.scoring_func == "sigmoid", config.norm_topk_prob
    if config.topk_method == "noaux_tc":
        return "DeepSeekV3" if sigmoid and (norm or not since["0.24.0"]) else "Unspecified"
    if not sigmoid:
        if not norm:
            return "Default"
        return "RenormalizeNaive" if since["0.22.1"] else "Renormalize"
    if since["0.24.0"]:
        return "SigmoidRenorm" if norm else "Sigmoid"
    if config.num_experts_per_tok == 1:
        return "Llama4"
    return "SigmoidRenorm" if norm and since["0.22.1"] else "Unspecified"


def routing_kernel(x: MoE, bias: bool, vllm: str) -> str:
    """Which routing kernel runs before or inside the chosen MoE backend."""
    methods = FUSED_ROUTING[x.scheme]
    fused = x.backend == "FLASHINFER_TRTLLM" and x.routing in methods
    fused = fused and within(vllm, methods[x.routing], None)
    if x.dtype == "float16" and x.scheme != "bf16" and within(vllm, "0.24.0", None):
        fused = False  # the fused classes want router logits in bfloat16 or float32
    return "trtllm" if fused else "vllm" if bias else "torch"


def asked_backend(scheme: str, target: Target) -> str:
    """The backend that ``moe_backend`` or, failing that, the environment insists on."""
    env = dict(target.env)
    if target.moe != "auto":
        if scheme == "bf16" and target.moe in ("humming", "marlin"):
            # quantised backends: an unquantised layer goes on to *auto* instead of raising
            known_since = {"humming": "0.26.0", "marlin": "0.33.0"}[target.moe]
            if within(target.vllm, known_since, None):
                return "auto"
        return NAMES.get(target.moe, target.moe)
    variable = FLASHINFER_VARIABLE[scheme]
    kind = env.get("VLLM_FLASHINFER_MOE_BACKEND", "")
    first = "0.20.2" if scheme == "bf16" else "0.19.1"
    if within(target.vllm, first, "0.22.1") and target.flag(variable) and kind:
        return FLASHINFER_KIND.get(kind, kind)
    deep_gemm = [v for v in ("VLLM_USE_DEEP_GEMM", "VLLM_MOE_USE_DEEP_GEMM") if v in env]
    if scheme == "fp8" and deep_gemm and all(target.flag(v) for v in deep_gemm):
        return "DEEPGEMM"
    marlin = scheme != "bf16" and target.flag("VLLM_TEST_FORCE_FP8_MARLIN")
    return "MARLIN" if marlin and within(target.vllm, None, "0.28.0") else "auto"


def order(scheme: str, target: Target) -> tuple[str, ...]:
    """The candidates of *auto*, best first."""
    names = list(ORDER[scheme])
    env = dict(target.env)
    if scheme == "nvfp4" and within(target.vllm, None, "0.19.1"):
        names.remove("EMULATION")
    variable = FLASHINFER_VARIABLE[scheme]
    flashinfer = [n for n in names if n.startswith("FLASHINFER")]
    if scheme == "bf16" and within(target.vllm, None, "0.19.1"):
        # until the oracle came, FlashInfer had to be asked for, CUTLASS under expert parallelism
        kind = env.get("VLLM_FLASHINFER_MOE_BACKEND", "latency")
        wanted = target.flag(variable)
        names = ["FLASHINFER_TRTLLM"] if wanted and kind == "latency" else []
        names += ["FLASHINFER_CUTLASS"] if wanted else []
        return (*names, "TRITON")
    if variable in env and within(target.vllm, None, "0.22.1"):
        names = flashinfer if target.flag(variable) else [n for n in names if n not in flashinfer]
    if scheme == "fp8" and any(
        v in env and not target.flag(v) for v in ("VLLM_USE_DEEP_GEMM", "VLLM_MOE_USE_DEEP_GEMM")
    ):
        names = [n for n in names if n != "DEEPGEMM"]
    if target.capability == (9, 0):
        front = {"bf16": "TRITON", "fp8": "TRITON" if target.ep == 1 else "FLASHINFER_CUTLASS"}
        first = front.get(scheme)
        if first in names and (scheme == "fp8" or within(target.vllm, "0.24.0", None)):
            names.sort(key=lambda name: name != first)
    return tuple(names)


def split_blocks(x: MoE, asked: str, vllm: str) -> MoE:
    """FP8 scale blocks that TP cuts through are made finer, or the share is padded to whole ones.

    Source: ``refine_fp8_moe_block_shape`` (0.30) and ``resolve_fp8_moe_weight_block_shape`` (0.32)
    in oracle/fp8.py.
    """
    if x.intermediate_size % 128 == 0 or not within(vllm, "0.30.0", None):
        return x
    block = math.gcd(128, x.intermediate_size, x.hidden_size)
    finer = dataclasses.replace(x, block=block) if block >= 32 else x
    if asked in ("auto", "TRITON") and finer is not x:
        return finer
    if asked == "auto" or x.tp == 1 or not within(vllm, "0.32.0", None):
        return finer
    if x.full_intermediate_size % 128 or x.hidden_size % 128:
        return x
    return dataclasses.replace(x, intermediate_size=-(-x.intermediate_size // 128) * 128)

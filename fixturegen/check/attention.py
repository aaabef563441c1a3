"""Attention with MLA off: which backend the engine chooses and what its kernel receives.

Source: ``_get_backend_priorities`` in vLLM's platforms/cuda.py, ``get_attn_backend_cls`` in
platforms/cpu.py, ``DeepseekV2Attention`` in model_executor/models/deepseek_v2.py and
``get_flash_attn_version`` in v1/attention/backends/fa_utils.py.
"""

from __future__ import annotations

from fixturegen.check.catalogue import settle
from fixturegen.check.inputs import Attention, Derived, FlashAttention, KernelInput
from fixturegen.check.releases import within
from fixturegen.check.selection import select
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig

#: Backends of plain attention, in *auto*'s order; SM10x tries FLASHINFER first.
BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")

#: Decode backends of MLA layers that have no path without a latent.
MLA_BACKENDS = (
    "FLASHINFER_MLA",
    "TOKENSPEED_MLA",
    "CUTLASS_MLA",
    "FLASH_ATTN_MLA",
    "FLASHMLA",
    "TRITON_MLA",
)

ELEMENT_SIZE = {"bfloat16": 2, "float16": 2, "float32": 4}


def order(target: Target) -> tuple[str, ...]:
    """The candidates of *auto*, best first."""
    if target.gpu == "cpu":
        return ("CPU_ATTN",)
    names = BACKENDS if within(target.vllm, "0.20.2", None) else BACKENDS[:-1]
    if target.capability[0] == 10:
        return ("FLASHINFER", "FLASH_ATTN", *names[2:])
    return names


def default_flash_attention(target: Target) -> int:
    """FlashAttention version before anything is known about the layer."""
    return target.flash_attn_version or {9: 3, 10: 4}.get(target.capability[0], 2)


def flash_attention(
    target: Target,
    head_size: int,
    head_size_v: int,
    dtype: str = "bfloat16",
    *,
    caller: str = "decoder",
    part: str = "target",
) -> FlashAttention:
    """The FlashAttention call that the engine starts from, before its fallbacks.

    ``settle`` takes it to the version that runs.
    """
    return FlashAttention(
        part=part,
        version=default_flash_attention(target),
        head_size=head_size,
        head_size_v=head_size_v,
        element_size=ELEMENT_SIZE[dtype],
        kv_cache_dtype=target.kv_cache_dtype,
        block_size=target.block_size,
        caller=caller,
    )


def derive(config: ModelConfig, target: Target, part: str = "target") -> Derived:
    """One layer: V is zero-padded to the query's head dim, heads are split over TP ranks."""
    head_size = config.qk_head_dim
    call = flash_attention(target, head_size, head_size, config.dtype, part=part)
    candidate = Attention(
        part=part,
        gpu_major=target.capability[0],
        head_size=head_size,
        v_head_dim=config.v_head_dim,
        num_heads=max(1, config.num_attention_heads // target.tp),
        dtype=config.dtype,
        kv_cache_dtype=target.kv_cache_dtype,
        block_size=target.block_size,
        flash_attn=settle(call, target)[0].version if target.gpu != "cpu" else 0,
        default_flash_attn=default_flash_attention(target),
        index_topk=config.index_topk or 0,
        rope="default" if config.rope_scaling is None else config.rope_scaling.type,
    )
    # on CPU a backend that was asked for is ignored
    asked = "auto" if target.gpu == "cpu" else target.attention
    selection = select(candidate, order(target), asked, target, others=(*BACKENDS, *MLA_BACKENDS))
    choices = {"attention": selection.name}
    inputs: list[KernelInput] = [*selection.checked]
    if selection.name == "FLASH_ATTN":
        choices["flash_attention"] = f"FA{settle(call, target)[0].version}"
        inputs.append(call)
    return Derived(
        choices=choices,
        inputs=tuple(inputs),
        passed_over=selection.reasons,
        unknown=selection.unknown,
    )

"""MLA layers: which prefill and decode backends the engine chooses and what they receive.

Source: ``_get_backend_priorities`` in vLLM's platforms/cuda.py, ``get_attn_backend_cls`` in
platforms/cpu.py, model_executor/layers/attention/mla_attention.py (prefill up to 0.20.2),
v1/attention/backends/mla/prefill/selector.py (0.22.1 to 0.30.0) and
``get_mla_prefill_backend_cls`` in platforms/interface.py (0.32.0 on).
"""

from __future__ import annotations

from fixturegen.check.attention import (
    BACKENDS,
    MLA_BACKENDS,
    default_flash_attention,
    flash_attention,
)
from fixturegen.check.catalogue import settle
from fixturegen.check.inputs import Derived, KernelInput, MLADecode, MLAPrefill
from fixturegen.check.releases import within
from fixturegen.check.selection import select
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig

#: Decode backends of the CPU build. *auto* is the second where the CPU has AMX (vLLM 0.30 on), the
#: first elsewhere; a target says so with ``attention=AMX_MLA``.
CPU_DECODE = ("CPU_MLA", "AMX_MLA")

QUANTISED_KV = ("fp8", "nvfp4")

#: Prefill backends, in *auto*'s order on SM10x.
PREFILL = ("FLASH_ATTN", "TRTLLM_RAGGED", "FLASHINFER", "TOKENSPEED_MLA")


def decode_order(target: Target, num_heads: int) -> tuple[str, ...]:
    """The candidates of *auto* for decode, best first, dense then sparse."""
    major = target.capability[0]

    def since(version: str) -> bool:
        return within(target.vllm, version, None)

    if target.gpu == "cpu":
        return ("CPU_MLA",)
    if major == 10:
        dense = ["FLASHINFER_MLA", "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA"]
        if since("0.22.1"):
            dense.insert(1, "TOKENSPEED_MLA")
        sparse = ["FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE"]
        quantised = target.kv_cache_dtype.startswith(QUANTISED_KV)
        if quantised or num_heads <= 16:
            sparse.reverse()
        if since("0.33.0") and not quantised and num_heads <= 16:
            sparse.insert(0, "FLASH_ATTN_MLA_SPARSE_FA4")
        return (*dense, *sparse)
    if major == 12 and since("0.24.0"):
        return ("TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120")
    dense = ["FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA"]
    sparse = ["FLASHMLA_SPARSE"]
    if since("0.26.0"):
        sparse.insert(0, "FLASH_ATTN_MLA_SPARSE")
    if since("0.30.0"):
        sparse.append("FLASHINFER_MLA_SPARSE_SM90")
    return (*dense, *sparse)


def prefill_order(config: ModelConfig, target: Target) -> tuple[str, ...]:
    """The candidates of *auto* for prefill, best first."""
    if target.gpu == "cpu":
        return ("CPU_SDPA_MLA",)
    if not within(target.vllm, "0.22.1", None) or target.capability[0] != 10:
        return ("FLASH_ATTN",)
    dims = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim)
    names = list(PREFILL)
    if within(target.vllm, "0.28.0", None) and dims == (192, 64, 256):
        names[:2] = reversed(names[:2])
    return tuple(names)


def derive(config: ModelConfig, target: Target, part: str = "target") -> Derived:
    """One layer: prefill expands the latent to heads, decode works on the latent itself."""
    major = target.capability[0]
    num_heads = max(1, config.num_attention_heads // target.tp)
    decode = MLADecode(
        part=part,
        gpu_major=major,
        kv_lora_rank=config.kv_lora_rank,
        qk_rope_head_dim=config.qk_rope_head_dim,
        qk_nope_head_dim=config.qk_nope_head_dim,
        v_head_dim=config.v_head_dim,
        num_heads=num_heads,
        dtype=config.dtype,
        kv_cache_dtype=target.kv_cache_dtype,
        block_size=target.block_size,
        query_len=1 + target.draft_tokens,
        index_topk=config.index_topk or 0,
        rope="default" if config.rope_scaling is None else config.rope_scaling.type,
    )
    backend = target.attention
    if target.gpu == "cpu" and backend not in CPU_DECODE:
        backend = "auto"  # "Cannot use ... backend on CPU.", says the log
    decoding = select(
        decode,
        decode_order(target, num_heads),
        backend,
        target,
        others=(*MLA_BACKENDS, *BACKENDS, *CPU_DECODE),
    )
    prefill = MLAPrefill(
        part=part,
        gpu_major=major,
        qk_nope_head_dim=config.qk_nope_head_dim,
        qk_rope_head_dim=config.qk_rope_head_dim,
        v_head_dim=config.v_head_dim,
        num_heads=num_heads,
        dtype=config.dtype,
        flash_attn=default_flash_attention(target),
    )
    asked, order = target.prefill, prefill_order(config, target)
    if asked != "auto" and not within(target.vllm, "0.22.1", None):
        # a wish, not an order: what does not fit is dropped without a word
        asked, order = "auto", (asked, *order)
    filling = select(prefill, order, asked, target, others=PREFILL[1:])
    choices = {"prefill": filling.name, "decode": decoding.name}
    inputs: list[KernelInput] = [*filling.checked, *decoding.checked]
    if filling.name == "FLASH_ATTN":
        call = flash_attention(
            target,
            config.qk_head_dim,
            config.v_head_dim,
            config.dtype,
            caller="mla_prefill",
            part=part,
        )
        version = settle(call, target)[0].version
        choices["flash_attention"] = f"FA{version}"
        inputs.append(call)
    return Derived(
        choices=choices,
        inputs=tuple(inputs),
        passed_over=filling.reasons + decoding.reasons,
        unknown=filling.unknown + decoding.unknown,
    )

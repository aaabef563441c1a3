"""What attention with MLA off asks of the checkpoint, whichever backend runs it."""

from fixturegen.check.inputs import Attention, MLADecode
from fixturegen.check.rule import PassedOver, Rejected, Source, Unproven, Where, cases, rule


@rule(
    id="mla-off-pads-v",
    title="With MLA off, V is padded to the query's head dim and must not be wider",
    where=Where(),
    otherwise=Rejected(r"shape '\[.*\]' is invalid for input of size|mat1 and mat2 shapes"),
    source=Source(
        "vllm", "vllm/model_executor/models/deepseek_v2.py", "DeepseekV2Attention.forward"
    ),
    cases=cases(
        Attention(),
        holds=[{"v_head_dim": 64}],
        breaks=[{"v_head_dim": 256}],
        at_limit=[{"v_head_dim": 192}],
        past_limit=[{"v_head_dim": 193}],
    ),
)
def mla_off_pads_v(x: Attention) -> bool:
    """`VLLM_MLA_DISABLE=1` runs DeepSeek models through plain multi-head attention.

    The layer zero-pads V from `v_head_dim` to `qk_nope_head_dim + qk_rope_head_dim`, so with
    128 + 64 the kernel receives (192, 192) whatever `v_head_dim` says: production-accurate
    (192, 128) checkpoints are hit as much as test fixtures. On SM10x that pair kills FA4 in vLLM
    up to 0.26.0; from 0.28.0 the engine falls back to FA2. Dims that stay legal everywhere with
    MLA off are those with `qk_nope_head_dim + qk_rope_head_dim <= 128`.
    """
    return x.v_head_dim <= x.head_size


@rule(
    id="mla-off-fp8-query",
    title="With MLA off, an FP8 KV cache stops FLASH_ATTN in eager mode",
    where=Where(backends=("FLASH_ATTN",), gpus=("sm90",)),
    otherwise=Unproven(
        "eager mode dies in scaled_fp8_quant (0.26.0, H200); compiled it was not run"
    ),
    source=Source(
        "vllm", "vllm/model_executor/models/deepseek_v2.py", "DeepseekV2Attention.forward"
    ),
    cases=cases(
        Attention(gpu_major=9),
        breaks=[{"kv_cache_dtype": "fp8"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"kv_cache_dtype": "fp8_e4m3"}],
    ),
)
def mla_off_fp8_query(x: Attention) -> bool:
    """The layer hands its query over as [tokens, heads, dim].

    With an FP8 KV cache attention quantises the query first, and the eager operator takes two
    dimensions only: `assert input.ndim == 2`, without a message.
    """
    return x.kv_cache_dtype in ("auto", "bfloat16", "float16")


@rule(
    id="mla-off-indexer",
    title="DeepSeek-V3.2's sparse attention needs MLA on",
    where=Where(),
    otherwise=Rejected(r"topk_indices_buffer is not\s+supported for DeepseekV2Attention"),
    source=Source(
        "vllm", "vllm/model_executor/models/deepseek_v2.py", "DeepseekV2Attention.__init__"
    ),
    cases=cases(
        Attention(),
        breaks=[{"index_topk": 2048}],
        at_limit=[{"index_topk": 0}],
        past_limit=[{"index_topk": 1}],
    ),
)
def mla_off_indexer(x: Attention) -> bool:
    """The indexer hands its choice of tokens to the MLA layer; the plain layer asserts that there
    is none.
    """
    return x.index_topk < 1


VALIDATE = Source("vllm", "vllm/v1/attention/backend.py", "AttentionBackend.validate_configuration")


@rule(
    id="mla-off-backend",
    title="MLA backends need MLA on",
    where=Where(
        backends=(
            "FLASHINFER_MLA",
            "TOKENSPEED_MLA",
            "CUTLASS_MLA",
            "FLASH_ATTN_MLA",
            "FLASHMLA",
            "TRITON_MLA",
        )
    ),
    otherwise=PassedOver("non-MLA not supported"),
    source=VALIDATE,
    cases=cases(
        Attention(backend="FLASHMLA", kv_lora_rank=512),
        breaks=[{"kv_lora_rank": 0}],
        at_limit=[{"kv_lora_rank": 1}],
        past_limit=[{"kv_lora_rank": 0}],
    ),
)
def mla_off_backend(x: Attention) -> bool:
    """With `VLLM_MLA_DISABLE=1` no latent reaches the kernel; name a plain attention backend."""
    return x.kv_lora_rank > 0


@rule(
    id="mla-on-backend",
    title="Plain attention backends need MLA off",
    where=Where(
        backends=("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
    ),
    otherwise=PassedOver("MLA not supported"),
    source=VALIDATE,
    cases=cases(
        MLADecode(backend="FLASH_ATTN", kv_lora_rank=0),
        breaks=[{"kv_lora_rank": 512}],
        at_limit=[{"kv_lora_rank": 0}],
        past_limit=[{"kv_lora_rank": 1}],
    ),
)
def mla_on_backend(x: MLADecode) -> bool:
    """`attention=FLASH_ATTN` goes with `VLLM_MLA_DISABLE=1`; with MLA on it is FLASH_ATTN_MLA."""
    return x.kv_lora_rank < 1

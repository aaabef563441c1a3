"""What attention with MLA off asks of the checkpoint, whichever backend runs it."""

from fixturegen.check.inputs import Attention, MLADecode
from fixturegen.check.rule import PassedOver, Rejected, Source, Where, cases, rule


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

"""What TRITON_ATTN, FLEX_ATTENTION and TURBOQUANT take (attention with MLA off)."""

from fixturegen.check.inputs import Attention
from fixturegen.check.rule import PassedOver, Source, Where, cases, rule

BACKENDS = "vllm/v1/attention/backends/"
TRITON = Attention(backend="TRITON_ATTN")


@rule(
    id="triton-attn-head-size",
    title="TRITON_ATTN takes head sizes from 32",
    where=Where(backends=("TRITON_ATTN",)),
    otherwise=PassedOver("head_size not supported"),
    source=Source("vllm", BACKENDS + "triton_attn.py", "TritonAttentionBackend.supports_head_size"),
    cases=cases(
        TRITON,
        breaks=[{"head_size": 16}],
        at_limit=[{"head_size": 32}],
        past_limit=[{"head_size": 31}],
    ),
)
def triton_attn_head_size(x: Attention) -> bool:
    """Shrunken fixtures with, say, 16 + 8 dims a head have no Triton kernel."""
    return x.head_size >= 32


@rule(
    id="triton-attn-kv-cache",
    title="TRITON_ATTN reads 16-bit and FP8 KV caches",
    where=Where(backends=("TRITON_ATTN",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source(
        "vllm", BACKENDS + "triton_attn.py", "TritonAttentionBackend.supported_kv_cache_dtypes"
    ),
    cases=cases(
        TRITON,
        holds=[{"kv_cache_dtype": d} for d in ("bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")],
        breaks=[{"kv_cache_dtype": "turboquant_k8v4"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"kv_cache_dtype": "nvfp4"}],
    ),
)
def triton_attn_kv_cache(x: Attention) -> bool:
    """The dtypes listed in every release read; per-token-head caches came later."""
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


@rule(
    id="triton-attn-block-size",
    title="TRITON_ATTN wants KV blocks of a multiple of 16 tokens",
    where=Where(backends=("TRITON_ATTN",)),
    otherwise=PassedOver("block_size not supported"),
    source=Source(
        "vllm",
        BACKENDS + "triton_attn.py",
        "TritonAttentionBackend.get_supported_kernel_block_sizes",
    ),
    cases=cases(
        TRITON,
        holds=[{"block_size": 0}, {"block_size": 64}],
        breaks=[{"block_size": 8}],
        at_limit=[{"block_size": 16}],
        past_limit=[{"block_size": 17}, {"block_size": 15}],
    ),
)
def triton_attn_block_size(x: Attention) -> bool:
    """`--block-size` must be a multiple of the kernel's 16 tokens."""
    return x.block_size % 16 == 0


@rule(
    id="flex-attention-kv-cache",
    title="FLEX_ATTENTION reads 16-bit KV caches only",
    where=Where(backends=("FLEX_ATTENTION",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source(
        "vllm", BACKENDS + "flex_attention.py", "FlexAttentionBackend.supported_kv_cache_dtypes"
    ),
    cases=cases(
        Attention(backend="FLEX_ATTENTION"),
        holds=[{"kv_cache_dtype": "bfloat16"}, {"kv_cache_dtype": "float16"}],
        breaks=[{"kv_cache_dtype": "fp8_e5m2"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"kv_cache_dtype": "fp8"}],
    ),
)
def flex_attention_kv_cache(x: Attention) -> bool:
    """FLEX_ATTENTION takes any head size, and no quantised cache."""
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16")


@rule(
    id="flex-attention-block-size",
    title="FLEX_ATTENTION wants KV blocks of a multiple of 16 tokens",
    where=Where(since="0.22.1", backends=("FLEX_ATTENTION",)),
    otherwise=PassedOver("block_size not supported"),
    source=Source(
        "vllm",
        BACKENDS + "flex_attention.py",
        "FlexAttentionBackend.get_supported_kernel_block_sizes",
    ),
    cases=cases(
        Attention(backend="FLEX_ATTENTION"),
        holds=[{"block_size": 0}, {"block_size": 64}],
        breaks=[{"block_size": 8}],
        at_limit=[{"block_size": 16}],
        past_limit=[{"block_size": 17}, {"block_size": 15}],
    ),
)
def flex_attention_block_size(x: Attention) -> bool:
    """`--block-size` must be a multiple of the kernel's 16 tokens."""
    return x.block_size % 16 == 0


@rule(
    id="turboquant-missing",
    title="TURBOQUANT exists from vLLM 0.20",
    where=Where(until="0.19.1", backends=("TURBOQUANT",)),
    otherwise=PassedOver("Unknown attention backend: 'TURBOQUANT'"),
    source=Source("vllm", "vllm/v1/attention/backends/registry.py", "AttentionBackendEnum"),
    cases=cases(
        Attention(backend="TURBOQUANT"),
        holds=[{"head_size": 0}],
        breaks=[{}],
        at_limit=[{"head_size": 0}],
        past_limit=[{"head_size": 1}],
    ),
)
def turboquant_missing(x: Attention) -> bool:
    """Every layer is refused, as the name means nothing to older releases."""
    return x.head_size < 1


@rule(
    id="turboquant-kv-cache",
    title="TURBOQUANT serves its own KV cache dtypes only",
    where=Where(since="0.20.2", backends=("TURBOQUANT",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source(
        "vllm",
        BACKENDS + "turboquant_attn.py",
        "TurboQuantAttentionBackend.supported_kv_cache_dtypes",
    ),
    cases=cases(
        Attention(backend="TURBOQUANT", kv_cache_dtype="turboquant_k8v4"),
        holds=[{"kv_cache_dtype": "turboquant_4bit_nc"}],
        breaks=[{"kv_cache_dtype": "fp8"}],
        at_limit=[{}],
        past_limit=[{"kv_cache_dtype": "auto"}],
    ),
)
def turboquant_kv_cache(x: Attention) -> bool:
    """The last of *auto*'s candidates; never chosen unless its cache dtype is asked for."""
    return x.kv_cache_dtype in (
        "turboquant_k8v4",
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_3bit_nc",
    )


@rule(
    id="batch-invariant-attention",
    title="VLLM_BATCH_INVARIANT leaves FLASH_ATTN, TRITON_ATTN and FLEX_ATTENTION",
    where=Where(since="0.22.1", env=("VLLM_BATCH_INVARIANT",)),
    otherwise=PassedOver("batch invariance not supported"),
    source=Source(
        "vllm", "vllm/v1/attention/backend.py", "AttentionBackend.validate_configuration"
    ),
    cases=cases(
        Attention(),
        holds=[{"backend": "TRITON_ATTN"}, {"backend": "FLEX_ATTENTION"}],
        breaks=[{"backend": "TURBOQUANT"}],
        at_limit=[{}],
        past_limit=[{"backend": "FLASHINFER"}],
    ),
)
def batch_invariant_attention(x: Attention) -> bool:
    """Batch-invariant runs pass over backends whose results depend on the batch."""
    return x.backend in ("FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION")


@rule(
    id="batch-invariant-attention-0.20",
    variant_of="batch-invariant-attention",
    title="VLLM_BATCH_INVARIANT leaves FLASH_ATTN and TRITON_ATTN",
    where=Where(since="0.20.2", until="0.20.2", env=("VLLM_BATCH_INVARIANT",)),
    otherwise=PassedOver("batch invariance not supported"),
    source=Source(
        "vllm", "vllm/v1/attention/backend.py", "AttentionBackend.validate_configuration"
    ),
    cases=cases(
        Attention(),
        holds=[{"backend": "TRITON_ATTN"}],
        breaks=[{"backend": "FLASHINFER"}],
        at_limit=[{}],
        past_limit=[{"backend": "FLEX_ATTENTION"}],
    ),
)
def batch_invariant_attention_0_20(x: Attention) -> bool:
    """As `batch-invariant-attention`, before FLEX_ATTENTION declared it."""
    return x.backend in ("FLASH_ATTN", "TRITON_ATTN")

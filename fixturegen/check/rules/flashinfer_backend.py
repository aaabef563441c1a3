"""What the FLASHINFER backend takes (attention with MLA off)."""

from fixturegen.check.inputs import Attention
from fixturegen.check.rule import PassedOver, Source, Where, cases, rule

FILE = "vllm/v1/attention/backends/flashinfer.py"
BASE = Attention(backend="FLASHINFER", head_size=128)


@rule(
    id="flashinfer-head-size",
    title="FLASHINFER takes head sizes 64, 128 and 256",
    where=Where(until="0.20.2", backends=("FLASHINFER",)),
    otherwise=PassedOver("head_size not supported"),
    source=Source("vllm", FILE, "FlashInferBackend.get_supported_head_sizes"),
    cases=cases(
        BASE,
        holds=[{"head_size": 64}, {"head_size": 256}],
        breaks=[{"head_size": 192}, {"head_size": 512}],
        at_limit=[{"head_size": 128}],
        past_limit=[{"head_size": 129}],
    ),
)
def flashinfer_head_size(x: Attention) -> bool:
    """FlashInfer's kernels are compiled for a few head sizes.

    With MLA off the head size is `qk_nope_head_dim + qk_rope_head_dim`: 192 with DeepSeek-V3's
    dims, so *auto* goes on to the next backend and a forced FLASHINFER raises.
    """
    return x.head_size in (64, 128, 256)


@rule(
    id="flashinfer-head-size-512",
    variant_of="flashinfer-head-size",
    title="FLASHINFER takes head sizes 64, 128, 256 and 512",
    where=Where(since="0.22.1", backends=("FLASHINFER",)),
    otherwise=PassedOver("head_size not supported"),
    source=Source("vllm", FILE, "FlashInferBackend.get_supported_head_sizes"),
    cases=cases(
        BASE,
        holds=[{"head_size": 64}, {"head_size": 256}, {"head_size": 512}],
        breaks=[{"head_size": 192}, {"head_size": 320}],
        at_limit=[{"head_size": 128}],
        past_limit=[{"head_size": 129}],
    ),
)
def flashinfer_head_size_512(x: Attention) -> bool:
    """As `flashinfer-head-size`, with 512 added in vLLM 0.22.1."""
    return x.head_size in (64, 128, 256, 512)


@rule(
    id="flashinfer-kv-cache",
    title="FLASHINFER reads 16-bit and FP8 KV caches",
    where=Where(backends=("FLASHINFER",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source("vllm", FILE, "FlashInferBackend.supported_kv_cache_dtypes"),
    cases=cases(
        BASE,
        holds=[{"kv_cache_dtype": d} for d in ("bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")],
        breaks=[{"kv_cache_dtype": "int8_per_token_head"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"kv_cache_dtype": "turboquant_k8v4"}],
    ),
)
def flashinfer_kv_cache(x: Attention) -> bool:
    """The KV cache dtypes that FLASHINFER lists in every release read.

    NVFP4 caches (vLLM 0.22.1 and later) depend on more than the config and are not covered.
    """
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


@rule(
    id="flashinfer-block-size",
    title="FLASHINFER wants KV blocks of a multiple of 16 tokens",
    where=Where(backends=("FLASHINFER",)),
    otherwise=PassedOver("block_size not supported"),
    source=Source("vllm", FILE, "FlashInferBackend.get_supported_kernel_block_sizes"),
    cases=cases(
        BASE,
        holds=[{"block_size": 0}, {"block_size": 64}],
        breaks=[{"block_size": 8}],
        at_limit=[{"block_size": 16}],
        past_limit=[{"block_size": 17}, {"block_size": 15}],
    ),
)
def flashinfer_block_size(x: Attention) -> bool:
    """Kernel pages are 16, 32 or 64 tokens; a larger `--block-size` is split into pages."""
    return x.block_size % 16 == 0


@rule(
    id="flashinfer-dtype",
    title="FLASHINFER computes in 16 bits",
    where=Where(backends=("FLASHINFER",)),
    otherwise=PassedOver("dtype not supported"),
    source=Source("vllm", FILE, "FlashInferBackend.supported_dtypes"),
    cases=cases(
        BASE,
        holds=[{"dtype": "float16"}],
        breaks=[{"dtype": "float32"}],
        at_limit=[{"dtype": "bfloat16"}],
        past_limit=[{"dtype": "float32"}],
    ),
)
def flashinfer_dtype(x: Attention) -> bool:
    """Checkpoints in float32 need TRITON_ATTN or FLEX_ATTENTION, or `--dtype bfloat16`."""
    return x.dtype in ("float16", "bfloat16")

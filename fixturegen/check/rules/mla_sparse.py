"""Decode backends of DeepSeek-V3.2's sparse attention."""

from fixturegen.check.inputs import MLADecode
from fixturegen.check.rule import PassedOver, Source, Where, cases, rule

MLA = "vllm/v1/attention/backends/mla/"
BASE = MLADecode(backend="FLASHMLA_SPARSE", index_topk=2048)
SPARSE = ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE", "FLASH_ATTN_MLA_SPARSE")


@rule(
    id="mla-decode-sparse",
    title="Sparse MLA backends run models with an indexer only",
    where=Where(backends=SPARSE),
    otherwise=PassedOver("non-sparse not supported"),
    source=Source(
        "vllm", "vllm/v1/attention/backend.py", "AttentionBackend.validate_configuration"
    ),
    cases=cases(
        BASE,
        breaks=[{"index_topk": 0}],
        at_limit=[{"index_topk": 1}],
        past_limit=[{"index_topk": 0}],
    ),
)
def mla_decode_sparse(x: MLADecode) -> bool:
    """A config without `index_topk` has no indexer."""
    return x.index_topk > 0


@rule(
    id="mla-sparse-head-size",
    title="Sparse MLA caches are 576 wide",
    where=Where(backends=("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")),
    otherwise=PassedOver("head_size not supported|supports head_size 512 only"),
    source=Source(
        "vllm", MLA + "flashmla_sparse.py", "FlashMLASparseBackend.get_supported_head_sizes"
    ),
    cases=cases(
        BASE,
        breaks=[{"kv_lora_rank": 256}],
        at_limit=[{}],
        past_limit=[{"kv_lora_rank": 511}, {"kv_lora_rank": 513}],
    ),
)
def mla_sparse_head_size(x: MLADecode) -> bool:
    """Some releases add 512 for other families (DeepSeek-V4, models without rotary dims)."""
    return x.head_size == 576


@rule(
    id="flashmla-sparse-gpu",
    title="FLASHMLA_SPARSE needs SM90 or SM10x",
    where=Where(backends=("FLASHMLA_SPARSE",)),
    otherwise=PassedOver("compute capability not supported|FlashMLA Sparse is only supported on"),
    source=Source(
        "vllm", MLA + "flashmla_sparse.py", "FlashMLASparseBackend.supports_compute_capability"
    ),
    cases=cases(
        BASE,
        holds=[{"gpu_major": 9}],
        breaks=[{"gpu_major": 12}],
        at_limit=[{"gpu_major": 9}, {"gpu_major": 10}],
        past_limit=[{"gpu_major": 8}, {"gpu_major": 11}],
    ),
)
def flashmla_sparse_gpu(x: MLADecode) -> bool:
    """SM110 and SM12x are other families and have other backends."""
    return x.gpu_major in (9, 10)


@rule(
    id="flashinfer-mla-sparse-gpu",
    title="FLASHINFER_MLA_SPARSE needs SM10x",
    where=Where(backends=("FLASHINFER_MLA_SPARSE",)),
    otherwise=PassedOver("compute capability not supported"),
    source=Source(
        "vllm",
        MLA + "flashinfer_mla_sparse.py",
        "FlashInferMLASparseBackend.supports_compute_capability",
    ),
    cases=cases(
        BASE,
        breaks=[{"gpu_major": 12}],
        at_limit=[{"gpu_major": 10}],
        past_limit=[{"gpu_major": 9}, {"gpu_major": 11}],
    ),
)
def flashinfer_mla_sparse_gpu(x: MLADecode) -> bool:
    """Variants for other GPUs have names of their own."""
    return x.gpu_major == 10


@rule(
    id="flashinfer-mla-sparse-nope",
    title="FLASHINFER_MLA_SPARSE takes qk_nope_head_dim 128 and 192",
    where=Where(backends=("FLASHINFER_MLA_SPARSE",)),
    otherwise=PassedOver(r"FlashInfer MLA Sparse kernel requires qk_nope_head_dim in \[128, 192\]"),
    source=Source(
        "vllm", MLA + "flashinfer_mla_sparse.py", "FlashInferMLASparseBackend.supports_combination"
    ),
    cases=cases(
        BASE,
        holds=[{"qk_nope_head_dim": 192}],
        breaks=[{"qk_nope_head_dim": 64}],
        at_limit=[{"qk_nope_head_dim": 128}, {"qk_nope_head_dim": 192}],
        past_limit=[{"qk_nope_head_dim": n} for n in (127, 129, 191, 193)],
    ),
)
def flashinfer_mla_sparse_nope(x: MLADecode) -> bool:
    """DeepSeek-V3.2 has 128; the dense backend takes 64 as well."""
    return x.qk_nope_head_dim in (128, 192)


@rule(
    id="flashmla-sparse-kv-cache",
    title="FLASHMLA_SPARSE reads bfloat16 and its own FP8 KV cache",
    where=Where(backends=("FLASHMLA_SPARSE",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source(
        "vllm", MLA + "flashmla_sparse.py", "FlashMLASparseBackend.supported_kv_cache_dtypes"
    ),
    cases=cases(
        BASE,
        holds=[{"kv_cache_dtype": d} for d in ("bfloat16", "fp8_ds_mla", "fp8")],
        breaks=[{"kv_cache_dtype": "fp8_e5m2"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"kv_cache_dtype": "fp8_e4m3"}],
    ),
)
def flashmla_sparse_kv_cache(x: MLADecode) -> bool:
    """`fp8` is an alias of `fp8_ds_mla`, the layout of its own, here."""
    return x.kv_cache_dtype in ("auto", "bfloat16", "fp8_ds_mla", "fp8")


@rule(
    id="flashinfer-mla-sparse-kv-cache",
    title="FLASHINFER_MLA_SPARSE reads 16-bit and FP8 E4M3 KV caches",
    where=Where(backends=("FLASHINFER_MLA_SPARSE",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source(
        "vllm",
        MLA + "flashinfer_mla_sparse.py",
        "FlashInferMLASparseBackend.supported_kv_cache_dtypes",
    ),
    cases=cases(
        BASE,
        holds=[{"kv_cache_dtype": d} for d in ("float16", "bfloat16", "fp8", "fp8_e4m3")],
        breaks=[{"kv_cache_dtype": "fp8_ds_mla"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"kv_cache_dtype": "fp8_e5m2"}],
    ),
)
def flashinfer_mla_sparse_kv_cache(x: MLADecode) -> bool:
    """The same list as that of the dense backend, FLASHINFER_MLA."""
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")


@rule(
    id="flash-attn-mla-sparse",
    title="FLASH_ATTN_MLA_SPARSE needs SM90 and a 16-bit KV cache",
    where=Where(since="0.26.0", backends=("FLASH_ATTN_MLA_SPARSE",)),
    otherwise=PassedOver(
        "compute capability not supported|currently supports only FP16/BF16 KV cache"
    ),
    source=Source(
        "vllm", MLA + "flashattn_mla_sparse.py", "FlashAttnMLASparseBackend.supports_combination"
    ),
    cases=cases(
        MLADecode(backend="FLASH_ATTN_MLA_SPARSE", index_topk=2048, gpu_major=9),
        holds=[{"kv_cache_dtype": "bfloat16"}, {"kv_cache_dtype": "float16"}],
        breaks=[{"kv_cache_dtype": "fp8"}],
        at_limit=[{}],
        past_limit=[{"gpu_major": 8}, {"gpu_major": 10}],
    ),
)
def flash_attn_mla_sparse(x: MLADecode) -> bool:
    """First among the sparse candidates on SM90 since 0.26.0."""
    return x.gpu_major == 9 and x.kv_cache_dtype in ("auto", "float16", "bfloat16")

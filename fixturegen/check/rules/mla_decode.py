"""Decode backends of MLA layers: what each asks at selection and at run time."""

from fixturegen.check.inputs import MLADecode
from fixturegen.check.rule import (
    FallsBack,
    PassedOver,
    Rejected,
    SilentlyWrong,
    Source,
    Unproven,
    Where,
    cases,
    rule,
)

MLA = "vllm/v1/attention/backends/mla/"
COMMON = ("FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASHMLA")
DENSE = (*COMMON, "TRITON_MLA")
BASE = MLADecode()
METADATA = Source(
    "vllm",
    "vllm/model_executor/layers/attention/mla_attention.py",
    "MLACommonMetadata.__post_init__",
)


@rule(
    id="mla-head-size",
    title="MLA decode caches are 320 or 576 wide",
    where=Where(until="0.28.0", backends=COMMON),
    otherwise=PassedOver("head_size not supported"),
    source=Source(
        "vllm",
        "vllm/model_executor/layers/attention/mla_attention.py",
        "MLACommonBackend.get_supported_head_sizes",
    ),
    cases=cases(
        BASE,
        holds=[{"kv_lora_rank": 256}],
        breaks=[{"kv_lora_rank": 128}],
        at_limit=[{"kv_lora_rank": 512}, {"kv_lora_rank": 256}],
        past_limit=[
            {"kv_lora_rank": 511},
            {"kv_lora_rank": 513},
            {"kv_lora_rank": 255},
            {"kv_lora_rank": 257},
        ],
    ),
)
def mla_head_size(x: MLADecode) -> bool:
    """The width is `kv_lora_rank + qk_rope_head_dim`: 512 + 64 in DeepSeek-V3.

    TRITON_MLA alone is not asked, so *auto* lands there for other widths and fails later
    (`triton-mla-head-size`).
    """
    return x.head_size in (320, 576)


@rule(
    id="mla-head-size-512",
    variant_of="mla-head-size",
    title="MLA decode caches are 320, 512 or 576 wide",
    where=Where(since="0.30.0", backends=COMMON),
    otherwise=PassedOver("head_size not supported"),
    source=Source(
        "vllm",
        "vllm/model_executor/layers/attention/mla_attention.py",
        "MLACommonBackend.get_supported_head_sizes",
    ),
    cases=cases(
        BASE,
        holds=[{"kv_lora_rank": 256}, {"kv_lora_rank": 448}],
        breaks=[{"kv_lora_rank": 128}],
        at_limit=[{"kv_lora_rank": 512}, {"kv_lora_rank": 448}, {"kv_lora_rank": 256}],
        past_limit=[
            {"kv_lora_rank": 511},
            {"kv_lora_rank": 513},
            {"kv_lora_rank": 447},
            {"kv_lora_rank": 449},
            {"kv_lora_rank": 255},
            {"kv_lora_rank": 257},
        ],
    ),
)
def mla_head_size_512(x: MLADecode) -> bool:
    """As `mla-head-size`, with 512 added for models without a rotary part."""
    return x.head_size in (320, 512, 576)


@rule(
    id="triton-mla-head-size",
    title="TRITON_MLA runs caches that are 320 or 576 wide",
    where=Where(until="0.28.0", backends=("TRITON_MLA",)),
    otherwise=Rejected("Head dimension .* is not supported by MLA"),
    source=METADATA,
    cases=cases(
        BASE,
        holds=[{"kv_lora_rank": 256}],
        breaks=[{"kv_lora_rank": 384}],
        at_limit=[{"kv_lora_rank": 512}, {"kv_lora_rank": 256}],
        past_limit=[{"kv_lora_rank": 448}, {"kv_lora_rank": 511}, {"kv_lora_rank": 257}],
    ),
)
def triton_mla_head_size(x: MLADecode) -> bool:
    """Selection takes any width; the metadata that all MLA backends build asks again."""
    return x.head_size in (320, 576)


@rule(
    id="triton-mla-head-size-512",
    variant_of="triton-mla-head-size",
    title="TRITON_MLA runs caches that are 320, 512 or 576 wide",
    where=Where(since="0.30.0", backends=("TRITON_MLA",)),
    otherwise=Rejected("Head dimension .* is not supported by MLA"),
    source=METADATA,
    cases=cases(
        BASE,
        holds=[{"kv_lora_rank": 256}],
        breaks=[{"kv_lora_rank": 384}],
        at_limit=[{"kv_lora_rank": 512}, {"kv_lora_rank": 448}, {"kv_lora_rank": 256}],
        past_limit=[{"kv_lora_rank": 447}, {"kv_lora_rank": 511}, {"kv_lora_rank": 257}],
    ),
)
def triton_mla_head_size_512(x: MLADecode) -> bool:
    """As `triton-mla-head-size`, with 512 added for models without a rotary part."""
    return x.head_size in (320, 512, 576)


@rule(
    id="mla-decode-sm10x",
    title="FLASHINFER_MLA, CUTLASS_MLA and TOKENSPEED_MLA need SM10x",
    where=Where(backends=("FLASHINFER_MLA", "CUTLASS_MLA", "TOKENSPEED_MLA")),
    otherwise=PassedOver("compute capability not supported"),
    source=Source(
        "vllm", MLA + "flashinfer_mla.py", "FlashInferMLABackend.supports_compute_capability"
    ),
    cases=cases(
        BASE,
        breaks=[{"gpu_major": 12}],
        at_limit=[{"gpu_major": 10}],
        past_limit=[{"gpu_major": 9}, {"gpu_major": 11}],
    ),
)
def mla_decode_sm10x(x: MLADecode) -> bool:
    """SM110 and SM12x are other families: their MLA decode runs on TRITON_MLA."""
    return x.gpu_major == 10


@rule(
    id="mla-decode-sm90",
    title="FLASH_ATTN_MLA and dense FLASHMLA need SM90",
    where=Where(backends=("FLASH_ATTN_MLA", "FLASHMLA"), inputs={"index_topk": 0}),
    otherwise=PassedOver(
        "compute capability not supported|FlashMLA Dense is only supported on Hopper devices"
    ),
    source=Source("vllm", "vllm/v1/attention/ops/flashmla.py", "is_flashmla_dense_supported"),
    cases=cases(
        BASE,
        holds=[{"gpu_major": 9}],
        breaks=[{"gpu_major": 12}],
        at_limit=[{"gpu_major": 9}],
        past_limit=[{"gpu_major": 8}, {"gpu_major": 10}],
    ),
)
def mla_decode_sm90(x: MLADecode) -> bool:
    """FLASHMLA lists SM10x as well, but its dense kernel is asked for and exists on SM90 only."""
    return x.gpu_major == 9


@rule(
    id="mla-decode-dense",
    title="Dense MLA backends do not run DeepSeek-V3.2's sparse attention",
    where=Where(backends=DENSE),
    otherwise=PassedOver("sparse not supported"),
    source=Source(
        "vllm", "vllm/v1/attention/backend.py", "AttentionBackend.validate_configuration"
    ),
    cases=cases(
        BASE,
        breaks=[{"index_topk": 2048}],
        at_limit=[{"index_topk": 0}],
        past_limit=[{"index_topk": 1}],
    ),
)
def mla_decode_dense(x: MLADecode) -> bool:
    """A config with `index_topk` attends to the tokens its indexer picks."""
    return x.index_topk == 0


@rule(
    id="flashinfer-mla-nope",
    title="FLASHINFER_MLA takes qk_nope_head_dim 64, 128 and 192",
    where=Where(backends=("FLASHINFER_MLA",)),
    otherwise=PassedOver(r"FlashInfer MLA kernel requires qk_nope_head_dim in \[64, 128, 192\]"),
    source=Source("vllm", MLA + "flashinfer_mla.py", "FlashInferMLABackend.supports_combination"),
    cases=cases(
        BASE,
        holds=[{"qk_nope_head_dim": 64}, {"qk_nope_head_dim": 192}],
        breaks=[{"qk_nope_head_dim": 16}],
        at_limit=[{"qk_nope_head_dim": 128}],
        past_limit=[{"qk_nope_head_dim": 127}],
    ),
)
def flashinfer_mla_nope(x: MLADecode) -> bool:
    """The kernel works on latents, yet vLLM asks for the dims it was tuned with."""
    return x.qk_nope_head_dim in (64, 128, 192)


@rule(
    id="flashinfer-mla-dims",
    title="FlashInfer's MLA decode takes latents (512, 64) and (256, 64)",
    where=Where(backends=("FLASHINFER_MLA",), until="0.28.0"),
    otherwise=Rejected("Unsupported MLA dimensions, got kv_lora_rank="),
    source=Source("flashinfer-python", "flashinfer/mla.py", "_check_trtllm_gen_mla_shape"),
    cases=cases(
        BASE,
        holds=[{"kv_lora_rank": 256}],
        breaks=[{"kv_lora_rank": 128}],
        at_limit=[{"kv_lora_rank": 512}, {"kv_lora_rank": 256}],
        past_limit=[
            {"kv_lora_rank": 511},
            {"kv_lora_rank": 257},
            {"kv_lora_rank": 255},
            {"kv_lora_rank": 513},
            {"qk_rope_head_dim": 63},
            {"qk_rope_head_dim": 65},
        ],
    ),
)
def flashinfer_mla_dims(x: MLADecode) -> bool:
    """(kv_lora_rank, qk_rope_head_dim); checked by FlashInfer's Python when decode first runs."""
    return x.kv_lora_rank in (256, 512) and x.qk_rope_head_dim == 64


@rule(
    id="flashinfer-mla-dims-nope",
    variant_of="flashinfer-mla-dims",
    title="FlashInfer's MLA decode takes latents (512, 64), (256, 64) and (512, 0)",
    where=Where(backends=("FLASHINFER_MLA",), since="0.30.0"),
    otherwise=Rejected("Unsupported MLA dimensions"),
    source=Source("flashinfer-python", "flashinfer/mla/_core.py", "_check_trtllm_gen_mla_shape"),
    cases=cases(
        BASE,
        holds=[{"kv_lora_rank": 256}],
        breaks=[{"kv_lora_rank": 128}],
        at_limit=[{"kv_lora_rank": 512}, {"kv_lora_rank": 256}, {"qk_rope_head_dim": 0}],
        past_limit=[
            {"kv_lora_rank": 511},
            {"kv_lora_rank": 257},
            {"kv_lora_rank": 255},
            {"kv_lora_rank": 513},
            {"qk_rope_head_dim": 63},
            {"qk_rope_head_dim": 65},
            {"qk_rope_head_dim": 1},
            {"kv_lora_rank": 256, "qk_rope_head_dim": 0},
            {"kv_lora_rank": 511, "qk_rope_head_dim": 0},
            {"kv_lora_rank": 513, "qk_rope_head_dim": 0},
        ],
    ),
)
def flashinfer_mla_dims_nope(x: MLADecode) -> bool:
    """As `flashinfer-mla-dims`, with latents without a rotary part added (FlashInfer 0.6.18)."""
    return (x.kv_lora_rank in (256, 512) and x.qk_rope_head_dim == 64) or (
        x.kv_lora_rank == 512 and x.qk_rope_head_dim == 0
    )


@rule(
    id="flashinfer-mla-heads",
    title="trtllm-gen's MLA decode wants whole tiles of query heads",
    where=Where(until="0.26.0", backends=("FLASHINFER_MLA",)),
    otherwise=Rejected("The numHeadsQ/numHeadsKv is not supported"),
    source=Source(
        "flashinfer-python", "include/flashinfer/trtllm/fmha/fmhaKernels.cuh", "computeNumCtas"
    ),
    cases=cases(
        BASE,
        holds=[{"num_heads": n} for n in (1, 16, 64, 192)],
        breaks=[{"num_heads": 24}],
        at_limit=[{"num_heads": n} for n in (16, 32, 63, 64, 128)],
        past_limit=[{"num_heads": n} for n in (17, 31, 65, 96, 126, 127, 130)],
    ),
)
def flashinfer_mla_heads(x: MLADecode) -> bool:
    """Heads on one rank are grouped in tiles of 16 up to 32 heads, of 64 above.

    24 and 96 fail; up to 16, 32 to 64, and multiples of 64 run.
    """
    return x.num_heads <= 16 or x.num_heads // 32 == 1 or x.num_heads % 64 == 0


@rule(
    id="flashinfer-mla-heads-cute",
    variant_of="flashinfer-mla-heads",
    title="Query heads that trtllm-gen cannot tile fall back to the cute-dsl kernel",
    where=Where(since="0.28.0", backends=("FLASHINFER_MLA",)),
    otherwise=FallsBack("cute-dsl"),
    source=Source("vllm", MLA + "flashinfer_mla.py", "_trtllm_gen_mla_decode_supports_num_heads"),
    cases=cases(
        BASE,
        holds=[{"num_heads": n} for n in (1, 16, 64, 192)],
        breaks=[{"num_heads": 24}],
        at_limit=[{"num_heads": n} for n in (16, 32, 63, 64, 128)],
        past_limit=[{"num_heads": n} for n in (17, 31, 65, 96, 126, 127, 130)],
    ),
)
def flashinfer_mla_heads_cute(x: MLADecode) -> bool:
    """vLLM warns "trtllm-gen MLA decode does not support num_heads=..." and carries on."""
    return x.num_heads <= 16 or x.num_heads // 32 == 1 or x.num_heads % 64 == 0


@rule(
    id="tokenspeed-mla-missing",
    title="TOKENSPEED_MLA exists from vLLM 0.22",
    where=Where(until="0.20.2", backends=("TOKENSPEED_MLA",)),
    otherwise=PassedOver("Unknown attention backend: 'TOKENSPEED_MLA'"),
    source=Source("vllm", "vllm/v1/attention/backends/registry.py", "AttentionBackendEnum"),
    cases=cases(
        BASE,
        holds=[{"kv_lora_rank": 0}],
        breaks=[{}],
        at_limit=[{"kv_lora_rank": 0}],
        past_limit=[{"kv_lora_rank": 1}],
    ),
)
def tokenspeed_mla_missing(x: MLADecode) -> bool:
    """Every layer with a latent is refused, as the name means nothing to older releases."""
    return x.kv_lora_rank < 1


@rule(
    id="tokenspeed-mla-dims",
    title="TOKENSPEED_MLA takes DeepSeek-R1's dims (128, 64, 128)",
    where=Where(since="0.22.1", backends=("TOKENSPEED_MLA",)),
    otherwise=PassedOver("tokenspeed_mla requires DeepSeek R1 MLA dimensions"),
    source=Source("vllm", MLA + "tokenspeed_mla.py", "TokenspeedMLABackend.supports_combination"),
    cases=cases(
        BASE,
        breaks=[{"qk_nope_head_dim": 64}],
        at_limit=[{}],
        past_limit=[
            {"qk_nope_head_dim": 127},
            {"qk_nope_head_dim": 129},
            {"qk_rope_head_dim": 63},
            {"qk_rope_head_dim": 65},
            {"v_head_dim": 127},
            {"v_head_dim": 129},
        ],
    ),
)
def tokenspeed_mla_dims(x: MLADecode) -> bool:
    """Its package, tokenspeed-mla, is optional; without it the backend is passed over as well."""
    return x.qk_nope_head_dim == 128 and x.qk_rope_head_dim == 64 and x.v_head_dim == 128


@rule(
    id="tokenspeed-mla-kv-cache",
    title="TOKENSPEED_MLA reads an FP8 KV cache only",
    where=Where(since="0.22.1", backends=("TOKENSPEED_MLA",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source(
        "vllm", MLA + "tokenspeed_mla.py", "TokenspeedMLABackend.supported_kv_cache_dtypes"
    ),
    cases=cases(
        BASE,
        holds=[{"kv_cache_dtype": "fp8_e4m3"}],
        breaks=[{"kv_cache_dtype": "bfloat16"}],
        at_limit=[{"kv_cache_dtype": "fp8"}],
        past_limit=[{"kv_cache_dtype": "auto"}],
    ),
)
def tokenspeed_mla_kv_cache(x: MLADecode) -> bool:
    """With `kv_cache_dtype=auto` it is never chosen."""
    return x.kv_cache_dtype in ("fp8", "fp8_e4m3")


@rule(
    id="flash-attn-mla-kv-cache",
    title="FLASH_ATTN_MLA reads a 16-bit KV cache only",
    where=Where(backends=("FLASH_ATTN_MLA",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source(
        "vllm", MLA + "flashattn_mla.py", "FlashAttnMLABackend.supported_kv_cache_dtypes"
    ),
    cases=cases(
        BASE,
        holds=[{"kv_cache_dtype": "float16"}, {"kv_cache_dtype": "bfloat16"}],
        breaks=[{"kv_cache_dtype": "fp8_e4m3"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"kv_cache_dtype": "fp8"}],
    ),
)
def flash_attn_mla_kv_cache(x: MLADecode) -> bool:
    """With an FP8 cache SM90 decodes on FLASHMLA."""
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16")


@rule(
    id="mla-kv-cache",
    title="Other MLA backends read 16-bit and FP8 E4M3 KV caches",
    where=Where(backends=("FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", "TRITON_MLA")),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source("vllm", MLA + "flashmla.py", "FlashMLABackend.supported_kv_cache_dtypes"),
    cases=cases(
        BASE,
        holds=[{"kv_cache_dtype": d} for d in ("float16", "bfloat16", "fp8", "fp8_e4m3")],
        breaks=[{"kv_cache_dtype": "nvfp4"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"kv_cache_dtype": "fp8_e5m2"}],
    ),
)
def mla_kv_cache(x: MLADecode) -> bool:
    """FP8 E5M2 is not among them, in any release read."""
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")


@rule(
    id="triton-mla-fp8-kv-cache",
    title="TRITON_MLA reads an FP8 KV cache from SM89 on",
    where=Where(since="0.26.0", gpus=("sm80", "sm86"), backends=("TRITON_MLA",)),
    otherwise=Rejected("FP8 KV cache is not supported by the Triton MLA backend"),
    source=Source("vllm", MLA + "triton_mla.py", "TritonMLAImpl.__init__"),
    cases=cases(
        BASE,
        holds=[{"kv_cache_dtype": "float16"}, {"kv_cache_dtype": "bfloat16"}],
        breaks=[{"kv_cache_dtype": "fp8_e4m3"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"kv_cache_dtype": "fp8"}],
    ),
)
def triton_mla_fp8_kv_cache(x: MLADecode) -> bool:
    """SM80 and SM86 have no native FP8; the layer says so when it is built."""
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16")


@rule(
    id="mla-dtype",
    title="MLA decode computes in 16 bits",
    where=Where(backends=DENSE),
    otherwise=PassedOver("dtype not supported"),
    source=Source("vllm", MLA + "triton_mla.py", "TritonMLABackend.supported_dtypes"),
    cases=cases(
        BASE,
        holds=[{"dtype": "float16"}],
        breaks=[{"dtype": "float32"}],
        at_limit=[{"dtype": "bfloat16"}],
        past_limit=[{"dtype": "float32"}],
    ),
)
def mla_dtype(x: MLADecode) -> bool:
    """No MLA backend of a GPU takes a checkpoint in float32."""
    return x.dtype in ("float16", "bfloat16")


@rule(
    id="cutlass-mla-block-size",
    title="CUTLASS_MLA wants KV blocks of 128 tokens",
    where=Where(backends=("CUTLASS_MLA",)),
    otherwise=PassedOver("block_size not supported"),
    source=Source(
        "vllm", MLA + "cutlass_mla.py", "CutlassMLABackend.get_supported_kernel_block_sizes"
    ),
    cases=cases(
        BASE,
        holds=[{"block_size": 0}, {"block_size": 256}],
        breaks=[{"block_size": 64}],
        at_limit=[{"block_size": 128}],
        past_limit=[{"block_size": 129}, {"block_size": 127}],
    ),
)
def cutlass_mla_block_size(x: MLADecode) -> bool:
    """Without `--block-size` the engine picks the backend's own."""
    return x.block_size % 128 == 0


@rule(
    id="flashmla-block-size",
    title="FLASHMLA wants KV blocks of 64 tokens",
    where=Where(backends=("FLASHMLA", "FLASHMLA_SPARSE", "FLASH_ATTN_MLA_SPARSE")),
    otherwise=PassedOver("block_size not supported"),
    source=Source("vllm", MLA + "flashmla.py", "FlashMLABackend.get_supported_kernel_block_sizes"),
    cases=cases(
        BASE,
        holds=[{"block_size": 0}, {"block_size": 128}],
        breaks=[{"block_size": 16}],
        at_limit=[{"block_size": 64}],
        past_limit=[{"block_size": 65}, {"block_size": 63}],
    ),
)
def flashmla_block_size(x: MLADecode) -> bool:
    """Without `--block-size` the engine picks the backend's own."""
    return x.block_size % 64 == 0


@rule(
    id="flashinfer-mla-block-size",
    title="FLASHINFER_MLA and TOKENSPEED_MLA want KV blocks of 32 or 64 tokens",
    where=Where(backends=("FLASHINFER_MLA", "TOKENSPEED_MLA", "FLASHINFER_MLA_SPARSE")),
    otherwise=PassedOver("block_size not supported"),
    source=Source(
        "vllm", MLA + "flashinfer_mla.py", "FlashInferMLABackend.get_supported_kernel_block_sizes"
    ),
    cases=cases(
        BASE,
        holds=[{"block_size": 0}, {"block_size": 64}],
        breaks=[{"block_size": 16}],
        at_limit=[{"block_size": 32}],
        past_limit=[{"block_size": 33}, {"block_size": 31}],
    ),
)
def flashinfer_mla_block_size(x: MLADecode) -> bool:
    """Larger multiples are split into kernel blocks."""
    return x.block_size % 32 == 0


@rule(
    id="flash-attn-mla-block-size",
    title="FLASH_ATTN_MLA and TRITON_MLA want KV blocks of a multiple of 16 tokens",
    where=Where(backends=("FLASH_ATTN_MLA", "TRITON_MLA")),
    otherwise=PassedOver("block_size not supported"),
    source=Source(
        "vllm", MLA + "triton_mla.py", "TritonMLABackend.get_supported_kernel_block_sizes"
    ),
    cases=cases(
        BASE,
        holds=[{"block_size": 0}, {"block_size": 64}],
        breaks=[{"block_size": 8}],
        at_limit=[{"block_size": 16}],
        past_limit=[{"block_size": 17}, {"block_size": 15}],
    ),
)
def flash_attn_mla_block_size(x: MLADecode) -> bool:
    """`--block-size` must be a multiple of the kernel's 16 tokens."""
    return x.block_size % 16 == 0


@rule(
    id="cutlass-mla-heads",
    title="CUTLASS_MLA takes at most 128 query heads on one rank",
    where=Where(backends=("CUTLASS_MLA",)),
    otherwise=Rejected("H must be <= 128, but got"),
    source=Source("vllm", MLA + "cutlass_mla.py", "CutlassMLAImpl._sm100_cutlass_mla_decode"),
    cases=cases(
        BASE,
        holds=[{"num_heads": 16}],
        breaks=[{"num_heads": 256}],
        at_limit=[{"num_heads": 128}],
        past_limit=[{"num_heads": 129}],
    ),
)
def cutlass_mla_heads(x: MLADecode) -> bool:
    """Fewer heads are padded to 128, which costs time, not correctness."""
    return x.num_heads <= 128


@rule(
    id="flashmla-dims",
    title="FLASHMLA's dense kernel takes a latent of 512 with a rotary key of 64",
    where=Where(backends=("FLASHMLA",)),
    otherwise=Rejected(r"head_size_k == 576|head_size_v == 512|Only head_size"),
    source=Source("FlashMLA", "csrc/api/dense_decode.h", "dense_attn_decode_interface"),
    cases=cases(
        BASE,
        breaks=[{"kv_lora_rank": 256}],
        at_limit=[{}],
        past_limit=[
            {"kv_lora_rank": 511},
            {"kv_lora_rank": 513},
            {"kv_lora_rank": 511, "qk_rope_head_dim": 65},
            {"kv_lora_rank": 513, "qk_rope_head_dim": 63},
            {"qk_rope_head_dim": 63},
            {"qk_rope_head_dim": 65},
        ],
    ),
)
def flashmla_dims(x: MLADecode) -> bool:
    """Selection lets 320-wide caches through; the kernel does not.

    FlashMLA is built into vLLM's wheels and is in no package index, so this bound is read from
    its repository and not tested here.
    """
    return x.head_size == 576 and x.kv_lora_rank == 512


@rule(
    id="triton-mla-spec",
    title="TRITON_MLA decodes one token a request; speculation gives wrong text",
    where=Where(until="0.26.0", backends=("TRITON_MLA",)),
    otherwise=SilentlyWrong("draft tokens read other requests' cache blocks"),
    source=Source("vllm", MLA + "triton_mla.py", "TritonMLAImpl.forward_mqa"),
    cases=cases(
        BASE,
        breaks=[{"query_len": 4}],
        at_limit=[{"query_len": 1}],
        past_limit=[{"query_len": 2}],
    ),
)
def triton_mla_spec(x: MLADecode) -> bool:
    """A decode step with drafts has several query rows a request.

    Up to 0.26.0 the backend declares no support for that and hands its kernel one block-table row
    a request. Measured on an H200 with 0.26.0: the target alone is right, with MTP or Eagle 0 of
    200 prompts are. Choose another backend (`attention=FLASH_ATTN_MLA` on SM90).
    """
    return x.query_len == 1


@rule(
    id="triton-mla-spec-unproven",
    variant_of="triton-mla-spec",
    title="TRITON_MLA with speculation in vLLM 0.28 and 0.30 was neither run nor fixed",
    where=Where(since="0.28.0", until="0.30.0", backends=("TRITON_MLA",)),
    otherwise=Unproven(
        "0.26.0 is silently wrong here; the causal path of forward_mqa is unchanged until 0.32.0"
    ),
    source=Source("vllm", MLA + "triton_mla.py", "TritonMLAImpl.forward_mqa"),
    cases=cases(
        BASE,
        breaks=[{"query_len": 4}],
        at_limit=[{"query_len": 1}],
        past_limit=[{"query_len": 2}],
    ),
)
def triton_mla_spec_unproven(x: MLADecode) -> bool:
    """The block table is expanded for non-causal blocks only.

    So what makes `triton-mla-spec` wrong still stands in the source; nobody has measured it.
    0.32.0 expands it for causal blocks too and declares uniform query lengths.
    """
    return x.query_len == 1


@rule(
    id="batch-invariant-mla",
    title="VLLM_BATCH_INVARIANT leaves FLASH_ATTN_MLA and TRITON_MLA",
    where=Where(since="0.20.2", env=("VLLM_BATCH_INVARIANT",)),
    otherwise=PassedOver("batch invariance not supported"),
    source=Source(
        "vllm", "vllm/v1/attention/backend.py", "AttentionBackend.validate_configuration"
    ),
    cases=cases(
        BASE,
        holds=[{"backend": "TRITON_MLA"}],
        breaks=[{"backend": "CUTLASS_MLA"}],
        at_limit=[{"backend": "FLASH_ATTN_MLA"}],
        past_limit=[{"backend": "FLASHINFER_MLA"}],
    ),
)
def batch_invariant_mla(x: MLADecode) -> bool:
    """Batch-invariant runs pass over backends whose results depend on the batch."""
    return x.backend in ("FLASH_ATTN_MLA", "TRITON_MLA")

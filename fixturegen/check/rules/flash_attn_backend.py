"""What the FLASH_ATTN backend takes at selection (attention with MLA off)."""

from fixturegen.check.inputs import Attention
from fixturegen.check.rule import PassedOver, Source, Where, cases, rule

FILE = "vllm/v1/attention/backends/flash_attn.py"
SM90_FP8 = Attention(gpu_major=9, flash_attn=3, default_flash_attn=3, kv_cache_dtype="fp8")
SIXTEEN_BITS = [
    {"kv_cache_dtype": "auto", "gpu_major": 8, "flash_attn": 2, "default_flash_attn": 2},
    {"kv_cache_dtype": "bfloat16", "gpu_major": 8, "flash_attn": 2, "default_flash_attn": 2},
    {"kv_cache_dtype": "float16", "gpu_major": 8, "flash_attn": 2, "default_flash_attn": 2},
]
FA4_GPUS = ("sm90", "sm100", "sm103", "sm110")
OTHER_GPUS = ("sm80", "sm86", "sm89", "sm120", "sm121")


@rule(
    id="flash-attn-head-size",
    title="FLASH_ATTN takes head sizes up to 256 that 8 divides",
    where=Where(until="0.19.1", backends=("FLASH_ATTN",)),
    otherwise=PassedOver("head_size not supported"),
    source=Source("vllm", FILE, "FlashAttentionBackend.supports_head_size"),
    cases=cases(
        Attention(),
        holds=[{"head_size": 192}],
        breaks=[{"head_size": 320}],
        at_limit=[{"head_size": 256}, {"head_size": 8}],
        past_limit=[{"head_size": 264}, {"head_size": 257}, {"head_size": 129}, {"head_size": 63}],
    ),
)
def flash_attn_head_size(x: Attention) -> bool:
    """With MLA off the head size is `qk_nope_head_dim + qk_rope_head_dim`."""
    return x.head_size % 8 == 0 and x.head_size <= 256


@rule(
    id="flash-attn-head-size-fa4",
    variant_of="flash-attn-head-size",
    title="FLASH_ATTN takes head sizes up to 512 where FA4 exists",
    where=Where(since="0.20.2", backends=("FLASH_ATTN",), gpus=FA4_GPUS),
    otherwise=PassedOver("head_size not supported"),
    source=Source("vllm", FILE, "FlashAttentionBackend.supports_head_size"),
    cases=cases(
        Attention(),
        holds=[{"head_size": 192}, {"head_size": 320}],
        breaks=[{"head_size": 1024}],
        at_limit=[{"head_size": 512}, {"head_size": 8}],
        past_limit=[{"head_size": 520}, {"head_size": 511}, {"head_size": 63}],
    ),
)
def flash_attn_head_size_fa4(x: Attention) -> bool:
    """FA4 ships for SM90, SM10x and SM110 and raises the limit of selection to 512.

    Selection asks nothing about V and nothing about the GPU's own limits: whether the kernel
    takes the dims is decided later, by the `fa4-*` rules.
    """
    return x.head_size % 8 == 0 and x.head_size <= 512


@rule(
    id="flash-attn-head-size-fa2",
    variant_of="flash-attn-head-size",
    title="FLASH_ATTN takes head sizes up to 256 where only FA2 exists",
    where=Where(since="0.20.2", backends=("FLASH_ATTN",), gpus=OTHER_GPUS),
    otherwise=PassedOver("head_size not supported"),
    source=Source("vllm", FILE, "FlashAttentionBackend.supports_head_size"),
    cases=cases(
        Attention(gpu_major=8),
        holds=[{"head_size": 192}],
        breaks=[{"head_size": 320}],
        at_limit=[{"head_size": 256}, {"head_size": 8}],
        past_limit=[{"head_size": 264}, {"head_size": 257}, {"head_size": 129}, {"head_size": 63}],
    ),
)
def flash_attn_head_size_fa2(x: Attention) -> bool:
    """SM8x and SM12x have no FA4, so the limit of selection stays at FA2's."""
    return x.head_size % 8 == 0 and x.head_size <= 256


@rule(
    id="flash-attn-dtype",
    title="FLASH_ATTN computes in 16 bits",
    where=Where(backends=("FLASH_ATTN",)),
    otherwise=PassedOver("dtype not supported"),
    source=Source("vllm", FILE, "FlashAttentionBackend.supported_dtypes"),
    cases=cases(
        Attention(),
        holds=[{"dtype": "float16"}],
        breaks=[{"dtype": "float32"}],
        at_limit=[{"dtype": "bfloat16"}],
        past_limit=[{"dtype": "float32"}],
    ),
)
def flash_attn_dtype(x: Attention) -> bool:
    """vLLM computes in bfloat16 for a checkpoint in float32, unless asked for `--dtype float32`."""
    return x.dtype in ("float16", "bfloat16")


@rule(
    id="flash-attn-block-size",
    title="FLASH_ATTN wants KV blocks of a multiple of 16 tokens",
    where=Where(backends=("FLASH_ATTN",)),
    otherwise=PassedOver("block_size not supported"),
    source=Source("vllm", FILE, "FlashAttentionBackend.get_supported_kernel_block_sizes"),
    cases=cases(
        Attention(),
        holds=[{"block_size": 0}, {"block_size": 64}],
        breaks=[{"block_size": 8}],
        at_limit=[{"block_size": 16}],
        past_limit=[{"block_size": 17}, {"block_size": 15}],
    ),
)
def flash_attn_block_size(x: Attention) -> bool:
    """From 0.30.0, FA4's own kernel for (256, 256) takes pages of 128 tokens only.

    That narrower case is decided by `fa4-hd256-block-size`.
    """
    return x.block_size % 16 == 0


@rule(
    id="flash-attn-fp8-kv-cache",
    title="FLASH_ATTN reads an FP8 KV cache where FA3 is the GPU's version: on SM90",
    where=Where(until="0.20.2", backends=("FLASH_ATTN",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source("vllm", FILE, "FlashAttentionBackend.supports_kv_cache_dtype"),
    cases=cases(
        SM90_FP8,
        holds=[*SIXTEEN_BITS, {"kv_cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "fp8_e5m2"}],
        breaks=[{"gpu_major": 8, "default_flash_attn": 2}, {"kv_cache_dtype": "nvfp4"}],
        at_limit=[{}, {"flash_attn": 4, "head_size": 512}],
        past_limit=[
            {"default_flash_attn": 2},
            {"default_flash_attn": 4},
            {"gpu_major": 10},
            {"gpu_major": 8},
        ],
    ),
)
def flash_attn_fp8_kv_cache(x: Attention) -> bool:
    """Elsewhere *auto* moves on to FLASHINFER or TRITON_ATTN when `--kv-cache-dtype fp8` is set.

    Any name that starts with fp8 passes selection, `fp8_e5m2` included, which FlashAttention has
    no kernel for.
    """
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16") or (
        x.kv_cache_dtype.startswith("fp8") and x.default_flash_attn == 3 and x.gpu_major == 9
    )


@rule(
    id="flash-attn-fp8-kv-cache-e4m3",
    variant_of="flash-attn-fp8-kv-cache",
    title="FLASH_ATTN reads an E4M3 KV cache where FA3 is the GPU's version: on SM90",
    where=Where(since="0.22.1", until="0.26.0", backends=("FLASH_ATTN",)),
    otherwise=PassedOver("kv_cache_dtype not supported"),
    source=Source("vllm", FILE, "FlashAttentionBackend.supports_kv_cache_dtype"),
    cases=cases(
        SM90_FP8,
        holds=[*SIXTEEN_BITS, {"kv_cache_dtype": "fp8_e4m3"}],
        breaks=[{"gpu_major": 8, "default_flash_attn": 2}, {"kv_cache_dtype": "nvfp4"}],
        at_limit=[{}, {"flash_attn": 4, "head_size": 512}],
        past_limit=[
            {"kv_cache_dtype": "fp8_e5m2"},
            {"default_flash_attn": 2},
            {"default_flash_attn": 4},
            {"gpu_major": 10},
            {"gpu_major": 8},
        ],
    ),
)
def flash_attn_fp8_kv_cache_e4m3(x: Attention) -> bool:
    """As `flash-attn-fp8-kv-cache`, with `fp8_e5m2` left out at selection."""
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16") or (
        x.kv_cache_dtype in ("fp8", "fp8_e4m3") and x.default_flash_attn == 3 and x.gpu_major == 9
    )


@rule(
    id="flash-attn-fp8-kv-cache-fa4",
    variant_of="flash-attn-fp8-kv-cache",
    title="FLASH_ATTN reads an FP8 KV cache with FA3 on SM90 and FA4 on SM10x",
    where=Where(since="0.28.0", until="0.30.0", backends=("FLASH_ATTN",)),
    otherwise=PassedOver("kv_cache_dtype not supported|FP8 KV cache requires FA3 on SM90"),
    source=Source("vllm", FILE, "FlashAttentionBackend.supports_combination"),
    cases=cases(
        SM90_FP8,
        holds=[*SIXTEEN_BITS, {"kv_cache_dtype": "fp8_e4m3"}],
        breaks=[{"kv_cache_dtype": "fp8_e5m2"}, {"gpu_major": 8, "flash_attn": 2}],
        at_limit=[{}, {"gpu_major": 10, "flash_attn": 4}],
        past_limit=[
            {"flash_attn": 2},
            {"flash_attn": 4},
            {"gpu_major": 10, "flash_attn": 2},
            {"gpu_major": 10, "flash_attn": 3},
            {"gpu_major": 10, "flash_attn": 5},
            {"gpu_major": 11, "flash_attn": 4},
            {"gpu_major": 8},
            {"kv_cache_dtype": "nvfp4"},
        ],
    ),
)
def flash_attn_fp8_kv_cache_fa4(x: Attention) -> bool:
    """The FlashAttention version is the one that the layer's own head dims lead to.

    With DeepSeek-V3's dims and MLA off that is FA2 on SM10x, so an FP8 cache moves the layer to
    another backend there.
    """
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16") or (
        x.kv_cache_dtype in ("fp8", "fp8_e4m3")
        and ((x.flash_attn == 3 and x.gpu_major == 9) or (x.flash_attn == 4 and x.gpu_major == 10))
    )


@rule(
    id="flash-attn-fp8-kv-cache-512",
    variant_of="flash-attn-fp8-kv-cache",
    title="FLASH_ATTN reads an FP8 KV cache with FA3, FA4 at head size 512, or FA4 on SM10x",
    where=Where(since="0.32.0", backends=("FLASH_ATTN",)),
    otherwise=PassedOver("kv_cache_dtype not supported|FP8 KV cache requires FA3 on SM90"),
    source=Source("vllm", FILE, "FlashAttentionBackend.supports_combination"),
    cases=cases(
        SM90_FP8,
        holds=[*SIXTEEN_BITS, {"kv_cache_dtype": "fp8_e4m3"}],
        breaks=[{"kv_cache_dtype": "fp8_e5m2"}, {"gpu_major": 8, "flash_attn": 2}],
        at_limit=[
            {},
            {"gpu_major": 10, "flash_attn": 4},
            {"flash_attn": 4, "head_size": 512},
        ],
        past_limit=[
            {"flash_attn": 2},
            {"flash_attn": 2, "head_size": 512},
            {"flash_attn": 5, "head_size": 512},
            {"flash_attn": 4, "head_size": 511},
            {"flash_attn": 4, "head_size": 513},
            {"gpu_major": 10, "flash_attn": 2},
            {"gpu_major": 10, "flash_attn": 3},
            {"gpu_major": 10, "flash_attn": 5},
            {"gpu_major": 11, "flash_attn": 4},
            {"gpu_major": 8},
            {"kv_cache_dtype": "nvfp4"},
        ],
    ),
)
def flash_attn_fp8_kv_cache_512(x: Attention) -> bool:
    """As `flash-attn-fp8-kv-cache-fa4`, with FA4 on SM90 for head size 512."""
    return x.kv_cache_dtype in ("auto", "float16", "bfloat16") or (
        x.kv_cache_dtype in ("fp8", "fp8_e4m3")
        and (
            (x.gpu_major == 9 and (x.flash_attn == 3 or (x.flash_attn == 4 and x.head_size == 512)))
            or (x.flash_attn == 4 and x.gpu_major == 10)
        )
    )


@rule(
    id="fa4-hd256-block-size",
    title="FA4's (256, 256) kernel wants KV blocks of 128 tokens",
    where=Where(
        since="0.30.0",
        gpus=("sm100", "sm103", "sm110"),
        backends=("FLASH_ATTN",),
        inputs={"flash_attn": 4, "head_size": 256},
    ),
    otherwise=PassedOver("block_size not supported"),
    source=Source("vllm", FILE, "FlashAttentionBackend._get_fa4_hd256_block_size"),
    cases=cases(
        Attention(head_size=256),
        holds=[{"block_size": 0}, {"block_size": 256}],
        breaks=[{"block_size": 16}],
        at_limit=[{"block_size": 128}],
        past_limit=[{"block_size": 129}, {"block_size": 127}],
    ),
)
def fa4_hd256_block_size(x: Attention) -> bool:
    """Without `--block-size` the engine takes 128 by itself."""
    return x.block_size % 128 == 0


@rule(
    id="fa4-fp8-block-size",
    title="FA4 reads an FP8 KV cache on SM90 in blocks of 64 tokens",
    where=Where(
        since="0.32.0",
        gpus=("sm90",),
        backends=("FLASH_ATTN",),
        inputs={"flash_attn": 4, "head_size": 512},
    ),
    otherwise=PassedOver("block_size not supported"),
    source=Source("vllm", FILE, "FlashAttentionBackend._get_sm90_fa4_fp8_kv_block_size"),
    cases=cases(
        Attention(gpu_major=9, head_size=512, kv_cache_dtype="fp8"),
        holds=[
            {"block_size": 128},
            {"block_size": 16, "kv_cache_dtype": "auto"},
            {"block_size": 16, "kv_cache_dtype": "bfloat16"},
        ],
        breaks=[{"block_size": 16}, {"block_size": 16, "kv_cache_dtype": "fp8_e4m3"}],
        at_limit=[{"block_size": 64}],
        past_limit=[{"block_size": 65}, {"block_size": 63}],
    ),
)
def fa4_fp8_block_size(x: Attention) -> bool:
    """Without `--block-size` the engine takes 64 by itself."""
    return x.kv_cache_dtype not in ("fp8", "fp8_e4m3") or x.block_size % 64 == 0

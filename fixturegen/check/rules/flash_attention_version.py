"""Which FlashAttention version vLLM calls: the steps of get_flash_attn_version, in its order."""

from fixturegen.check.inputs import FlashAttention
from fixturegen.check.rule import FallsBack, Rejected, Source, Where, cases, rule

SOURCE = Source("vllm", "vllm/v1/attention/backends/fa_utils.py", "get_flash_attn_version")
BLACKWELL = ("sm100", "sm103", "sm110", "sm120", "sm121")


@rule(
    id="fa3-on-blackwell",
    title="FA3 does not exist on SM10x and SM110: FA4 takes its place",
    where=Where(gpus=("sm100", "sm103", "sm110")),
    otherwise=FallsBack("FA4", {"version": 4}),
    source=SOURCE,
    cases=cases(
        FlashAttention(version=3),
        holds=[{"version": 2}],
        breaks=[{"version": 3}],
        at_limit=[{"version": 4}, {"version": 2}],
        past_limit=[{"version": 3}],
    ),
)
def fa3_on_blackwell(x: FlashAttention) -> bool:
    """Matters only when `attention_config.flash_attn_version` is set to 3."""
    return x.version != 3


@rule(
    id="fa3-on-sm12x",
    title="FA3 does not exist on SM12x: FA2 takes its place",
    where=Where(gpus=("sm120", "sm121")),
    otherwise=FallsBack("FA2", {"version": 2}),
    source=SOURCE,
    cases=cases(
        FlashAttention(version=3),
        holds=[{"version": 2}],
        breaks=[{"version": 3}],
        at_limit=[{"version": 4}, {"version": 2}],
        past_limit=[{"version": 3}],
    ),
)
def fa3_on_sm12x(x: FlashAttention) -> bool:
    """Matters only when `attention_config.flash_attn_version` is set to 3."""
    return x.version != 3


@rule(
    id="fa3-head-size-sm90",
    title="Head sizes above 256 move from FA3 to FA4 on SM90",
    where=Where(since="0.22.1", gpus=("sm90",), inputs={"version": 3}),
    otherwise=FallsBack("FA4", {"version": 4}),
    source=SOURCE,
    cases=cases(
        FlashAttention(version=3),
        breaks=[{"head_size": 512}],
        at_limit=[{"head_size": 256}],
        past_limit=[{"head_size": 257}],
    ),
)
def fa3_head_size_sm90(x: FlashAttention) -> bool:
    """FA3 has no kernel above 256; before 0.22.1 the layer did this step itself (0.20.2)."""
    return x.head_size <= 256


@rule(
    id="fa3-head-size-sm90-layer",
    variant_of="fa3-head-size-sm90",
    title="Head sizes above 256 move from FA3 to FA4 on SM90, in the attention layer",
    where=Where(
        since="0.20.2",
        until="0.20.2",
        gpus=("sm90",),
        inputs={"version": 3, "caller": "decoder"},
    ),
    otherwise=FallsBack("FA4", {"version": 4}),
    source=Source(
        "vllm", "vllm/v1/attention/backends/flash_attn.py", "FlashAttentionImpl.__init__"
    ),
    cases=cases(
        FlashAttention(version=3),
        breaks=[{"head_size": 512}],
        at_limit=[{"head_size": 256}],
        past_limit=[{"head_size": 257}],
    ),
)
def fa3_head_size_sm90_layer(x: FlashAttention) -> bool:
    """0.20.2 upgrades in the layer, not in get_flash_attn_version, so MLA prefill is left out."""
    return x.head_size <= 256


@rule(
    id="fa4-batch-invariant",
    title="VLLM_BATCH_INVARIANT turns FA4 into FA2",
    where=Where(env=("VLLM_BATCH_INVARIANT",)),
    otherwise=FallsBack("FA2", {"version": 2}),
    source=SOURCE,
    cases=cases(
        FlashAttention(version=2),
        breaks=[{"version": 4}],
        at_limit=[{"version": 3}],
        past_limit=[{"version": 4}],
    ),
)
def fa4_batch_invariant(x: FlashAttention) -> bool:
    """FA4 schedules by batch shape, which batch-invariant runs must not."""
    return x.version < 4


@rule(
    id="fa4-blackwell-192",
    title="Head sizes above 128 fall back from FA4 to FA2 on Blackwell, except 192",
    where=Where(until="0.26.0", gpus=BLACKWELL, inputs={"version": 4}),
    otherwise=FallsBack("FA2", {"version": 2}),
    source=SOURCE,
    cases=cases(
        FlashAttention(),
        holds=[{"head_size": 64}, {"head_size_v": 128}],
        breaks=[{"head_size": 256, "head_size_v": 256}],
        at_limit=[{"head_size": 128}, {"head_size": 192}],
        past_limit=[{"head_size": 129}, {"head_size": 191}, {"head_size": 193}],
    ),
)
def fa4_blackwell_192(x: FlashAttention) -> bool:
    """The exemption of 192 does not look at V.

    It was meant for MLA prefill's (192, 128). With `VLLM_MLA_DISABLE=1` the layer calls with
    (192, 192), which stays on FA4 too and dies in its kernel: see `fa4-head-dims`.
    """
    return x.head_size <= 128 or x.head_size == 192


@rule(
    id="fa4-blackwell-192-128",
    variant_of="fa4-blackwell-192",
    title="Head sizes above 128 fall back from FA4 to FA2 on Blackwell, except (192, 128)",
    where=Where(since="0.28.0", until="0.28.0", gpus=BLACKWELL, inputs={"version": 4}),
    otherwise=FallsBack("FA2", {"version": 2}),
    source=SOURCE,
    cases=cases(
        FlashAttention(),
        holds=[{"head_size": 64, "head_size_v": 64}],
        breaks=[{"head_size": 256, "head_size_v": 256}],
        at_limit=[{"head_size": 128}, {"head_size_v": 128}],
        past_limit=[
            {"head_size": 129},
            {"head_size": 191, "head_size_v": 128},
            {"head_size": 193, "head_size_v": 128},
            {"head_size_v": 127},
            {"head_size_v": 129},
            {"head_size_v": 192},
        ],
    ),
)
def fa4_blackwell_192_128(x: FlashAttention) -> bool:
    """From 0.28.0 the exemption looks at V, so (192, 192) falls back and runs on FA2."""
    return x.head_size <= 128 or (x.head_size == 192 and x.head_size_v == 128)


@rule(
    id="fa4-blackwell-256",
    variant_of="fa4-blackwell-192",
    title="Head sizes above 128 fall back from FA4 to FA2 but for (192, 128) and (256, 256)",
    where=Where(since="0.30.0", gpus=BLACKWELL, inputs={"version": 4}),
    otherwise=FallsBack("FA2", {"version": 2}),
    source=SOURCE,
    cases=cases(
        FlashAttention(),
        holds=[{"head_size": 64, "head_size_v": 64}],
        breaks=[{"head_size": 512, "head_size_v": 512}],
        at_limit=[
            {"head_size": 128},
            {"head_size_v": 128},
            {"head_size": 256, "head_size_v": 256},
        ],
        past_limit=[
            {"head_size": 129},
            {"head_size": 191, "head_size_v": 128},
            {"head_size": 193, "head_size_v": 128},
            {"head_size_v": 127},
            {"head_size_v": 129},
            {"head_size_v": 192},
            {"head_size": 255, "head_size_v": 256},
            {"head_size": 257, "head_size_v": 256},
            {"head_size": 256, "head_size_v": 255},
            {"head_size": 256, "head_size_v": 257},
        ],
    ),
)
def fa4_blackwell_256(x: FlashAttention) -> bool:
    """0.30.0 lets FA4's own kernel for (256, 256) in again; (192, 192) still runs on FA2."""
    return (
        x.head_size <= 128
        or (x.head_size == 192 and x.head_size_v == 128)
        or (x.head_size == 256 and x.head_size_v == 256)
    )


@rule(
    id="fa4-hd256-caller",
    title="FA4's (256, 256) kernel serves attention layers with 16-bit caches, not MLA prefill",
    where=Where(
        since="0.30.0",
        gpus=("sm100", "sm103", "sm110"),
        inputs={"version": 4, "head_size": 256, "head_size_v": 256},
    ),
    otherwise=FallsBack("FA2", {"version": 2}),
    source=Source("vllm", "vllm/v1/attention/backends/fa_utils.py", "_fa4_hd256_fallback_reason"),
    cases=cases(
        FlashAttention(head_size=256, head_size_v=256),
        holds=[{"kv_cache_dtype": "bfloat16"}, {"kv_cache_dtype": "float16"}],
        breaks=[{"kv_cache_dtype": "fp8"}],
        at_limit=[{"kv_cache_dtype": "auto"}],
        past_limit=[{"caller": "mla_prefill"}],
    ),
)
def fa4_hd256_caller(x: FlashAttention) -> bool:
    """MLA prefill does not declare that it can use the kernel, so 192 + 64 dims run on FA2."""
    return x.caller == "decoder" and x.kv_cache_dtype in ("auto", "float16", "bfloat16")


@rule(
    id="fa-version-sm8x",
    title="SM8x has FA2 only",
    where=Where(gpus=("sm80", "sm86", "sm89")),
    otherwise=Rejected(r"Cannot use FA version \d is not supported due to"),
    source=Source(
        "vllm", "vllm/vllm_flash_attn/flash_attn_interface.py", "is_fa_version_supported"
    ),
    cases=cases(
        FlashAttention(version=2),
        breaks=[{"version": 4}],
        at_limit=[{"version": 2}],
        past_limit=[{"version": 3}, {"version": 1}],
    ),
)
def fa_version_sm8x(x: FlashAttention) -> bool:
    """Matters only when `attention_config.flash_attn_version` is set."""
    return x.version == 2


@rule(
    id="fa-version-sm12x",
    title="SM12x has FA2 only",
    where=Where(gpus=("sm120", "sm121"), inputs={}),
    otherwise=Rejected(r"Cannot use FA version \d is not supported due to"),
    source=Source(
        "vllm", "vllm/vllm_flash_attn/flash_attn_interface.py", "is_fa_version_supported"
    ),
    cases=cases(
        FlashAttention(version=2),
        breaks=[{"version": 5}],
        at_limit=[{"version": 3}],
        past_limit=[{"version": 4}],
    ),
)
def fa_version_sm12x(x: FlashAttention) -> bool:
    """Matters only when `attention_config.flash_attn_version` is set to 4."""
    return x.version < 4

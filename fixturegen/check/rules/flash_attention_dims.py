"""Head dims that FlashAttention's kernels take."""

from fixturegen.check.inputs import FlashAttention
from fixturegen.check.rule import Rejected, Source, Where, cases, rule

BUNDLED = Source("vllm", "vllm/vllm_flash_attn/cute/interface.py", "_validate_head_dims")
NOT_SUPPORTED = r"\(head_dim, head_dim_v\)=\(\d+, \d+\) is not supported on "
FA2 = FlashAttention(version=2, head_size=192, head_size_v=192)


@rule(
    id="fa2-head-dims",
    title="FA2 takes one head dim of at most 256 that 8 divides",
    where=Where(inputs={"version": 2}),
    otherwise=Rejected("FlashAttention forward only supports head dimension at most 256"),
    source=Source("flash-attn", "csrc/flash_attn/flash_api.cpp", "mha_varlen_fwd"),
    cases=cases(
        FA2,
        holds=[{"head_size": 128, "head_size_v": 128}],
        breaks=[{"head_size": 512, "head_size_v": 512}, {"head_size_v": 128}],
        at_limit=[{"head_size": 256, "head_size_v": 256}, {"head_size": 8, "head_size_v": 8}],
        past_limit=[
            {"head_size": 264, "head_size_v": 264},
            {"head_size": 257, "head_size_v": 257},
            {"head_size": 129, "head_size_v": 129},
            {"head_size": 63, "head_size_v": 63},
            {"head_size_v": 184},
        ],
    ),
)
def fa2_head_dims(x: FlashAttention) -> bool:
    """FA2's V is as wide as its K; vLLM pads V with zeros where a model's is narrower."""
    return x.head_size == x.head_size_v and x.head_size <= 256 and x.head_size % 8 == 0


@rule(
    id="fa4-tmem-sm100",
    variant_of="fa4-head-dims",
    title="FA4 of vLLM 0.19 takes V up to 128 on SM10x for queries above 128 tokens",
    where=Where(until="0.19.1", gpus=("sm100", "sm103"), inputs={"version": 4}),
    otherwise=Rejected("assert self.tmem_total <= SM100_TMEM_CAPACITY_COLUMNS"),
    source=Source(
        "vllm",
        "vllm/vllm_flash_attn/cute/flash_fwd_sm100.py",
        "FlashAttentionForwardSm100.__init__",
    ),
    cases=cases(
        FlashAttention(),
        holds=[{"head_size": 128, "head_size_v": 64}],
        breaks=[{"head_size_v": 192}],
        at_limit=[{"head_size_v": 128}],
        past_limit=[{"head_size_v": 129}],
    ),
)
def fa4_tmem_sm100(x: FlashAttention) -> bool:
    """A 128-column score tile and an output tile as wide as V must fit half of TMEM's 512 columns.

    The bundled copy has no check by name yet: a bare AssertionError comes from the kernel's
    constructor. Queries of at most 128 tokens use one output tile and pass, so the failure shows
    with the first longer prompt. The query length at run time is not part of a config, so the
    rule answers for prompts longer than that.
    """
    return 128 + x.head_size_v <= 256


SM10X = ("sm100", "sm103", "sm110")

#: Steps across the edges that every release's check shares: 8..128, (192, 128), alignment.
AT = [
    {"head_size_v": 128},
    {"head_size": 8, "head_size_v": 8},
    {"head_size": 128, "head_size_v": 128},
    {"head_size": 16, "head_size_v": 16, "element_size": 1},
]
PAST = [
    {"head_size": 191, "head_size_v": 128},
    {"head_size": 193, "head_size_v": 128},
    {"head_size": 184, "head_size_v": 128},
    {"head_size": 192, "head_size_v": 120},
    {"head_size": 192, "head_size_v": 136},
    {"head_size": 136, "head_size_v": 128},
    {"head_size": 128, "head_size_v": 136},
    {"head_size": 0, "head_size_v": 8},
    {"head_size": 8, "head_size_v": 0},
    {"head_size": 12, "head_size_v": 8},
    {"head_size": 8, "head_size_v": 12},
    {"head_size": 8, "head_size_v": 16, "element_size": 1},
    {"head_size": 16, "head_size_v": 8, "element_size": 1},
]
#: ... (256, 256).
AT_256 = [{"head_size": 256, "head_size_v": 256}]
PAST_256 = [
    {"head_size": 248, "head_size_v": 256},
    {"head_size": 264, "head_size_v": 256},
    {"head_size": 256, "head_size_v": 248},
    {"head_size": 256, "head_size_v": 264},
]
#: ... (64, 512), the dims of an absorbed MLA call.
AT_64 = [{"head_size": 64, "head_size_v": 512}]
PAST_64 = [
    {"head_size": 56, "head_size_v": 512},
    {"head_size": 72, "head_size_v": 512},
    {"head_size": 64, "head_size_v": 504},
    {"head_size": 64, "head_size_v": 520},
]


@rule(
    id="fa4-head-dims",
    title="FA4 takes 8 to 128, or (192, 128), on SM10x and SM110",
    where=Where(since="0.20.2", until="0.20.2", gpus=SM10X, inputs={"version": 4}),
    otherwise=Rejected(NOT_SUPPORTED + "SM100/SM110"),
    source=BUNDLED,
    cases=cases(
        FlashAttention(),
        holds=[{"head_size": 64, "head_size_v": 64}],
        breaks=[{}, {"head_size": 256, "head_size_v": 256}],
        at_limit=AT,
        past_limit=PAST,
    ),
)
def fa4_head_dims(x: FlashAttention) -> bool:
    """(192, 192) is refused: what `VLLM_MLA_DISABLE=1` makes of every checkpoint with 128 + 64.

    The engine does not fall back here in 0.20.2: see `fa4-blackwell-192`.
    """
    alignment = 16 // x.element_size
    standard = 8 <= x.head_size <= 128 and 8 <= x.head_size_v <= 128
    deepseek = x.head_size == 192 and x.head_size_v == 128
    aligned = x.head_size % alignment == 0 and x.head_size_v % alignment == 0
    return (standard or deepseek) and aligned


@rule(
    id="fa4-head-dims-256",
    variant_of="fa4-head-dims",
    title="FA4 takes 8 to 128, (192, 128), (256, 256) or (64, 512) on SM10x and SM110",
    where=Where(since="0.22.1", until="0.24.0", gpus=SM10X, inputs={"version": 4}),
    otherwise=Rejected(NOT_SUPPORTED + "SM100/SM110"),
    source=BUNDLED,
    cases=cases(
        FlashAttention(),
        holds=[{"head_size": 64, "head_size_v": 64}],
        breaks=[{}, {"head_size": 512, "head_size_v": 512}],
        at_limit=AT + AT_256 + AT_64,
        past_limit=PAST + PAST_256 + PAST_64,
    ),
)
def fa4_head_dims_256(x: FlashAttention) -> bool:
    """As `fa4-head-dims`, with two kernels of their own added."""
    alignment = 16 // x.element_size
    standard = 8 <= x.head_size <= 128 and 8 <= x.head_size_v <= 128
    deepseek = x.head_size == 192 and x.head_size_v == 128
    absorbed = x.head_size == 64 and x.head_size_v == 512
    square = x.head_size == 256 and x.head_size_v == 256
    aligned = x.head_size % alignment == 0 and x.head_size_v % alignment == 0
    return (standard or deepseek or absorbed or square) and aligned


@rule(
    id="fa4-head-dims-512",
    variant_of="fa4-head-dims",
    title="FA4 takes 8 to 128, (192, 128), (256, 256), (64, 512) or (512, 512) on SM10x and SM110",
    where=Where(since="0.26.0", gpus=SM10X, inputs={"version": 4}),
    otherwise=Rejected(NOT_SUPPORTED + "SM100/SM110"),
    source=BUNDLED,
    cases=cases(
        FlashAttention(),
        holds=[{"head_size": 64, "head_size_v": 64}],
        breaks=[{}, {"head_size": 320, "head_size_v": 320}],
        at_limit=[*AT, *AT_256, *AT_64, {"head_size": 512, "head_size_v": 512}],
        past_limit=[
            *PAST,
            *PAST_256,
            *PAST_64,
            {"head_size": 504, "head_size_v": 504},
            {"head_size": 520, "head_size_v": 520},
            {"head_size": 504, "head_size_v": 512},
        ],
    ),
)
def fa4_head_dims_512(x: FlashAttention) -> bool:
    """As `fa4-head-dims-256`, with (512, 512) added; the same check as in flash-attn-4 4.0.0b16."""
    alignment = 16 // x.element_size
    standard = 8 <= x.head_size <= 128 and 8 <= x.head_size_v <= 128
    deepseek = x.head_size == 192 and x.head_size_v == 128
    absorbed = (x.head_size == 64 or x.head_size == x.head_size_v) and x.head_size_v == 512
    square = x.head_size == 256 and x.head_size_v == 256
    aligned = x.head_size % alignment == 0 and x.head_size_v % alignment == 0
    return (standard or deepseek or absorbed or square) and aligned


@rule(
    id="fa4-head-dims-sm90",
    title="FA4 takes 8 to 512 on SM90",
    where=Where(since="0.20.2", gpus=("sm90",), inputs={"version": 4}),
    otherwise=Rejected(NOT_SUPPORTED + "SM90"),
    source=BUNDLED,
    cases=cases(
        FlashAttention(),
        breaks=[{"head_size": 1024, "head_size_v": 1024}],
        at_limit=[
            {"head_size": 8, "head_size_v": 8},
            {"head_size": 512, "head_size_v": 512},
            {"head_size": 16, "head_size_v": 16, "element_size": 1},
        ],
        past_limit=[
            {"head_size": 0},
            {"head_size_v": 0},
            {"head_size": 520},
            {"head_size_v": 520},
            {"head_size": 12},
            {"head_size_v": 12},
            {"head_size": 8, "head_size_v": 16, "element_size": 1},
            {"head_size": 16, "head_size_v": 8, "element_size": 1},
        ],
    ),
)
def fa4_head_dims_sm90(x: FlashAttention) -> bool:
    """Reached on SM90 only for head sizes above 256, which FA3 lacks.

    The message of the check says 256; its inequality says 512.
    """
    alignment = 16 // x.element_size
    return (
        8 <= x.head_size <= 512
        and 8 <= x.head_size_v <= 512
        and x.head_size % alignment == 0
        and x.head_size_v % alignment == 0
    )

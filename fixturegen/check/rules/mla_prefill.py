"""Prefill backends of MLA layers."""

from fixturegen.check.inputs import MLAPrefill
from fixturegen.check.rule import PassedOver, Rejected, Source, Where, cases, rule

PREFILL = "vllm/v1/attention/backends/mla/prefill/"
NO_DIMS = "[Mm]odel does not have (supported|DeepSeek R1) MLA dimensions"
R1_BACKENDS = ("FLASHINFER", "TOKENSPEED_MLA")

#: Steps away from (128, 64, 128).
PAST_R1 = [
    {"qk_nope_head_dim": 127},
    {"qk_nope_head_dim": 129},
    {"qk_rope_head_dim": 63},
    {"qk_rope_head_dim": 65},
    {"v_head_dim": 127},
    {"v_head_dim": 129},
]
GLM = {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256}
SMALL = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128}
PAST_GLM = [
    GLM | {"qk_nope_head_dim": 191},
    GLM | {"qk_nope_head_dim": 193},
    GLM | {"qk_rope_head_dim": 63},
    GLM | {"qk_rope_head_dim": 65},
    GLM | {"v_head_dim": 255},
    GLM | {"v_head_dim": 257},
]
PAST_SMALL = [
    SMALL | {"qk_nope_head_dim": 63},
    SMALL | {"qk_nope_head_dim": 65},
    SMALL | {"qk_rope_head_dim": 63},
    SMALL | {"qk_rope_head_dim": 65},
    SMALL | {"v_head_dim": 127},
    SMALL | {"v_head_dim": 129},
]


@rule(
    id="mla-prefill-gpu",
    title="FLASHINFER, TRTLLM_RAGGED and TOKENSPEED_MLA prefill need SM10x",
    where=Where(backends=("FLASHINFER", "TRTLLM_RAGGED", "TOKENSPEED_MLA")),
    otherwise=PassedOver(r"compute capability \d+\.\d+ not supported"),
    source=Source(
        "vllm", PREFILL + "flashinfer.py", "FlashInferPrefillBackend.supports_compute_capability"
    ),
    cases=cases(
        MLAPrefill(backend="FLASHINFER"),
        breaks=[{"gpu_major": 12}],
        at_limit=[{"gpu_major": 10}],
        past_limit=[{"gpu_major": 9}, {"gpu_major": 11}],
    ),
)
def mla_prefill_gpu(x: MLAPrefill) -> bool:
    """Elsewhere FLASH_ATTN is the only prefill backend."""
    return x.gpu_major == 10


@rule(
    id="mla-prefill-dtype",
    title="MLA prefill computes in 16 bits",
    where=Where(
        since="0.22.1", backends=("FLASH_ATTN", *R1_BACKENDS, "TRTLLM_RAGGED", "CPU_SDPA_MLA")
    ),
    otherwise=PassedOver(r"dtype torch\.\w+ not supported"),
    source=Source("vllm", PREFILL + "base.py", "MLAPrefillBackend.supported_dtypes"),
    cases=cases(
        MLAPrefill(),
        holds=[{"dtype": "float16"}, {"backend": "CPU_SDPA_MLA", "dtype": "float32"}],
        breaks=[{"dtype": "float32"}],
        at_limit=[{"dtype": "bfloat16"}],
        past_limit=[{"dtype": "float32"}],
    ),
)
def mla_prefill_dtype(x: MLAPrefill) -> bool:
    """The CPU's prefill is chosen without asking."""
    return x.dtype in ("float16", "bfloat16") or x.backend == "CPU_SDPA_MLA"


@rule(
    id="mla-prefill-r1-dims",
    title="FlashInfer's prefill takes DeepSeek-R1's dims (128, 64, 128)",
    where=Where(until="0.22.1", backends=("FLASHINFER", "TRTLLM_RAGGED", "TOKENSPEED_MLA")),
    otherwise=PassedOver(NO_DIMS),
    source=Source(
        "vllm",
        "vllm/model_executor/layers/attention/mla_attention.py",
        "is_deepseek_r1_mla_compatible",
    ),
    cases=cases(
        MLAPrefill(backend="FLASHINFER"), breaks=[SMALL], at_limit=[{}], past_limit=PAST_R1
    ),
)
def mla_prefill_r1_dims(x: MLAPrefill) -> bool:
    """Up to 0.20.2 these are opt-in, and other dims quietly use FLASH_ATTN."""
    return x.qk_nope_head_dim == 128 and x.qk_rope_head_dim == 64 and x.v_head_dim == 128


@rule(
    id="mla-prefill-dims",
    variant_of="mla-prefill-r1-dims",
    title="FLASHINFER and TOKENSPEED_MLA prefill take (128, 64, 128)",
    where=Where(since="0.24.0", backends=R1_BACKENDS),
    otherwise=PassedOver(NO_DIMS),
    source=Source(
        "vllm", PREFILL + "flashinfer.py", "FlashInferPrefillBackend.supported_mla_dimensions"
    ),
    cases=cases(
        MLAPrefill(backend="FLASHINFER"), breaks=[SMALL], at_limit=[{}], past_limit=PAST_R1
    ),
)
def mla_prefill_dims(x: MLAPrefill) -> bool:
    """(qk_nope_head_dim, qk_rope_head_dim, v_head_dim)."""
    return x.qk_nope_head_dim == 128 and x.qk_rope_head_dim == 64 and x.v_head_dim == 128


@rule(
    id="mla-prefill-trtllm-ragged-dims",
    variant_of="mla-prefill-r1-dims",
    title="TRTLLM_RAGGED prefill takes (128, 64, 128) and (192, 64, 256)",
    where=Where(since="0.24.0", backends=("TRTLLM_RAGGED",)),
    otherwise=PassedOver(NO_DIMS),
    source=Source(
        "vllm", PREFILL + "trtllm_ragged.py", "TrtllmRaggedPrefillBackend.supported_mla_dimensions"
    ),
    cases=cases(
        MLAPrefill(backend="TRTLLM_RAGGED"),
        holds=[GLM],
        breaks=[SMALL],
        at_limit=[{}, GLM],
        past_limit=[*PAST_R1, *PAST_GLM],
    ),
)
def mla_prefill_trtllm_ragged_dims(x: MLAPrefill) -> bool:
    """(qk_nope_head_dim, qk_rope_head_dim, v_head_dim)."""
    dims = (x.qk_nope_head_dim, x.qk_rope_head_dim, x.v_head_dim)
    return dims in ((128, 64, 128), (192, 64, 256))


@rule(
    id="mla-prefill-flash-attn-fa4",
    variant_of="mla-prefill-flash-attn",
    title="FLASH_ATTN prefill on FA4 takes (128, 64, 128) and (64, 64, 128)",
    where=Where(since="0.26.0", until="0.26.0", backends=("FLASH_ATTN",), inputs={"flash_attn": 4}),
    otherwise=PassedOver(NO_DIMS),
    source=Source(
        "vllm", PREFILL + "flash_attn.py", "FlashAttnPrefillBackend.supports_mla_dimensions"
    ),
    cases=cases(
        MLAPrefill(),
        holds=[SMALL],
        breaks=[GLM],
        at_limit=[{}, SMALL],
        past_limit=[*PAST_R1, *PAST_SMALL],
    ),
)
def mla_prefill_flash_attn_fa4(x: MLAPrefill) -> bool:
    """The version meant is the default of the GPU, before head dims are looked at."""
    dims = (x.qk_nope_head_dim, x.qk_rope_head_dim, x.v_head_dim)
    return dims in ((128, 64, 128), (64, 64, 128))


AT_THREE = [{}, SMALL, GLM]
PAST_THREE = [*PAST_R1, *PAST_SMALL, *PAST_GLM]


@rule(
    id="mla-prefill-flash-attn",
    title="FLASH_ATTN prefill takes (128, 64, 128), (192, 64, 256) and (64, 64, 128)",
    where=Where(since="0.28.0", until="0.28.0", backends=("FLASH_ATTN",)),
    otherwise=PassedOver(NO_DIMS),
    source=Source(
        "vllm", PREFILL + "flash_attn.py", "FlashAttnPrefillBackend.supports_mla_dimensions"
    ),
    cases=cases(
        MLAPrefill(), breaks=[{"v_head_dim": 64}], at_limit=AT_THREE, past_limit=PAST_THREE
    ),
)
def mla_prefill_flash_attn(x: MLAPrefill) -> bool:
    """On every GPU: shrunken dims such as (16, 16, 16) have no prefill backend from here on."""
    dims = (x.qk_nope_head_dim, x.qk_rope_head_dim, x.v_head_dim)
    return dims in ((128, 64, 128), (192, 64, 256), (64, 64, 128))


@rule(
    id="mla-prefill-flash-attn-fa2",
    variant_of="mla-prefill-flash-attn",
    title="FLASH_ATTN prefill on FA2 or FA3 takes (128, 64, 128), (192, 64, 256), (64, 64, 128)",
    where=Where(since="0.26.0", until="0.26.0", backends=("FLASH_ATTN",)),
    otherwise=PassedOver(NO_DIMS),
    source=Source(
        "vllm", PREFILL + "flash_attn.py", "FlashAttnPrefillBackend.supports_mla_dimensions"
    ),
    cases=cases(
        MLAPrefill(gpu_major=9, flash_attn=3),
        breaks=[{"v_head_dim": 64}],
        at_limit=AT_THREE,
        past_limit=PAST_THREE,
    ),
)
def mla_prefill_flash_attn_fa2(x: MLAPrefill) -> bool:
    """For FA4 see `mla-prefill-flash-attn-fa4`, which is narrower."""
    dims = (x.qk_nope_head_dim, x.qk_rope_head_dim, x.v_head_dim)
    return dims in ((128, 64, 128), (192, 64, 256), (64, 64, 128))


@rule(
    id="mla-prefill-flash-attn-nope",
    variant_of="mla-prefill-flash-attn",
    title="FLASH_ATTN prefill takes (128, 64, 128), (192, 64, 256), (64, 64, 128), (256, 0, 256)",
    where=Where(since="0.30.0", backends=("FLASH_ATTN",)),
    otherwise=PassedOver(NO_DIMS),
    source=Source(
        "vllm", PREFILL + "flash_attn.py", "FlashAttnPrefillBackend.supports_mla_dimensions"
    ),
    cases=cases(
        MLAPrefill(),
        breaks=[{"v_head_dim": 64}],
        at_limit=[
            *AT_THREE,
            {"qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256},
        ],
        past_limit=[
            *PAST_THREE,
            {"qk_nope_head_dim": 255, "qk_rope_head_dim": 0, "v_head_dim": 256},
            {"qk_nope_head_dim": 257, "qk_rope_head_dim": 0, "v_head_dim": 256},
            {"qk_nope_head_dim": 256, "qk_rope_head_dim": -1, "v_head_dim": 256},
            {"qk_nope_head_dim": 256, "qk_rope_head_dim": 1, "v_head_dim": 256},
            {"qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 255},
            {"qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 257},
        ],
    ),
)
def mla_prefill_flash_attn_nope(x: MLAPrefill) -> bool:
    """(64, 64, 128) is the one legal shape that is smaller than production's, on any GPU."""
    dims = (x.qk_nope_head_dim, x.qk_rope_head_dim, x.v_head_dim)
    return dims in ((128, 64, 128), (192, 64, 256), (64, 64, 128), (256, 0, 256))


@rule(
    id="mla-prefill-v",
    title="FLASH_ATTN prefill needs V no wider than the query's head dim",
    where=Where(until="0.24.0", backends=("FLASH_ATTN",)),
    otherwise=Rejected("is invalid for input of size|shape mismatch|head_size_v"),
    source=Source(
        "vllm", PREFILL + "flash_attn.py", "FlashAttnPrefillBackend.run_prefill_new_tokens"
    ),
    cases=cases(
        MLAPrefill(),
        holds=[{"v_head_dim": 64}],
        breaks=[{"v_head_dim": 256}],
        at_limit=[{"v_head_dim": 192}],
        past_limit=[{"v_head_dim": 193}],
    ),
)
def mla_prefill_v(x: MLAPrefill) -> bool:
    """Any dims pass selection up to 0.24.0, but V is padded up to the query's width, never cut."""
    return x.v_head_dim <= x.qk_nope_head_dim + x.qk_rope_head_dim

"""Sizes that a chosen MoE backend needs at loading or at run time."""

from fixturegen.check.inputs import MoE
from fixturegen.check.rule import FallsBack, Rejected, SilentlyWrong, Source, Where, cases, rule

EXPERTS = "vllm/model_executor/layers/fused_moe/experts"
UTILS = "vllm/model_executor/layers/quantization/utils"
LAUNCHER = "flashinfer/data/csrc/trtllm_fused_moe_kernel_launcher.cu"


@rule(
    id="moe-tp-width",
    title="TP divides one expert's width",
    where=Where(),
    otherwise=Rejected("AssertionError"),
    source=Source("vllm", "vllm/model_executor/layers/fused_moe/config.py", "FusedMoEConfig"),
    cases=cases(
        MoE(full_intermediate_size=2048, tp=4),
        holds=[{"tp": 1}],
        breaks=[{"tp": 3}],
        at_limit=[{"full_intermediate_size": 4}],
        past_limit=[{"full_intermediate_size": 3}, {"full_intermediate_size": 5}],
    ),
)
def moe_tp_width(x: MoE) -> bool:
    """`assert intermediate_size % tp_size == 0`. With expert parallelism widths are not split."""
    return x.full_intermediate_size % x.tp == 0


@rule(
    id="moe-ep-even",
    title="FlashInfer's MoE wants the experts in equal shares",
    where=Where(backends=("FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS", "FLASHINFER_CUTEDSL")),
    otherwise=SilentlyWrong("a rank computes with its neighbour's experts"),
    source=Source("vllm", f"{EXPERTS}/trtllm_fp8_moe.py", "TrtLlmFp8ExpertsBase.__init__"),
    cases=cases(
        MoE(n_routed_experts=16, ep=4),
        holds=[{"ep": 1}],
        breaks=[{"ep": 3}],
        at_limit=[{"n_routed_experts": 4}],
        past_limit=[{"n_routed_experts": 5}, {"n_routed_experts": 7}],
    ),
)
def moe_ep_even(x: MoE) -> bool:
    """vLLM deals uneven shares (the first ranks take one more), the kernel takes rank x share.

    Read from source, not run. EPLB refuses uneven shares by itself.
    """
    return x.n_routed_experts % x.ep == 0


@rule(
    id="moe-trtllm-bf16-dtype",
    title="Unquantised FLASHINFER_TRTLLM wants bfloat16",
    where=Where(backends=("FLASHINFER_TRTLLM",), inputs={"scheme": "bf16"}),
    otherwise=Rejected("FlashInfer TRTLLM requires bfloat16 weights"),
    source=Source(
        "vllm",
        f"{UTILS}/flashinfer_utils.py",
        "convert_moe_weights_to_flashinfer_trtllm_block_layout",
    ),
    cases=cases(
        MoE(scheme="bf16"),
        breaks=[{"dtype": "float32"}],
        at_limit=[{"dtype": "bfloat16"}],
        past_limit=[{"dtype": "float16"}],
    ),
)
def moe_trtllm_bf16_dtype(x: MoE) -> bool:
    """Selection does not ask, so *auto* runs into it too: use `--moe-backend triton`."""
    return x.dtype == "bfloat16"


@rule(
    id="moe-trtllm-bf16-width",
    title="Unquantised FLASHINFER_TRTLLM wants expert widths that 128 divides",
    where=Where(until="0.22.1", backends=("FLASHINFER_TRTLLM",), inputs={"scheme": "bf16"}),
    otherwise=Rejected("the second dimension of weights must be a multiple of 128"),
    source=Source("flashinfer-python", LAUNCHER, "Bf16MoeLauncher::check_moe"),
    cases=cases(
        MoE(scheme="bf16"),
        breaks=[{"intermediate_size": 64}],
        at_limit=[{"intermediate_size": 128}],
        past_limit=[{"intermediate_size": 127}, {"intermediate_size": 129}],
    ),
)
def moe_trtllm_bf16_width(x: MoE) -> bool:
    """`moe_intermediate_size / tp`. From 0.24.0 vLLM pads the width with zeros."""
    return x.intermediate_size % 128 == 0


@rule(
    id="moe-trtllm-bf16-hidden",
    title="Unquantised FLASHINFER_TRTLLM wants a hidden size that 64 divides",
    where=Where(backends=("FLASHINFER_TRTLLM",), inputs={"scheme": "bf16"}),
    otherwise=Rejected("shape .* is invalid for input of size|must be multiples of"),
    source=Source(
        "vllm",
        f"{UTILS}/flashinfer_utils.py",
        "convert_moe_weights_to_flashinfer_trtllm_block_layout",
    ),
    cases=cases(
        MoE(scheme="bf16"),
        breaks=[{"hidden_size": 96}],
        at_limit=[{"hidden_size": 64}, {"hidden_size": 192}],
        past_limit=[{"hidden_size": 63}, {"hidden_size": 65}],
    ),
)
def moe_trtllm_bf16_hidden(x: MoE) -> bool:
    """Weights are stored in blocks of 128 bytes along the input: 64 bfloat16 values."""
    return x.hidden_size % 64 == 0


@rule(
    id="fp8-moe-blocks",
    title="FP8 blocks divide an expert's width on each rank",
    where=Where(inputs={"scheme": "fp8"}),
    otherwise=Rejected(
        r"The output_size of gate's and up's weight = \d+ is not divisible by"
        "|Block-aligned FP8 TP sharding requires"
    ),
    source=Source("vllm", f"{UTILS}/fp8_utils.py", "validate_fp8_block_shape_moe"),
    cases=cases(
        MoE(),
        holds=[{"intermediate_size": 192, "block": 64}],
        breaks=[{"intermediate_size": 64}],
        at_limit=[{"intermediate_size": 128}],
        past_limit=[{"intermediate_size": 127}, {"intermediate_size": 129}],
    ),
)
def fp8_moe_blocks(x: MoE) -> bool:
    """`moe_intermediate_size / tp` is a multiple of the block, on every GPU and backend.

    Until 0.28.0 the check stands in Fp8MoEMethod.create_weights and the block is always 128. From
    0.30.0 a width that 128 does not divide is cut into finer blocks of at least 32 where the sizes
    allow it (see `fp8-moe-finer-blocks`); from 0.32.0 a backend asked for by name gets its share
    padded to whole blocks, which wants the full width and the hidden size to be multiples of 128.
    """
    return x.intermediate_size % x.block == 0


@rule(
    id="fp8-moe-finer-blocks",
    title="An expert's width off the 128 grid moves FP8 experts to TRITON",
    where=Where(since="0.30.0", inputs={"scheme": "fp8"}),
    otherwise=FallsBack("TRITON with the scales spread over finer blocks"),
    source=Source(
        "vllm",
        "vllm/model_executor/layers/fused_moe/oracle/fp8.py",
        "refine_fp8_moe_block_shape",
    ),
    cases=cases(
        MoE(),
        breaks=[{"block": 32}],
        at_limit=[{"block": 128}],
        past_limit=[{"block": 127}, {"block": 129}],
    ),
)
def fp8_moe_finer_blocks(x: MoE) -> bool:
    """The output is right, the kernel is another one than production's."""
    return x.block == 128


@rule(
    id="fp8-moe-hidden",
    title="FP8 activations are quantised in groups of 128",
    where=Where(
        backends=("FLASHINFER_TRTLLM", "DEEPGEMM", "TRITON"),
        inputs={"scheme": "fp8"},
    ),
    otherwise=Rejected(r"the last dimension of `x` \d+ must be divisible by `group_size`"),
    source=Source("vllm", f"{UTILS}/fp8_utils.py", "per_token_group_quant_fp8"),
    cases=cases(
        MoE(),
        holds=[{"hidden_size": 192, "block": 64}],
        breaks=[{"hidden_size": 192}],
        at_limit=[{"hidden_size": 128}],
        past_limit=[{"hidden_size": 127}, {"hidden_size": 129}],
    ),
)
def fp8_moe_hidden(x: MoE) -> bool:
    """`hidden_size` is the inner size of the first product: one scale for 128 values."""
    return x.hidden_size % x.block == 0


@rule(
    id="fp8-moe-deepgemm-small",
    title="DEEPGEMM leaves experts of width 512 and less to TRITON",
    where=Where(backends=("DEEPGEMM",)),
    otherwise=FallsBack("TRITON, call by call"),
    source=Source("vllm", f"{EXPERTS}/deep_gemm_moe.py", "_valid_deep_gemm"),
    cases=cases(
        MoE(),
        breaks=[{"intermediate_size": 256}],
        at_limit=[{"intermediate_size": 513}],
        past_limit=[{"intermediate_size": 512}],
    ),
)
def fp8_moe_deepgemm_small(x: MoE) -> bool:
    """Not an error: the kernel class holds both and asks for each batch.

    A fixture with small experts never reaches DEEPGEMM's kernels.
    """
    return x.intermediate_size > 512


@rule(
    id="fp8-moe-deepgemm-aligned",
    title="DEEPGEMM leaves experts off the 128 grid to TRITON",
    where=Where(backends=("DEEPGEMM",)),
    otherwise=FallsBack("TRITON, call by call"),
    source=Source("vllm", f"{EXPERTS}/deep_gemm_moe.py", "_valid_deep_gemm_shape"),
    cases=cases(
        MoE(),
        breaks=[{"intermediate_size": 64}, {"hidden_size": 192}],
        at_limit=[{"intermediate_size": 640}, {"hidden_size": 128}],
        past_limit=[
            {"intermediate_size": 641},
            {"intermediate_size": 639},
            {"intermediate_size": 1016},
            {"intermediate_size": 1032},
            {"hidden_size": 127},
            {"hidden_size": 129},
        ],
    ),
)
def fp8_moe_deepgemm_aligned(x: MoE) -> bool:
    """Width and hidden size; a batch of fewer than 128 tokens goes to TRITON as well."""
    return x.intermediate_size % 128 == 0 and x.hidden_size % 128 == 0


@rule(
    id="fp8-moe-marlin-hidden",
    title="FP8 experts on MARLIN want a hidden size that 64 divides",
    where=Where(backends=("MARLIN",), inputs={"scheme": "fp8"}),
    otherwise=Rejected(r"size_n = \d+ is not divisible by tile_n_size"),
    source=Source("vllm", "csrc/quantization/marlin/gptq_marlin_repack.cu", "gptq_marlin_repack"),
    cases=cases(
        MoE(backend="MARLIN"),
        breaks=[{"hidden_size": 96}],
        at_limit=[{"hidden_size": 64}],
        past_limit=[{"hidden_size": 63}, {"hidden_size": 65}],
    ),
)
def fp8_moe_marlin_hidden(x: MoE) -> bool:
    """The rows of the down projection. The width is on the 128 grid: `fp8-moe-blocks`."""
    return x.hidden_size % 64 == 0


@rule(
    id="nvfp4-trtllm-width",
    title="NVFP4 on FLASHINFER_TRTLLM wants expert widths that 64 divides",
    where=Where(until="0.24.0", backends=("FLASHINFER_TRTLLM",), inputs={"scheme": "nvfp4"}),
    otherwise=Rejected("AssertionError"),
    source=Source(
        "vllm", f"{UTILS}/flashinfer_fp4_moe.py", "prepare_nvfp4_moe_layer_for_fi_or_cutlass"
    ),
    cases=cases(
        MoE(scheme="nvfp4"),
        holds=[{"intermediate_size": 56}],
        breaks=[{"intermediate_size": 96}, {"intermediate_size": 32}],
        at_limit=[{"intermediate_size": 64}, {"intermediate_size": 49}],
        past_limit=[{"intermediate_size": 65}, {"intermediate_size": 48}],
    ),
)
def nvfp4_trtllm_width(x: MoE) -> bool:
    """The width is padded to 16 first; gate and up together must fill rows of 128 scales.

    From 0.26.0 it is padded to 64, so that every width is taken.
    """
    return (x.intermediate_size + 15) // 16 % 4 == 0


@rule(
    id="nvfp4-marlin-hidden",
    title="NVFP4 on MARLIN wants a hidden size that 64 divides",
    where=Where(since="0.24.0", backends=("MARLIN",), inputs={"scheme": "nvfp4"}),
    otherwise=Rejected(r"hidden_size = \d+ unsupported by Marlin tiles"),
    source=Source("vllm", f"{UTILS}/marlin_utils_fp4.py", "prepare_nvfp4_moe_layer_for_marlin"),
    cases=cases(
        MoE(scheme="nvfp4", backend="MARLIN"),
        holds=[{"hidden_size": 7168}],
        breaks=[{"hidden_size": 32}],
        at_limit=[{"hidden_size": 64}],
        past_limit=[{"hidden_size": 63}, {"hidden_size": 65}],
    ),
)
def nvfp4_marlin_hidden(x: MoE) -> bool:
    """The expert width is padded with zeros, the hidden size is not."""
    return x.hidden_size % 64 == 0

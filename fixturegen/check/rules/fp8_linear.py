"""FP8 block shapes of linear layers."""

from fixturegen.check.inputs import Linear
from fixturegen.check.rule import FallsBack, Rejected, SilentlyWrong, Source, Where, cases, rule

FP8_UTILS = "vllm/model_executor/layers/quantization/utils/fp8_utils.py"
LINEAR = "vllm/model_executor/layers/linear.py"

#: A merged layer: q_a_proj and kv_a_proj_with_mqa in one.
FUSED_QKV_A = Linear(
    name="self_attn.fused_qkv_a_proj",
    split="replicated",
    input_size=7168,
    full_input_size=7168,
    output_sizes=(1536, 576),
    full_output_sizes=(1536, 576),
)
#: A merged layer that TP splits.
GATE_UP = Linear(
    name="mlp.gate_up_proj",
    split="column",
    tp=2,
    input_size=7168,
    full_input_size=7168,
    output_sizes=(256, 256),
    full_output_sizes=(512, 512),
)
#: GPUs with FP8 tensor cores; older ones run FP8 weights through MARLIN.
FP8_GPUS = ("sm89", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121")


@rule(
    id="fp8-row-parallel",
    title="TP splits an FP8 layer's input between blocks",
    where=Where(inputs={"scheme": "fp8", "split": "row"}),
    otherwise=Rejected(
        r"Weight input_size_per_partition = \d+ is not divisible by weight quantization block_k"
    ),
    source=Source("vllm", FP8_UTILS, "validate_fp8_block_shape"),
    cases=cases(
        Linear(tp=2, input_size=128, full_input_size=256),
        holds=[{"tp": 1, "input_size": 192, "full_input_size": 192}],
        breaks=[{"input_size": 64, "full_input_size": 128}],
        at_limit=[{}, {"tp": 1, "input_size": 64}],
        past_limit=[
            {"input_size": 127, "full_input_size": 254},
            {"input_size": 129, "full_input_size": 258},
        ],
    ),
)
def fp8_row_parallel(x: Linear) -> bool:
    """`o_proj` (`num_attention_heads * v_head_dim / tp`) and both `down_proj`.

    Without TP the check is not made; `fp8-activation-groups` asks the same of every layer then.
    """
    return x.tp <= 1 or x.input_size % 128 == 0


@rule(
    id="fp8-column-parallel",
    title="TP splits an FP8 layer's output between blocks",
    where=Where(inputs={"scheme": "fp8", "split": "column"}),
    otherwise=Rejected(
        r"Weight output_partition_size = \d+ is not divisible by weight quantization block_n"
    ),
    source=Source("vllm", FP8_UTILS, "validate_fp8_block_shape"),
    cases=cases(
        Linear(
            name="self_attn.q_b_proj",
            split="column",
            tp=2,
            output_sizes=(384,),
            full_output_sizes=(768,),
        ),
        holds=[
            {"tp": 1, "output_sizes": (192,), "full_output_sizes": (192,)},
            {"output_sizes": (96, 96), "full_output_sizes": (192, 192)},
        ],
        breaks=[{"output_sizes": (192,), "full_output_sizes": (384,)}],
        at_limit=[
            {"output_sizes": (128,), "full_output_sizes": (256,)},
            {"tp": 1, "output_sizes": (64,)},
            {"output_sizes": (192, 192), "full_output_sizes": (384, 384)},
        ],
        past_limit=[
            {"output_sizes": (127,), "full_output_sizes": (254,)},
            {"output_sizes": (129,), "full_output_sizes": (258,)},
        ],
    ),
)
def fp8_column_parallel(x: Linear) -> bool:
    """`q_b_proj` (heads * 192 / tp) and `kv_b_proj` (heads * 256 / tp).

    Merged layers are let off: as soon as one of their parts is off the grid,
    `_maybe_allow_fp8_block_shape_mismatch` switches the validation of that layer off. What happens
    to them instead is in `fp8-merged-scales` and `fp8-merged-blocks`.
    """
    return x.tp <= 1 or len(x.output_sizes) > 1 or all(o % 128 == 0 for o in x.output_sizes)


@rule(
    id="fp8-merged-scales",
    title="The scales of merged FP8 matrices fit the merged layer",
    where=Where(inputs={"scheme": "fp8"}),
    otherwise=Rejected(r"start \(\d+\) \+ length \(\d+\) exceeds dimension size \(\d+\)"),
    source=Source("vllm", LINEAR, "adjust_block_scale_shard"),
    cases=cases(
        FUSED_QKV_A,
        holds=[
            {"output_sizes": (192,), "full_output_sizes": (192,)},
            {"split": "row", "tp": 8, "output_sizes": (7168,), "full_output_sizes": (7168,)},
            {
                "tp": 2,
                "split": "column",
                "output_sizes": (96, 96),
                "full_output_sizes": (192, 192),
            },
        ],
        breaks=[
            {"output_sizes": (192, 576), "full_output_sizes": (192, 576)},
            {"output_sizes": (64, 64), "full_output_sizes": (64, 64)},
            {
                "tp": 4,
                "split": "column",
                "output_sizes": (96, 96),
                "full_output_sizes": (384, 384),
            },
        ],
        at_limit=[
            {},
            {"output_sizes": (65, 64), "full_output_sizes": (65, 64)},
            {"output_sizes": (128, 128), "full_output_sizes": (128, 128)},
            {"tp": 2, "output_sizes": (65, 65), "full_output_sizes": (129, 129)},
        ],
        past_limit=[
            {"output_sizes": (129, 127), "full_output_sizes": (129, 127)},
            {"tp": 2, "output_sizes": (65, 65), "full_output_sizes": (128, 128)},
            {"output_sizes": (64, 64), "full_output_sizes": (64, 64)},
            {"output_sizes": (1537, 575), "full_output_sizes": (1537, 575)},
        ],
    ),
)
def fp8_merged_scales(x: Linear) -> bool:
    """Each matrix brings its own rounded-up rows of scales; the layer has them for the sum.

    `fused_qkv_a_proj` merges `q_lora_rank` with `kv_lora_rank + qk_rope_head_dim`, `gate_up_proj`
    an MLP's width with itself. The second part asks that the ranks' rows do not run past the
    checkpoint's.
    """
    rows = [-(-o // 128) for o in x.output_sizes]
    return x.split == "row" or (
        sum(rows) <= -(-sum(x.output_sizes) // 128)
        and all(
            x.tp * r <= -(-full // 128) for r, full in zip(rows, x.full_output_sizes, strict=True)
        )
    )


@rule(
    id="fp8-merged-blocks",
    title="Merged FP8 matrices end on a block boundary, but for the last",
    where=Where(inputs={"scheme": "fp8"}),
    otherwise=SilentlyWrong("rows get the scale of the matrix next to them"),
    source=Source("vllm", LINEAR, "_maybe_allow_fp8_block_shape_mismatch"),
    cases=cases(
        FUSED_QKV_A,
        holds=[
            {"output_sizes": (192,), "full_output_sizes": (192,)},
            {
                "tp": 2,
                "split": "column",
                "output_sizes": (128, 128),
                "full_output_sizes": (256, 256),
            },
        ],
        breaks=[
            {"output_sizes": (1632, 576), "full_output_sizes": (1632, 576)},
            {
                "tp": 2,
                "split": "column",
                "output_sizes": (96, 96),
                "full_output_sizes": (192, 192),
            },
        ],
        at_limit=[{"output_sizes": (128, 576)}, {"output_sizes": (128, 129)}],
        past_limit=[
            {"output_sizes": (127, 576)},
            {"output_sizes": (129, 576)},
            {"output_sizes": (128, 130, 128)},
        ],
    ),
)
def fp8_merged_blocks(x: Linear) -> bool:
    """`q_lora_rank` is a multiple of 128; `intermediate_size / tp` and the shared experts' too.

    The kernel reads one scale for each 128 rows of the merged matrix, so a block that straddles
    two matrices has the wrong one for part of its rows. Where the scales do not even fit, loading
    stops before: `fp8-merged-scales`. Read from source, not run.
    """
    return all(o % 128 == 0 for o in x.output_sizes[:-1])


@rule(
    id="fp8-activation-groups",
    title="FP8 activations are quantised in groups of 128",
    where=Where(inputs={"scheme": "fp8"}, gpus=FP8_GPUS),
    otherwise=Rejected(r"the last dimension of `x` \d+ must be divisible by `group_size`"),
    source=Source("vllm", FP8_UTILS, "per_token_group_quant_fp8"),
    cases=cases(
        Linear(),
        holds=[{"input_size": 7168}],
        breaks=[{"input_size": 64}],
        at_limit=[{"input_size": 128}],
        past_limit=[{"input_size": 127}, {"input_size": 129}],
    ),
)
def fp8_activation_groups(x: Linear) -> bool:
    """The input of every FP8 layer on one rank: `hidden_size`, `q_lora_rank`, `kv_lora_rank`,
    `num_attention_heads * v_head_dim / tp`, MLP widths.

    GPUs without FP8 tensor cores (SM80, SM86) leave activations in 16 bits and do not ask.
    """
    return x.input_size % 128 == 0


@rule(
    id="fp8-deepgemm-linear",
    title="DeepGEMM takes linear layers on a 64 x 128 grid",
    where=Where(inputs={"scheme": "fp8"}, gpus=("sm90", "sm100", "sm103")),
    otherwise=FallsBack("CUTLASS or Triton block-scaled matmul"),
    source=Source("vllm", "vllm/utils/deep_gemm.py", "should_use_deepgemm_for_fp8_linear"),
    cases=cases(
        Linear(),
        holds=[{"output_sizes": (1536, 576)}],
        breaks=[{"output_sizes": (32,)}],
        at_limit=[{"output_sizes": (64,)}, {"input_size": 128}],
        past_limit=[
            {"output_sizes": (63,)},
            {"output_sizes": (65,)},
            {"input_size": 127},
            {"input_size": 129},
        ],
    ),
)
def fp8_deepgemm_linear(x: Linear) -> bool:
    """Rows of the merged layer on one rank are a multiple of 64, its input of 128.

    Production's `fused_qkv_a_proj`, 2112 rows, is on the grid. The dtype must be bfloat16.
    """
    return sum(x.output_sizes) % 64 == 0 and x.input_size % 128 == 0


@rule(
    id="fp8-marlin-linear",
    title="MARLIN takes FP8 linear layers in tiles of 64 rows and 16 columns",
    where=Where(until="0.22.1", inputs={"scheme": "fp8"}, gpus=("sm80", "sm86")),
    otherwise=Rejected(r"size_[nk] = \d+ is not divisible by tile_[nk]_size"),
    source=Source("vllm", "csrc/quantization/marlin/gptq_marlin_repack.cu", "gptq_marlin_repack"),
    cases=cases(
        Linear(),
        holds=[{"output_sizes": (1536, 576)}],
        breaks=[{"output_sizes": (32,)}],
        at_limit=[{"output_sizes": (64,)}, {"input_size": 16}],
        past_limit=[
            {"output_sizes": (63,)},
            {"output_sizes": (65,)},
            {"input_size": 15},
            {"input_size": 17},
        ],
    ),
)
def fp8_marlin_linear(x: Linear) -> bool:
    """GPUs without FP8 tensor cores unpack the weights as they multiply.

    From 0.24.0 vLLM pads the tiles with zeros.
    """
    return sum(x.output_sizes) % 64 == 0 and x.input_size % 16 == 0

"""What tensor and expert parallelism divide."""

from fixturegen.check.inputs import Parallel
from fixturegen.check.rule import Rejected, Source, Where, cases, rule


@rule(
    id="tp-heads",
    title="TP divides the attention heads",
    where=Where(),
    otherwise=Rejected(
        r"Total number of attention heads \(\d+\) must be divisible by tensor parallel size"
    ),
    source=Source("vllm", "vllm/config/model.py", "ModelConfig.verify_with_parallel_config"),
    cases=cases(
        Parallel(num_attention_heads=16, tp=4),
        holds=[{"tp": 1}, {"tp": 16}],
        breaks=[{"tp": 3}, {"tp": 32}],
        at_limit=[{}],
        past_limit=[{"num_attention_heads": 15}, {"num_attention_heads": 17}],
    ),
)
def tp_heads(x: Parallel) -> bool:
    """Each rank runs `num_attention_heads / tp` whole heads."""
    return x.num_attention_heads % x.tp == 0


@rule(
    id="tp-widths",
    title="TP divides the width of every MLP",
    where=Where(),
    otherwise=Rejected(r"\d+ is not divisible by \d+|assert all\(output_size % "),
    source=Source("vllm", "vllm/model_executor/layers/linear.py", "MergedColumnParallelLinear"),
    cases=cases(
        Parallel(widths=(8, 4), tp=4),
        holds=[{"tp": 1}, {"widths": ()}],
        breaks=[{"tp": 3}, {"widths": (4, 6)}],
        at_limit=[{"widths": (4,)}],
        past_limit=[{"widths": (5,)}, {"widths": (3,)}],
    ),
)
def tp_widths(x: Parallel) -> bool:
    """`intermediate_size` of dense layers and `n_shared_experts * moe_intermediate_size`.

    Expert parallelism splits the routed experts alone. Their own width is `moe-tp-width`.
    """
    return all(width % x.tp == 0 for width in x.widths)


@rule(
    id="ep-experts",
    title="Expert parallelism needs at least one expert on every rank",
    where=Where(),
    otherwise=Rejected("num_experts|experts"),
    source=Source("vllm", "vllm/model_executor/models/deepseek_v2.py", "DeepseekV2MoE.__init__"),
    cases=cases(
        Parallel(n_routed_experts=32, ep=4),
        holds=[{"n_routed_experts": 0, "ep": 1}],
        breaks=[{"ep": 64}],
        at_limit=[{"ep": 32}, {"n_routed_experts": 0, "ep": 1}],
        past_limit=[{"ep": 33}, {"n_routed_experts": 31, "ep": 32}],
    ),
)
def ep_experts(x: Parallel) -> bool:
    """Uneven shares are dealt out (the first ranks take one more), empty ones are not."""
    return x.n_routed_experts >= x.ep or x.ep == 1

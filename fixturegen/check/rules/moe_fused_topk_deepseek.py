"""FlashInfer's stand-alone routing kernel, flashinfer.fused_topk_deepseek.

vLLM does not call it; SGLang and other engines do. It has no part in a vLLM target's verdicts.
"""

from fixturegen.check.inputs import Routing
from fixturegen.check.rule import Rejected, Source, Where, cases, rule

SOURCE = Source(
    "flashinfer-python",
    "flashinfer/fused_moe/fused_routing_dsv3.py",
    "_check_dsv3_fused_routing_supported",
)
FUSED = Where(engine="flashinfer", backends=("fused_topk_deepseek",))
CALL = Routing(backend="fused_topk_deepseek")


@rule(
    id="fused-topk-groups",
    title="fused_topk_deepseek compares top-k with groups, not with experts",
    where=FUSED,
    otherwise=Rejected(r"Invalid configuration: topk_group \* n_group"),
    source=SOURCE,
    cases=cases(
        CALL,
        breaks=[{"n_group": 1, "topk_group": 1}],
        at_limit=[{"topk_group": 1}, {"topk_group": 8}],
        past_limit=[{"topk_group": 1, "num_experts_per_tok": 9}, {"topk_group": 9}],
    ),
)
def fused_topk_groups(x: Routing) -> bool:
    """`topk_group * n_group >= num_experts_per_tok` and `topk_group <= n_group`.

    The first should count the experts in the chosen groups (FlashInfer issue 4867): as it stands
    Kimi-K2's one group with top-8 is refused.
    """
    return x.topk_group * x.n_group >= x.num_experts_per_tok and x.topk_group <= x.n_group


@rule(
    id="fused-topk-topk",
    title="fused_topk_deepseek takes top-k up to 8",
    where=FUSED,
    otherwise=Rejected(r"Invalid configuration for n_group (>|=) 1: topk"),
    source=SOURCE,
    cases=cases(
        CALL,
        breaks=[{"num_experts_per_tok": 16}],
        at_limit=[{"num_experts_per_tok": 8}],
        past_limit=[{"num_experts_per_tok": 9}],
    ),
)
def fused_topk_topk(x: Routing) -> bool:
    """With groups and without; the kernel keeps eight candidates."""
    return x.num_experts_per_tok <= 8


@rule(
    id="fused-topk-experts",
    title="fused_topk_deepseek takes 32 experts a group and 128 in the chosen ones",
    where=FUSED,
    otherwise=Rejected(r"Invalid configuration for n_group > 1: num_experts / n_group"),
    source=SOURCE,
    cases=cases(
        CALL,
        holds=[{"n_group": 1, "topk_group": 1}, {"n_routed_experts": 64}],
        breaks=[{"n_routed_experts": 512}, {"topk_group": 8}],
        at_limit=[
            {"n_routed_experts": 256, "topk_group": 4},
            {"n_group": 1, "topk_group": 1, "n_routed_experts": 384},
        ],
        past_limit=[
            {"n_routed_experts": 264, "topk_group": 1},
            {"n_routed_experts": 258, "n_group": 6, "topk_group": 3},
            {"n_routed_experts": 215, "n_group": 5, "topk_group": 3},
            {"n_routed_experts": 206, "topk_group": 5},
            {"n_routed_experts": 66, "n_group": 2, "topk_group": 1},
        ],
    ),
)
def fused_topk_experts(x: Routing) -> bool:
    """`n_routed_experts / n_group <= 32` and `topk_group` times that `<= 128`, where groups are."""
    return x.n_group <= 1 or (
        x.n_routed_experts <= 32 * x.n_group
        and x.topk_group * x.n_routed_experts <= 128 * x.n_group
    )


@rule(
    id="fused-topk-one-group",
    title="fused_topk_deepseek takes 384 experts without groups",
    where=FUSED,
    otherwise=Rejected(r"Invalid configuration for n_group = 1: num_experts"),
    source=SOURCE,
    cases=cases(
        CALL,
        holds=[{"n_routed_experts": 512}],
        breaks=[{"n_group": 1, "topk_group": 1, "n_routed_experts": 512}],
        at_limit=[
            {"n_group": 1, "topk_group": 1, "n_routed_experts": 384},
            {"n_group": 2, "topk_group": 1, "n_routed_experts": 385},
        ],
        past_limit=[{"n_group": 1, "topk_group": 1, "n_routed_experts": 385}],
    ),
)
def fused_topk_one_group(x: Routing) -> bool:
    """Kimi-K2's number of experts; with groups `fused-topk-experts` asks instead."""
    return x.n_group > 1 or x.n_routed_experts <= 384

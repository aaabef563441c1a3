"""Routing bounds that FlashInfer's TRTLLM FP8 launcher checks before it calls a kernel."""

from fixturegen.check.inputs import Routing
from fixturegen.check.rule import Rejected, Source, Where, cases, rule

SOURCE = Source(
    "flashinfer-python",
    "flashinfer/data/csrc/trtllm_fused_moe_kernel_launcher.cu",
    "Fp8BlockScaleLauncher::check_routing",
)
WRAPPER = Source(
    "vllm",
    "vllm/model_executor/layers/fused_moe/experts/trtllm_fp8_moe.py",
    "TrtLlmFp8ExpertsMonolithic",
)
GROUPED = {"scheme": "fp8", "grouped": True}
UNGROUPED = {"scheme": "fp8", "grouped": False}


@rule(
    id="moe-trtllm-topk-strict",
    title="Top-k is less than the experts in the chosen groups (TRTLLM, FP8)",
    where=Where(engine="flashinfer", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("top_k must be less than total number of experts in selected groups"),
    source=SOURCE,
    cases=cases(
        Routing(n_routed_experts=8, topk_group=4, num_experts_per_tok=4),
        holds=[{"n_routed_experts": 256, "num_experts_per_tok": 8}, {"n_routed_experts": 16}],
        breaks=[{}, {"n_routed_experts": 16, "topk_group": 1}],
        at_limit=[{"num_experts_per_tok": 3}],
        past_limit=[{"num_experts_per_tok": 4}],
    ),
)
def moe_trtllm_topk_strict(x: Routing) -> bool:
    """`num_experts_per_tok < topk_group * n_routed_experts / n_group`, and equality is refused.

    The bound that ended vLLM's MTP test on Blackwell: 8 experts in 8 groups with 4 groups chosen
    leave 4 experts, and the checkpoint asks for 4. vLLM's own routing takes equality, so the same
    checkpoint runs on other GPUs. The bound stands in every FlashInfer release read.
    """
    return x.num_experts_per_tok < x.topk_group * x.n_routed_experts // x.n_group


@rule(
    id="moe-trtllm-topk-max",
    title="Top-k is at most 8 (TRTLLM, FP8)",
    where=Where(engine="flashinfer", until="0.6.6", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected(r"Current routing kernel \(with groups\) only supports top_k<=8"),
    source=SOURCE,
    cases=cases(
        Routing(),
        breaks=[{"num_experts_per_tok": 16}],
        at_limit=[{"num_experts_per_tok": 8}],
        past_limit=[{"num_experts_per_tok": 9}],
    ),
)
def moe_trtllm_topk_max(x: Routing) -> bool:
    """Eight registers per lane hold the chosen experts."""
    return x.num_experts_per_tok <= 8


@rule(
    id="moe-trtllm-topk-max-0.6.7",
    variant_of="moe-trtllm-topk-max",
    title="Top-k is at most 8, above 384 experts 22 (TRTLLM, FP8)",
    where=Where(engine="flashinfer", since="0.6.7", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected(r"Current routing kernel \(with groups\) only supports top_k<="),
    source=SOURCE,
    cases=cases(
        Routing(),
        holds=[{"n_routed_experts": 512, "num_experts_per_tok": 16}],
        breaks=[{"num_experts_per_tok": 16}],
        at_limit=[
            {"num_experts_per_tok": 8, "n_routed_experts": 384},
            {"num_experts_per_tok": 22, "n_routed_experts": 385},
        ],
        past_limit=[
            {"num_experts_per_tok": 9, "n_routed_experts": 384},
            {"num_experts_per_tok": 23, "n_routed_experts": 385},
        ],
    ),
)
def moe_trtllm_topk_max_0_6_7(x: Routing) -> bool:
    """The second limit belongs to a kernel tier made for 512 experts."""
    return x.num_experts_per_tok <= (8 if x.n_routed_experts <= 384 else 22)


@rule(
    id="moe-trtllm-topk-group",
    title="At most 4 groups are chosen (TRTLLM, FP8)",
    where=Where(engine="flashinfer", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("supports topk_group<=4 && topk_group > 0"),
    source=SOURCE,
    cases=cases(
        Routing(),
        holds=[{"topk_group": 1}],
        breaks=[{"topk_group": 8}],
        at_limit=[{"topk_group": 4}],
        past_limit=[{"topk_group": 5}],
    ),
)
def moe_trtllm_topk_group(x: Routing) -> bool:
    """`topk_group <= 4`, DeepSeek-V3's own number."""
    return x.topk_group <= 4


@rule(
    id="moe-trtllm-groups",
    title="Groups divide the experts, and no more are chosen than there are (TRTLLM, FP8)",
    where=Where(engine="flashinfer", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected(
        "num_experts must be divisible by n_group|n_group must not be smaller than topk_group"
    ),
    source=SOURCE,
    cases=cases(
        Routing(),
        holds=[{"n_group": 1, "topk_group": 1}],
        breaks=[{"n_group": 7}, {"n_group": 2}],
        at_limit=[{"n_group": 4, "topk_group": 4}, {"n_routed_experts": 8}],
        past_limit=[
            {"n_group": 4, "topk_group": 5},
            {"n_routed_experts": 9},
            {"n_routed_experts": 7},
        ],
    ),
)
def moe_trtllm_groups(x: Routing) -> bool:
    """A config that breaks this contradicts itself, and is refused before any target is asked."""
    return x.n_routed_experts % x.n_group == 0 and x.topk_group <= x.n_group


@rule(
    id="moe-trtllm-experts-4",
    title="4 divides the experts (TRTLLM, FP8)",
    where=Where(engine="flashinfer", backends=("trtllm",), inputs={"scheme": "fp8"}),
    otherwise=Rejected("num_experts must be divisible by 4|AssertionError"),
    source=SOURCE,
    cases=cases(
        Routing(),
        holds=[{"n_routed_experts": 256}],
        breaks=[{"n_routed_experts": 18}],
        at_limit=[{"n_routed_experts": 72}],
        past_limit=[{"n_routed_experts": 73}, {"n_routed_experts": 71}, {"n_routed_experts": 70}],
    ),
)
def moe_trtllm_experts_4(x: Routing) -> bool:
    """Expert indices are read in vectors of four. vLLM's wrapper asserts the same first."""
    return x.n_routed_experts % 4 == 0


@rule(
    id="moe-trtllm-experts-above-topk",
    title="There are more experts than are chosen (TRTLLM, FP8)",
    where=Where(engine="flashinfer", backends=("trtllm",), inputs={"scheme": "fp8"}),
    otherwise=Rejected("num_experts must be greater than top_k"),
    source=SOURCE,
    cases=cases(
        Routing(),
        breaks=[{"n_routed_experts": 4}],
        at_limit=[{"n_routed_experts": 9}],
        past_limit=[{"n_routed_experts": 8}],
    ),
)
def moe_trtllm_experts_above_topk(x: Routing) -> bool:
    """Choosing all experts is refused, with groups or without."""
    return x.n_routed_experts > x.num_experts_per_tok


@rule(
    id="moe-trtllm-ungrouped",
    title="Routing without DeepSeek-V3's bias has one group (TRTLLM, FP8)",
    where=Where(engine="flashinfer", backends=("trtllm",), inputs=UNGROUPED),
    otherwise=Rejected(r"Current routing kernel \(no groups\) only supports (n|topk)_group <= 1"),
    source=SOURCE,
    cases=cases(
        Routing(grouped=False, n_group=1, topk_group=1),
        breaks=[{"n_group": 8, "topk_group": 3}],
        at_limit=[{}],
        past_limit=[{"n_group": 2}, {"topk_group": 2}],
    ),
)
def moe_trtllm_ungrouped(x: Routing) -> bool:
    """DeepSeek-V2's group-limited softmax is not among FlashInfer's methods."""
    return x.n_group <= 1 and x.topk_group <= 1


@rule(
    id="moe-trtllm-ungrouped-topk",
    title="Without groups top-k is at most 10 (TRTLLM, FP8)",
    where=Where(engine="flashinfer", until="0.6.6", backends=("trtllm",), inputs=UNGROUPED),
    otherwise=Rejected(
        r"Current routing kernel \(no groups, renormalize\) only supports top_k<=10"
    ),
    source=SOURCE,
    cases=cases(
        Routing(grouped=False, n_group=1, topk_group=1),
        breaks=[{"num_experts_per_tok": 16}],
        at_limit=[{"num_experts_per_tok": 10}],
        past_limit=[{"num_experts_per_tok": 11}],
    ),
)
def moe_trtllm_ungrouped_topk(x: Routing) -> bool:
    """Renormalised softmax; DeepSeek-V3's routing has its own limit."""
    return x.num_experts_per_tok <= 10


@rule(
    id="moe-trtllm-ungrouped-topk-0.6.7",
    variant_of="moe-trtllm-ungrouped-topk",
    title="Without groups top-k is at most 32 (TRTLLM, FP8)",
    where=Where(engine="flashinfer", since="0.6.7", backends=("trtllm",), inputs=UNGROUPED),
    otherwise=Rejected(r"Current routing kernel \(no groups(, renormalize)?\) only supports top_k"),
    source=SOURCE,
    cases=cases(
        Routing(grouped=False, n_group=1, topk_group=1),
        breaks=[{"num_experts_per_tok": 64}],
        at_limit=[{"num_experts_per_tok": 32}],
        past_limit=[{"num_experts_per_tok": 33}],
    ),
)
def moe_trtllm_ungrouped_topk_0_6_7(x: Routing) -> bool:
    """Until 0.6.8.post1 the message still says 10."""
    return x.num_experts_per_tok <= 32


@rule(
    id="moe-trtllm-wrapper-topk",
    title="vLLM's wrapper of TRTLLM FP8 takes top-k up to 10",
    where=Where(until="0.24.0", backends=("trtllm",), inputs={"scheme": "fp8"}),
    otherwise=Rejected("AssertionError"),
    source=WRAPPER,
    cases=cases(
        Routing(),
        breaks=[{"num_experts_per_tok": 16}],
        at_limit=[{"num_experts_per_tok": 10}],
        past_limit=[{"num_experts_per_tok": 11}],
    ),
)
def moe_trtllm_wrapper_topk(x: Routing) -> bool:
    """`assert self.topk <= 10`, before FlashInfer is called."""
    return x.num_experts_per_tok <= 10


@rule(
    id="moe-trtllm-wrapper-topk-0.26",
    variant_of="moe-trtllm-wrapper-topk",
    title="vLLM's wrapper of TRTLLM FP8 takes top-k up to 32",
    where=Where(since="0.26.0", backends=("trtllm",), inputs={"scheme": "fp8"}),
    otherwise=Rejected("AssertionError"),
    source=WRAPPER,
    cases=cases(
        Routing(),
        breaks=[{"num_experts_per_tok": 64}],
        at_limit=[{"num_experts_per_tok": 32}],
        past_limit=[{"num_experts_per_tok": 33}],
    ),
)
def moe_trtllm_wrapper_topk_0_26(x: Routing) -> bool:
    """`assert self.topk <= 32`, for 128 x 128 blocks."""
    return x.num_experts_per_tok <= 32


@rule(
    id="moe-trtllm-wrapper-experts",
    title="vLLM's wrapper of TRTLLM FP8 takes up to 512 experts",
    where=Where(backends=("trtllm",), inputs={"scheme": "fp8"}),
    otherwise=Rejected("AssertionError"),
    source=WRAPPER,
    cases=cases(
        Routing(),
        breaks=[{"n_routed_experts": 1024}],
        at_limit=[{"n_routed_experts": 512}],
        past_limit=[{"n_routed_experts": 513}],
    ),
)
def moe_trtllm_wrapper_experts(x: Routing) -> bool:
    """`assert global_num_experts <= 512`: one thread an expert."""
    return x.n_routed_experts <= 512

"""Bounds of FlashInfer's TRTLLM routing kernels, which all weight schemes share.

With more than one group the kernel is routingDeepSeek. With one group it is routingCustom from
0.6.8.post1 on, which knows no groups.
"""

from fixturegen.check.inputs import Routing
from fixturegen.check.rule import Rejected, SilentlyWrong, Source, Where, cases, rule

CSRC = "flashinfer/data/csrc"
OLD = Source(
    "flashinfer-python", f"{CSRC}/trtllm_fused_moe_routing_deepseek.cu", "routingDeepSeek::runImpl"
)
DEEPSEEK = Source(
    "flashinfer-python",
    f"{CSRC}/fused_moe/trtllm_backend/trtllm_fused_moe_routing_deepseek.cu",
    "routingDeepSeek::run",
)
CUSTOM = Source(
    "flashinfer-python",
    f"{CSRC}/fused_moe/trtllm_backend/trtllm_fused_moe_routing_custom.cu",
    "routingCustom::run",
)
GROUPED = {"grouped": True}


@rule(
    id="moe-routing-groups",
    title="At most 8 expert groups",
    where=Where(engine="flashinfer", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("Routing kernel expects #experts? groups"),
    source=DEEPSEEK,
    cases=cases(
        Routing(),
        holds=[{"n_group": 1, "topk_group": 1}],
        breaks=[{"n_group": 16}],
        at_limit=[{"n_group": 8}],
        past_limit=[{"n_group": 9}],
    ),
)
def moe_routing_groups(x: Routing) -> bool:
    """One warp scores one group, and a block has eight warps."""
    return x.n_group <= 8


@rule(
    id="moe-routing-experts-per-group",
    title="At most 32 experts in a group",
    where=Where(engine="flashinfer", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("Routing kernel expects #experts per group <= warp size"),
    source=DEEPSEEK,
    cases=cases(
        Routing(),
        holds=[{"n_group": 1, "topk_group": 1}, {"n_routed_experts": 16}],
        breaks=[{"n_routed_experts": 512}],
        at_limit=[{"n_routed_experts": 256}, {"n_group": 1, "topk_group": 1}],
        past_limit=[
            {"n_routed_experts": 264},
            {"n_group": 2, "topk_group": 2, "n_routed_experts": 66},
        ],
    ),
)
def moe_routing_experts_per_group(x: Routing) -> bool:
    """One lane of the group's warp holds one expert. Without groups there is no such limit."""
    return x.n_group <= 1 or x.n_routed_experts // x.n_group <= 32


@rule(
    id="moe-routing-topk-group",
    title="At most 4 groups are chosen, and no more than there are",
    where=Where(engine="flashinfer", until="0.6.6", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("top groups|must have topkGroup <= 4"),
    source=DEEPSEEK,
    cases=cases(
        Routing(),
        holds=[{"topk_group": 1}],
        breaks=[{"topk_group": 8}, {"n_group": 2, "topk_group": 3}],
        at_limit=[{"topk_group": 4}, {"n_group": 3, "topk_group": 3}],
        past_limit=[{"topk_group": 5}, {"n_group": 3, "topk_group": 4}],
    ),
)
def moe_routing_topk_group(x: Routing) -> bool:
    """The FP8 launcher asks the same first; for bf16 and NVFP4 only the kernel does."""
    return x.topk_group <= 4 and x.topk_group <= x.n_group


@rule(
    id="moe-routing-topk-group-0.6.7",
    variant_of="moe-routing-topk-group",
    title="At most 4 groups are chosen, and no more than there are",
    where=Where(
        engine="flashinfer", since="0.6.7", until="0.6.7", backends=("trtllm",), inputs=GROUPED
    ),
    otherwise=Rejected("top groups|must have topkGroup <= 4"),
    source=DEEPSEEK,
    cases=cases(
        Routing(),
        holds=[{"topk_group": 1}],
        breaks=[{"topk_group": 8}, {"n_group": 2, "topk_group": 3}],
        at_limit=[
            {"topk_group": 4},
            {"n_group": 3, "topk_group": 3},
            {"n_group": 1, "topk_group": 4},
        ],
        past_limit=[
            {"topk_group": 5},
            {"n_group": 3, "topk_group": 4},
            {"n_group": 2, "topk_group": 3},
            {"n_group": 1, "topk_group": 5},
        ],
    ),
)
def moe_routing_topk_group_0_6_7(x: Routing) -> bool:
    """With one group only the first part is asked, by the runner."""
    return x.topk_group <= 4 and (x.n_group <= 1 or x.topk_group <= x.n_group)


@rule(
    id="moe-routing-topk-group-0.6.8",
    variant_of="moe-routing-topk-group",
    title="At most 4 groups are chosen, and no more than there are",
    where=Where(engine="flashinfer", since="0.6.8.post1", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("top groups|must have topkGroup <= 4"),
    source=DEEPSEEK,
    cases=cases(
        Routing(),
        holds=[{"topk_group": 1}],
        breaks=[{"topk_group": 8}, {"n_group": 2, "topk_group": 3}],
        at_limit=[
            {"topk_group": 4},
            {"n_group": 3, "topk_group": 3},
            {"n_group": 1, "topk_group": 5},
        ],
        past_limit=[
            {"topk_group": 5},
            {"n_group": 3, "topk_group": 4},
            {"n_group": 2, "topk_group": 3},
        ],
    ),
)
def moe_routing_topk_group_0_6_8(x: Routing) -> bool:
    """One group goes to a kernel that does not look at `topk_group`."""
    return x.n_group <= 1 or (x.topk_group <= 4 and x.topk_group <= x.n_group)


@rule(
    id="moe-routing-topk-lanes",
    title="Top-k times chosen groups is at most 32",
    where=Where(engine="flashinfer", until="0.6.6", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected(r"Routing kernel expects top K \* top groups <= warp size"),
    source=OLD,
    cases=cases(
        Routing(),
        holds=[{"topk_group": 1}],
        breaks=[{"num_experts_per_tok": 16}],
        at_limit=[{"num_experts_per_tok": 8, "topk_group": 4}],
        past_limit=[{"num_experts_per_tok": 11, "topk_group": 3}],
    ),
)
def moe_routing_topk_lanes(x: Routing) -> bool:
    """A limit of the selection across one warp; it is gone in 0.6.7."""
    return x.num_experts_per_tok * x.topk_group <= 32


@rule(
    id="moe-routing-topk",
    title="Top-k is at most 8, above 384 experts 22",
    where=Where(engine="flashinfer", until="0.6.6", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("routing kernel expects topK experts <="),
    source=OLD,
    cases=cases(
        Routing(),
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
def moe_routing_topk(x: Routing) -> bool:
    """The kernel is compiled for these pairs of experts and top-k."""
    return x.num_experts_per_tok <= (8 if x.n_routed_experts <= 384 else 22)


@rule(
    id="moe-routing-topk-0.6.7",
    variant_of="moe-routing-topk",
    title="Top-k is at most 22",
    where=Where(
        engine="flashinfer", since="0.6.7", until="0.6.7", backends=("trtllm",), inputs=GROUPED
    ),
    otherwise=Rejected("must have topK <= 22"),
    source=Source(
        "flashinfer-python", f"{CSRC}/trtllm_fused_moe_runner.cu", "Routing::Runner::run"
    ),
    cases=cases(
        Routing(),
        breaks=[{"num_experts_per_tok": 32}],
        at_limit=[{"num_experts_per_tok": 22}],
        past_limit=[{"num_experts_per_tok": 23}],
    ),
)
def moe_routing_topk_0_6_7(x: Routing) -> bool:
    """With groups or without. The FP8 launcher has a stricter limit."""
    return x.num_experts_per_tok <= 22


@rule(
    id="moe-routing-topk-0.6.8",
    variant_of="moe-routing-topk",
    title="Top-k is at most 22 with groups, 32 without",
    where=Where(engine="flashinfer", since="0.6.8.post1", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("must have topK <= 22|Routing kernel expects topK experts <="),
    source=Source(
        "flashinfer-python", f"{CSRC}/trtllm_fused_moe_runner.cu", "Routing::Runner::run"
    ),
    cases=cases(
        Routing(),
        breaks=[{"num_experts_per_tok": 64}],
        at_limit=[
            {"num_experts_per_tok": 22, "n_group": 2, "topk_group": 2},
            {"num_experts_per_tok": 32, "n_group": 1, "topk_group": 1},
        ],
        past_limit=[
            {"num_experts_per_tok": 23, "n_group": 2, "topk_group": 2},
            {"num_experts_per_tok": 33, "n_group": 1, "topk_group": 1},
        ],
    ),
)
def moe_routing_topk_0_6_8(x: Routing) -> bool:
    """One group goes to routingCustom here. The FP8 launcher has a stricter limit."""
    return x.num_experts_per_tok <= (32 if x.n_group <= 1 else 22)


@rule(
    id="moe-routing-experts",
    title="At most 512 experts",
    where=Where(engine="flashinfer", until="0.6.7", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("Routing kernel expects #experts .* <="),
    source=DEEPSEEK,
    cases=cases(
        Routing(),
        breaks=[{"n_routed_experts": 1024}],
        at_limit=[{"n_routed_experts": 512}],
        past_limit=[{"n_routed_experts": 513}],
    ),
)
def moe_routing_experts(x: Routing) -> bool:
    """The largest tier is Nemotron's: 512 threads, one expert each."""
    return x.n_routed_experts <= 512


@rule(
    id="moe-routing-experts-0.6.8",
    variant_of="moe-routing-experts",
    title="At most 512 experts with groups, 2048 without",
    where=Where(engine="flashinfer", since="0.6.8.post1", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected("Routing kernel expects (#experts|total experts)"),
    source=DEEPSEEK,
    cases=cases(
        Routing(),
        breaks=[{"n_routed_experts": 4096}],
        at_limit=[
            {"n_routed_experts": 512, "n_group": 2, "topk_group": 2},
            {"n_routed_experts": 2048, "n_group": 1, "topk_group": 1},
        ],
        past_limit=[
            {"n_routed_experts": 513, "n_group": 2, "topk_group": 2},
            {"n_routed_experts": 2049, "n_group": 1, "topk_group": 1},
        ],
    ),
)
def moe_routing_experts_0_6_8(x: Routing) -> bool:
    """One group goes to routingCustom, which has more tiers."""
    return x.n_routed_experts <= (2048 if x.n_group <= 1 else 512)


@rule(
    id="moe-routing-experts-32",
    title="At least 32 experts in FlashInfer 0.6.7",
    where=Where(
        engine="flashinfer", since="0.6.7", until="0.6.7", backends=("trtllm",), inputs=GROUPED
    ),
    otherwise=Rejected(r"Routing kernel expects 32 to be at most #experts"),
    source=DEEPSEEK,
    cases=cases(
        Routing(),
        breaks=[{"n_routed_experts": 16}],
        at_limit=[{"n_routed_experts": 32}],
        past_limit=[{"n_routed_experts": 31}],
    ),
)
def moe_routing_experts_32(x: Routing) -> bool:
    """A check against the largest top-k instead of the asked one; no vLLM release pins 0.6.7."""
    return x.n_routed_experts >= 32


@rule(
    id="moe-routing-experts-4",
    title="4 divides the experts",
    where=Where(engine="flashinfer", until="0.6.6", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected(r"Routing kernel expects #experts \d+ to be a multiple of 4"),
    source=OLD,
    cases=cases(
        Routing(),
        breaks=[{"n_routed_experts": 18}],
        at_limit=[{"n_routed_experts": 72}],
        past_limit=[{"n_routed_experts": 73}, {"n_routed_experts": 71}, {"n_routed_experts": 70}],
    ),
)
def moe_routing_experts_4(x: Routing) -> bool:
    """With groups or without. The FP8 launcher asks the same in every release."""
    return x.n_routed_experts % 4 == 0


@rule(
    id="moe-routing-experts-4-0.6.7",
    variant_of="moe-routing-experts-4",
    title="4 divides the experts, where there are groups",
    where=Where(
        engine="flashinfer", since="0.6.7", until="0.6.7", backends=("trtllm",), inputs=GROUPED
    ),
    otherwise=Rejected(r"Routing kernel expects #experts \d+ to be a multiple of 4"),
    source=DEEPSEEK,
    cases=cases(
        Routing(n_group=2, topk_group=2),
        holds=[{"n_group": 1, "topk_group": 1, "n_routed_experts": 70}],
        breaks=[{"n_routed_experts": 18}],
        at_limit=[{"n_routed_experts": 72}, {"n_group": 1, "topk_group": 1, "n_routed_experts": 9}],
        past_limit=[{"n_routed_experts": 73}, {"n_routed_experts": 71}, {"n_routed_experts": 70}],
    ),
)
def moe_routing_experts_4_0_6_7(x: Routing) -> bool:
    """Without groups only the FP8 launcher asks."""
    return x.n_group <= 1 or x.n_routed_experts % 4 == 0


@rule(
    id="moe-routing-experts-4-0.6.8",
    variant_of="moe-routing-experts-4",
    title="4 divides the experts",
    where=Where(
        engine="flashinfer",
        since="0.6.8.post1",
        until="0.6.8.post1",
        backends=("trtllm",),
        inputs=GROUPED,
    ),
    otherwise=Rejected(r"Routing kernel expects #experts \d+ to be a multiple of 4"),
    source=CUSTOM,
    cases=cases(
        Routing(),
        breaks=[{"n_routed_experts": 18}],
        at_limit=[{"n_routed_experts": 72}],
        past_limit=[{"n_routed_experts": 73}, {"n_routed_experts": 71}, {"n_routed_experts": 70}],
    ),
)
def moe_routing_experts_4_0_6_8(x: Routing) -> bool:
    """Both kernels ask. From 0.6.11.post2 to 0.6.14 neither does, outside the FP8 launcher."""
    return x.n_routed_experts % 4 == 0


@rule(
    id="moe-routing-experts-4-0.6.16",
    variant_of="moe-routing-experts-4",
    title="4 divides the experts, where there are groups",
    where=Where(engine="flashinfer", since="0.6.16.post3", backends=("trtllm",), inputs=GROUPED),
    otherwise=Rejected(r"Routing kernel expects #experts \d+ to be a multiple of 4"),
    source=DEEPSEEK,
    cases=cases(
        Routing(n_group=2, topk_group=2),
        holds=[{"n_group": 1, "topk_group": 1, "n_routed_experts": 70}],
        breaks=[{"n_routed_experts": 18}],
        at_limit=[{"n_routed_experts": 72}, {"n_group": 1, "topk_group": 1, "n_routed_experts": 9}],
        past_limit=[{"n_routed_experts": 73}, {"n_routed_experts": 71}, {"n_routed_experts": 70}],
    ),
)
def moe_routing_experts_4_0_6_16(x: Routing) -> bool:
    """Back in the grouped kernel after it had gone in 0.6.11.post2."""
    return x.n_group <= 1 or x.n_routed_experts % 4 == 0


@rule(
    id="moe-routing-group-score",
    title="A group's score is the sum of its best two experts",
    where=Where(engine="flashinfer", backends=("trtllm",), inputs=GROUPED),
    otherwise=SilentlyWrong("every group scores minus infinity and the same groups always win"),
    source=DEEPSEEK,
    cases=cases(
        Routing(),
        holds=[{"n_group": 1, "topk_group": 1, "n_routed_experts": 1}],
        breaks=[{"n_routed_experts": 8}],
        at_limit=[
            {"n_routed_experts": 16},
            {"n_group": 1, "topk_group": 1, "n_routed_experts": 1},
            {"n_group": 2, "topk_group": 2, "n_routed_experts": 4},
        ],
        past_limit=[
            {"n_routed_experts": 15},
            {"n_group": 2, "topk_group": 2, "n_routed_experts": 3},
        ],
    ),
)
def moe_routing_group_score(x: Routing) -> bool:
    """`n_routed_experts / n_group` is at least 2; nothing checks it.

    With one expert in a group the second best is minus infinity, and so is the sum. Read from
    source, not run. vLLM's own routing ignores the groups of such a config, so the same weights
    answer differently on different GPUs.
    """
    return x.n_group <= 1 or x.n_routed_experts // x.n_group >= 2


@rule(
    id="moe-routing-chosen-groups",
    title="The chosen groups hold enough experts (bf16)",
    where=Where(
        engine="flashinfer", backends=("trtllm",), inputs={"grouped": True, "scheme": "bf16"}
    ),
    otherwise=SilentlyWrong("experts outside the chosen groups are used"),
    source=DEEPSEEK,
    cases=cases(
        Routing(scheme="bf16"),
        holds=[{"n_routed_experts": 16}],
        breaks=[{"n_routed_experts": 16, "topk_group": 1}],
        at_limit=[{"n_routed_experts": 16, "topk_group": 4}],
        past_limit=[{"n_routed_experts": 16, "topk_group": 4, "num_experts_per_tok": 9}],
    ),
)
def moe_routing_chosen_groups(x: Routing) -> bool:
    """`num_experts_per_tok <= topk_group * n_routed_experts / n_group`; equality is fine here.

    The FP8 launcher's strict bound is missing from the bf16 launcher ("TODO n_group, topk_group
    validation?"). Read from source, not run.
    """
    return x.num_experts_per_tok <= x.topk_group * x.n_routed_experts // x.n_group


@rule(
    id="moe-routing-chosen-groups-nvfp4",
    variant_of="moe-routing-chosen-groups",
    title="The chosen groups hold enough experts (NVFP4)",
    where=Where(
        engine="flashinfer", backends=("trtllm",), inputs={"grouped": True, "scheme": "nvfp4"}
    ),
    otherwise=SilentlyWrong("experts outside the chosen groups are used"),
    source=DEEPSEEK,
    cases=cases(
        Routing(scheme="nvfp4"),
        holds=[{"n_routed_experts": 16}],
        breaks=[{"n_routed_experts": 16, "topk_group": 1}],
        at_limit=[{"n_routed_experts": 16, "topk_group": 4}],
        past_limit=[{"n_routed_experts": 16, "topk_group": 4, "num_experts_per_tok": 9}],
    ),
)
def moe_routing_chosen_groups_nvfp4(x: Routing) -> bool:
    """As for bf16: the NVFP4 launcher checks nothing about groups. Read from source, not run."""
    return x.num_experts_per_tok <= x.topk_group * x.n_routed_experts // x.n_group


@rule(
    id="moe-routing-groups-ignored",
    title="Routing without DeepSeek-V3's bias has one group (bf16)",
    where=Where(
        engine="flashinfer", backends=("trtllm",), inputs={"grouped": False, "scheme": "bf16"}
    ),
    otherwise=SilentlyWrong("groups are ignored"),
    source=CUSTOM,
    cases=cases(
        Routing(scheme="bf16", grouped=False, n_group=1, topk_group=1),
        breaks=[{"n_group": 8}],
        at_limit=[{"n_group": 1}],
        past_limit=[{"n_group": 2}],
    ),
)
def moe_routing_groups_ignored(x: Routing) -> bool:
    """The FP8 launcher refuses such a config; the bf16 one passes groups on to no one.

    Read in the source; no GPU with this kernel has run it here.
    """
    return x.n_group <= 1


@rule(
    id="moe-routing-groups-ignored-nvfp4",
    variant_of="moe-routing-groups-ignored",
    title="Routing without DeepSeek-V3's bias has one group (NVFP4)",
    where=Where(
        engine="flashinfer", backends=("trtllm",), inputs={"grouped": False, "scheme": "nvfp4"}
    ),
    otherwise=SilentlyWrong("groups are ignored"),
    source=CUSTOM,
    cases=cases(
        Routing(scheme="nvfp4", grouped=False, n_group=1, topk_group=1),
        breaks=[{"n_group": 8}],
        at_limit=[{"n_group": 1}],
        past_limit=[{"n_group": 2}],
    ),
)
def moe_routing_groups_ignored_nvfp4(x: Routing) -> bool:
    """The FP8 launcher refuses such a config; the NVFP4 one passes groups on to no one.

    Read in the source; no GPU with this kernel has run it here.
    """
    return x.n_group <= 1

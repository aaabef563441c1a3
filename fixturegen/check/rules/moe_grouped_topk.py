"""vLLM's own routing: grouped_topk on CUDA, in torch and on the CPU."""

from fixturegen.check.inputs import Routing
from fixturegen.check.rule import FallsBack, Rejected, SilentlyWrong, Source, Where, cases, rule

ROUTER = "vllm/model_executor/layers/fused_moe/router"
KERNEL = Source("vllm", "csrc/moe/grouped_topk_kernels.cu", "grouped_topk")


@rule(
    id="moe-groups-given",
    title="Groups and top-k are numbers, not null",
    where=Where(backends=("none",)),
    otherwise=Rejected("num_expert_group and topk_group must be provided|AssertionError|TypeError"),
    source=Source("vllm", f"{ROUTER}/router_factory.py", "create_fused_moe_router"),
    cases=cases(
        Routing(),
        breaks=[{"n_group": 0}, {"topk_group": 0}, {"num_experts_per_tok": 0}],
        at_limit=[{"n_group": 1}, {"topk_group": 1}, {"num_experts_per_tok": 1}],
        past_limit=[{"n_group": 0}, {"topk_group": 0}, {"num_experts_per_tok": 0}],
    ),
)
def moe_groups_given(x: Routing) -> bool:
    """vLLM always builds DeepSeek's router with groups; a model without them has `n_group` 1.

    The defaults of transformers' DeepseekV2Config are null, so a DeepSeek-V2 config must spell the
    keys out.
    """
    return x.n_group >= 1 and x.topk_group >= 1 and x.num_experts_per_tok >= 1


@rule(
    id="moe-grouped-topk-fallback",
    title="vLLM groups experts only if each group has two of them",
    where=Where(backends=("vllm", "torch")),
    otherwise=FallsBack("plain top-k, groups ignored", {"backend": "topk"}),
    source=Source("vllm", f"{ROUTER}/grouped_topk_router.py", "GroupedTopKRouter._compute_routing"),
    cases=cases(
        Routing(backend="vllm"),
        holds=[{"n_routed_experts": 72}],
        breaks=[{"n_routed_experts": 8}, {"n_routed_experts": 4}, {"n_routed_experts": 20}],
        at_limit=[{"n_routed_experts": 16}, {"n_routed_experts": 2, "n_group": 1}],
        past_limit=[
            {"n_routed_experts": 8},
            {"n_routed_experts": 9},
            {"n_routed_experts": 1, "n_group": 1},
        ],
    ),
)
def moe_grouped_topk_fallback(x: Routing) -> bool:
    """No error: the router takes the best experts of all. The trained choice was another one."""
    return x.n_routed_experts > x.n_group and x.n_routed_experts % x.n_group == 0


@rule(
    id="moe-grouped-topk-limits",
    title="vLLM's fused kernel takes up to 32 groups and top-k up to 32",
    where=Where(backends=("vllm",)),
    otherwise=FallsBack("grouped top-k in torch", {"backend": "torch"}),
    source=Source("vllm", f"{ROUTER}/grouped_topk_router.py", "grouped_topk"),
    cases=cases(
        Routing(backend="vllm"),
        breaks=[{"n_group": 64}, {"num_experts_per_tok": 64}],
        at_limit=[{"n_group": 32}, {"num_experts_per_tok": 32}],
        past_limit=[{"n_group": 33}, {"num_experts_per_tok": 33}],
    ),
)
def moe_grouped_topk_limits(x: Routing) -> bool:
    """The kernel itself refuses more; the router asks first and takes the slower way."""
    return x.n_group <= 32 and x.num_experts_per_tok <= 32


@rule(
    id="moe-grouped-topk-groups",
    title="No more groups are chosen than there are",
    where=Where(backends=("vllm",)),
    otherwise=Rejected("topk_group must be <= n_group"),
    source=KERNEL,
    cases=cases(
        Routing(backend="vllm"),
        breaks=[{"topk_group": 16}],
        at_limit=[{"topk_group": 8}],
        past_limit=[{"topk_group": 9}],
    ),
)
def moe_grouped_topk_groups(x: Routing) -> bool:
    """A config that breaks this contradicts itself, and is refused before any target is asked."""
    return x.topk_group <= x.n_group


@rule(
    id="moe-grouped-topk-chosen",
    title="The chosen groups hold at least top-k experts",
    where=Where(backends=("vllm",)),
    otherwise=Rejected(r"topk must be <= topk_group \* \(num_experts / n_group\)"),
    source=KERNEL,
    cases=cases(
        Routing(backend="vllm", n_routed_experts=16),
        holds=[{"n_routed_experts": 256}],
        breaks=[{"topk_group": 1}],
        at_limit=[{"num_experts_per_tok": 8}],
        past_limit=[{"num_experts_per_tok": 9}],
    ),
)
def moe_grouped_topk_chosen(x: Routing) -> bool:
    """`num_experts_per_tok <= topk_group * (n_routed_experts / n_group)`: equality is taken.

    FlashInfer's FP8 launcher refuses equality (`moe-trtllm-topk-strict`).
    """
    return x.num_experts_per_tok <= x.topk_group * (x.n_routed_experts // x.n_group)


@rule(
    id="moe-torch-chosen",
    title="The chosen groups hold at least top-k experts (torch)",
    where=Where(backends=("torch",)),
    otherwise=SilentlyWrong("experts outside the chosen groups are used"),
    source=Source("vllm", f"{ROUTER}/grouped_topk_router.py", "grouped_topk"),
    cases=cases(
        Routing(backend="torch", n_routed_experts=16),
        holds=[{"n_routed_experts": 256}],
        breaks=[{"topk_group": 1}],
        at_limit=[{"num_experts_per_tok": 8}],
        past_limit=[{"num_experts_per_tok": 9}],
    ),
)
def moe_torch_chosen(x: Routing) -> bool:
    """Other groups are masked with minus infinity, which top-k takes when it runs out.

    Read in the source; the CPU's twin of it, `moe-cpu-chosen`, ran.
    """
    return x.num_experts_per_tok <= x.topk_group * (x.n_routed_experts // x.n_group)


@rule(
    id="moe-cpu-group-score",
    title="On the CPU a group with a bias needs two experts",
    where=Where(backends=("cpu",), inputs={"bias": True}),
    otherwise=Rejected("selected index k out of range"),
    source=Source("vllm", f"{ROUTER}/cpu_router.py", "_grouped_topk"),
    cases=cases(
        Routing(backend="cpu", n_routed_experts=16),
        holds=[{"n_routed_experts": 256}],
        breaks=[{"n_routed_experts": 8}],
        at_limit=[{"n_routed_experts": 16}],
        past_limit=[{"n_routed_experts": 15}, {"n_routed_experts": 8}],
    ),
)
def moe_cpu_group_score(x: Routing) -> bool:
    """`topk(2)` of each group; the CPU build has no fallback to plain top-k."""
    return x.n_routed_experts // x.n_group >= 2


@rule(
    id="moe-cpu-chosen",
    title="The chosen groups hold at least top-k experts (CPU)",
    where=Where(backends=("cpu",)),
    otherwise=SilentlyWrong("experts outside the chosen groups are used"),
    source=Source("vllm", f"{ROUTER}/cpu_router.py", "_grouped_topk"),
    cases=cases(
        Routing(backend="cpu", n_routed_experts=16),
        holds=[{"n_routed_experts": 256}],
        breaks=[{"topk_group": 1}],
        at_limit=[{"num_experts_per_tok": 8}],
        past_limit=[{"num_experts_per_tok": 9}],
    ),
)
def moe_cpu_chosen(x: Routing) -> bool:
    """Other groups are masked with minus infinity, which top-k takes when it runs out."""
    return x.num_experts_per_tok <= x.topk_group * (x.n_routed_experts // x.n_group)

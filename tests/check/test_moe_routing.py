"""Routing bounds against FlashInfer's and vLLM's own checks, for every release read."""

from __future__ import annotations

import ast
import functools
import itertools
import random
import re
from collections.abc import Iterator
from types import SimpleNamespace

import cpp
import pytest
from python_source import compiled, condition, function
from sources import vllm_source, wheel_file

from fixturegen.check import check, releases
from fixturegen.check.catalogue import broken, catalogue
from fixturegen.check.inputs import Routing
from fixturegen.check.rule import Rejected
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig, Quantization
from fixturegen.errors import ConfigError

every_flashinfer = pytest.mark.parametrize("version", releases.FLASHINFER)
every_vllm = pytest.mark.parametrize("version", releases.VLLM)

METHODS = {
    "Default": 0,
    "Renormalize": 1,
    "DeepSeekV3": 2,
    "Llama4": 3,
    "RenormalizeNaive": 4,
    "TopK": 5,
    "SigmoidRenorm": 6,
    "MiniMax2": 7,
    "Sigmoid": 8,
    "TopKSigmoid": 9,
}


def shapes() -> Iterator[tuple[int, int, int, int]]:
    """(experts, groups, chosen groups, top-k): all small ones and a sample up to the limits."""
    sizes = (1, 2, 3, 4, 5, 8, 9)
    for experts in (4, 8, 12, 16, 18, 22, 32, 72, 256):
        yield from itertools.product((experts,), sizes, (1, 2, 4, 5), (1, 3, 4, 7, 8, 9))
    draw = random.Random(20)
    edges = (31, 32, 33, 66, 72, 128, 255, 256, 257, 264, 384, 385, 388, 512, 513, 516, 1024)
    for _ in range(1500):
        yield (
            draw.choice((*edges, 2048, 2049, 2052)),
            draw.choice((1, 1, 2, 4, 6, 8, 9, 16, 32, 33, 64)),
            draw.choice((1, 2, 3, 4, 5, 8)),
            draw.choice((1, 4, 6, 8, 9, 10, 11, 16, 22, 23, 32, 33)),
        )


SHAPES = sorted(set(shapes()))


def rejections(x: Routing, target: Target, source: str) -> list[str]:
    """Ids of the broken rules that were read from a file whose path holds ``source``."""
    found = (r for r in broken(x, target) if isinstance(r.otherwise, Rejected))
    return [r.id for r in found if source in f"{r.source.file} {r.source.symbol}"]


def target_with(flashinfer: str) -> Target:
    """A target that runs this FlashInfer; the vLLM release does not matter to its rules."""
    return Target(vllm="0.33.0", flashinfer=flashinfer)


def csrc(version: str, name: str) -> str:
    """A C++ file of FlashInfer's wheel, without comments."""
    path = f"flashinfer/data/csrc/{name}"
    return cpp.strip_comments(wheel_file("flashinfer-python", version, path).read_text())


@functools.cache
def launcher(version: str) -> tuple[cpp.Nodes, cpp.Nodes]:
    """Checks of check_routing_common and of the FP8 launcher's check_routing."""
    source = csrc(version, "trtllm_fused_moe_kernel_launcher.cu")
    fp8 = source[source.index("class Fp8BlockScaleLauncher") :]
    return (
        cpp.function(source, r"void check_routing_common\(\) const \{"),
        cpp.function(fp8, r"void check_routing\(\) const override \{"),
    )


def launcher_values(experts: int, groups: int, chosen: int, top_k: int, method: int) -> dict:
    return {f"RoutingMethodType_{name}": value for name, value in METHODS.items()} | {
        "num_experts": experts,
        "local_num_experts": experts,
        "local_expert_offset": 0,
        "n_group": groups,
        "topk_group": chosen,
        "top_k": top_k,
        "routing_method_type": method,
    }


@every_flashinfer
@pytest.mark.parametrize("method", ["DeepSeekV3", "Renormalize", "RenormalizeNaive"])
def test_fp8_launcher(version: str, method: str) -> None:
    """The launcher's checks, run from its source, against the rules."""
    target, accepted = target_with(version), 0
    for experts, groups, chosen, top_k in SHAPES:
        values = launcher_values(experts, groups, chosen, top_k, METHODS[method])
        walks = [cpp.walk(body, values) for body in launcher(version)]
        real = not any(w.failed for w in walks)
        x = Routing(
            grouped=method == "DeepSeekV3",
            n_routed_experts=experts,
            n_group=groups,
            topk_group=chosen,
            num_experts_per_tok=top_k,
        )
        ours = rejections(x, target, "Fp8BlockScaleLauncher")
        assert real is not bool(ours), (x, [w.failed for w in walks], ours)
        accepted += real
    assert 0 < accepted < len(SHAPES)
    print(f"FlashInfer {version} FP8 launcher, {method}: {len(SHAPES)} of {len(SHAPES)} agree")


@every_flashinfer
def test_fp8_launcher_checks_are_all_read(version: str) -> None:
    """A check that is added to the launcher, or one that this test cannot evaluate, fails here."""
    _, body = launcher(version)
    met = cpp.walk(body, launcher_values(256, 8, 4, 8, METHODS["DeepSeekV3"]))
    assert met.passed == [
        "n_group != 0",
        "topk_group != 0",
        "(num_experts % n_group) == ( 0)",
        "top_k <= 8 and top_k > 0"
        if version == "0.6.6"
        else "top_k <= max_supported_top_k and top_k > 0",
        "topk_group <= 4 and topk_group > 0",
        "(topk_group) <= ( n_group)",
        "(top_k) < ( (topk_group * num_experts // n_group))",
        "(num_experts % 4) == ( 0)",
        "(num_experts) > ( top_k)",
        "(local_num_experts + local_expert_offset) <= ( num_experts)",
    ]
    assert all("expert_indices" in s or "has_precomputed" in s for s in met.skipped)


@functools.cache
def kernels(version: str) -> tuple[cpp.Nodes, cpp.Nodes, cpp.Nodes | None, dict[str, int]]:
    """Checks of the runner, the grouped kernel and the ungrouped one, and the last two's limits."""
    backend = "fused_moe/trtllm_backend"
    split = releases.within(version, "0.7.0", None)
    runner = f"{backend}/trtllm_fused_moe_routing_runner.cu" if split else ""
    runner_source = csrc(version, runner or "trtllm_fused_moe_runner.cu")
    folder = "" if version == "0.6.6" else f"{backend}/"
    deepseek = csrc(version, f"{folder}trtllm_fused_moe_routing_deepseek.cu")
    limits = cpp.constants(deepseek) | {"WarpSize": 32}
    if version == "0.6.7":
        common = csrc(version, f"{backend}/routingDeepSeek/RoutingDeepSeekCommon.cuh")
        limits |= cpp.constants(common)
    # std::max over the three tiers, of which this is the largest
    limits.setdefault("MaxSupportedExpertCount", limits["NumNemotronExperts"])
    custom = None
    if releases.within(version, "0.6.8.post1", None):
        suffix = "cuh" if split else "cu"
        text = csrc(version, f"{backend}/trtllm_fused_moe_routing_custom.{suffix}")
        custom = cpp.function(text, r"\bvoid run\(Data const& data, void\* stream\) \{")
        policy = "flashinfer/data/include/flashinfer/trtllm/fused_moe/RoutingCustomPolicy.cuh"
        header = wheel_file("flashinfer-python", version, policy).read_text()
        limits |= {f"custom_{n}": v for n, v in cpp.constants(header).items()}
    return (
        cpp.function(runner_source, r"\bvoid Runner::run\([^{]*\) \{"),
        cpp.function(deepseek, r"\bvoid run(?:Impl)?\(Data& data, void\* stream\) \{"),
        custom,
        limits,
    )


@every_flashinfer
def test_routing_kernels(version: str) -> None:
    """Runner and kernel checks, as the bf16 launcher reaches them, against the rules."""
    runner, deepseek, custom, limits = kernels(version)
    ungrouped = {n.removeprefix("custom_"): v for n, v in limits.items() if n[:7] == "custom_"}
    target, accepted, compared = target_with(version), 0, 0
    for experts, groups, chosen, top_k in SHAPES:
        if experts % groups or top_k > experts:
            continue  # refused before: by ModelConfig, and by check_routing_common
        values = launcher_values(experts, groups, chosen, top_k, METHODS["DeepSeekV3"])
        values |= {"topK": top_k, "nGroup": groups, "topkGroup": chosen}
        values |= {"routingMethodType": METHODS["DeepSeekV3"], "numFusedSharedExpert": 0}
        kernel = custom if custom is not None and groups <= 1 else deepseek
        data = (ungrouped if kernel is custom else limits) | {
            "mNumExperts": experts,
            "mNumExpertGroups": groups,
            "mNumLimitedGroups": chosen,
            "mTopK": top_k,
            "mPtrTopKIds": None,
            "mPtrTopKPacked": None,
            "mPtrScores": 1,
            "mPtrExpertCounts": 1,
            "mUseRoutingSoftmax": False,
            "mNumFusedSharedExperts": 0,
            "mNumTokens": 1,
        }
        walks = [cpp.walk(runner, values), cpp.walk(kernel, data)]
        real = not any(w.failed for w in walks)
        x = Routing(
            scheme="bf16",
            n_routed_experts=experts,
            n_group=groups,
            topk_group=chosen,
            num_experts_per_tok=top_k,
        )
        ours = rejections(x, target, "csrc")
        assert real is not bool(ours), (x, [w.failed for w in walks], ours)
        accepted += real
        compared += 1
    assert 0 < accepted < compared
    print(f"FlashInfer {version} routing kernels: {compared} of {compared} agree")


@every_flashinfer
def test_routing_kernel_limits(version: str) -> None:
    """The numbers behind the kernels' checks."""
    _, _, custom, limits = kernels(version)
    assert limits["MaxNumGroups"] == 8
    assert limits["MaxNumTopGroups"] == 4
    assert limits["NumTopGroupScores"] == 2  # the group score that moe-routing-group-score is about
    if custom is not None:
        assert limits["custom_MaxSupportedTopExperts"] == 32
        assert limits["custom_MaxSupportedExperts"] == 2048


class Scores:
    """Stands for a dense tensor: the routing check asks its shape and strides only."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def is_contiguous(self) -> bool:
        return True


@every_flashinfer
def test_fused_topk_deepseek(version: str) -> None:
    """FlashInfer's own Python check, called for every shape."""
    name = "flashinfer/fused_moe/fused_routing_dsv3.py"
    path = wheel_file("flashinfer-python", version, name)
    node = function(path.read_text(), "_check_dsv3_fused_routing_supported")
    check = compiled(node, torch=SimpleNamespace(int16="int16"))
    target, accepted = target_with(version), 0
    for experts, groups, chosen, top_k in SHAPES:
        tensor = Scores(1, experts)
        arguments = (tensor, tensor, groups, chosen, top_k, 1.0, tensor, tensor, False)
        try:
            real = bool(check(*arguments))
        except ValueError as error:
            real, text = False, str(error)
        x = Routing(
            backend="fused_topk_deepseek",
            n_routed_experts=experts,
            n_group=groups,
            topk_group=chosen,
            num_experts_per_tok=top_k,
        )
        ours = [r for r in broken(x, target) if r.id.startswith("fused-topk")]
        assert real is not bool(ours), (x, ours)
        if not real:
            patterns = [r.otherwise.error for r in ours if isinstance(r.otherwise, Rejected)]
            assert any(re.search(p, text) for p in patterns), (text, patterns)
        accepted += real
    assert 0 < accepted < len(SHAPES)
    print(f"FlashInfer {version} fused_topk_deepseek: {len(SHAPES)} of {len(SHAPES)} agree")


@functools.cache
def grouped_topk_checks(version: str) -> cpp.Nodes:
    root = vllm_source(version) / "csrc"
    path = next(iter(sorted(root.rglob("grouped_topk_kernels.cu"))))
    return cpp.function(path.read_text(), r"\bgrouped_topk\([^{;]*\) \{")


@every_vllm
def test_grouped_topk_kernel(version: str) -> None:
    """vLLM's CUDA kernel: its TORCH_CHECKs against the rules that keep calls away from them."""
    body, target, accepted = grouped_topk_checks(version), Target(vllm=version), 0
    for experts, groups, chosen, top_k in SHAPES:
        values = {
            "num_experts": experts,
            "n_group": groups,
            "topk_group": chosen,
            "topk": top_k,
            "scoring_func": 1,
            "SCORING_NONE": 0,
            "SCORING_SIGMOID": 1,
        }
        real = not cpp.walk(body, values).failed
        x = Routing(
            backend="vllm",
            n_routed_experts=experts,
            n_group=groups,
            topk_group=chosen,
            num_experts_per_tok=top_k,
        )
        # the fallback rule is stricter by one case: one expert in each group
        ours = [r.id for r in broken(x, target)]
        if experts == groups and "moe-grouped-topk-fallback" in ours:
            ours.remove("moe-grouped-topk-fallback")
        if experts < groups:
            continue
        assert real is not bool(ours), (x, cpp.walk(body, values).failed, ours)
        accepted += real
    assert 0 < accepted < len(SHAPES)
    assert len(cpp.walk(body, values).passed + cpp.walk(body, values).failed) == 9


@every_vllm
def test_grouped_topk_fallback(version: str) -> None:
    """The router's own valid_grouping, called, and its condition for the fused kernel."""
    path = (
        vllm_source(version) / "vllm/model_executor/layers/fused_moe/router/grouped_topk_router.py"
    )
    source = path.read_text()
    rule = catalogue()["moe-grouped-topk-fallback"]
    node = function(source, "valid_grouping", "_compute_routing")
    for experts, groups, chosen, _ in SHAPES:
        valid = compiled(
            node,
            router_logits=SimpleNamespace(shape=(1, experts)),
            self=SimpleNamespace(num_expert_group=groups),
        )
        x = Routing(backend="vllm", n_routed_experts=experts, n_group=groups, topk_group=chosen)
        assert valid() is rule.holds(x), x
    limits = catalogue()["moe-grouped-topk-limits"]
    (test,) = [
        n.test
        for n in function(source, "grouped_topk").body
        if isinstance(n, ast.If) and "VLLM_USE_FUSED_MOE_GROUPED_TOPK" in ast.unparse(n.test)
    ]
    fused_when = condition(test)
    platform = SimpleNamespace(is_cuda=lambda: True, is_xpu=lambda: False)
    for _, groups, _, top_k in SHAPES:
        fused = eval(
            fused_when,
            {
                "envs": SimpleNamespace(VLLM_USE_FUSED_MOE_GROUPED_TOPK=True),
                "current_platform": platform,
                "num_expert_group": groups,
                "topk": top_k,
                "e_score_correction_bias": 1,
            },
        )
        x = Routing(backend="vllm", n_group=groups, num_experts_per_tok=top_k)
        assert fused is limits.holds(x), x


@every_vllm
def test_trtllm_wrapper(version: str) -> None:
    """The asserts of vLLM's FP8 wrapper, evaluated."""
    path = vllm_source(version) / "vllm/model_executor/layers/fused_moe/experts/trtllm_fp8_moe.py"
    tree = ast.parse(path.read_text())
    (wrapper,) = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef) and n.name.startswith("_apply_") and "block" in n.name
    ]
    asserts = [
        n.test
        for n in ast.walk(wrapper)
        if isinstance(n, ast.Assert)
        and {"topk", "global_num_experts"}
        & {getattr(m, "attr", getattr(m, "id", "")) for m in ast.walk(n.test)}
    ]
    assert len(asserts) == 4
    conditions = [condition(a) for a in asserts]
    target = Target(vllm=version)
    for experts, _, _, top_k in SHAPES:
        if top_k >= experts:
            continue  # refused by FlashInfer's launcher alike
        names = {"self": SimpleNamespace(topk=top_k), "global_num_experts": experts}
        real = all(eval(c, names) for c in conditions)
        x = Routing(
            n_routed_experts=experts,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=top_k,
            grouped=False,
        )
        ours = rejections(x, target, "trtllm_fp8_moe.py")
        ours += [r.id for r in broken(x, target) if r.id == "moe-trtllm-experts-4"]
        assert real is not bool(ours), (x, ours)


@pytest.mark.parametrize("version", ["0.19.1", "0.26.0", "0.33.0"])
def test_never_accepted_where_the_launcher_raises(version: str) -> None:
    """From a config to the verdict: what check lets pass, FlashInfer's launcher lets pass."""
    target = Target(vllm=version, gpu="sm100")
    fp8 = Quantization(method="fp8", weight_block_size=(128, 128))
    outcomes = {True: 0, False: 0}
    for experts, groups, chosen, top_k in SHAPES[::7]:
        config = ModelConfig(
            n_routed_experts=experts,
            n_group=groups,
            topk_group=chosen,
            num_experts_per_tok=top_k,
            quantization=fp8,
        )
        try:
            config.validate()
        except ConfigError:
            continue
        report = check(config, target)
        if report.choices["moe"] != "FLASHINFER_TRTLLM":
            assert experts > 2048  # passed over: see moe-trtllm-experts-2048
            continue
        values = launcher_values(experts, groups, chosen, top_k, METHODS["DeepSeekV3"])
        walks = [cpp.walk(body, values) for body in launcher(target.flashinfer_version)]
        real = not any(w.failed for w in walks)
        assert real or report.verdict == "rejected", (config, report.verdict)
        outcomes[report.verdict != "rejected"] += 1
    assert min(outcomes.values()) > 10, outcomes

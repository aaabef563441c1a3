"""Recipes against the catalogue: what a recipe breaks, and recipes that break a rule on purpose."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fixturegen.check import moe, releases
from fixturegen.check.catalogue import catalogue
from fixturegen.check.inputs import (
    Attention,
    Drafting,
    FlashAttention,
    KernelInput,
    Loading,
    MLADecode,
    MLAPrefill,
    MoE,
    Routing,
)
from fixturegen.check.model import Model, from_recipe
from fixturegen.check.repair import KNOBS, apply, directions
from fixturegen.check.report import check
from fixturegen.check.rule import Rule
from fixturegen.check.target import Target
from fixturegen.errors import ConfigError, RecipeError
from fixturegen.fields import nearest

if TYPE_CHECKING:
    from fixturegen.recipe import Recipe

#: Rules that reject a recipe, how much larger it is, how far it is from where it came from.
Cost = tuple[int, float, float]

#: Overrides that the search starts from, in order, where the shipped recipes are too far away.
STARTS: dict[type[KernelInput], tuple[tuple[str, ...], ...]] = {
    Attention: (
        ("rope_scaling=null",),
        ("index_topk=2048",),
        ("qk_nope_head_dim=192",),
        ("qk_nope_head_dim=448",),
        ("qk_rope_head_dim=16", "v_head_dim=16"),
    ),
    FlashAttention: (("qk_nope_head_dim=192", "v_head_dim=256"),),
    Loading: (("topk_method=null",),),
    MLADecode: (("rope_scaling=null",), ("index_topk=2048",)),
    MoE: (
        ("topk_method=null",),
        (
            "topk_method=greedy",
            "scoring_func=softmax",
            "norm_topk_prob=false",
            "n_group=1",
            "topk_group=1",
        ),
    ),
    Routing: (
        ("n_group=1", "topk_group=1"),
        ("topk_method=null",),
        ("topk_method=null", "n_group=1", "topk_group=1", "n_routed_experts=64"),
        ("n_group=2", "topk_group=2"),
        ("n_group=null",),
        ("n_routed_experts=256", "n_group=1", "topk_group=1"),
    ),
}

#: Engine options that break rules of attention backends, whatever the checkpoint.
OPTIONS: tuple[dict[str, object], ...] = (
    {"kv_cache_dtype": "fp8"},
    {"kv_cache_dtype": "fp8_e5m2"},
    {"kv_cache_dtype": "nvfp4"},
    {"block_size": 24},
    {"kv_cache_dtype": "fp8", "block_size": 24},
    {"dtype": "float32"},
    {"speculation": "mtp:2"},
)

#: Recipes that ``break_rule`` starts from: one for each way of drafting and storing.
BASES = ("deepseek-v3-mtp-random", "deepseek-v3-mtp-fp8-random", "deepseek-v3-eagle-random")

#: Why nothing that ``build`` writes breaks a rule, by what the rule is about.
OUT_OF_REACH: tuple[tuple[Callable[[Rule], bool], str], ...] = (
    (
        lambda rule: rule.where.inputs.get("scheme") == "nvfp4",
        "it is about NVFP4 weights, which build does not write",
    ),
    (
        lambda rule: "fused_topk_deepseek" in rule.where.backends,
        "it is about a kernel that vLLM does not call",
    ),
    (
        lambda rule: rule.reads is Drafting and rule.where.backends == ("eagle",),
        "a recipe's draft has the dims of its target",
    ),
)


def check_recipe(recipe: Recipe) -> list[str]:
    """One line for each bound that the recipe breaks on a target that it claims."""
    model = from_recipe(recipe)
    lines = []
    for line in recipe.targets:
        target = Target.parse(line)
        report = check(
            model.config, target, model.draft, names=model.names, draft_names=model.draft_names
        )
        lines += [f"{f.rule}: {f.title} ({f.inputs}) on {target}" for f in report.rejections]
    return list(dict.fromkeys(lines))


def break_rule(rule_id: str) -> Recipe:
    """The recipe nearest to a shipped one that breaks ``rule_id`` and as little else as possible.

    Its ``targets`` name where; a shipped recipe itself may break a rule on targets that it does not
    claim. Raises RecipeError for an unknown rule, or one that no checkpoint
    can break because it depends on the target alone.
    """
    from fixturegen.recipe import load_recipe

    rules = catalogue()
    if rule_id not in rules:
        raise RecipeError(
            f"no rule {rule_id!r}; `fixturegen rules` lists them" + nearest(rule_id, rules)
        )
    rule = rules[rule_id]
    for applies, reason in OUT_OF_REACH:
        if applies(rule):
            raise RecipeError(f"no checkpoint breaks {rule_id}: {reason}")
    for start in ((), *STARTS.get(rule.reads, ())):
        found = [
            broken
            for base in (load_recipe(name, start) for name in BASES)
            for broken in _nearest(base, rule)
        ]
        if found:
            _, recipe, target, how = min(found, key=lambda broken: broken[0])
            break
    else:
        raise RecipeError(
            f"no checkpoint near {', '.join(BASES)} breaks {rule_id}: it takes a config that "
            "contradicts itself, or an option that no target has"
        )
    steps = [step.replace("=", " ") for step in start]
    how = " and ".join(filter(None, (*steps, how))) or "the target alone"
    return dataclasses.replace(
        recipe,
        name=f"broken-{rule.id}",
        description=f"BROKEN on purpose: {how} breaks {rule.id}",
        purpose=rule.title,
        stands_for=(),
        targets=(str(target),),
    )


def _nearest(base: Recipe, rule: Rule) -> Iterator[tuple[Cost, Recipe, Target, str]]:
    """Changed recipes that break the rule, on the first target where any does, and how."""
    model = from_recipe(base)
    for target in _targets(rule):
        found = False
        for cost, changes in _breaks(model, rule, target):
            found = True
            how = " and ".join(f"{k} {v}" for k, v in changes.items())
            yield cost, _changed(base, changes), target, how
        for edited, how in _edits(base) if rule.reads in (Loading, Drafting) else ():
            _, verdicts, others = _asked(from_recipe(edited), rule, target, {})
            if verdicts - {"accepted"}:
                found = True
                yield (others, 1, 1), edited, target, how
        if found:
            return


def _changed(base: Recipe, changes: dict[str, int]) -> Recipe:
    return dataclasses.replace(
        base,
        draft="none" if changes.get("num_nextn_predict_layers") == 0 else base.draft,
        model=apply(changes, base.model, None)[0],
    )


def _edits(base: Recipe) -> Iterator[tuple[Recipe, str]]:
    """The recipe without some of its tensors, or with one that its architecture lacks."""
    from fixturegen.recipe import ExtraTensor

    mtp = f"model.layers.{base.model.num_hidden_layers}"
    absent = ["*.mlp.gate.e_score_correction_bias", "model.norm.weight", "lm_head.weight"]
    absent += [f"{mtp}.*"] if base.draft == "mtp" else []
    names = [t.name for plan in base.checkpoints for t in plan.tensors]
    for pattern in (p for p in absent if fnmatch.filter(names, p)):
        yield dataclasses.replace(base, leave_out=(pattern,)), f"leaving out {pattern}"
    first = f"model.layers.{base.model.first_k_dense_replace}.mlp.gate"
    extra = ExtraTensor(
        name=f"{first}.{'extra' if base.model.topk_method else 'e_score_correction_bias'}",
        shape=(base.model.n_routed_experts or 1,),
    )
    yield dataclasses.replace(base, extra=(extra,)), f"an extra {extra.name}"


def _targets(rule: Rule) -> Iterator[Target]:
    """Targets that the rule covers: its newest and oldest release, its GPUs and backends."""
    where = rule.where
    covered = [
        vllm
        for vllm, pinned in releases.VLLM.items()
        if releases.within(vllm if where.engine == "vllm" else pinned, where.since, where.until)
    ]
    pairs = [(vllm, "") for vllm in dict.fromkeys(covered[-1:] + covered[:1])]
    if not covered:  # a FlashInfer that no release pins
        pairs = [(vllm, where.until or "") for vllm in releases.VLLM]
    env = tuple((variable, "1") for variable in where.env)
    for vllm, flashinfer in pairs:
        for gpu in where.gpus or ("sm100", "sm90", "cpu", "sm80"):
            yield from _options(rule, Target(vllm=vllm, gpu=gpu, env=env, flashinfer=flashinfer))


def _options(rule: Rule, base: Target) -> Iterator[Target]:
    """Ways to ask for the path that makes the rule's input."""

    def options(name: str, values: Iterable[object], target: Target = base) -> Iterator[Target]:
        return (dataclasses.replace(target, **{name: value}) for value in values)  # type: ignore[arg-type]

    off = dataclasses.replace(base, env=(*base.env, ("VLLM_MLA_DISABLE", "1")))
    backends = rule.where.backends or ("auto",)
    kind: type[KernelInput] = rule.reads
    if kind in (Attention, MLADecode):
        # what the checkpoint can do first, then what the target alone can
        asked = off if kind is Attention else base
        yield from options("attention", backends, asked)
        for option in OPTIONS:
            yield from options("attention", backends, dataclasses.replace(asked, **option))  # type: ignore[arg-type]
    elif kind is FlashAttention:
        yield base
        forced = dataclasses.replace(off, attention="FLASH_ATTN")
        yield from options("flash_attn_version", (0, 3, 4), forced)
        yield from options("flash_attn_version", (3, 4))
    elif kind is MLAPrefill:
        yield from options("prefill", backends)
        yield from options("prefill", backends, dataclasses.replace(base, dtype="float32"))
    elif kind is Drafting:
        yield from options("speculation", [f"{m}:{k}" for m in backends for k in (2, 3)])
    elif kind in (MoE, Routing):
        yield from options("moe", ("auto", *moe.NAMES))
        for more in ({"tp": 2}, {"tp": 3}, {"ep": 3}, {"dtype": "float16"}):
            yield from options("moe", ("auto", *moe.NAMES), dataclasses.replace(base, **more))
    else:
        yield from options("tp", (1, 4, 3))
        yield from options("ep", (4, 64))


def _breaks(model: Model, rule: Rule, target: Target) -> Iterator[tuple[Cost, dict[str, int]]]:
    """Changes that break the rule, each with its cost: none, or for each key its nearest value."""
    before, verdicts, others = _asked(model, rule, target, {})
    if not verdicts:
        return
    if verdicts != {"accepted"}:
        yield (others, 1, 0), {}
        return
    for knob in KNOBS:
        now = getattr(model.config, knob)
        for values in directions(knob, now):
            if not values or _asked(model, rule, target, {knob: values[-1]})[0] == before:
                continue  # the rule does not see this key
            for value in values:
                _, verdicts, others = _asked(model, rule, target, {knob: value})
                if verdicts - {"accepted"}:
                    yield (others, max(value / (now or 1), 1), -value / (now or 1)), {knob: value}
                    break


def _asked(
    model: Model, rule: Rule, target: Target, changes: dict[str, int]
) -> tuple[set[str], set[str], int]:
    """What the rule sees in a changed model, its verdicts, and how many rules reject the model.

    Nothing at all for values that contradict each other.
    """
    try:
        config, draft = apply(changes, model.config, model.draft)
    except ConfigError:
        return set(), set(), 0
    report = check(config, target, draft, names=model.names, draft_names=model.draft_names)
    mine = [f for f in report.findings if f.rule == rule.id]
    rejecting = len({f.rule for f in report.rejections})
    return {f.inputs for f in mine}, {f.verdict for f in mine}, rejecting

"""Recipes against the catalogue: what a recipe breaks, and recipes that break a rule on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fixturegen.check import moe, releases
from fixturegen.check.catalogue import catalogue
from fixturegen.check.inputs import (
    Attention,
    Drafting,
    FlashAttention,
    KernelInput,
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

#: Overrides that a search over one key at a time starts from, where the shipped routing is too far.
STARTS: tuple[tuple[str, ...], ...] = (
    (),
    ("n_group=1", "topk_group=1"),
    ("topk_method=null",),
    ("n_routed_experts=256", "n_group=1", "topk_group=1"),
)

#: Engine options that break rules of attention backends, whatever the checkpoint.
OPTIONS: dict[str, tuple[object, ...]] = {
    "kv_cache_dtype": ("fp8", "fp8_e5m2"),
    "block_size": (24,),
    "dtype": ("float32",),
    "speculation": ("mtp:2",),
}

#: Recipes that ``break_rule`` starts from: one for each way of drafting and storing.
BASES = ("deepseek-v3-mtp-random", "deepseek-v3-mtp-fp8-random", "deepseek-v3-eagle-random")


def check_recipe(recipe: Recipe) -> list[str]:
    """One line for each bound that the recipe breaks on a target that it claims."""
    model = from_recipe(recipe)
    lines = []
    for line in recipe.targets:
        target = Target.parse(line)
        report = check(model.config, target, model.draft)
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
    found: list[tuple[Cost, Recipe, Target, dict[str, int]]] = []
    for start in STARTS if rule.reads in (MoE, Routing) else STARTS[:1]:
        for name in BASES:
            recipe = load_recipe(name, start)
            model = from_recipe(recipe)
            for target in _targets(rule):
                breaks = list(_breaks(model, rule, target))
                found += [(cost, recipe, target, changes) for cost, changes in breaks]
                if breaks:
                    break
        if found:
            break
    else:
        raise RecipeError(
            f"no checkpoint near {', '.join(BASES)} breaks {rule_id}: "
            "it depends on the target or the tensors alone"
        )
    _, recipe, target, changes = min(found, key=lambda item: item[0])
    steps = {**dict(step.split("=") for step in start), **changes}
    how = " and ".join(f"{k} {v}" for k, v in steps.items()) or "the target alone"
    return dataclasses.replace(
        recipe,
        name=f"broken-{rule.id}",
        description=f"BROKEN on purpose: {how} breaks {rule.id}",
        purpose=rule.title,
        stands_for=(),
        targets=(str(target),),
        draft="none" if changes.get("num_nextn_predict_layers") == 0 else recipe.draft,
        model=apply(changes, recipe.model, None)[0],
    )


def _targets(rule: Rule) -> Iterator[Target]:
    """Targets that the rule covers: its newest and oldest release, its GPUs and backends."""
    where = rule.where
    versions = list(releases.VLLM)
    if where.engine == "vllm":
        versions = [v for v in versions if releases.within(v, where.since, where.until)]
    else:
        versions = [
            v for v, pin in releases.VLLM.items() if releases.within(pin, where.since, where.until)
        ]
    env = tuple((variable, "1") for variable in where.env)
    for version in dict.fromkeys(versions[-1:] + versions[:1]):
        for gpu in where.gpus or ("sm100", "sm90", "cpu", "sm80"):
            yield from _options(rule, Target(vllm=version, gpu=gpu, env=env))


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
        for name, values in OPTIONS.items():
            for target in options(name, values, asked):
                yield from options("attention", backends, target)
    elif kind is FlashAttention:
        yield base
        forced = dataclasses.replace(off, attention="FLASH_ATTN")
        yield from options("flash_attn_version", (0, rule.where.inputs.get("version", 0)), forced)
    elif kind is MLAPrefill:
        yield from options("prefill", backends)
        yield from options("prefill", backends, dataclasses.replace(base, dtype="float32"))
    elif kind is Drafting:
        yield from options("speculation", [f"{m}:{k}" for m in backends for k in (2, 3)])
    elif kind in (MoE, Routing):
        yield from options("moe", ("auto", *moe.NAMES))
        yield from options("moe", ("auto", *moe.NAMES), dataclasses.replace(base, tp=2))
    else:
        yield from options("tp", (1, 4))
        yield from options("ep", (4,))


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
    report = check(config, target, draft)
    mine = [f for f in report.findings if f.rule == rule.id]
    rejecting = len({f.rule for f in report.rejections})
    return {f.inputs for f in mine}, {f.verdict for f in mine}, rejecting

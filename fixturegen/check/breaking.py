"""Recipes against the catalogue: what a recipe breaks, and recipes that break a rule on purpose."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from fixturegen.check import moe, releases
from fixturegen.check.catalogue import catalogue
from fixturegen.check.inputs import Attention, FlashAttention, KernelInput, MLADecode, MLAPrefill
from fixturegen.check.model import Model, from_recipe
from fixturegen.check.repair import KNOBS, apply, directions
from fixturegen.check.report import check
from fixturegen.check.rule import Rule
from fixturegen.check.target import Target
from fixturegen.errors import ConfigError, RecipeError
from fixturegen.fields import nearest

if TYPE_CHECKING:
    from fixturegen.recipe import Recipe

#: Recipes that ``break_rule`` starts from: one for each way of drafting and storing.
BASES = ("deepseek-v3-mtp-random", "deepseek-v3-mtp-fp8-random", "deepseek-v3-eagle-random")


#: MoE backends to ask for in search of a rule's input.
MOE = ("auto", *moe.NAMES)


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

    Its ``targets`` name where. Raises RecipeError for an unknown rule, or one that no checkpoint
    can break because it depends on the target alone.
    """
    from fixturegen.recipe import load_recipe

    rules = catalogue()
    if rule_id not in rules:
        raise RecipeError(
            f"no rule {rule_id!r}; `fixturegen rules` lists them" + nearest(rule_id, rules)
        )
    rule = rules[rule_id]
    found: list[tuple[tuple[float, ...], Recipe, Target, str, int]] = []
    for name in BASES:
        recipe = load_recipe(name)
        model = from_recipe(recipe)
        for target in _targets(rule):
            report = check(model.config, target, model.draft)
            if any(f.rule == rule.id and f.verdict == "accepted" for f in report.findings):
                found += (
                    (cost, recipe, target, knob, value)
                    for cost, knob, value in _breaks(model, rule, target)
                )
                break
    if not found:
        raise RecipeError(
            f"no checkpoint near {', '.join(BASES)} breaks {rule_id}: "
            "it depends on the target or the tensors alone"
        )
    _, recipe, target, knob, value = min(found, key=lambda item: item[0])
    return dataclasses.replace(
        recipe,
        name=f"broken-{rule.id}",
        description=f"BROKEN on purpose: {knob} {value} breaks {rule.id}",
        purpose=rule.title,
        stands_for=(),
        targets=(str(target),),
        model=apply({knob: value}, recipe.model, None)[0],
    )


def _targets(rule: Rule) -> Iterator[Target]:
    """Targets that the rule covers: its newest release, GPUs and backends."""
    where = rule.where
    versions = list(releases.VLLM)
    if where.engine == "vllm":
        versions = [v for v in versions if releases.within(v, where.since, where.until)]
    else:
        versions = [
            v for v, pin in releases.VLLM.items() if releases.within(pin, where.since, where.until)
        ]
    if not versions:
        return
    env = tuple((variable, "1") for variable in where.env)
    for gpu in where.gpus or ("sm100", "sm90", "cpu", "sm80"):
        yield from _options(rule, Target(vllm=versions[-1], gpu=gpu, env=env))


def _options(rule: Rule, base: Target) -> Iterator[Target]:
    """Ways to ask for the path that makes the rule's input."""
    off = dataclasses.replace(base, env=(*base.env, ("VLLM_MLA_DISABLE", "1")))
    backends = rule.where.backends or ("auto",)
    kind: type[KernelInput] = rule.reads
    if kind is Attention:
        for backend in backends:
            yield dataclasses.replace(off, attention=backend)
    elif kind is FlashAttention:
        version = rule.where.inputs.get("version", 0)
        yield dataclasses.replace(off, attention="FLASH_ATTN")
        yield dataclasses.replace(off, attention="FLASH_ATTN", flash_attn_version=version)
        yield base
    elif kind is MLADecode:
        for backend in backends:
            yield dataclasses.replace(base, attention=backend)
    elif kind is MLAPrefill:
        for backend in backends:
            yield dataclasses.replace(base, prefill=backend)
    else:
        for backend, tp, method in itertools.product(MOE, (1, 2, 4), ("none", "mtp:2", "eagle:2")):
            yield dataclasses.replace(base, moe=backend, tp=tp, speculation=method)


def _breaks(
    model: Model, rule: Rule, target: Target
) -> Iterator[tuple[tuple[float, ...], str, int]]:
    """For each key a value that breaks the rule, with its cost: rules broken, growth, change."""
    for knob in KNOBS:
        now = getattr(model.config, knob)
        for value in chain(*directions(now)):
            try:
                config, draft = apply({knob: value}, model.config, model.draft)
                report = check(config, target, draft)
            except ConfigError:
                continue
            if any(f.rule == rule.id and f.verdict != "accepted" for f in report.findings):
                others = len({f.rule for f in report.rejections})
                yield (others, max(value / (now or 1), 1), -value / (now or 1)), knob, value
                break

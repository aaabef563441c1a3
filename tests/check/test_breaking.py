"""Recipes that break a rule on purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixturegen import build, load_recipe, verify
from fixturegen.check import Target, break_rule, check
from fixturegen.check.model import from_recipe, load
from fixturegen.errors import RecipeError


@pytest.mark.parametrize(
    "rule",
    [
        "fa4-head-dims",
        "fa4-head-dims-512",
        "mla-head-size",
        "flashinfer-mla-heads",
        "cutlass-mla-heads",
        "mla-prefill-flash-attn-nope",
        "moe-trtllm-topk-strict",
        "mtp-layers",
        "tp-heads",
        "mtp-draft-tokens",
        "flash-attn-block-size",
        "triton-mla-spec",
        "mla-prefill-dtype",
        "moe-trtllm-experts-4",
        "moe-routing-experts",
        "moe-routing-groups-ignored",
        "moe-tp-width",
        "gate-bias-missing",
        "tensors-missing-quantised",
        "tensors-unexpected",
    ],
)
def test_breaks_what_it_says(rule: str) -> None:
    recipe = break_rule(rule)
    (line,) = recipe.targets
    model = from_recipe(recipe)
    report = check(model.config, Target.parse(line), model.draft, names=model.names)
    assert rule in {f.rule for f in report.findings if f.verdict != "accepted"}
    assert recipe.name == f"broken-{rule}"


def test_smallest(tmp_path: Path) -> None:
    """One key away from the shipped recipe, and buildable."""
    recipe = break_rule("flashinfer-mla-heads")
    base = load_recipe("deepseek-v3-mtp-random").model
    differing = {name for name in vars(base) if getattr(base, name) != getattr(recipe.model, name)}
    assert differing == {"num_attention_heads", "num_key_value_heads"}
    assert recipe.model.num_attention_heads == 17
    out = build(recipe, tmp_path / "out", check=False).path
    assert json.loads((out / "config.json").read_text())["num_attention_heads"] == 17


def test_tensors_too_many_or_too_few_are_built_and_found_in_the_files(tmp_path: Path) -> None:
    """The manifest holds what was left out, so the checkpoint is sound; the rule sees it."""
    for rule in ("gate-bias-missing", "tensors-unexpected"):
        out = build(break_rule(rule), tmp_path / rule, check=False).path
        assert verify(out) == []
        model = load(str(out))
        (line,) = break_rule(rule).targets
        report = check(model.config, Target.parse(line), names=model.names)
        assert rule in {f.rule for f in report.findings if f.verdict != "accepted"}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("leave_out=[lm_hed.weight]", "no tensor has such a name"),
        ("leave_out=['*']", "leaves no tensor"),
        ("extra=[{name: lm_head.weight, shape: [1]}]", "it is there already"),
        ("extra=[{name: x, shape: []}]", "its shape is empty"),
        ("extra=[{name: x, shape: [0]}]", "at least 1"),
    ],
)
def test_bad_edits(edit: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("deepseek-v3-mtp-random", [edit])


def test_planted_weights_are_whole() -> None:
    with pytest.raises(RecipeError, match="random"):
        load_recipe("deepseek-v3-mtp", ["leave_out=[lm_head.weight]"])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("no-such-rule", "no rule 'no-such-rule'"),
        ("fa4-head-dim", "did you mean 'fa4-head-dims'"),
        ("moe-nvfp4-backends", "it is about NVFP4 weights, which build does not write"),
        ("fused-topk-groups", "it is about a kernel that vLLM does not call"),
        ("moe-trtllm-ungrouped-topk", "it takes a config that contradicts itself"),
    ],
)
def test_rules_that_no_checkpoint_breaks(rule: str, message: str) -> None:
    with pytest.raises(RecipeError, match=r"rule|breaks") as caught:
        break_rule(rule)
    assert message in str(caught.value)

"""Recipes that break a rule on purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixturegen.check import Target, break_rule, check
from fixturegen.check.model import from_recipe
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
    ],
)
def test_breaks_what_it_says(rule: str) -> None:
    recipe = break_rule(rule)
    (line,) = recipe.targets
    model = from_recipe(recipe)
    report = check(model.config, Target.parse(line), model.draft)
    assert rule in {f.rule for f in report.findings if f.verdict != "accepted"}
    assert recipe.name == f"broken-{rule}"


def test_smallest(tmp_path: Path) -> None:
    """One key away from the shipped recipe, and buildable."""
    from fixturegen import build, load_recipe

    recipe = break_rule("flashinfer-mla-heads")
    base = load_recipe("deepseek-v3-mtp-random").model
    differing = {name for name in vars(base) if getattr(base, name) != getattr(recipe.model, name)}
    assert differing == {"num_attention_heads", "num_key_value_heads"}
    assert recipe.model.num_attention_heads == 17
    out = build(recipe, tmp_path / "out", check=False).path
    assert json.loads((out / "config.json").read_text())["num_attention_heads"] == 17


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("no-such-rule", "no rule 'no-such-rule'"),
        ("fa4-head-dim", "did you mean 'fa4-head-dims'"),
        ("fa-version-sm12x", "it depends on the target or the tensors alone"),
    ],
)
def test_rules_that_no_checkpoint_breaks(rule: str, message: str) -> None:
    with pytest.raises(RecipeError, match=r"rule|breaks") as caught:
        break_rule(rule)
    assert message in str(caught.value)

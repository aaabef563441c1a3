"""The derived margin and the refusal to claim what cannot be kept."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from fixturegen import build, load_recipe
from fixturegen.errors import RecipeError
from fixturegen.planted import PlantedWeights, extra_files
from fixturegen.planted.deviation import SIGMAS_FP8, Errors, worst
from fixturegen.planted.margin import guaranteed_margin, margin


def test_shipped_recipes_have_a_margin_several_times_their_rounding():
    m = margin(load_recipe("deepseek-v3-mtp"))
    assert m.nominal == pytest.approx(9)
    assert m.guaranteed > 6 and (m.nominal - m.weights) / m.rounding > 10
    for name in ("deepseek-v3-eagle", "deepseek-v3-mtp-fp8"):
        assert guaranteed_margin(load_recipe(name)) > 0


def test_margin_falls_with_noise_and_rounding():
    def of(*overrides: str, name: str = "deepseek-v3-mtp") -> float:
        return margin(load_recipe(name, overrides)).guaranteed

    assert of("noise=0") > of() > of("noise=0.01") > of("noise=0.015")
    assert of("dtype=float16") > of()
    assert of(name="deepseek-v3-mtp-fp8") < of("hidden_size=512")


def test_a_margin_that_cannot_be_kept_is_not_claimed(tmp_path):
    small = load_recipe("deepseek-v3-mtp", ["noise=0.018"])
    with pytest.raises(RecipeError, match=r"of 9\.0 logits, weights may take .* and rounding"):
        build(small, tmp_path / "x", check=False)
    assert not (tmp_path / "x").exists()
    flipping = load_recipe("deepseek-v3-mtp", ["noise=0.02"])
    with pytest.raises(RecipeError, match="errors may change the choice of experts in layer"):
        guaranteed_margin(flipping)


def test_fp8_activations_are_outside_the_guarantee_for_a_reason():
    """Their errors are not independent, as the derivation needs.

    A state has few different magnitudes (kappa and some codes, rotated), so what rounding does to
    one coordinate it does to many. Along single codes it adds up to many times what independent
    errors of the same size would give; the derivation allows for SIGMAS_FP8 of these.
    """
    recipe = load_recipe("deepseek-v3-mtp-fp8", ["noise=0"])
    weights = PlantedWeights(recipe, recipe.checkpoints[0])
    basis, draws = weights.basis, np.random.default_rng(0)
    states = np.zeros((2000, basis.size))
    states[:, basis.at("u")] = recipe.planted.kappa
    for name in ("C0", "C1", "Q", "Y"):  # what the second layer's attention reads
        states[np.arange(2000), draws.choice(basis.codes(name), 2000)] = 1.0
    inputs = weights.rotate(states) / np.sqrt(np.square(states).mean(axis=1, keepdims=True))
    norm = weights.layers["1"].input_norm
    groups = (inputs * norm).reshape(2000, -1, 128)  # an engine's groups, each with a scale
    scale = np.abs(groups).max(axis=2, keepdims=True) / 448
    rounded = (groups / scale).astype(ml_dtypes.float8_e4m3fn).astype(float) * scale
    errors = ((rounded - groups).reshape(2000, -1) / norm) @ weights.axes.T
    expected = Errors.of(recipe, computing=False).stored_small  # of a row of length 1
    assert 0.9 * expected < errors.std() < 1.3 * expected
    assert np.abs(errors).max() > 3 * SIGMAS_FP8 * expected


def test_worst_is_the_largest_on_the_ball():
    t = np.linspace(0, np.pi / 2, 100_001)
    for squared, linear in ((1.0, 0.5), (0.2, 1.0), (1.0, 1.9), (0.0, 0.3)):
        there = (squared * np.cos(t) ** 2 + linear * np.sin(t)).max()
        assert worst(squared, linear) == pytest.approx(there, abs=1e-8)


def test_expected_json_holds_golden_prompts():
    recipe = load_recipe("deepseek-v3-mtp")
    data = json.loads(extra_files(recipe, recipe.checkpoints[0])["expected.json"])
    assert data["guaranteed_margin"] == guaranteed_margin(recipe)
    assert all(len(p["output_ids"]) == data["max_tokens"] for p in data["prompts"])
    for k in "123":
        counters = data["speculation"][k]
        assert sum(counters["accepted_per_position"]) == counters["accepted_tokens"]
        assert counters["draft_tokens"] == int(k) * counters["drafts"] > 0

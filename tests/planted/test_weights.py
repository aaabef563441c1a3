"""Planted tensors: pure functions of recipe and name, whatever the machine and the dimensions."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from fixturegen import load_recipe
from fixturegen.errors import RecipeError
from fixturegen.planted import PlantedWeights
from fixturegen.planted.draws import Draws
from fixturegen.planted.fields import Rotation
from fixturegen.planted.kernels import Kernel, frequencies, least_distance
from fixturegen.planted.router import Router

DIGEST = """
import hashlib
from fixturegen import load_recipe
from fixturegen.planted import PlantedWeights
recipe = load_recipe("deepseek-v3-mtp")
plan = recipe.checkpoints[0]
weights, digest = PlantedWeights(recipe, plan), hashlib.sha256()
for tensor in plan.tensors:
    if ".experts." not in tensor.name or ".experts.3." in tensor.name:
        digest.update(weights.rows(tensor, 0, tensor.shape[0]).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_bytes_do_not_depend_on_linear_algebra_or_threads():
    """OpenBLAS is made to use the kernels of very different processors."""
    digests = set()
    for core, threads in (("", "1"), ("Prescott", "2"), ("Nehalem", "1"), ("Haswell", "2")):
        environment = {**os.environ, "OPENBLAS_CORETYPE": core, "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=environment | {"OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_rows_are_a_pure_function_of_recipe_and_name():
    recipe = load_recipe("deepseek-v3-mtp")
    plan = recipe.checkpoints[0]
    tensors = [t for t in plan.tensors if ".experts." not in t.name or ".experts.3." in t.name]
    first, second = PlantedWeights(recipe, plan), PlantedWeights(recipe, plan)
    for tensor in tensors[::-3]:
        whole = first.rows(tensor, 0, tensor.shape[0])
        middle = tensor.shape[0] // 3
        assert np.array_equal(second.rows(tensor, middle, middle + 5), whole[middle : middle + 5])
        assert np.isfinite(whole).all() and whole.std() > 0


def test_every_element_holds_noise():
    recipe = load_recipe("deepseek-v3-mtp")
    plan = recipe.checkpoints[0]
    weights = PlantedWeights(recipe, plan)
    for tensor in plan.tensors[:60]:
        if tensor.role != "router_bias":
            values = weights.rows(tensor, 0, min(64, tensor.shape[0]))
            assert (values != 0).mean() > 0.99, tensor.name


def test_rotation_is_exactly_orthogonal():
    rotate = Rotation(512, Draws(3), "test")
    matrix = rotate(np.eye(512))
    assert np.array_equal(matrix @ matrix.T, np.eye(512))


@pytest.mark.parametrize("rope", ["null", "{type: yarn, factor: 40}"])
@pytest.mark.parametrize("context", [2048, 8192])
def test_kernels_keep_their_levels(rope, context):
    omega = frequencies(load_recipe("deepseek-v3-mtp", [f"rope_scaling={rope}"]).model)
    kernel = Kernel(((5, 8.0), (68, 0.0)), others=-24.0)
    a, b = kernel.solve(omega, context)
    d = np.arange(context)[:, None] * omega
    levels = np.cos(d) @ a + np.sin(d) @ b
    assert abs(levels[5] - 8) < 0.05 and abs(levels[68]) < 0.05
    assert np.delete(levels, [5, 68]).max() < -23.9


def test_kernels_are_shortest():
    """Least distance against scipy's quadratic optimum."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(0)
    g, h = rng.normal(size=(6, 4)), rng.normal(size=6) - 0.5
    z = least_distance(g, h)
    best = minimize(
        lambda x: x @ x,
        np.zeros(4),
        constraints={"type": "ineq", "fun": lambda x: g @ x - h},
        tol=1e-12,
    )
    assert np.allclose(z, best.x, atol=1e-5)


def noaux_tc(router: Router, scores: np.ndarray) -> set[int]:
    """DeepSeek-V3's choice of experts for one token."""
    biased = scores + router.bias
    grouped = biased.reshape(router.groups, router.size)
    best = np.argsort(np.sort(grouped, axis=1)[:, -2:].sum(axis=1))[-router.top :]
    allowed = np.full(router.experts, -np.inf)
    for group in best:
        members = slice(group * router.size, (group + 1) * router.size)
        allowed[members] = biased[members]
    return set(np.argsort(allowed)[-router.k :].tolist())


ROUTING = [
    (),
    ("num_experts_per_tok=4",),
    ("n_routed_experts=64",),
    ("n_routed_experts=256",),
    ("n_routed_experts=256", "num_experts_per_tok=4", "topk_group=2"),
]


@pytest.mark.parametrize("overrides", ROUTING)
@pytest.mark.parametrize("layer", ["1", "2", "draft"])
def test_the_rule_chooses_the_planted_experts(overrides, layer):
    recipe = load_recipe("deepseek-v3-mtp", overrides)
    router = Router(recipe.model, 16, Draws(recipe.seed), layer)
    scores = 1 / (1 + np.exp(-router.logits))
    for c in range(16):
        assert noaux_tc(router, scores[c]) == set(router.chosen[c].tolist())
        assert np.isclose(sum(router.weight(c, e) for e in router.chosen[c]), 2.5)
    assert router.margin() > 0.04


def test_every_expert_is_used_where_there_are_enough_places():
    recipe = load_recipe("deepseek-v3-mtp")
    router = Router(recipe.model, 16, Draws(recipe.seed), "1")
    assert set(router.chosen.flat) == set(range(32))


@pytest.mark.parametrize(
    "overrides",
    [
        ("num_attention_heads=8",),
        ("num_attention_heads=128",),
        ("n_routed_experts=256",),
        ("num_experts_per_tok=4", "n_routed_experts=64"),
        ("rope_scaling=null", "context=8192"),
        ("dtype=float16",),
        ("hidden_size=768", "num_classes=12"),
        ("offset_w=1021", "offset_y_far=130", "context=4096"),
    ],
)
def test_other_dimensions_can_be_planted(overrides):
    recipe = load_recipe("deepseek-v3-mtp", overrides)
    plan = recipe.checkpoints[0]
    weights = PlantedWeights(recipe, plan)
    for tensor in plan.tensors[:: max(1, len(plan.tensors) // 40)]:
        assert weights.rows(tensor, 0, 8).shape == (min(8, tensor.shape[0]), *tensor.shape[1:])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_hidden_layers=4", "num_hidden_layers 3, got 4"),
        ("hidden_size=128", "need hidden_size"),
        ("num_attention_heads=12", "heads in eights, got 12"),
        ("num_experts_per_tok=6", "num_experts_per_tok 4 or 8, got 6"),
        ("topk_method=greedy", "topk_method noaux_tc, got greedy"),
        ("scoring_func=softmax", "scoring_func sigmoid"),
        ("n_routed_experts=16", "more experts in a group than are chosen there"),
        ("intermediate_size=256", "intermediate_size 273 or more"),
        ("tokenizer_vocab_size=2048", "tokenizer_vocab_size 3128 or more"),
        ("offset_y_far=4", "offset_y below offset_y_far"),
        ("offset_w=17", "offsets that differ"),
        ("context=64", "offsets within context"),
        ("acceptance=1.2", "acceptance"),
        ("noise=0.1", "noise"),
        ("decoy=0.9", "decoy"),
        ("acceptance=[]", "acceptance of 1 to 6 positions, got 0"),
        ("acceptance=[1, 1, 1, 1, 1, 1, 1]", "acceptance of 1 to 6 positions, got 7"),
        ("max_position_embeddings=1024", "context within max_position_embeddings 1024, got 2048"),
        ("rms_norm_eps=0.001", "rms_norm_eps 1e-5 or less, got 0.001"),
        ("v_head_dim=16", "v_head_dim 17 or more for 16 classes, got 16"),
    ],
)
def test_what_cannot_be_planted_is_refused(override, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("deepseek-v3-mtp", [override])


def test_too_narrow_experts_are_refused():
    overrides = ["n_shared_experts=3", "moe_intermediate_size=64"]
    recipe = load_recipe("deepseek-v3-mtp", overrides)
    plan = recipe.checkpoints[0]
    tensor = next(t for t in plan.tensors if t.name.endswith("1.mlp.experts.0.up_proj.weight"))
    with pytest.raises(RecipeError, match=r"room for 68 neurons in layer 1, .* has 64"):
        PlantedWeights(recipe, plan).rows(tensor, 0, 8)


def test_an_impossible_kernel_is_refused():
    omega = np.array([1e-4, 2e-4])
    with pytest.raises(RecipeError, match="no rotary kernel for offsets"):
        Kernel(((5, 8.0), (6, 0.0)), others=-24.0).solve(omega, 64)


def test_a_draft_repeats_the_final_norm_and_the_embedding():
    recipe = load_recipe("deepseek-v3-mtp")
    plan = recipe.checkpoints[0]
    weights = PlantedWeights(recipe, plan)
    by_name = {t.name: t for t in plan.tensors}

    def digest(name: str) -> str:
        return hashlib.sha256(weights.rows(by_name[name], 0, 200).tobytes()).hexdigest()

    assert digest("model.norm.weight") == digest("model.layers.3.shared_head.norm.weight")
    assert digest("model.embed_tokens.weight") == digest("model.layers.3.embed_tokens.weight")
    assert digest("lm_head.weight") == digest("model.layers.3.shared_head.head.weight")

"""Recipes: what ships, overrides, and one clear line for each mistake."""

from __future__ import annotations

import json

import pytest

from fixturegen import list_recipes, load_recipe
from fixturegen.builder import recipe_size
from fixturegen.errors import RecipeError
from fixturegen.recipe import Recipe, configs_folder

SHIPPED = list_recipes()


def test_what_ships():
    families = {f"deepseek-v3-{n}" for n in ("mtp", "mtp-fp8", "eagle")}
    assert families | {f"{n}-random" for n in families} | {"deepseek-v3-671b"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipe(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description and recipe.purpose
    model = recipe.model
    assert (model.qk_head_dim, model.v_head_dim, model.kv_lora_rank) == (192, 128, 512)
    assert model.n_routed_experts >= 2 * model.n_group
    eligible = model.topk_group * model.n_routed_experts // model.n_group
    assert model.num_experts_per_tok < eligible
    for tp in (1, 2, 4):
        for size in (model.intermediate_size, model.moe_intermediate_size):
            assert size % (128 * tp) == 0
        assert model.num_attention_heads % tp == 0
    assert model.hidden_size % 128 == 0
    assert name == "deepseek-v3-671b" or recipe_size(recipe) < 150e6
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())), "manifest") == recipe


def test_production_numbers():
    """DeepSeek-V3: 671 B parameters in the target, 14 B with the MTP layer's copies in it."""
    plan = load_recipe("deepseek-v3-671b").checkpoints[0]
    target = sum(t.numel for t in plan.tensors if not t.name.startswith("model.layers.61."))
    mtp = sum(t.numel for t in plan.tensors if t.name.startswith("model.layers.61."))
    assert round(target / 1e9) == 671
    assert round(mtp / 1e9) == 13 or round(mtp / 1e9) == 14


def test_eagle_pair():
    target, draft = load_recipe("deepseek-v3-eagle-random").checkpoints
    assert (target.subfolder, draft.subfolder) == ("target", "draft")
    assert draft.config.to_dict()["model"]["num_hidden_layers"] == 1
    names = {t.name for t in draft.tensors}
    assert {"fc.weight", "enorm.weight", "hnorm.weight", "norm.weight"} <= names
    assert "embed_tokens.weight" not in names
    own = load_recipe("deepseek-v3-eagle-random", ["draft_embeddings=own"]).checkpoints[1]
    assert {t.name for t in own.tensors} - names == {"embed_tokens.weight", "lm_head.weight"}


def test_overrides_reach_every_section():
    recipe = load_recipe(
        "deepseek-v3-mtp-random",
        ["hidden_size=512", "rope_scaling=null", "quantization.method=fp8", "seed=5"],
    )
    assert recipe.model.hidden_size == 512
    assert recipe.model.rope_scaling is None
    assert recipe.model.quantization.weight_block_size == (128, 128)
    assert recipe.seed == 5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("hiden_size=3", "unknown key 'hiden_size'; did you mean 'hidden_size'?"),
        ("hidden_size=big", "hidden_size is 'big'; allowed: a whole number"),
        ("hidden_size=-1", "hidden_size is -1; allowed: at least 1"),
        ("hidden_size=1.5", "hidden_size is 1.5; allowed: a whole number"),
        ("hidden_size=true", "hidden_size is True; allowed: a whole number"),
        ("routed_scaling_factor=.inf", "allowed: a finite number"),
        ("weights=plantd", "weights is 'plantd'; allowed: random, planted; did you mean"),
        ("n_group=7", "n_routed_experts 32 is not divisible by n_group 7; nearest: 28 or 35"),
        ("topk_group=9", "topk_group 9 is more than n_group 8"),
        ("num_experts_per_tok=33", "num_experts_per_tok 33 is more than n_routed_experts 32"),
        ("num_nextn_predict_layers=0", "draft is mtp but num_nextn_predict_layers is 0"),
        ("draft=none", "draft is none but num_nextn_predict_layers is 1"),
        ("vocab_size=300", "tokenizer_vocab_size 4096 is more than vocab_size 300"),
        ("tokenizer_vocab_size=100", "tokenizer_vocab_size is 100; allowed: at least 259"),
        ("num_key_value_heads=4", "num_key_value_heads 4 must equal num_attention_heads 16"),
        ("qk_rope_head_dim=63", "qk_rope_head_dim 63 is odd"),
        ("quantization.method=int4", "allowed: fp8, nvfp4"),
        ("seed", "expected key=value"),
        ("model=3", "model is 3; allowed: a mapping"),
    ],
)
def test_one_clear_line(override, message):
    with pytest.raises(RecipeError) as error:
        load_recipe("deepseek-v3-mtp-random", [override])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "expected a mapping of keys, got list"),
        ("a: [\n", "line 2 is not YAML"),
        ("description: x\n", "purpose is missing"),
        ("descripton: x\n", "unknown key 'descripton'; did you mean 'description'?"),
        ("base: deepseek-v3-mpt\n", "did you mean 'deepseek-v3-mtp'?"),
        ("base: [1]\n", "base is [1]; allowed: the name of a recipe"),
    ],
)
def test_malformed_file(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"mine\.yaml|mpt") as error:
        load_recipe(path)
    assert message in str(error.value)


def test_base_cycle(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"base: {path}\n")
    with pytest.raises(RecipeError, match="base names itself"):
        load_recipe(path)


def test_unknown_recipe_and_missing_file():
    with pytest.raises(RecipeError, match="did you mean 'deepseek-v3-mtp'"):
        load_recipe("deepseek-v3-mpt")
    with pytest.raises(RecipeError, match=r"nowhere.yaml: no such file"):
        load_recipe("nowhere.yaml")


def test_recipes_are_in_the_checkout():
    assert (configs_folder() / "deepseek-v3-mtp.yaml").is_file()

"""config.json: the families understood, and what is refused."""

from __future__ import annotations

import pytest

from fixturegen import ModelConfig, load_recipe
from fixturegen.errors import ConfigError

V3 = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}


@pytest.mark.parametrize("part", [0, 1])
def test_round_trip(part):
    config = load_recipe("deepseek-v3-eagle-random").checkpoints[part].config
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_engines_find_their_keys():
    data = load_recipe("deepseek-v3-mtp-fp8-random").model.to_dict()
    assert data["topk_method"] == "noaux_tc"
    assert data["scoring_func"] == "sigmoid"
    assert data["num_nextn_predict_layers"] == 1
    assert data["quantization_config"] == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    assert "auto_map" not in data


def test_transformers_reads_it(tiny_checkpoint):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(tiny_checkpoint)
    assert config.rope_parameters["rope_type"] == "yarn"
    assert config.rope_parameters["factor"] == 40
    assert config.topk_method == "noaux_tc"


def test_absent_keys_take_the_engines_defaults():
    config = ModelConfig.from_dict(V3)
    assert config.n_routed_experts == 256
    assert config.topk_method is None  # vLLM then makes no correction bias
    assert config.scoring_func == "softmax"
    lite = ModelConfig.from_dict({"model_type": "deepseek_v2", "q_lora_rank": None})
    assert (lite.q_lora_rank, lite.topk_method, lite.n_group) == (None, "greedy", None)


def test_transformers_5_rope_spelling():
    rope = {"rope_type": "yarn", "factor": 64, "rope_theta": 50000}
    config = ModelConfig.from_dict({**V3, "rope_parameters": rope})
    assert config.rope_theta == 50000
    assert config.rope_scaling.factor == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama' is not understood"),
        ({"model_type": "deepseek_v4"}, "did you mean"),
        ({"hidden_size": "7168"}, "hidden_size is '7168'; allowed: a whole number"),
        ({"hidden_size": 0}, "hidden_size is 0; allowed: at least 1"),
        ({"hidden_size": 10**30}, "allowed: at most"),
        ({"n_group": 7}, "n_routed_experts 256 is not divisible by n_group 7"),
        ({"topk_group": 16}, "topk_group 16 is more than n_group 8"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling type 'linear' is not understood"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq'"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8'"),
        ({"architectures": []}, "architectures is empty"),
        ({"scoring_func": "tanh"}, "allowed: sigmoid, softmax"),
    ],
)
def test_refused(change, message):
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict({**V3, **change})
    assert message in str(error.value)

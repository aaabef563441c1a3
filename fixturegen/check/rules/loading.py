"""What vLLM's loader expects of a checkpoint's tensors."""

from fixturegen.check.inputs import Loading
from fixturegen.check.rule import FallsBack, Rejected, SilentlyWrong, Source, Where, cases, rule

LOADER = Source(
    "vllm",
    "vllm/model_executor/model_loader/default_loader.py",
    "DefaultModelLoader.track_weights_loading",
)
MODEL = Source("vllm", "vllm/model_executor/models/deepseek_v2.py", "DeepseekV2MoE.__init__")


#: Tensors the check passes over from 0.22: those of a layer that processes weights after loading.
EXEMPT = Where(since="0.22.1", inputs={"tracked": True})
STRICT = Where(until="0.20.2", inputs={"tracked": True})
UNSET = "what is missing stays uninitialised memory"
NOT_LOADED = "Following weights were not initialized from"


@rule(
    id="gate-bias-missing",
    title="topk_method noaux_tc needs e_score_correction_bias in every gate",
    where=Where(until="0.20.2", inputs={"topk_method": "noaux_tc", "tracked": True}),
    otherwise=Rejected(NOT_LOADED),
    source=MODEL,
    cases=cases(
        Loading(gates_with_bias=58),
        breaks=[{"gates_with_bias": 0, "gates_without_bias": 58}],
        at_limit=[{"gates_without_bias": 0}],
        past_limit=[{"gates_without_bias": 1}],
    ),
)
def gate_bias_missing(x: Loading) -> bool:
    """vLLM makes the parameter from the config and then misses its tensor."""
    return x.gates_without_bias < 1


@rule(
    id="gate-bias-missing-unseen",
    variant_of="gate-bias-missing",
    title="A checkpoint without its gate biases routes at random",
    where=Where(since="0.22.1", inputs={"topk_method": "noaux_tc", "tracked": True}),
    otherwise=SilentlyWrong("the bias stays uninitialised memory"),
    source=LOADER,
    cases=cases(
        Loading(gates_with_bias=58),
        breaks=[{"gates_with_bias": 0, "gates_without_bias": 58}],
        at_limit=[{"gates_without_bias": 0}],
        past_limit=[{"gates_without_bias": 1}],
    ),
)
def gate_bias_missing_unseen(x: Loading) -> bool:
    """The gate is a linear layer, whose parameters the loader takes for loaded.

    0.26.0 on an H200 and 0.32.0 on a CPU ran such a checkpoint without a word.
    """
    return x.gates_without_bias < 1


@rule(
    id="gate-bias-missing-quantised",
    title="A quantised checkpoint or Eagle draft without its gate biases routes at random",
    where=Where(inputs={"topk_method": "noaux_tc", "tracked": False}),
    otherwise=SilentlyWrong("the bias stays uninitialised memory"),
    source=LOADER,
    cases=cases(
        Loading(gates_with_bias=58, tracked=False),
        breaks=[{"gates_with_bias": 0, "gates_without_bias": 58}],
        at_limit=[{"gates_without_bias": 0}],
        past_limit=[{"gates_without_bias": 1}],
    ),
)
def gate_bias_missing_quantised(x: Loading) -> bool:
    """The loader looks for tensors that were never set in unquantised models only, and where
    `load_weights` says what it loaded; an Eagle draft's does not.
    """
    return x.gates_without_bias < 1


@rule(
    id="gate-bias-unexpected",
    title="e_score_correction_bias needs topk_method noaux_tc in the config",
    where=Where(),
    otherwise=Rejected(r"KeyError: '.*gate\.e_score_correction_bias'"),
    source=MODEL,
    cases=cases(
        Loading(topk_method=None),
        holds=[{"topk_method": "noaux_tc", "gates_with_bias": 58}],
        breaks=[{"gates_with_bias": 58}],
        at_limit=[{"gates_with_bias": 0}],
        past_limit=[{"gates_with_bias": 1}, {"topk_method": "greedy", "gates_with_bias": 1}],
    ),
)
def gate_bias_unexpected(x: Loading) -> bool:
    """transformers' configuration class has no `topk_method`, so `save_pretrained` loses it.

    vLLM then makes no parameter for the bias and fails on its tensor's name.
    """
    return x.topk_method == "noaux_tc" or x.gates_with_bias < 1


@rule(
    id="tensors-missing",
    title="Every tensor of the architecture must be in the checkpoint",
    where=STRICT,
    otherwise=Rejected(NOT_LOADED),
    source=LOADER,
    cases=cases(
        Loading(),
        breaks=[{"missing": 12}],
        at_limit=[{"missing": 0}],
        past_limit=[{"missing": 1}, {"missing_norms": 1}, {"missing_copies": 1}],
    ),
)
def tensors_missing(x: Loading) -> bool:
    """Compared with the layout that fixturegen writes for the same config.

    With speculation on, MTP layers count, and so do their own embedding and head, which newer
    releases take from the target.
    """
    return x.missing + x.missing_norms + x.missing_copies < 1


@rule(
    id="norms-missing",
    variant_of="tensors-missing",
    title="Every norm, and an MTP layer's eh_proj, must be in the checkpoint",
    where=EXEMPT,
    otherwise=Rejected(NOT_LOADED),
    source=LOADER,
    cases=cases(
        Loading(),
        breaks=[{"missing_norms": 12}],
        at_limit=[{"missing_norms": 0}],
        past_limit=[{"missing_norms": 1}],
    ),
)
def norms_missing(x: Loading) -> bool:
    """They are all that the loader still looks for: other layers process weights after loading."""
    return x.missing_norms < 1


@rule(
    id="tensors-missing-unseen",
    variant_of="tensors-missing",
    title="A checkpoint that lacks tensors runs on uninitialised memory",
    where=EXEMPT,
    otherwise=SilentlyWrong(UNSET),
    source=LOADER,
    cases=cases(
        Loading(),
        breaks=[{"missing": 12}],
        at_limit=[{"missing": 0}],
        past_limit=[{"missing": 1}],
    ),
)
def tensors_missing_unseen(x: Loading) -> bool:
    """Parameters of any layer whose quantisation method processes weights after loading count as
    loaded, and the unquantised methods of linear layers, embeddings and experts do.
    """
    return x.missing < 1


@rule(
    id="tensors-missing-quantised",
    title="A quantised checkpoint or Eagle draft that lacks tensors runs on uninitialised memory",
    where=Where(inputs={"tracked": False}),
    otherwise=SilentlyWrong(UNSET),
    source=LOADER,
    cases=cases(
        Loading(tracked=False),
        breaks=[{"missing": 12}],
        at_limit=[{"missing": 0}],
        past_limit=[{"missing": 1}, {"missing_norms": 1}],
    ),
)
def tensors_missing_quantised(x: Loading) -> bool:
    """The loader looks for tensors that were never set in unquantised models only, and where
    `load_weights` says what it loaded; an Eagle draft's does not.
    """
    return x.missing + x.missing_norms < 1


@rule(
    id="tensors-unexpected",
    title="A tensor that the architecture does not have stops the loader",
    where=Where(),
    otherwise=Rejected("KeyError: |There is no module or parameter named"),
    source=Source(
        "vllm", "vllm/model_executor/models/deepseek_v2.py", "DeepseekV2ForCausalLM.load_weights"
    ),
    cases=cases(
        Loading(),
        breaks=[{"unexpected": 12}],
        at_limit=[{"unexpected": 0}],
        past_limit=[{"unexpected": 1}],
    ),
)
def tensors_unexpected(x: Loading) -> bool:
    """Compared with the layout that fixturegen writes for the same config."""
    return x.unexpected < 1


@rule(
    id="mla-kv-heads",
    title="num_key_value_heads must equal num_attention_heads outside vLLM",
    where=Where(),
    otherwise=FallsBack("vLLM, which has one latent head; transformers' forward fails"),
    source=Source(
        "transformers",
        "transformers/models/deepseek_v3/modeling_deepseek_v3.py",
        "DeepseekV3Attention",
    ),
    cases=cases(
        Loading(num_attention_heads=32, num_key_value_heads=32),
        breaks=[{"num_key_value_heads": 4}],
        at_limit=[{}],
        past_limit=[{"num_key_value_heads": 31}, {"num_key_value_heads": 33}],
    ),
)
def mla_kv_heads(x: Loading) -> bool:
    """MLA has no groups of heads.

    vLLM ignores the key, transformers repeats keys by the ratio of the two.
    """
    return x.num_key_value_heads == x.num_attention_heads

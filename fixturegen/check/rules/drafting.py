"""What speculative decoding expects of MTP layers and Eagle drafts."""

from fixturegen.check.inputs import Drafting
from fixturegen.check.rule import Rejected, Source, Unproven, Where, cases, rule

SPECULATIVE = Source("vllm", "vllm/config/speculative.py", "SpeculativeConfig.__post_init__")


@rule(
    id="mtp-layers",
    title="MTP needs num_nextn_predict_layers of at least 1",
    where=Where(backends=("mtp",)),
    otherwise=Rejected("(modulo|division) by zero"),
    source=Source(
        "vllm", "vllm/model_executor/models/deepseek_mtp.py", "DeepSeekMultiTokenPredictor"
    ),
    cases=cases(
        Drafting(),
        holds=[{"num_nextn_predict_layers": 3}],
        breaks=[{"num_nextn_predict_layers": 0}],
        at_limit=[{"num_nextn_predict_layers": 1}],
        past_limit=[{"num_nextn_predict_layers": 0}],
    ),
)
def mtp_layers(x: Drafting) -> bool:
    """The step number is taken modulo the number of MTP layers."""
    return x.num_nextn_predict_layers >= 1


@rule(
    id="mtp-weights",
    title="Every MTP layer that the config counts must be in the checkpoint",
    where=Where(backends=("mtp",)),
    otherwise=Rejected(r"MTP speculative decoding layer \d+ weights missing from checkpoint"),
    source=Source("vllm", "vllm/model_executor/models/deepseek_mtp.py", "DeepSeekMTP.load_weights"),
    cases=cases(
        Drafting(),
        breaks=[{"missing_layers": 3}],
        at_limit=[{"missing_layers": 0}],
        past_limit=[{"missing_layers": 1}],
    ),
)
def mtp_weights(x: Drafting) -> bool:
    """transformers' `save_pretrained` drops MTP layers: names from `model.layers.{N}` on."""
    return x.missing_layers < 1


@rule(
    id="mtp-draft-tokens",
    title="Draft tokens beyond the MTP layers come in multiples of them",
    where=Where(backends=("mtp",)),
    otherwise=Rejected(r"num_speculative_tokens:\d+ must be divisible by n_predict"),
    source=SPECULATIVE,
    cases=cases(
        Drafting(num_nextn_predict_layers=2, num_speculative_tokens=2),
        holds=[{"num_speculative_tokens": 4}, {"num_nextn_predict_layers": 0}],
        breaks=[{"num_speculative_tokens": 5}],
        at_limit=[
            {"num_speculative_tokens": 1},
            {"num_speculative_tokens": 2},
            {"num_nextn_predict_layers": 1, "num_speculative_tokens": 3},
        ],
        past_limit=[
            {"num_speculative_tokens": 3},
            {"num_nextn_predict_layers": 3, "num_speculative_tokens": 4},
        ],
    ),
)
def mtp_draft_tokens(x: Drafting) -> bool:
    """With DeepSeek's one MTP layer any number goes: the layer is run again and again.

    Zero layers are the subject of `mtp-layers`.
    """
    layers = max(x.num_nextn_predict_layers, 1)
    tokens = x.num_speculative_tokens
    return tokens in range(layers) or tokens % layers == 0


@rule(
    id="eagle-layers",
    title="An Eagle draft's config needs num_nextn_predict_layers of at least 1",
    where=Where(backends=("eagle",)),
    otherwise=Unproven(
        "a config flat like the target's divides by zero; one nested under `model` runs"
    ),
    source=SPECULATIVE,
    cases=cases(
        Drafting(backend="eagle"),
        breaks=[{"num_nextn_predict_layers": 0}],
        at_limit=[{"num_nextn_predict_layers": 1}],
        past_limit=[{"num_nextn_predict_layers": 0}],
    ),
)
def eagle_layers(x: Drafting) -> bool:
    """vLLM takes a flat config of model_type deepseek_v3 for an MTP layer's and divides the draft
    tokens by its layers. A config of model_type eagle is never asked (0.26.0 on an H200 ran it).
    """
    return x.num_nextn_predict_layers >= 1


@rule(
    id="eagle-hidden-size",
    title="An Eagle draft is as wide as its target",
    where=Where(backends=("eagle",)),
    otherwise=Rejected("mat1 and mat2 shapes cannot be multiplied|size mismatch|must match"),
    source=Source(
        "vllm", "vllm/model_executor/models/deepseek_eagle.py", "DeepseekV2Model.__init__"
    ),
    cases=cases(
        Drafting(backend="eagle", hidden_size=256, target_hidden_size=256),
        breaks=[{"hidden_size": 512}],
        at_limit=[{}],
        past_limit=[{"hidden_size": 255}, {"hidden_size": 257}],
    ),
)
def eagle_hidden_size(x: Drafting) -> bool:
    """`fc` is [H, 2H]: it joins the token's embedding with the target's hidden state."""
    return x.hidden_size == x.target_hidden_size

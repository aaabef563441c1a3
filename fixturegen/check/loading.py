"""Loading, drafting and splitting over ranks: what does not depend on a kernel."""

from __future__ import annotations

from collections.abc import Collection

from fixturegen.check.inputs import Derived, Drafting, KernelInput, Loading, Parallel
from fixturegen.check.releases import within
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig
from fixturegen.layouts import LAYOUTS, tensors

BIAS = ".mlp.gate.e_score_correction_bias"

#: Companions of a quantised weight; which of them exist depends on the quantiser.
SCALES = ("_scale_inv", "_scale", "_scale_2", "input_scale", "rotary_emb.inv_freq")


#: Environment variables that the derivation reads; any other may change what it does not know of.
VARIABLES = {
    "VLLM_BATCH_INVARIANT",
    "VLLM_FLASHINFER_MOE_BACKEND",
    "VLLM_MLA_DISABLE",
    "VLLM_MOE_USE_DEEP_GEMM",
    "VLLM_TEST_FORCE_FP8_MARLIN",
    "VLLM_USE_DEEP_GEMM",
    "VLLM_USE_FLASHINFER_MOE_FP16",
    "VLLM_USE_FLASHINFER_MOE_FP4",
    "VLLM_USE_FLASHINFER_MOE_FP8",
}


def derive(
    config: ModelConfig,
    target: Target,
    draft: ModelConfig | None = None,
    names: Collection[str] | None = None,
    draft_names: Collection[str] | None = None,
) -> Derived:
    """``names`` are a checkpoint's tensors, None for a bare config."""
    inputs: list[KernelInput] = [
        Parallel(
            num_attention_heads=config.num_attention_heads,
            n_routed_experts=config.n_routed_experts or 0,
            tp=target.tp,
            ep=target.ep,
        ),
        _loading(config, names, "target"),
    ]
    unknown = [
        f"tensor names of {c.architectures[0]} are not covered"
        for c in _uncovered((config, names), (draft, draft_names))
    ]
    unknown += [
        f"what {variable} changes is not covered for vLLM {target.vllm}"
        for variable, _ in target.env
        if variable not in VARIABLES
        or (variable == "VLLM_BATCH_INVARIANT" and not within(target.vllm, "0.20.2", None))
    ]
    method = target.speculation.partition(":")[0]
    if method == "mtp":
        last = config.num_hidden_layers + config.num_nextn_predict_layers
        layers = range(config.num_hidden_layers, last)
        inputs.append(
            Drafting(
                part="mtp",
                backend="mtp",
                num_nextn_predict_layers=config.num_nextn_predict_layers,
                num_speculative_tokens=target.draft_tokens,
                missing_layers=sum(
                    names is not None and not any(n.startswith(f"model.layers.{i}.") for n in names)
                    for i in layers
                ),
                hidden_size=config.hidden_size,
                target_hidden_size=config.hidden_size,
            )
        )
    elif method != "none" and draft is None:
        unknown.append(
            f"speculation={target.speculation} without a draft: only the target is checked"
        )
    if draft is not None:
        inputs.append(_loading(draft, draft_names, "draft"))
        inputs.append(
            Drafting(
                part="draft",
                backend="eagle" if draft.is_eagle_draft else method,
                num_nextn_predict_layers=draft.num_nextn_predict_layers,
                num_speculative_tokens=max(target.draft_tokens, 1),
                hidden_size=draft.hidden_size,
                target_hidden_size=config.hidden_size,
            )
        )
    return Derived(choices={}, inputs=tuple(inputs), unknown=tuple(unknown))


def _uncovered(
    *parts: tuple[ModelConfig | None, Collection[str] | None],
) -> list[ModelConfig]:
    return [
        c for c, n in parts if c is not None and n is not None and c.architectures[0] not in LAYOUTS
    ]


def _loading(config: ModelConfig, names: Collection[str] | None, part: str) -> Loading:
    with_bias = without_bias = 0
    missing: list[str] = []
    unexpected: list[str] = []
    if names is not None and config.architectures[0] in LAYOUTS:
        biases = [n for n in names if n.endswith(BIAS)]
        gates = [n for n in names if n.endswith(".mlp.gate.weight")]
        with_bias, without_bias = len(biases), len(gates) - len(biases)
        layout = tensors(config)
        known = {t.name for t in layout}
        missing = [
            t.name
            for t in layout
            if not t.optional
            and t.name not in names
            and not t.name.endswith(BIAS)
            and not _is_mtp(t.name, config)
        ]
        unexpected = sorted(
            n
            for n in names
            if n not in known and not n.endswith((BIAS, *SCALES)) and not _is_mtp(n, config)
        )
    return Loading(
        part=part,
        architecture=config.architectures[0],
        quantised=config.quantization is not None,
        topk_method=config.topk_method,
        gates_with_bias=with_bias,
        gates_without_bias=without_bias,
        missing_norms=sum(n.endswith("norm.weight") for n in missing),
        missing=sum(not n.endswith("norm.weight") for n in missing),
        unexpected=len(unexpected),
        examples=(*missing[:2], *unexpected[:2]),
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads or config.num_attention_heads,
    )


def _is_mtp(name: str, config: ModelConfig) -> bool:
    """Whether a tensor belongs to an MTP layer, which the target's loader skips."""
    if not name.startswith("model.layers."):
        return False
    index = name.split(".")[2]
    return index.isdigit() and int(index) >= config.num_hidden_layers

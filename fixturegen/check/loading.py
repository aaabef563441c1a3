"""Loading, drafting and splitting over ranks: what does not depend on a kernel."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from dataclasses import dataclass

from fixturegen.check import moe
from fixturegen.check.inputs import Derived, Drafting, KernelInput, Loading, Parallel
from fixturegen.check.releases import within
from fixturegen.check.target import Target
from fixturegen.config import EAGLE3_ARCHITECTURES, ModelConfig
from fixturegen.layouts import LAYOUTS, Tensor, tensors

BIAS = ".mlp.gate.e_score_correction_bias"

#: Companions of a quantised weight; which of them exist depends on the quantiser.
SCALES = ("_scale_inv", "_scale", "_scale_2", "input_scale", "rotary_emb.inv_freq")

#: Parameters of plain modules: all that the loader still looks for from vLLM 0.22 on.
UNPROCESSED = ("norm.weight", ".eh_proj.weight")

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
        _parallel(config, target, "target"),
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
    unknown += [
        f"attention_bias in the {part} is not covered"
        for c, part in ((config, "target"), (draft, "draft"))
        if c is not None and c.attention_bias
    ]
    method = target.speculation.partition(":")[0]
    if method == "mtp":
        # from the target's own checkpoint, or from one beside it
        source, held = (config, names) if draft is None else (draft, draft_names)
        missing_layers = _missing_layers(source, held)
        inputs.append(
            Drafting(
                part="mtp",
                backend="mtp",
                num_nextn_predict_layers=source.num_nextn_predict_layers,
                num_speculative_tokens=target.draft_tokens,
                missing_layers=missing_layers,
                hidden_size=source.hidden_size,
                target_hidden_size=config.hidden_size,
            )
        )
        if held is not None and not missing_layers:  # else the loader stops there
            inputs.append(_loading(source, held, "mtp"))
    elif method != "none" and draft is None:
        unknown.append(
            f"speculation={target.speculation} without a draft: only the target is checked"
        )
    if draft is not None:
        inputs.append(_parallel(draft, target, "draft"))
    if draft is not None and method != "mtp":
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
    if draft is not None and draft.architectures[0] in EAGLE3_ARCHITECTURES:
        if target.mla_disabled:
            unknown.append("an Eagle3 draft keeps MLA beside a target without it: not covered")
        if draft.hidden_size != config.hidden_size:
            unknown.append("an Eagle3 draft of another width than its target is not covered")
    return Derived(choices={}, inputs=tuple(inputs), unknown=tuple(unknown))


def _uncovered(
    *parts: tuple[ModelConfig | None, Collection[str] | None],
) -> list[ModelConfig]:
    return [
        c for c, n in parts if c is not None and n is not None and c.architectures[0] not in LAYOUTS
    ]


def _parallel(config: ModelConfig, target: Target, part: str) -> Parallel:
    return Parallel(
        part=part,
        num_attention_heads=config.num_attention_heads,
        n_routed_experts=config.n_routed_experts or 0,
        widths=moe.dense_widths(config),
        tp=target.tp,
        ep=target.ep,
    )


def _loading(config: ModelConfig, names: Collection[str] | None, part: str) -> Loading:
    held = Held()
    if names is not None and config.architectures[0] in LAYOUTS:
        held = _held(config, frozenset(names), part == "mtp")
    norms = [n for n in held.missing if n.endswith(UNPROCESSED)]
    return Loading(
        part=part,
        architecture=config.architectures[0],
        tracked=config.quantization is None and not config.is_eagle_draft,
        topk_method=config.topk_method,
        gates_with_bias=held.biases,
        gates_without_bias=held.gates - held.biases,
        missing_norms=len(norms),
        missing=len(held.missing) - len(norms),
        missing_copies=len(held.missing_copies),
        unexpected=len(held.unexpected),
        examples=(*held.missing[:2], *held.unexpected[:2]),
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads or config.num_attention_heads,
    )


@dataclass(frozen=True, slots=True)
class Held:
    """A checkpoint's tensor names against its layout."""

    gates: int = 0
    biases: int = 0
    missing: tuple[str, ...] = ()
    #: Of an MTP layer: those that repeat the target's.
    missing_copies: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


@functools.lru_cache(maxsize=4)
def _held(config: ModelConfig, names: frozenset[str], mtp: bool) -> Held:
    """Of the MTP layers, which a loader of their own reads, or of everything else."""
    layout = [t for t in tensors(config) if _is_mtp(t.name, config) is mtp]
    names = frozenset(n for n in names if _is_mtp(n, config) is mtp)
    known = {t.name for t in layout}
    absent = [t for t in layout if t.name not in names and not t.name.endswith(BIAS)]
    return Held(
        gates=sum(n.endswith(".mlp.gate.weight") for n in names),
        biases=sum(n.endswith(BIAS) for n in names),
        missing=tuple(t.name for t in absent if not t.optional),
        missing_copies=tuple(t.name for t in absent if t.optional and mtp and _read(t, config)),
        unexpected=tuple(
            sorted(n for n in names if n not in known and not n.endswith((BIAS, *SCALES)))
        ),
    )


def _read(copy: Tensor, config: ModelConfig) -> bool:
    """Whether an MTP layer's copy is read at all: of embeddings only the first layer's is."""
    return copy.role != "embedding" or f".{config.num_hidden_layers}." in copy.name


def _missing_layers(config: ModelConfig, names: Collection[str] | None) -> int:
    """MTP layers without any tensor."""
    if names is None:
        return 0
    present = {n.split(".")[2] for n in names if n.startswith("model.layers.")}
    last = config.num_hidden_layers + config.num_nextn_predict_layers
    return sum(str(i) not in present for i in range(config.num_hidden_layers, last))


def _is_mtp(name: str, config: ModelConfig) -> bool:
    """Whether a tensor belongs to an MTP layer, which the target's loader skips."""
    if not name.startswith("model.layers."):
        return False
    index = name.split(".")[2]
    return bool(re.fullmatch("[0-9]{1,9}", index)) and int(index) >= config.num_hidden_layers

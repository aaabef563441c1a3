"""Linear layers as the quantised kernels see them under tensor parallelism.

Source: the constructors in vLLM's model_executor/models/deepseek_v2.py. Not quantised, and so not
here: embeddings, lm_head, norms, the router, an MTP layer's ``eh_proj`` and an Eagle draft's
``fc``. All layers of one kind have the same dims, an MTP layer's included, so each kind is listed
once.
"""

from __future__ import annotations

from collections.abc import Iterator

from fixturegen.check.inputs import Derived, Linear
from fixturegen.check.moe import has_dense_layer, has_moe_layer, weight_scheme
from fixturegen.check.releases import within
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig


def derive(config: ModelConfig, target: Target, part: str = "target") -> Derived:
    """One input a kind of layer; none where nothing is quantised."""
    scheme = weight_scheme(config)
    if scheme == "bf16":
        return Derived(choices={}, inputs=())
    if scheme not in ("fp8", "nvfp4"):
        return Derived(choices={}, inputs=(), unknown=(f"linear layers in {scheme}",))
    layers = tuple(layer(part, scheme, target.tp, *row) for row in shapes(config, target))
    return Derived(choices={}, inputs=layers)


def layer(
    part: str, scheme: str, tp: int, name: str, split: str, width: int, outputs: tuple[int, ...]
) -> Linear:
    """The shares of one rank. ``width`` and ``outputs`` are over all ranks."""
    ranks = tp if split != "replicated" else 1
    return Linear(
        part=part,
        name=name,
        split=split,
        scheme=scheme,
        tp=ranks,
        input_size=width // ranks if split == "row" else width,
        full_input_size=width,
        output_sizes=tuple(o // ranks for o in outputs) if split == "column" else outputs,
        full_output_sizes=outputs,
    )


def shapes(config: ModelConfig, target: Target) -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
    """Name, split, input width and output rows of each kind of quantised layer."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    queries = heads * config.qk_head_dim
    latent = config.kv_lora_rank + config.qk_rope_head_dim
    if config.q_lora_rank is None:
        yield "self_attn.q_proj", "column", hidden, (queries,)
        yield "self_attn.kv_a_proj_with_mqa", "replicated", hidden, (latent,)
    else:
        if target.mla_disabled:
            yield "self_attn.q_a_proj", "replicated", hidden, (config.q_lora_rank,)
            yield "self_attn.kv_a_proj_with_mqa", "replicated", hidden, (latent,)
        else:
            merged = (config.q_lora_rank, latent)
            yield "self_attn.fused_qkv_a_proj", "replicated", hidden, merged
        yield "self_attn.q_b_proj", "column", config.q_lora_rank, (queries,)
    keys_values = heads * (config.qk_nope_head_dim + config.v_head_dim)
    yield "self_attn.kv_b_proj", "column", config.kv_lora_rank, (keys_values,)
    yield "self_attn.o_proj", "row", heads * config.v_head_dim, (hidden,)
    if config.index_topk and config.index_n_heads and config.index_head_dim and config.q_lora_rank:
        indexer = config.index_n_heads * config.index_head_dim
        yield "self_attn.indexer.wq_b", "replicated", config.q_lora_rank, (indexer,)
        if within(target.vllm, None, "0.19.1"):  # merged with weights_proj, in bf16, since
            yield "self_attn.indexer.wk", "replicated", hidden, (config.index_head_dim,)
    if has_dense_layer(config):
        yield from mlp("mlp", hidden, config.intermediate_size)
    if has_moe_layer(config) and config.n_shared_experts:
        width = config.moe_intermediate_size * config.n_shared_experts
        yield from mlp("mlp.shared_experts", hidden, width)


def mlp(name: str, hidden: int, width: int) -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
    """Gate and up are merged into one layer."""
    yield f"{name}.gate_up_proj", "column", hidden, (width, width)
    yield f"{name}.down_proj", "row", width, (hidden,)

"""DeepSeek-V2/V3 target with MTP layers.

Names as published in DeepSeek-V3's checkpoint and read by vLLM's ``deepseek_v2.py`` (target) and
``deepseek_mtp.py`` (MTP layers, which follow the target's layers in the numbering).
"""

from __future__ import annotations

from collections.abc import Iterator

from fixturegen.config import ModelConfig
from fixturegen.layouts.tensor import Tensor

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def tensors(config: ModelConfig) -> Iterator[Tensor]:
    """Target tensors, then each MTP layer's."""
    c = config
    yield Tensor(EMBEDDING, (c.vocab_size, c.hidden_size), "embedding", "embed")
    for layer in range(c.num_hidden_layers):
        yield from decoder_layer(c, f"model.layers.{layer}.", c.is_moe_layer(layer))
    yield Tensor("model.norm.weight", (c.hidden_size,), "norm", "head")
    if not c.tie_word_embeddings:
        yield Tensor(HEAD, (c.vocab_size, c.hidden_size), "head", "head")
    for layer in range(c.num_hidden_layers, c.num_hidden_layers + c.num_nextn_predict_layers):
        yield from mtp_layer(c, f"model.layers.{layer}.", c.is_moe_layer(layer))


def copied(name: str, source: str, shape: tuple[int, ...], role: str, group: str) -> Tensor:
    """A tensor that a draft may hold as a copy of the target's ``source``."""
    return Tensor(name, shape, role, group, optional=True, copy_of=source)


def mtp_layer(c: ModelConfig, prefix: str, moe: bool) -> Iterator[Tensor]:
    """One MTP layer: ``eh_proj`` joins ``[enorm(embedding), hnorm(hidden state)]``.

    ``eh_proj`` stays unquantised in an FP8 checkpoint (a plain nn.Linear in deepseek_mtp.py).
    ``embed_tokens`` and ``shared_head.head`` may be absent: engines then use the target's.
    """
    hidden, vocab = c.hidden_size, c.vocab_size
    yield copied(prefix + "embed_tokens.weight", EMBEDDING, (vocab, hidden), "embedding", "mtp")
    yield Tensor(prefix + "enorm.weight", (hidden,), "norm", "mtp")
    yield Tensor(prefix + "hnorm.weight", (hidden,), "norm", "mtp")
    yield Tensor(prefix + "eh_proj.weight", (hidden, 2 * hidden), "linear", "mtp")
    yield from decoder_layer(c, prefix, moe, group="mtp")
    yield Tensor(prefix + "shared_head.norm.weight", (hidden,), "norm", "mtp")
    yield copied(prefix + "shared_head.head.weight", HEAD, (vocab, hidden), "head", "mtp")


def decoder_layer(c: ModelConfig, prefix: str, moe: bool, group: str = "") -> Iterator[Tensor]:
    """Attention (MLA) and a dense or MoE feed-forward part, with their two norms."""
    yield Tensor(prefix + "input_layernorm.weight", (c.hidden_size,), "norm", group or "norms")
    yield from attention(c, prefix + "self_attn.", group or "attention")
    yield Tensor(
        prefix + "post_attention_layernorm.weight", (c.hidden_size,), "norm", group or "norms"
    )
    if moe:
        yield from moe_mlp(c, prefix + "mlp.", group)
    else:
        yield from mlp(c, prefix + "mlp.", c.intermediate_size, group or "dense mlp")


def attention(c: ModelConfig, prefix: str, group: str) -> Iterator[Tensor]:
    """Multi-head latent attention, with a low-rank or a direct query projection."""
    heads, hidden = c.num_attention_heads, c.hidden_size

    def linear(name: str, rows: int, columns: int) -> Tensor:
        return Tensor(f"{prefix}{name}.weight", (rows, columns), "linear", group, quantized=True)

    if c.q_lora_rank is None:
        yield linear("q_proj", heads * c.qk_head_dim, hidden)
    else:
        yield linear("q_a_proj", c.q_lora_rank, hidden)
        yield Tensor(prefix + "q_a_layernorm.weight", (c.q_lora_rank,), "norm", group)
        yield linear("q_b_proj", heads * c.qk_head_dim, c.q_lora_rank)
    yield linear("kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, hidden)
    yield Tensor(prefix + "kv_a_layernorm.weight", (c.kv_lora_rank,), "norm", group)
    yield linear("kv_b_proj", heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank)
    yield linear("o_proj", hidden, heads * c.v_head_dim)


def moe_mlp(c: ModelConfig, prefix: str, group: str) -> Iterator[Tensor]:
    """Router (with its correction bias for ``noaux_tc``), routed experts and shared experts."""
    experts = c.n_routed_experts or 0
    router = group or "router"
    yield Tensor(prefix + "gate.weight", (experts, c.hidden_size), "router", router)
    if c.topk_method == "noaux_tc":
        yield Tensor(
            prefix + "gate.e_score_correction_bias", (experts,), "router_bias", router, "float32"
        )
    for expert in range(experts):
        yield from mlp(c, f"{prefix}experts.{expert}.", c.moe_intermediate_size, group or "experts")
    if c.n_shared_experts:
        yield from mlp(
            c,
            prefix + "shared_experts.",
            c.n_shared_experts * c.moe_intermediate_size,
            group or "shared experts",
        )


def mlp(c: ModelConfig, prefix: str, width: int, group: str) -> Iterator[Tensor]:
    """Gated MLP: ``down_proj(silu(gate_proj(x)) * up_proj(x))``."""
    hidden = c.hidden_size
    for name, shape in (
        ("gate_proj", (width, hidden)),
        ("up_proj", (width, hidden)),
        ("down_proj", (hidden, width)),
    ):
        yield Tensor(f"{prefix}{name}.weight", shape, "linear", group, quantized=True)

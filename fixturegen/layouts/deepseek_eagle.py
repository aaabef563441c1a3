"""Eagle draft for a DeepSeek-V3 target, in the form vLLM's ``deepseek_eagle.py`` reads.

No ``model.`` prefix; ``fc`` joins ``[enorm(embedding), hnorm(hidden state)]``.
"""

from __future__ import annotations

from collections.abc import Iterator

from fixturegen.config import ModelConfig
from fixturegen.layouts.deepseek_v3 import EMBEDDING, HEAD, copied, decoder_layer
from fixturegen.layouts.tensor import Tensor


def tensors(config: ModelConfig) -> Iterator[Tensor]:
    """Draft tensors; without ``embed_tokens`` and ``lm_head`` engines share the target's."""
    c = config
    hidden, vocab = c.hidden_size, c.vocab_size
    yield copied("embed_tokens.weight", EMBEDDING, (vocab, hidden), "embedding", "embed")
    yield Tensor("enorm.weight", (hidden,), "norm", "head")
    yield Tensor("hnorm.weight", (hidden,), "norm", "head")
    yield Tensor("fc.weight", (hidden, 2 * hidden), "linear", "head")
    for layer in range(c.num_hidden_layers):
        yield from decoder_layer(c, f"layers.{layer}.", c.is_moe_layer(layer))
    yield Tensor("norm.weight", (hidden,), "norm", "head")
    yield copied("lm_head.weight", HEAD, (vocab, hidden), "head", "head")

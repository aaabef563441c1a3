"""Which tensors a checkpoint holds: one declarative layout per architecture.

The writer, ``inspect``, ``verify`` and the docs all read these tables. A new architecture is one
module with a ``tensors(config)`` generator and one entry in :data:`LAYOUTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fixturegen.config import EAGLE_ARCHITECTURE, ModelConfig
from fixturegen.errors import ConfigError
from fixturegen.fields import nearest
from fixturegen.layouts import deepseek_eagle, deepseek_v3
from fixturegen.layouts.tensor import Tensor

__all__ = ["LAYOUTS", "Tensor", "tensors"]

#: architectures[0] of config.json -> layout
LAYOUTS: dict[str, Callable[[ModelConfig], Iterator[Tensor]]] = {
    "DeepseekV2ForCausalLM": deepseek_v3.tensors,
    "DeepseekV3ForCausalLM": deepseek_v3.tensors,
    EAGLE_ARCHITECTURE: deepseek_eagle.tensors,
}


def tensors(config: ModelConfig) -> tuple[Tensor, ...]:
    """All tensors of the checkpoint that ``config`` describes, in file order.

    Raises ConfigError for an architecture that has no layout.
    """
    architecture = config.architectures[0] if config.architectures else ""
    if architecture not in LAYOUTS:
        raise ConfigError(
            f"architectures {architecture!r} has no layout; known: {', '.join(LAYOUTS)}"
            + nearest(architecture, LAYOUTS)
        )
    return tuple(LAYOUTS[architecture](config))

"""Planted weights: checkpoints whose greedy output is known in advance.

The mathematics is in docs/planted.md. Modules, in the order in which they build on each other:

- ``knobs``: what a recipe may choose
- ``draws``: seeded choices; ``function``: the planted function
- ``fields``: the residual stream; ``kernels``, ``attention``: heads; ``neurons``, ``layers``: MLPs;
  ``router``: who serves whom; ``weights``: tensors
- ``margin``: the guaranteed margin; ``oracle``: what comes out; ``expected``: golden prompts
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# recipes import ``knobs`` from here, so the rest waits until it is asked for
_PUBLIC = {
    "Oracle": "oracle",
    "PlantedWeights": "weights",
    "Speculation": "oracle",
    "extra_files": "expected",
    "validate": "validation",
}
__all__ = ["Oracle", "PlantedWeights", "Speculation", "extra_files", "validate"]

if TYPE_CHECKING:
    from fixturegen.planted.expected import extra_files
    from fixturegen.planted.oracle import Oracle, Speculation
    from fixturegen.planted.validation import validate
    from fixturegen.planted.weights import PlantedWeights


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)

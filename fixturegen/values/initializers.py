"""Random weights: how each role of tensor is filled.

A new role is one entry in :data:`INITIALIZERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fixturegen.layouts.tensor import Tensor
from fixturegen.values.normal import quantiles
from fixturegen.values.stream import bits16

#: role -> (mean, standard deviation) of a tensor with ``fan_in`` inputs to each output
INITIALIZERS: dict[str, Callable[[int], tuple[float, float]]] = {
    "embedding": lambda fan_in: (0.0, 1.0),
    "linear": lambda fan_in: (0.0, fan_in**-0.5),
    "router": lambda fan_in: (0.0, fan_in**-0.5),
    "router_bias": lambda fan_in: (0.0, 0.05),
    "norm": lambda fan_in: (1.0, 0.1),
    "head": lambda fan_in: (0.0, fan_in**-0.5),
}

#: Logits of ids that no token has are this much smaller, so that they never win the argmax.
PADDING_SCALE = 2.0**-8

NUMPY_DTYPES: dict[str, npt.DTypeLike] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
}


@lru_cache(maxsize=64)
def value_table(mean: float, std: float, dtype: str) -> npt.NDArray[Any]:
    """The 65,536 values of a normal distribution, rounded once to float32 and once to ``dtype``."""
    values = (mean + std * quantiles().astype(np.float64)).astype(np.float32)
    return values.astype(NUMPY_DTYPES[dtype])


class RandomWeights:
    """Seeded normal weights for a checkpoint of ``dtype`` whose tokenizer has ``tokens`` ids."""

    def __init__(self, seed: int, tokens: int, dtype: str) -> None:
        self.seed = seed
        self.tokens = tokens
        self.dtype = dtype

    def rows(self, tensor: Tensor, start: int, stop: int) -> npt.NDArray[Any]:
        """See :class:`fixturegen.values.Weights`."""
        width = tensor.numel // tensor.shape[0]
        mean, std = INITIALIZERS[tensor.role](tensor.shape[-1])
        table = value_table(mean, std, tensor.dtype or self.dtype)
        name = tensor.copy_of or tensor.name
        bits = bits16(self.seed, name, start * width, (stop - start) * width)
        # take() with whole-word indices is twice as fast as table[bits]
        values = table.take(bits.astype(np.intp)).reshape(stop - start, *tensor.shape[1:])
        padding = max(self.tokens - start, 0)
        if tensor.role == "head" and padding < len(values):
            values[padding:] = values[padding:] * values.dtype.type(PADDING_SCALE)
        return values

"""Normal values by inverse CDF: 16 random bits pick one of 65,536 equally likely quantiles."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

LEVELS = 65536


@cache
def quantiles() -> npt.NDArray[np.float32]:
    """``float32(inverse_cdf((i + 0.5) / 65536))`` for i in 0..65535, ascending, within +-4.33.

    Rounding to float32 hides the last-bit differences between mathematical libraries.
    """
    inverse = NormalDist().inv_cdf
    upper = np.array([inverse((i + 0.5) / LEVELS) for i in range(LEVELS // 2, LEVELS)], np.float32)
    return np.concatenate([-upper[::-1], upper])


def normal(seed: int, name: str, start: int, count: int) -> npt.NDArray[np.float32]:
    """``count`` standard normal values from index ``start`` of the stream of ``(seed, name)``."""
    from fixturegen.values.stream import bits16

    # take() with whole-word indices is twice as fast as table[bits]
    return quantiles().take(bits16(seed, name, start, count).astype(np.intp))

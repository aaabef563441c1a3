"""Seeded choices: permutations, integers and signs from the value streams.

Everything that a planted checkpoint chooses at random comes from here, so that it depends on the
seed and a label alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fixturegen.values.stream import bits16


class Draws:
    """Random choices for one recipe; each label has a stream of its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def words(self, label: str, count: int) -> npt.NDArray[np.uint64]:
        """``count`` words of 64 bits."""
        return bits16(self.seed, f"planted:{label}", 0, 4 * count).view("<u8")

    def permutation(self, label: str, count: int) -> npt.NDArray[np.intp]:
        """A permutation of 0..count-1."""
        return np.argsort(self.words(label, count), kind="stable")

    def signs(self, label: str, count: int) -> npt.NDArray[np.float64]:
        """``count`` values of -1 or 1."""
        return np.where(self.words(label, count) & np.uint64(1), 1.0, -1.0)

    def choice(self, label: str, values: Sequence[float], count: int) -> npt.NDArray[np.float64]:
        """``count`` of ``values``, with repetition."""
        picks = self.words(label, count) % np.uint64(len(values))
        return np.asarray(values, np.float64)[picks.astype(np.intp)]

    def balanced(self, label: str, rows: int, columns: int, values: int) -> npt.NDArray[np.intp]:
        """A table ``[rows, columns]`` of 0..values-1; each row has all values equally often."""
        repeated = np.arange(columns) % values
        return np.stack(
            [repeated[self.permutation(f"{label}:{row}", columns)] for row in range(rows)]
        )


def dyadic(x: npt.ArrayLike, bits: int = 20) -> npt.NDArray[np.float64]:
    """Round to multiples of 2^-bits.

    Sums of products of such values are exact in float64 whatever their order, so the bytes of a
    checkpoint do not depend on the machine's linear algebra or mathematical library.
    """
    return np.round(np.asarray(x, np.float64) * 2.0**bits) / 2.0**bits

"""Where the numbers come from: ``(seed, tensor name, element index) -> value``.

docs/values.md states the algorithm so that another implementation can reproduce every byte.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from fixturegen.layouts.tensor import Tensor

#: Version of the value algorithm, written to manifests. A change of any produced byte raises it.
ALGORITHM_VERSION = 1


class Weights(Protocol):
    """A source of weights; ``random`` and ``planted`` recipes have one each."""

    def rows(self, tensor: Tensor, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Rows ``[start, stop)`` of ``tensor`` along its first axis, in any float dtype.

        A pure function of the recipe, ``tensor.name`` and the row: calls may come in any order and
        from any thread.
        """
        ...

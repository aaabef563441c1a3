"""One tensor of a checkpoint, as declared by a layout."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named weight.

    ``shape`` is as stored, ``[out_features, in_features]`` for linear layers. ``role`` picks the
    initialiser (values/initializers.py). ``group`` is the line it is counted under in summaries.
    ``dtype`` is empty for the checkpoint's own. ``quantized`` tensors are stored as FP8 with a
    ``_scale_inv`` companion when the config has FP8 quantisation. ``optional`` tensors may be left
    out of a checkpoint (engines then share them); they repeat the values of the target's tensor
    named by ``copy_of``.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    group: str
    dtype: str = ""
    quantized: bool = False
    optional: bool = False
    copy_of: str = ""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

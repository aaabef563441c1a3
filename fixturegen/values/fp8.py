"""Block FP8 as DeepSeek-V3 stores it: e4m3 codes and one float32 ``scale_inv`` per block.

Dequantised value = code * scale_inv of its block (DeepSeek-V3's README_WEIGHTS.md).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

#: Largest finite e4m3 value.
E4M3_MAX = 448.0


def quantize_blocks(
    values: npt.NDArray[Any], block: tuple[int, int] = (128, 128), scale_fmt: str | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Quantise a matrix block by block.

    Args:
        values: ``[rows, columns]``, any float dtype, finite.
        block: rows and columns that share one scale; blocks at the edges may be smaller.
        scale_fmt: ``"ue8m0"`` rounds each scale up to a power of two (DeepSeek-V3.1).

    Returns:
        codes ``[rows, columns]`` (float8_e4m3fn) and scale_inv
        ``[ceil(rows / block[0]), ceil(columns / block[1])]`` (float32).
    """
    rows, columns = values.shape
    high, wide = block
    down, across = -(-rows // high), -(-columns // wide)
    padded = np.zeros((down * high, across * wide), np.float32)
    padded[:rows, :columns] = values
    tiles = padded.reshape(down, high, across, wide)
    scale = np.abs(tiles).max(axis=(1, 3)) / np.float32(E4M3_MAX)
    scale[scale == 0] = 1.0
    if scale_fmt == "ue8m0":
        mantissa, exponent = np.frexp(scale)
        scale = np.ldexp(np.float32(1.0), exponent - (mantissa == 0.5)).astype(np.float32)
    tiles /= scale[:, None, :, None]
    return padded[:rows, :columns].astype(ml_dtypes.float8_e4m3fn), scale


def dequantize_blocks(
    codes: npt.NDArray[Any], scale: npt.NDArray[np.float32], block: tuple[int, int] = (128, 128)
) -> npt.NDArray[np.float32]:
    """The float32 matrix that :func:`quantize_blocks` stands for."""
    rows, columns = codes.shape
    full = np.repeat(np.repeat(scale, block[0], axis=0), block[1], axis=1)
    return codes.astype(np.float32) * full[:rows, :columns]

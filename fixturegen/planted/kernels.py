"""Attention to one distance: rotary kernels of least norm.

With a constant key and a constant query, the rotary part of an attention logit is a function of the
distance d alone, K(d) = sum_f a_f cos(w_f d) + b_f sin(w_f d). A kernel is the shortest vector
(a, b) with K at its peaks as wanted and below given levels elsewhere: a least-distance problem,
solved through non-negative least squares (Lawson and Hanson, Solving Least Squares Problems,
ch. 23).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fixturegen.config import ModelConfig
from fixturegen.errors import RecipeError
from fixturegen.planted.draws import dyadic

Floats = npt.NDArray[np.float64]


def frequencies(config: ModelConfig) -> Floats:
    """Rotary frequencies ``[qk_rope_head_dim / 2]``, YaRN as in DeepSeek-V3's own code."""
    dim, base = config.qk_rope_head_dim, config.rope_theta
    plain = base ** (-np.arange(0, dim, 2) / dim)
    rope = config.rope_scaling
    if rope is None:
        return plain

    def bend(rotations: float) -> float:
        length = rope.original_max_position_embeddings
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(bend(rope.beta_fast)), 0)
    high = min(math.ceil(bend(rope.beta_slow)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain * (1 - ramp) + plain / rope.factor * ramp


def softmax_scale(config: ModelConfig) -> float:
    """Factor on attention logits: ``qk_head_dim ** -0.5``, times YaRN's mscale squared."""
    scale: float = config.qk_head_dim**-0.5
    rope = config.rope_scaling
    if rope is not None and rope.mscale_all_dim and rope.factor > 1:
        scale *= (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2
    return scale


@lru_cache(maxsize=2)
def waves(omega: tuple[float, ...], context: int) -> Floats:
    """cos(w d) and then sin(w d) of each frequency, ``[context, 2 * len(omega)]``."""
    angles = np.outer(np.arange(context), omega)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


@dataclass(frozen=True)
class Kernel:
    """Levels in logits. ``peaks`` maps distances to values that K takes there."""

    peaks: tuple[tuple[int, float], ...]
    others: float
    near: float | None = None  # level within 4 of a peak, where ``others`` would cost too much
    future: float | None = None  # least value at distance -4, seen only without a causal mask
    sink: float = 0.0  # logit of bos, which has no rotary key

    def solve(self, omega: Floats, context: int) -> Floats:
        """(a, b), ``[2, len(omega)]``; raises RecipeError when no kernel meets the levels."""
        peaks = dict(self.peaks)
        distances = np.array([d for d in range(context) if d not in peaks])
        levels = np.full(len(distances), self.others)
        if self.near is not None:
            close = np.abs(distances[:, None] - np.array(list(peaks))).min(axis=1) <= 4
            levels[close] = self.near

        table = waves(tuple(omega), context)
        peak, value = table[list(peaks)], np.array(list(peaks.values()))
        rows, bounds = [peak, -peak, -table[distances]], [value, -value, -levels]
        if self.future is not None:
            ahead = table[4:5].copy()  # distance -4: the same cosines, opposite sines
            ahead[:, len(omega) :] *= -1
            rows.append(ahead)
            bounds.append(np.array([self.future]))
        try:
            z = least_distance(np.concatenate(rows), np.concatenate(bounds))
        except ArithmeticError:
            raise RecipeError(
                f"no rotary kernel for offsets {sorted(peaks)} within {context} tokens; "
                "choose other offsets or a smaller context"
            ) from None
        # coarse: solvers of other machines differ by far less, errors of K stay below 0.01
        return dyadic(z, 10).reshape(2, -1)


def least_distance(g: Floats, h: Floats) -> Floats:
    """The shortest z with ``g @ z >= h``; raises ArithmeticError when there is none."""
    e = np.vstack([g.T, h])
    f = np.zeros(len(e))
    f[-1] = 1.0
    residual = e @ nonnegative(e, f) - f
    if abs(residual[-1]) < 1e-9:
        raise ArithmeticError("infeasible")
    z: Floats = -residual[:-1] / residual[-1]
    if (g @ z < h - 1e-3).any():
        raise ArithmeticError("infeasible")
    return z


def nonnegative(e: Floats, f: Floats) -> Floats:
    """``argmin |e @ x - f|`` over x >= 0, by Lawson and Hanson's active sets."""
    x = np.zeros(e.shape[1])
    passive: list[int] = []
    for _ in range(10 * len(e)):
        gradient = e.T @ (f - e @ x)
        gradient[passive] = -np.inf
        best = int(gradient.argmax())
        if gradient[best] <= 1e-10:
            break
        passive.append(best)
        while True:
            s = np.linalg.lstsq(e[:, passive], f, rcond=None)[0]
            if (s > 0).all():
                break
            now = x[passive]
            shrink = s <= 0
            step = (now[shrink] / (now[shrink] - s[shrink])).min()
            now = now + step * (s - now)
            x[:] = 0
            x[passive] = now
            passive = [i for i, v in zip(passive, now, strict=True) if v > 1e-12]
        x[:] = 0
        x[passive] = s
    return x

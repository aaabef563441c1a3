"""The residual stream: named fields of one-hot codes in an orthonormal basis, then rotated.

Every code that a token carries has amplitude 1 (but for the constant direction, kappa), so the norm
of the stream is known wherever the model normalises, and a code can be read with a known factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fixturegen.errors import RecipeError
from fixturegen.planted.draws import Draws
from fixturegen.planted.function import DIGITS, MIDDLE, SLOTS, VALUES

Floats = npt.NDArray[np.float64]

#: Amplitude of the filler in the draft, which makes its final norm the target's.
FILLER = 2.0
#: Draft steps that the draft can tell apart; later ones count as the last.
STEPS = 6
#: Magnitudes of norm weights; each also has a random sign.
MAGNITUDES = (0.75, 0.875, 1.0, 1.125, 1.25)
#: Magnitude of the final norm, constant so that a draft can undo it.
FINAL_MAGNITUDE = 1.25


@dataclass(frozen=True)
class Design:
    """What a tensor is planned to be, before noise.

    All of it, or, if ``at`` names them, the only rows (or columns) that are not zero.
    """

    values: npt.NDArray[np.float32]
    rms: float  #: of all; to three digits, the same on every machine whatever the sum's order
    at: npt.NDArray[np.intp] | None = None
    columns: bool = False  #: ``at`` names columns

    @classmethod
    def of(cls, values: npt.NDArray[np.floating], squares: float | None = None) -> Design:
        """A whole design; ``squares`` is the float64 sum of squares where it is known already."""
        if squares is None:
            squares = float(np.square(values).sum())
        return cls(values.astype(np.float32, copy=False), rms_of(squares, values.size))


def rms_of(squares: float, count: int) -> float:
    """Root mean square to three digits, from a sum of squares."""
    return float(f"{math.sqrt(squares / count):.3g}")


class Basis:
    """Coordinates of the fields. ``basis["C1"]`` is a slice of coordinates."""

    def __init__(self, hidden_size: int, num_classes: int) -> None:
        self.size = hidden_size
        k = num_classes + 1
        widths = {"u": 1, "u_bos": 1}
        widths |= {name: k for name in ("C0", "C1", "Q", "Y", "C2", "Q17", "W")}
        widths |= {"Z": MIDDLE + 1}
        widths |= {f"M{s + 1}": MIDDLE for s in range(SLOTS + 1)}
        widths |= {f"D{s + 1}": VALUES + 1 for s in range(DIGITS)}
        widths |= {"F": 1, "S": MIDDLE, "P": STEPS}
        self.fields: dict[str, slice] = {}
        start = 0
        for name, width in widths.items():
            self.fields[name] = slice(start, start + width)
            start += width
        self.used = start
        if start > hidden_size:
            raise RecipeError(
                f"planted weights with num_classes {num_classes} need hidden_size {start} or more, "
                f"got {hidden_size}"
            )

    def __getitem__(self, field: str) -> slice:
        return self.fields[field]

    def at(self, field: str, code: int = 0) -> int:
        """Coordinate of one code."""
        start: int = self.fields[field].start
        return start + code

    def codes(self, field: str) -> range:
        """Coordinates of all codes of a field."""
        return range(self.fields[field].start, self.fields[field].stop)

    def vector(self, *codes: tuple[str, int, float]) -> Floats:
        """Sum of codes ``(field, code, amplitude)``."""
        x = np.zeros(self.size)
        for field, code, amplitude in codes:
            x[self.at(field, code)] += amplitude
        return x


class Rotation:
    """A random orthogonal matrix whose entries are 0 or +-1/sqrt(block), with block a power of 4.

    Entries are dyadic, so that rotating dyadic vectors is exact on every machine. It is a Hadamard
    matrix on blocks of coordinates, between two permutations: a handful of additions.
    """

    def __init__(self, size: int, draws: Draws, label: str) -> None:
        self.block = next((b for b in (256, 64, 16) if size % b == 0), 0)
        if not self.block:
            raise RecipeError(f"planted weights need sizes that are multiples of 16, got {size}")
        self.before = draws.permutation(f"{label}:before", size)
        self.after = draws.permutation(f"{label}:after", size)
        self.signs = draws.signs(label, size)[self.before] / math.sqrt(self.block)

    def __call__(self, x: Floats) -> Floats:
        """Rotate the last axis of ``x``, ``[n, size]``."""
        y = x.T[self.before] * self.signs[:, None]
        z = np.empty_like(y)
        half = 1
        while half < self.block:
            pairs, done = y.reshape(-1, 2, half, len(x)), z.reshape(-1, 2, half, len(x))
            np.add(pairs[:, 0], pairs[:, 1], out=done[:, 0])
            np.subtract(pairs[:, 0], pairs[:, 1], out=done[:, 1])
            y, z, half = z, y, 2 * half
        return np.ascontiguousarray(y[self.after].T)


def norm_weight(draws: Draws, label: str, size: int, final: bool = False) -> Floats:
    """The weights of one RMSNorm: random signs times seeded magnitudes."""
    signs = draws.signs(f"{label}:signs", size)
    if final:
        return signs * FINAL_MAGNITUDE
    return signs * draws.choice(label, MAGNITUDES, size)


class Norms:
    """Squared norm of the stream at each RMSNorm, for a token after bos."""

    def __init__(self, kappa: float, decoy: float) -> None:
        base = kappa**2
        digits = DIGITS * (1 + decoy**2)
        self.attention = (base + 1, base + 4, base + 11)
        self.mlp = (base + 3, base + 6, base + 14)
        self.final = base + 14 + digits
        self.embedding = base + 1
        self.draft_attention = base + FILLER**2 + 5
        self.draft_mlp = base + FILLER**2 + 10
        assert math.isclose(self.draft_mlp + digits, self.final)

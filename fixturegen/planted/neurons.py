"""Planted MLPs: look-up tables out of gated neurons.

A neuron fires when the codes it waits for are there. Its gate is GAIN * (sum of codes - threshold),
so silu passes it or cuts it off; ``up`` bends the response to the amplitude x of an attended code
into a window, f(x) = (x - .3)(2.43 - 1.43 x) / .7: 1 at x = 1, flat there, and below .5 outside
.5..1.5. Small errors are squared away, large ones of either sign lose the digit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fixturegen.planted.fields import Basis

GAIN, THRESHOLD = 36.0, 1.3
#: silu(GAIN * (2 - THRESHOLD)): the output of a neuron that fires.
FIRED = GAIN * (2 - THRESHOLD) / (1 + math.exp(-GAIN * (2 - THRESHOLD)))

Code = tuple[str, int]
#: Entries that are not zero by coordinate.
Row = dict[int, float]


@dataclass
class Neurons:
    """Gate, up and down vectors in the basis, one entry for each neuron."""

    basis: Basis
    kappa: float
    gate: list[Row] = field(default_factory=list)
    up: list[Row] = field(default_factory=list)
    down: list[Row] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.gate)

    def both(self, a: Code, x: Code, *out: tuple[str, int, float]) -> None:
        """Fire when both codes are there; window on the amplitude of ``x``."""
        gate = self._reads(a, x, constant=-THRESHOLD)
        slope = 1 / (2 - THRESHOLD)
        self._add(gate, self._up(1 + slope) | {self.basis.at(*x): -slope}, out)

    def all_three(self, a: Code, x: Code, y: Code, *out: tuple[str, int, float]) -> None:
        """Fire when all three codes are there."""
        self._add(self._reads(a, x, y, constant=-THRESHOLD - 1), self._up(1.0), out)

    def without(self, a: Code, empty: str, *out: tuple[str, int, float]) -> None:
        """Fire when ``a`` is there and the field ``empty`` is."""
        gate = self._reads(a, constant=1 - THRESHOLD)
        gate |= dict.fromkeys(self.basis.codes(empty), -1.0)
        self._add(gate, self._up_without(empty), out)

    def one(self, a: Code, *out: tuple[str, int, float]) -> None:
        """Fire when ``a`` is there."""
        self._add(self._reads(a, constant=1 - THRESHOLD), self._up(1.0), out)

    def none(self, empty: str, *out: tuple[str, int, float]) -> None:
        """Fire when the field is empty."""
        gate = self._reads(constant=2 - THRESHOLD)
        gate |= dict.fromkeys(self.basis.codes(empty), -1.0)
        self._add(gate, self._up_without(empty), out)

    def _reads(self, *codes: Code, constant: float) -> Row:
        # the threshold counts at bos too, so that noise fires nothing there
        row = {self.basis.at(name): constant / self.kappa for name in ("u", "u_bos")}
        return row | {self.basis.at(*code): 1.0 for code in codes}

    def _up(self, constant: float) -> Row:
        return {self.basis.at("u"): constant / self.kappa}  # nothing is written at bos

    def _up_without(self, empty: str) -> Row:
        # a window on what leaks into the empty field: 1 - (leak / .7)^2
        return self._up(1.0) | dict.fromkeys(self.basis.codes(empty), 1 / (2 - THRESHOLD))

    def _add(self, gate: Row, up: Row, out: tuple[tuple[str, int, float], ...]) -> None:
        self.gate.append({at: GAIN * x for at, x in gate.items()})
        self.up.append(up)
        self.down.append({self.basis.at(name, code): x / FIRED for name, code, x in out})

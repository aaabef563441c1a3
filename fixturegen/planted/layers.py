"""What the MLPs and experts of each layer compute: the function's tables as neurons."""

from __future__ import annotations

from fixturegen.planted.fields import STEPS, Basis
from fixturegen.planted.function import DECOY, DIGITS, MIDDLE, SLOTS, VALUES, Function
from fixturegen.planted.neurons import Neurons
from fixturegen.planted.router import Router

#: The field that each slot's table is looked up at.
ARGUMENTS = ("C1", "Q17", "Y", "C2")
#: Two experts of one slot write 1.6 and -0.6 of a code: neither may be missed or misweighted.
LEAD, COUNTER = 1.6, -0.6


class Lookups:
    """Builds the neurons of a planted model."""

    def __init__(self, function: Function, basis: Basis, experts_per_slot: int) -> None:
        self.function, self.basis = function, basis
        self.knobs = function.knobs
        self.k = function.knobs.num_classes
        self.experts_per_slot = experts_per_slot

    def _neurons(self) -> Neurons:
        return Neurons(self.basis, self.knobs.kappa)

    def dense(self) -> Neurons:
        """Layer 0: Q, the pair of the classes of a token and the one before."""
        n, pair = self._neurons(), self.function.tables.pair
        for c in range(self.k):
            for x in range(self.k):
                n.both(("C0", c), ("C1", x), ("Q", pair[c, x], 1.0))
            n.without(("C0", c), "C1", ("Q", pair[c, self.k], 1.0))
        n.none("C1", ("C1", self.k, 1.0))
        return n

    def shared(self, layer: str) -> Neurons:
        """The shared expert of layer "1", "2" or "draft"."""
        n, t = self._neurons(), self.function.tables
        if layer == "1":
            for c in range(self.k):
                n.one(("C0", c), ("M5", t.middle5[c], 1.0))
            n.none("C2", ("C2", self.k, 1.0))
            return n
        for w in range(self.k + 1):
            for z in range(MIDDLE):
                n.both(("W", w), ("Z", z), ("D5", t.digit5[z, w], 1.0))
            n.without(("W", w), "Z", ("D5", t.digit5[MIDDLE, w], 1.0))
        n.none("Z", ("Z", MIDDLE, 1.0))
        strength = self.knobs.decoy * self.experts_per_slot
        for c in range(self.k):
            n.one(("C0", c), *((f"D{s + 1}", DECOY, strength) for s in range(SLOTS)))
        if layer == "draft":
            n.none("C2", ("C2", self.k, 1.0))
        return n

    def expert(self, layer: str, router: Router, expert: int) -> Neurons:
        """A routed expert of layer "1", "2" or "draft"."""
        n = self._neurons()
        for c, slot, member, weight in router.servers(expert):
            if layer == "1":
                lead = LEAD if self.experts_per_slot == 2 else 1.0
                share = (COUNTER if member else lead) / weight
                self._middle(n, c, slot, share)
            elif member:
                n.one(("C0", c), (f"D{slot + 1}", DECOY, -self.knobs.decoy / weight))
            else:
                part = self.knobs.decoy / SLOTS / weight
                n.one(("C0", c), (f"D{DIGITS}", DECOY, part))
                if layer == "2":
                    self._digit(n, c, slot, 1 / weight)
                else:
                    self._drafted(n, c, slot, 1 / weight)
        return n

    def _arguments(self, n: Neurons, c: int, slot: int, outs: list[tuple[str, int, float]]) -> None:
        """One neuron for each value of the slot's argument; ``outs[K]`` is for NULL."""
        name = ARGUMENTS[slot]
        for x in range(self.k):
            n.both(("C0", c), (name, x), outs[x])
        if name == "C2":  # a dimmed head leaves the field empty instead of writing NULL
            n.without(("C0", c), name, outs[self.k])
        else:
            n.both(("C0", c), (name, self.k), outs[self.k])

    def _middle(self, n: Neurons, c: int, slot: int, share: float) -> None:
        values = self.function.tables.middle[slot, c]
        self._arguments(n, c, slot, [(f"M{slot + 1}", int(v), share) for v in values])

    def _digit(self, n: Neurons, c: int, slot: int, share: float) -> None:
        source = "S" if slot == 0 else f"M{slot + 1}"
        for m, digit in enumerate(self.function.tables.digit[slot, c]):
            n.both(("C0", c), (source, m), (f"D{slot + 1}", int(digit), share))

    def _drafted(self, n: Neurons, c: int, slot: int, share: float) -> None:
        t = self.function.tables
        right = t.digit[slot, c, t.middle[slot, c]]
        if slot > 0:
            self._arguments(n, c, slot, [(f"D{slot + 1}", int(d), share) for d in right])
            return
        steps = [(right + self.function.bad(step)[c]) % VALUES for step in range(STEPS)]
        self._arguments(n, c, slot, [("D1", int(d), share) for d in steps[0]])
        for step in range(1, STEPS):
            for x in range(self.k + 1):
                before, now = int(steps[0][x]), int(steps[step][x])
                if now != before:  # this step's rate differs from the first's
                    change = ("D1", before, -share), ("D1", now, share)
                    n.all_three(("C0", c), ("C1", x), ("P", step), *change)

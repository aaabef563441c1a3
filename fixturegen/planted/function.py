"""The planted function: which token follows a history, for the target and for the draft.

A token acts through its class. Each of the five digits of the next token is read off seeded tables
at classes found at fixed distances back; see docs/planted.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fixturegen.planted.draws import Draws
from fixturegen.planted.knobs import PlantedKnobs

Ints = npt.NDArray[np.intp]

#: Digits of a token, right values of a digit, and values of an intermediate result.
DIGITS, VALUES, MIDDLE = 5, 4, 8
#: The digit value that never occurs in a right answer.
DECOY = VALUES
#: Tokens with digits: every tuple of right values and the decoy.
WORDS = (VALUES + 1) ** DIGITS
#: Slots of the routed experts: digits 1 to 4. The shared expert computes digit 5.
SLOTS = DIGITS - 1
#: Special ids; digits are given to others.
SPECIAL = 3


@dataclass(frozen=True)
class Function:
    """Seeded tables for ``vocab_size`` ids, of which the first ``tokens`` belong to a token."""

    knobs: PlantedKnobs
    seed: int
    vocab_size: int
    tokens: int

    @cached_property
    def draws(self) -> Draws:
        """Source of all choices."""
        return Draws(self.seed)

    @property
    def null(self) -> int:
        """The class code of a place before the first token."""
        return self.knobs.num_classes

    @cached_property
    def digits(self) -> Ints:
        """Digits of each id, ``[vocab_size, 5]``; -1 for ids without."""
        ids = SPECIAL + self.draws.permutation("digits", self.tokens - SPECIAL)[:WORDS]
        table = np.full((self.vocab_size, DIGITS), -1, np.intp)
        table[ids] = np.stack(np.unravel_index(np.arange(WORDS), (VALUES + 1,) * DIGITS), axis=1)
        return table

    @cached_property
    def id_of_digits(self) -> Ints:
        """Id of a digit tuple, ``[5, 5, 5, 5, 5]``."""
        table = np.zeros((VALUES + 1,) * DIGITS, np.intp)
        ids = np.flatnonzero(self.digits[:, 0] >= 0)
        table[tuple(self.digits[ids].T)] = ids
        return table

    @cached_property
    def classes(self) -> Ints:
        """Class of each id, ``[vocab_size]``; balanced over generable ids and over the others."""
        generable = ((self.digits >= 0) & (self.digits < DECOY)).all(axis=1)
        classes = np.empty(self.vocab_size, np.intp)
        for label, members in (("right", generable), ("other", ~generable)):
            ids = np.flatnonzero(members)
            order = self.draws.permutation(f"classes:{label}", len(ids))
            classes[ids[order]] = np.arange(len(ids)) % self.knobs.num_classes
        return classes

    @cached_property
    def tables(self) -> Tables:
        """The lookup tables of the function."""
        k, draws = self.knobs.num_classes, self.draws
        entries = draws.permutation("bad", k * (k + 1)).reshape(k, k + 1)
        return Tables(
            pair=draws.balanced("pair", k, k + 1, k),
            middle5=np.arange(k)[draws.permutation("middle5", k)] % MIDDLE,
            match=np.where(draws.balanced("match", k, k, 2) == 1, 1, -1),
            middle=np.stack(
                [draws.balanced(f"middle:{s}", k, k + 1, MIDDLE) for s in range(SLOTS)]
            ),
            digit=np.stack([draws.balanced(f"digit:{s}", k, MIDDLE, VALUES) for s in range(SLOTS)]),
            digit5=draws.balanced("digit5", MIDDLE + 1, k + 1, VALUES),
            rank=entries,
        )

    @cached_property
    def first(self) -> Ints:
        """Digits of the token that follows a lone bos."""
        digits: Ints = self.draws.balanced("first", 1, DIGITS, VALUES)[0]
        return digits

    def bad(self, step: int) -> npt.NDArray[np.bool_]:
        """Entries ``[class, class before]`` at which draft step ``step`` (from 0) is wrong."""
        k = self.knobs.num_classes
        wrong: npt.NDArray[np.bool_] = self.tables.rank < round(
            (1 - self.knobs.rate(step)) * k * (k + 1)
        )
        return wrong

    def target_digits(self, history: Ints, p: Ints) -> Ints:
        """Digits of the token after position ``p`` of each history.

        Args:
            history: ids ``[n, length]``, bos at position 0; what lies after ``p`` does not matter.
            p: positions ``[n]``.

        Returns:
            ``[n, 5]``.
        """
        digits = self._digits(history, p)
        digits[p == 0] = self.first
        return digits

    def draft_digits(self, history: Ints, p: Ints, step: int) -> Ints:
        """As :meth:`target_digits`, of the token that the draft proposes in step ``step``."""
        digits = self._digits(history, p)
        c0, c1 = self._class(history, p), self._class(history, p - 1)
        wrong = self.bad(step)[c0 % self.null, c1]
        digits[:, 0] = np.where(wrong, (digits[:, 0] + 1) % VALUES, digits[:, 0])
        return digits

    def _class(self, history: Ints, j: Ints) -> Ints:
        ids = history[np.arange(len(j)), np.maximum(j, 0)]
        return np.where(j < 1, self.null, self.classes[ids])

    def _digits(self, history: Ints, p: Ints) -> Ints:
        t, knobs, null = self.tables, self.knobs, self.null

        def c(j: Ints) -> Ints:
            return self._class(history, j)

        def real(codes: Ints) -> Ints:
            return codes % null  # a placeholder where NULL was handled already

        def pair(j: Ints) -> Ints:
            return np.where(j < 1, null, t.pair[real(c(j)), c(j - 1)])

        c0 = real(c(p))
        near, far = c(p - knobs.offset_y), c(p - knobs.offset_y_far)
        switch = (far != null) & (t.match[c0, real(far)] == 1) & (t.match[c0, real(near)] == -1)
        arguments = (
            c(p - 1),
            pair(p - knobs.offset_q),
            np.where(switch, far, near),
            c(p - 2),
        )
        digits = [t.digit[s, c0, t.middle[s, c0, argument]] for s, argument in enumerate(arguments)]
        z = p - knobs.offset_z
        middle5 = np.where(z < 1, MIDDLE, t.middle5[real(c(z))])
        digits.append(t.digit5[middle5, c(p - knobs.offset_w)])
        return np.stack(digits, axis=1)


@dataclass(frozen=True)
class Tables:
    """Lookup tables; K is the number of classes, code K stands for NULL."""

    pair: Ints  # [K, K+1] -> K: Q, the pair of a token and the one before
    middle5: Ints  # [K] -> 8
    match: Ints  # [K, K] -> -1 or 1: whether the far or the near candidate of Y is taken
    middle: Ints  # [4, K, K+1] -> 8
    digit: Ints  # [4, K, 8] -> 4
    digit5: Ints  # [9, K+1] -> 4
    rank: Ints  # [K, K+1] -> order in which entries turn bad in the draft

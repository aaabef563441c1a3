"""How far the right token is from the next, and how far rounding moves it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fixturegen.measure.reference import Batch, Reference, next_logits
from fixturegen.measure.subject import Subject


@dataclass(frozen=True)
class Margins:
    """Logits of the right token minus the best other, and what bfloat16 changes.

    ``full`` and ``low`` are the margins in float32 and bfloat16, ``[prompts, tokens]``, in logits.
    ``logit_difference`` is the largest difference of any logit between the two, ``gap_difference``
    the largest difference of any token's distance to the right one: what has to exceed the margin
    for a wrong token. What moves all logits alike counts in the first only.
    """

    full: Any
    low: Any
    logit_difference: float
    gap_difference: float

    @property
    def smallest(self) -> float:
        """Smallest margin of both dtypes."""
        return float(min(self.full.min(), self.low.min()))

    @property
    def margin_difference(self) -> float:
        """Largest change of a margin between the two dtypes."""
        return float(np.abs(self.full - self.low).max())

    @property
    def safety_factor(self) -> float:
        """Smallest margin over the largest logit difference."""
        return self.smallest / self.logit_difference


def measure_margins(path: str | Path, subject: Subject) -> Margins:
    """Margins along the right tokens of a subject, in float32 and bfloat16."""
    low_reference = Reference.load(path, "bfloat16")
    margins: dict[str, list[Any]] = {"float32": [], "bfloat16": []}
    logit_difference = gap_difference = 0.0
    for prompt, generated in zip(subject.prompts, subject.generated, strict=True):
        tokens = generated[: subject.max_tokens]
        batch = Batch.of([prompt], [tokens])
        gaps = []
        logits = []
        for name, reference in (("float32", subject.reference), ("bfloat16", low_reference)):
            values = next_logits(reference.target, batch)[0].float()
            right = torch.tensor(tokens)[:, None]
            gap = values.gather(1, right) - values
            logits.append(values)
            gaps.append(gap)
            margins[name].append(gap.scatter(1, right, torch.inf).min(1).values.numpy())
        logit_difference = max(logit_difference, float((logits[0] - logits[1]).abs().max()))
        gap_difference = max(gap_difference, float((gaps[0] - gaps[1]).abs().max()))
    full, low = np.stack(margins["float32"]), np.stack(margins["bfloat16"])
    return Margins(full, low, logit_difference, gap_difference)

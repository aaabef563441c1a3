"""What a recipe may choose about planted weights."""

from __future__ import annotations

from dataclasses import dataclass

from fixturegen.fields import key


@dataclass(frozen=True, kw_only=True)
class PlantedKnobs:
    """Knobs of a planted recipe. Offsets are distances back in tokens."""

    acceptance: float | tuple[float, ...] = key(
        "share of table entries at which the draft is right: one rate, or one for each position",
        0.7,
        at_least=0,
        at_most=1,
    )
    noise: float = key(
        "noise on every weight, relative to its rms", 0.005, at_least=0, at_most=0.02
    )
    num_classes: int = key("classes of tokens", 16, at_least=8, at_most=32)
    decoy: float = key("amplitude of wrong digits", 0.55, at_least=0.5, at_most=0.7)
    offset_y: int = key("near offset of the content heads", 5, at_least=3, at_most=64)
    offset_y_far: int = key("far offset of the content heads", 68, at_least=4, at_most=1024)
    offset_z: int = key("offset of the intermediate result", 6, at_least=3, at_most=128)
    offset_q: int = key("offset of the pair", 17, at_least=3, at_most=1024)
    offset_w: int = key("longest offset", 33, at_least=3, at_most=1024)
    context: int = key(
        "tokens within which the output is guaranteed", 2048, at_least=64, at_most=16384
    )
    logit_scale: float = key("logits of one right digit", 20.0, at_least=5, at_most=80)
    kappa: float = key("amplitude of the constant direction", 3.5, at_least=1, at_most=8)
    gap: float = key(
        "logits by which the sink tops a dimmed head's peak", 2.5, at_least=1, at_most=4
    )

    def rate(self, step: int) -> float:
        """Acceptance rate of draft step ``step`` (from 0); the last rate holds on."""
        if isinstance(self.acceptance, float):
            return self.acceptance
        return self.acceptance[min(step, len(self.acceptance) - 1)]

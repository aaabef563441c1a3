"""What a recipe may choose about planted weights."""

from __future__ import annotations

from dataclasses import dataclass

from fixturegen.fields import key


@dataclass(frozen=True, kw_only=True)
class PlantedKnobs:
    """Knobs of a planted recipe."""

    acceptance: float | tuple[float, ...] = key(
        "share of drafted tokens to accept, one rate or one per draft position",
        0.7,
        at_least=0,
        at_most=1,
    )
    noise: float = key("standard deviation of the noise, relative", 0.01, at_least=0, at_most=0.03)

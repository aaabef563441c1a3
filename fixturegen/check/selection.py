"""How an engine chooses among backends: the first candidate that no rule passes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fixturegen.check.catalogue import objections
from fixturegen.check.inputs import KernelInput
from fixturegen.check.target import Target

Candidate = TypeVar("Candidate", bound=KernelInput)


@dataclass(frozen=True, slots=True)
class Selection(Generic[Candidate]):
    """``chosen`` is None when every candidate is passed over: the engine raises."""

    chosen: Candidate | None
    passed_over: tuple[tuple[Candidate, tuple[str, ...]], ...]

    @property
    def checked(self) -> tuple[Candidate, ...]:
        """The inputs to report on: the choice, or all candidates when there is none."""
        return (self.chosen,) if self.chosen is not None else tuple(c for c, _ in self.passed_over)

    @property
    def reasons(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Backend names that were passed over, with the ids of the rules that say why."""
        return tuple((str(getattr(c, "backend", c)), ids) for c, ids in self.passed_over)


def select(candidates: Sequence[Candidate], target: Target) -> Selection[Candidate]:
    """Try the candidates in the engine's order."""
    passed: list[tuple[Candidate, tuple[str, ...]]] = []
    for candidate in candidates:
        ids = tuple(r.id for r in objections(candidate, target))
        if not ids:
            return Selection(candidate, tuple(passed))
        passed.append((candidate, ids))
    return Selection(None, tuple(passed))

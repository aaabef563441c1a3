"""How an engine chooses among backends: the first candidate that no rule passes over."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fixturegen.check.catalogue import applicable, objections
from fixturegen.check.inputs import KernelInput
from fixturegen.check.target import Target

Candidate = TypeVar("Candidate", bound=KernelInput)


@dataclass(frozen=True, slots=True)
class Selection(Generic[Candidate]):
    """What was tried, and what came of it."""

    #: Backend name, ``none`` when every candidate is passed over, ``unknown`` when the catalogue
    #: has nothing about the one that decides.
    name: str
    #: The inputs to report on: the choice, or all candidates when there is none.
    checked: tuple[Candidate, ...]
    #: Backends passed over, with the ids of the rules that say why.
    reasons: tuple[tuple[str, tuple[str, ...]], ...]
    unknown: tuple[str, ...] = ()


def select(
    candidate: Candidate,
    order: Sequence[str],
    asked: str,
    target: Target,
    *,
    others: Sequence[str] = (),
) -> Selection[Candidate]:
    """Try backends in the engine's order, or only the one that was asked for.

    ``candidate`` is the input with any backend. ``others`` are backends that may be asked for
    without being in ``order``. A backend that no rule names is unknown.
    """
    names = order if asked == "auto" else (asked,)
    if asked != "auto" and asked not in (*order, *others):
        return Selection("unknown", (), (), (f"{candidate.kernel} backend {asked} is not covered",))
    tried: list[Candidate] = []
    reasons: list[tuple[str, tuple[str, ...]]] = []
    for name in names:
        here = dataclasses.replace(candidate, backend=name)  # type: ignore[call-arg]
        if not any(name in r.where.backends for r in applicable(here, target)):
            text = f"{candidate.kernel} backend {name} is not covered for vLLM {target.vllm}"
            return Selection("unknown", (), tuple(reasons), (text,))
        ids = tuple(r.id for r in objections(here, target))
        if not ids:
            return Selection(name, (here,), tuple(reasons))
        tried.append(here)
        reasons.append((name, ids))
    return Selection("none", tuple(tried), tuple(reasons))

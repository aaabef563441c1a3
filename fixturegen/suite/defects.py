"""Defects of released engines that would fail every run and are not the fixture's or the user's.

A scenario that one of them covers is left out and the report says so. Each names the release it was
seen in; other releases run the scenario.
"""

from __future__ import annotations

from dataclasses import dataclass

from fixturegen.suite.cases import Case
from fixturegen.suite.machine import Machine
from fixturegen.suite.scenarios import Scenario


@dataclass(frozen=True, kw_only=True)
class Defect:
    """Something that a release gets wrong."""

    vllm: str
    gpu: str
    what: str


KNOWN = (
    Defect(
        vllm="0.32.0",
        gpu="cpu",
        what="vLLM 0.32.0's CPU replacement of the kernel that expands temperatures to draft "
        "tokens writes nothing for float tensors; with speculation and a temperature, logits are "
        "divided by uninitialised memory",
    ),
)


def hits(defect: Defect, case: Case, machine: Machine) -> bool:
    """Whether ``case`` on ``machine`` meets the defect."""
    return case.k > 0 and (machine.vllm, machine.gpu) == (defect.vllm, defect.gpu)


def of_scenario(case: Case, scenario: Scenario, machine: Machine) -> Defect | None:
    """The defect that makes ``scenario`` meaningless in ``case``, if any."""
    found = (d for d in KNOWN if scenario.temperature > 0 and hits(d, case, machine))
    return next(found, None)

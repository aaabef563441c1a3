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


def of_scenario(case: Case, scenario: Scenario, machine: Machine) -> Defect | None:
    """The defect that makes ``scenario`` meaningless in ``case``, if any."""
    if scenario.temperature == 0 or case.k == 0:
        return None
    return next((d for d in KNOWN if (d.vllm, d.gpu) == (machine.vllm, machine.gpu)), None)

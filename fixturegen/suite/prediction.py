"""What ``check`` says about a case before it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fixturegen.suite.cases import Case
from fixturegen.suite.fixtures import Fixture
from fixturegen.suite.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """``check``'s verdict, the backends it expects, and the rules and sources behind it."""

    target: str
    verdict: str
    because: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for report.json."""
        return dataclasses.asdict(self)


def predict(case: Case, fixture: Fixture, machine: Machine) -> Prediction:
    """Ask ``check`` about the case's target."""
    target = case.target(machine)
    return Prediction(target=str(target), verdict="unknown")

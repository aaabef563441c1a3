"""What ``check`` says about a case before it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fixturegen.check import check
from fixturegen.recipe import DRAFT, TARGET
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
    plans = {plan.role: plan.config for plan in fixture.recipe.checkpoints}
    target = case.target(machine)
    report = check(plans[TARGET], target, plans.get(DRAFT) if case.k else None)
    rules = {f.rule: f for f in report.of("rejected", "silently wrong", "falls back", "unknown")}
    because = [f"{name}: {f.consequence or f.verdict} ({f.inputs})" for name, f in rules.items()]
    return Prediction(
        target=str(target),
        verdict=report.verdict,
        because="; ".join([*because, *report.unknown]),
        choices=report.choices,
    )

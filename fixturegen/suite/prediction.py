"""What ``check`` says about a case before it runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixturegen.check import check
from fixturegen.check.catalogue import catalogue
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
    #: Patterns of the messages with which the engine refuses, where the verdict is ``rejected``.
    errors: tuple[str, ...] = ()

    #: Where the rules that were asked come from: ``package: file: symbol``.
    sources: tuple[str, ...] = ()

    def explains(self, log: Path) -> bool:
        """Whether ``log`` ends as predicted: with one of the messages."""
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        return any(re.search(pattern, text) for pattern in self.errors)

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
    asked = {catalogue()[f.rule].source for f in report.findings}
    return Prediction(
        target=str(target),
        verdict=report.verdict,
        because="; ".join([*because, *report.unknown]),
        choices=report.choices,
        errors=tuple(f.error for f in report.rejections if f.error),
        sources=tuple(sorted(f"{s.package}: {s.file}: {s.symbol}" for s in asked)),
    )

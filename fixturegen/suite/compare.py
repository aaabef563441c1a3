"""What changed between two reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixturegen.suite.outcome import ERROR, FAILED, NOT_RUN, PASSED, Outcome
from fixturegen.suite.report import Report

#: Measured values that a reader wants to see change.
_WATCHED = ("equal_share", "acceptance_length", "accepted_per_pos", "equal")


def compare(old: Report, new: Report) -> list[str]:
    """One line for each change: environment, fixtures, then cases; worse ones first."""
    lines = _mapping("", _environment(old), _environment(new))
    before = {(o.suite, o.gpu, o.id): o for o in old.outcomes}
    after = {(o.suite, o.gpu, o.id): o for o in new.outcomes}
    cases = []
    for key in dict.fromkeys((*before, *after)):
        name = f"{key[0]}: {key[2]} [{key[1]}]"
        if key not in after:
            cases.append((1, f"{name}: gone (was {before[key].status})"))
        elif key not in before:
            cases.append((1, f"{name}: new, {after[key].status}"))
        else:
            cases += [(rank, f"{name}: {text}") for rank, text in _case(before[key], after[key])]
    return lines + [text for _, text in sorted(cases, key=lambda entry: entry[0])]


def regressions(old: Report, new: Report) -> list[str]:
    """Cases that passed in ``old`` and do not in ``new``."""
    passed = {(o.suite, o.gpu, o.id) for o in old.outcomes if o.status == PASSED}
    return [o.id for o in new.outcomes if (o.suite, o.gpu, o.id) in passed and o.status != PASSED]


def _environment(report: Report) -> dict[str, Any]:
    machine = report.machine
    return {
        "GPU": f"{machine.gpu_name} ({machine.gpu})",
        "driver": machine.driver,
        **machine.packages,
        **{f"env {n}": v for n, v in machine.env.items()},
        **{f"fixture {n} ({r})": h for n, rs in report.fixtures.items() for r, h in rs.items()},
    }


def _mapping(prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"{prefix}{name}: {_show(old.get(name))} -> {_show(new.get(name))}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def _case(old: Outcome, new: Outcome) -> list[tuple[int, str]]:
    found = []
    if old.status != new.status:
        worse = new.status in (FAILED, ERROR) or old.status == PASSED or new.status == NOT_RUN
        reason = f" ({new.reason})" if new.reason else ""
        found.append((0 if worse else 1, f"{old.status} -> {new.status}{reason}"))
    found += [(2, text) for text in _mapping("", old.choices, new.choices)]
    watched = [{n: o.measured.get(n) for n in _WATCHED} for o in (old, new)]
    found += [(2, text) for text in _mapping("", *watched)]
    return found


def _show(value: Any) -> str:
    return "none" if value in (None, "") else str(value)

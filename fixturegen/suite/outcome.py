"""What became of one case, as it stands in every report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixturegen.suite.diagnosis import PLACES
from fixturegen.suite.worker import write_json

PASSED, FAILED, ERROR, NOT_RUN = "passed", "failed", "error", "not run"
STATUSES = (PASSED, FAILED, ERROR, NOT_RUN)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One thing that is wrong, and where in the engine it looks to be."""

    scenario: str
    message: str
    #: Part of the engine, of :data:`fixturegen.suite.diagnosis.PLACES`.
    place: str = ""

    @property
    def explained(self) -> str:
        """The place, and what a fault there may be."""
        return f"{self.place}: {PLACES[self.place]}" if self.place in PLACES else self.place


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One case's result."""

    id: str
    suite: str
    #: GPU architecture that the case is for.
    gpu: str
    status: str
    seconds: float = 0.0
    #: One line: why it failed, could not run, or what is worth knowing.
    reason: str = ""
    failures: tuple[Failure, ...] = ()
    #: What was counted and measured, by name.
    measured: Mapping[str, Any] = field(default_factory=dict)
    #: Backends and options that the running engine chose.
    choices: Mapping[str, Any] = field(default_factory=dict)
    #: What ``check`` said: ``verdict``, ``choices``, ``because``.
    prediction: Mapping[str, Any] = field(default_factory=dict)
    #: Command that runs the case again by hand.
    command: str = ""
    log: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for report.json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Read back from report.json."""
        failures = tuple(Failure(**f) for f in data["failures"])
        return cls(**{**data, "failures": failures})


def save(path: Path, fingerprint: str, outcome: Outcome) -> str:
    """Keep an outcome for ``--resume``; returns why it could not be kept, or an empty string.

    ``fingerprint`` says what it is the outcome of.
    """
    try:
        write_json(path, {"fingerprint": fingerprint, "outcome": outcome.to_dict()})
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def saved(path: Path, fingerprint: str) -> Outcome | None:
    """The outcome in ``path``, if it is of the very same thing and came to a verdict."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["fingerprint"] != fingerprint:
            return None
        outcome = Outcome.from_dict(stored["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return outcome if outcome.status in (PASSED, FAILED) else None

"""When a measurement is good: what ``fixturegen measure`` exits with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fixturegen.measure.margins import Margins
from fixturegen.measure.report import Measurement, text
from fixturegen.measure.table import Row


def row(name: str, found: bool, limit: str = "") -> Row:
    return Row(name=name, kind="any", equal=0, of=1, found=found, limit=limit)


@pytest.fixture
def measurement() -> Measurement:
    """Ninety-nine faults found and one missed for a known reason."""
    ones = np.ones((1, 1))
    return Measurement(
        recipe="any",
        planted=True,
        prompts=1,
        max_tokens=1,
        steps=1,
        guaranteed_margin=1.0,
        margins=Margins(ones, ones, 0.25, 0.25),
        rows=[*(row(str(i), True) for i in range(99)), row("missed", False, "known")],
        false_alarms=[row("harmless", False)],
    )


def test_known_misses_below_two_percent_are_good(measurement):
    assert measurement.good
    assert "99 of 100 faults found (99.0 %)\n  not found: missed: known" in text(measurement)


@pytest.mark.parametrize(
    "change",
    [
        {"false_alarms": [row("harmless", True)]},
        {"rows": [*(row(str(i), True) for i in range(99)), row("missed", False)]},
        {"rows": [*(row(str(i), True) for i in range(97)), *[row("missed", False, "known")] * 3]},
    ],
    ids=["false-alarm", "unexplained", "too-many"],
)
def test_anything_else_is_not(measurement, change):
    assert not dataclasses.replace(measurement, **change).good
    assert dataclasses.replace(measurement, planted=False, **change).good

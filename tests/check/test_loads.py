"""Today's rules against what real engines did: the rows in ``loads/``, made by ``loads.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixturegen.check import Target
from tests.check.loads import SM90, Sample, judge, samples

FILES = sorted(Path(__file__).parent.joinpath("loads").glob("*.json"))
ROWS = [(f.stem, row) for f in FILES for row in json.loads(f.read_text())]


def sample(row: dict[str, Any]) -> Sample:
    return Sample(row["rule"], row["recipe"], tuple(row["overrides"]), row["target"], row["edit"])


@pytest.mark.parametrize(("machine", "row"), ROWS, ids=lambda x: x if isinstance(x, str) else "")
def test_the_verdict_is_what_happened(machine: str, row: dict[str, Any]) -> None:
    agrees, said = judge(sample(row), Target.parse(row["target"]), row["happened"])
    assert agrees, f"check: {said}; {machine}: {row['happened']}"


def test_each_machine_ran_some_and_refused_some() -> None:
    assert {f.stem for f in FILES} >= {"vllm-0.26.0-h200", "vllm-0.32.0-cpu"}
    for machine in {m for m, _ in ROWS}:
        ran = sum(row["happened"] == "ran" for m, row in ROWS if m == machine)
        assert 10 <= ran <= sum(m == machine for m, _ in ROWS) - 10


def test_samples_have_names_of_their_own() -> None:
    names = [s.name for gpu in ("cpu", "sm90") for s in samples(gpu) if s in SM90 or gpu == "cpu"]
    assert len(names) == len(set(names))

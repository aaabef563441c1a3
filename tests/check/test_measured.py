"""Verdicts against what engines did with real checkpoints: measured.json, with the versions.

``right``: the text was right; ``ran``: it ran and its text was not looked at; ``wrong``: it ran and
its text was wrong; anything else is the engine's own message.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fixturegen.check import Target, check
from fixturegen.check.model import load

ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("measured.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['recipe']} {r['target']}")
def test_verdict_is_what_happened(row: dict[str, Any]) -> None:
    model = load(row["recipe"])
    config = dataclasses.replace(model.config, **row.get("changes", {}))
    target = Target.parse(row["target"])
    report = check(config, target, model.draft if "eagle" in row["target"] else None)
    assert row.get("choices", {}).items() <= report.choices.items()
    match row["result"]:
        case "right":
            assert not report.rejections and report.verdict != "unknown"
        case "ran":
            assert not report.rejections and report.verdict == "unknown"
        case "wrong":
            assert report.of("silently wrong")
        case message:
            assert any(re.search(f.error, message) for f in report.of("rejected")), message

"""What docs/measure.md says in numbers, against the measurement kept as data."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "measure.md").read_text(encoding="utf-8")
DATA = json.loads((DOCS / "results/measure/deepseek-v3-mtp.json").read_text(encoding="utf-8"))


def test_faults_by_class_and_each_that_is_missed():
    rows = DATA["faults"]
    found = Counter(row["kind"] for row in rows if row["found"])
    every = Counter(row["kind"] for row in rows)
    said = [f"| {kind} | {found[kind]} | {every[kind]} |" for kind in every]
    assert [line for line in said if line not in PAGE] == []
    share = 100 * found.total() / len(rows)
    assert f"{found.total()} of {len(rows)}, {share:.1f} %." in PAGE
    missed = [row["name"] for row in rows if not row["found"]]
    assert [name for name in missed if f"| {name} | " not in PAGE] == []


def test_margins_and_safety_factor():
    m = DATA["margins"]
    for value in (
        f"| guaranteed margin | {m['guaranteed']:g} |",
        f"float32 / bfloat16 | {m['smallest_float32']:.2f} / {m['smallest_bfloat16']:.2f} |",
        f"| median margin, float32 | {m['median_float32']:.2f} |",
        f"difference of a logit | {m['largest_logit_difference']:.2f} |",
        f"distance to the right one | {m['largest_gap_difference']:.2f} |",
        f"| ... of a margin | {m['largest_margin_difference']:.2f} |",
        f"smallest margin is {m['safety_factor']:.1f} times",
        f"{m['smallest'] / m['largest_margin_difference']:.1f} times the\nlargest change",
    ):
        assert value in PAGE
    assert not any(row["found"] for row in DATA["false_alarms"])

"""What docs/planted.md says in numbers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from fixturegen import load_recipe
from fixturegen.planted.draws import Draws
from fixturegen.planted.margin import Margin, margin
from fixturegen.planted.router import Router
from fixturegen.planted.weights import planted_function

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "planted.md").read_text(encoding="utf-8")
LABELS = [
    ("`deepseek-v3-mtp`, `-eagle` (bf16)", "deepseek-v3-mtp"),
    ("`deepseek-v3-mtp`, `-eagle` (bf16)", "deepseek-v3-eagle"),
    ("`deepseek-v3-mtp-fp8`, activations in bf16", "deepseek-v3-mtp-fp8"),
]
PROMPT = [0, 1200, 345, 2718, 99, 1729]


def row(label: str) -> list[str]:
    """Cells after the first of the table row that starts with ``label``."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_the_worked_example_digit_by_digit():
    f = planted_function(load_recipe("deepseek-v3-mtp"))
    t, null = f.tables, f.null
    c = [null, *f.classes[PROMPT[1:]].tolist()]
    assert "are\n{}, {}, {}, {}, {}; here".format(*c[1:]) in PAGE
    arguments = {"c(4)": c[4], "position -12": null, "position 0": null, "c(3)": c[3]}
    by_hand = PAGE[PAGE.index("### By hand") :]
    digits = []
    for s, (where, x) in enumerate(arguments.items()):
        middle = int(t.middle[s, c[5], x])
        digits.append(int(t.digit[s, c[5], middle]))
        value = (
            f": NULL | `middle[{s}][14][16]`" if x == null else f" = {x} | `middle[{s}][14][{x}]`"
        )
        assert (
            f"| d{s + 1} | {where}{value} = {middle} | `digit[{s}][14][{middle}]` = {digits[-1]} |"
        ) in by_hand
    digits.append(int(t.digit5[8, null]))
    assert f"| `digit5[8][16]` = {digits[-1]} |" in by_hand
    token = int(f.id_of_digits[tuple(digits)])
    assert (
        f"digits {' '.join(map(str, digits))} is {token}. Its class is {f.classes[token]}," in PAGE
    )
    assert not f.bad(0)[f.classes[token], c[5]]


@pytest.mark.parametrize(("label", "name"), LABELS)
def test_the_margins(label, name):
    m: Margin = margin(load_recipe(name))
    said = [float(cell) for cell in row(label)[:4]]
    assert said == pytest.approx([m.nominal, m.weights, m.rounding, m.guaranteed], abs=0.01)


@pytest.mark.parametrize("name", ["deepseek-v3-mtp", "deepseek-v3-mtp-fp8"])
def test_the_measured_margins_are_those_kept_as_data(name):
    m = json.loads((DOCS / "results/measure" / f"{name}.json").read_text())["margins"]
    (cells,) = [row(label) for label, recipe in LABELS if recipe == name]
    assert cells[3] == f"{m['guaranteed']:g}"
    assert cells[4] == f"{m['smallest_float32']:.2f} / {m['smallest_bfloat16']:.2f}"
    changes = m["largest_logit_difference"], m["largest_margin_difference"]
    assert cells[5] == "{:.2f}, {:.2f}".format(*changes)


def test_the_distance_of_routing_scores():
    model = load_recipe("deepseek-v3-mtp").model
    least = min(Router(model, 16, Draws(0), layer).margin() for layer in ("1", "2", "draft"))
    assert f"least {least:.2f} from any comparison" in PAGE


def test_the_figure_is_current():
    made = runpy.run_path(str(DOCS / "planted_figure.py"))["figure"]()
    assert (DOCS / "images" / "planted.svg").read_text(encoding="utf-8") == made

"""The result of a measurement as text, as data and as a picture."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fixturegen.measure.margins import Margins
from fixturegen.measure.table import Row

#: Share of the faults that a planted checkpoint must show.
REQUIRED = 0.98


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Everything measured on one checkpoint; ``random`` holds the same rows for its random twin."""

    recipe: str
    planted: bool
    prompts: int
    max_tokens: int
    steps: int
    guaranteed_margin: float | None
    margins: Margins
    rows: Sequence[Row]
    false_alarms: Sequence[Row]
    random: Sequence[Row] = ()
    random_false_alarms: Sequence[Row] = ()

    @property
    def good(self) -> bool:
        """Whether a planted checkpoint is as sharp as it should be.

        No false alarm; at least 98 % of the faults found; a known reason for each that is not.
        Random weights promise nothing.
        """
        if not self.planted:
            return True
        quiet = not any(row.found for row in self.false_alarms)
        explained = all(row.found or row.limit for row in self.rows)
        return quiet and explained and found(self.rows) >= REQUIRED * len(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``; margins are in logits."""
        margins = self.margins
        return {
            "recipe": self.recipe,
            "planted": self.planted,
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
            "num_speculative_tokens": self.steps,
            "good": self.good,
            "margins": {
                "guaranteed": self.guaranteed_margin,
                "smallest": margins.smallest,
                "smallest_float32": float(margins.full.min()),
                "smallest_bfloat16": float(margins.low.min()),
                "median_float32": float(_median(margins.full)),
                "largest_logit_difference": margins.logit_difference,
                "largest_gap_difference": margins.gap_difference,
                "largest_margin_difference": margins.margin_difference,
                "safety_factor": margins.safety_factor,
            },
            "faults": [dataclasses.asdict(row) for row in self.rows],
            "false_alarms": [dataclasses.asdict(row) for row in self.false_alarms],
            "random_faults": [dataclasses.asdict(row) for row in self.random],
            "random_false_alarms": [dataclasses.asdict(row) for row in self.random_false_alarms],
        }


def found(rows: Sequence[Row]) -> int:
    """How many raised an alarm."""
    return sum(row.found for row in rows)


def _median(values: Any) -> float:
    import numpy as np

    return float(np.median(values))


def text(m: Measurement) -> str:
    """The measurement as aligned text."""
    margins = m.margins
    rule = "one wrong prompt" if m.planted else "60 % of prompts equal or fewer"
    lines = [
        f"{m.recipe}: {m.prompts} prompts x {m.max_tokens} tokens, {m.steps} speculative tokens; "
        f"alarm: {rule}",
        "",
        f"smallest margin        {margins.smallest:8.3f} logits "
        f"(float32 {margins.full.min():.3f}, bfloat16 {margins.low.min():.3f}; "
        f"median {_median(margins.full):.3f})",
    ]
    if m.guaranteed_margin is not None:
        lines.append(f"guaranteed margin      {m.guaranteed_margin:8.3f} logits")
    lines += [
        f"bfloat16 - float32     {margins.logit_difference:8.3f} logits at most; of a token's "
        f"distance to the right one {margins.gap_difference:.3f}, of a margin "
        f"{margins.margin_difference:.3f}",
        f"safety factor          {margins.safety_factor:8.2f} (smallest margin / largest logit "
        "difference)",
        "",
        *_table("harmless changes", m.false_alarms, m.random_false_alarms),
    ]
    if m.rows:
        lines += ["", *_table("faults", m.rows, m.random)]
        lines += ["", *_summary("", m.rows)]
        lines += _missed(m.rows) if m.planted else []
    if m.random:
        lines += _summary("random weights, 60 % rule: ", m.random)
    return "\n".join(lines)


def _summary(prefix: str, rows: Sequence[Row]) -> list[str]:
    share = 100 * found(rows) / len(rows)
    return [f"{prefix}{found(rows)} of {len(rows)} faults found ({share:.1f} %)"]


def _missed(rows: Sequence[Row]) -> list[str]:
    return [f"  not found: {r.name}: {r.limit or 'reason unknown'}" for r in rows if not r.found]


def _table(title: str, rows: Sequence[Row], random: Sequence[Row]) -> list[str]:
    from fixturegen.cli.tables import table

    other = {row.name: row for row in random}
    head = [title, "class", "equal", "accepted", "alarm"]
    cells = [[*head, "random: equal", "alarm"] if random else head]
    for row in rows:
        line = [row.name, row.kind, *_cells(row)]
        if random:
            twin = other.get(row.name)
            equal, _, alarm = _cells(twin) if twin else ("", "", "")
            line += [equal, alarm]
        cells.append(line)
    return table(cells, right=(2, 3, 5)).splitlines()


def _cells(row: Row) -> tuple[str, str, str]:
    accepted = "" if row.accepted is None else str(row.accepted)
    return f"{row.equal}/{row.of}", accepted, "yes" if row.found else "no"


def picture(m: Measurement) -> bytes:
    """A PNG: histogram of the margins in both dtypes, with the noise marked.

    Raises ImportError without matplotlib (``pip install 'fixturegen[docs]'``).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, values in (("float32", m.margins.full), ("bfloat16", m.margins.low)):
        axes.hist(values.ravel(), bins=60, alpha=0.6, label=name)
    axes.axvspan(0, m.margins.margin_difference, alpha=0.25, color="tab:red", label="rounding")
    if m.guaranteed_margin is not None:
        axes.axvline(m.guaranteed_margin, color="black", linestyle="--", label="guaranteed")
    axes.set(xlabel="top-1 minus top-2, logits", ylabel="tokens", title=m.recipe, xlim=(0, None))
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()

"""The figure of docs/planted.md: which part of a planted model writes and reads which field.

    python docs/planted_figure.py

A test holds the file in the tree against what this makes.
"""

from __future__ import annotations

from pathlib import Path

from fixturegen import load_recipe
from fixturegen.planted.attention import LATENT_FIELDS, roles
from fixturegen.planted.fields import Norms
from fixturegen.planted.function import DIGITS, SLOTS
from fixturegen.planted.layers import ARGUMENTS

FIGURE = Path(__file__).parent / "images" / "planted.svg"
KNOBS = load_recipe("deepseek-v3-mtp").planted

#: Stages of the target and of the draft: name, fields read, fields written.
Stage = tuple[str, tuple[str, ...], tuple[str, ...]]


def stages() -> dict[str, list[Stage]]:
    """What each part of the model reads and writes."""
    digits = tuple(f"D{s + 1}" for s in range(DIGITS))
    middle = tuple(f"M{s + 1}" for s in range(SLOTS))

    def attention(layer: str) -> Stage:
        fields = ("u", "C0", *LATENT_FIELDS[layer][0])
        written = tuple(role.target for role in roles(KNOBS, layer))
        return "attention", tuple(dict.fromkeys(fields)), written

    last = ("C0", "Z", "W")
    return {
        "target": [
            ("embedding", (), ("u", "C0")),
            attention("0"),
            ("dense MLP", ("C0", "C1"), ("Q",)),
            attention("1"),
            ("MoE", ("C0", *ARGUMENTS), (*middle, "M5")),
            attention("2"),
            ("MoE", (*last, "S", *middle[1:]), digits),
            ("norm, head", digits, ()),
        ],
        "draft": [
            ("join e, h", (), ("u", "C0", "C1", "Q", "M5", "F", "P")),
            attention("draft"),
            ("MoE", (*last, *ARGUMENTS, "P"), digits),
            ("norm, head", digits, ()),
        ],
    }


def figure() -> str:
    """The residual stream as SVG: a line for each field, from where it is written."""
    groups = ("u", "C0", "C1", "Y", "Q", "C2", "Q17", "M1", "M2", "M3", "M4", "M5", "Z", "W", "S")
    fields = (*groups, *(f"D{s + 1}" for s in range(DIGITS)), "F", "P")
    row, left, top, column = 20, 60, 70, 62
    width, height = left + 12 * column + 70, top + row * len(fields) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]

    def text(x: float, y: float, said: str, anchor: str = "middle") -> None:
        parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="#222222">{said}</text>')

    y_of = {name: top + row * i + 10 for i, name in enumerate(fields)}
    for name, y in y_of.items():
        text(left - 14, y + 4, name, "end")
    x = left + column / 2
    n = Norms(KNOBS.kappa, KNOBS.decoy)
    squared = {
        "target": [None, *(x for both in zip(n.attention, n.mlp, strict=True) for x in both)],
        "draft": [None, n.draft_attention, n.draft_mlp],
    }
    layers = {"target": ("", "L0", "L0", "L1", "L1", "L2", "L2", ""), "draft": ("",) * 4}
    for title, chain in stages().items():
        end = x + column * (len(chain) - 1)
        text((x + end) / 2, 20, title)
        for i, norm in enumerate([*squared[title], n.final]):
            text(x + column * i, top + row * len(fields) + 14, f"{norm:g}" if norm else "")
        since: dict[str, float] = {}
        for i, (name, reads, writes) in enumerate(chain):
            here = x + column * i
            text(here, 42, layers[title][i])
            text(here, 56, name)
            for field in writes:
                since[field] = here
                parts.append(
                    f'<line x1="{here}" y1="{y_of[field]}" x2="{end}" y2="{y_of[field]}" '
                    'stroke="#9aa7b8" stroke-width="2"/>'
                )
            for field in reads:
                assert field in since, (title, name, field)
        for i, (_, reads, writes) in enumerate(chain):
            here = x + column * i
            for field in writes:
                parts.append(
                    f'<rect x="{here - 5}" y="{y_of[field] - 5}" width="10" height="10" '
                    'fill="#c2410c"/>'
                )
            for field in reads:
                parts.append(
                    f'<circle cx="{here}" cy="{y_of[field]}" r="4.5" fill="#ffffff" '
                    'stroke="#1d4ed8" stroke-width="2"/>'
                )
        x = end + column + 10
    text(left - 14, top + row * len(fields) + 14, "N", "end")
    bottom = height - 12
    parts.append(f'<rect x="{left}" y="{bottom - 8}" width="10" height="10" fill="#c2410c"/>')
    text(left + 16, bottom + 1, "writes", "start")
    parts.append(
        f'<circle cx="{left + 85}" cy="{bottom - 3}" r="4.5" fill="#ffffff" stroke="#1d4ed8" '
        'stroke-width="2"/>'
    )
    text(left + 96, bottom + 1, "reads", "start")
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    FIGURE.write_text(figure(), encoding="utf-8")

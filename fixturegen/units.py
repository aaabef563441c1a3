"""Sizes for people: ``116 MB``, ``58.2 M``."""

from __future__ import annotations

import re

from fixturegen.errors import FixturegenError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def human(count: float, unit: str = "") -> str:
    """Three significant digits with a decimal prefix, such as ``human(116322688, "B")``."""
    for prefix in ("", "K", "M", "G", "T"):
        if abs(count) < 999.5 or prefix == "T":
            break
        count /= 1000
    digits = f"{count:.0f}" if prefix == "" or count >= 99.95 else f"{count:.3g}"
    return f"{digits} {prefix}{unit}".rstrip()


def parse_size(text: str) -> int:
    """Bytes of ``"2GB"``, ``"500 MB"`` or ``"1000"``; raises FixturegenError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) <= 0:
        raise FixturegenError(f"size {text!r} is not understood; write it as 2GB, 500MB or 1000")
    return int(float(match[1]) * _UNITS[match[2].upper()])

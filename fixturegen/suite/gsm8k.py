"""Stand-ins for the GSM8K files that vLLM's tests read: short word problems, made by rule.

Same form, one JSON object per line with ``question`` and ``answer``, the answer ending in
``#### N``. They make prompts of a like shape; nobody should measure arithmetic with them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

FILES = ("train.jsonl", "test.jsonl")

#: A template, and the answer as a function of its two numbers.
_PROBLEMS = (
    ("A shelf holds {a} boxes and each box holds {b} bolts. How many bolts are there?", "*"),
    ("A tank has {a} litres. A pump adds {b} litres. How much is in the tank now?", "+"),
    ("A train starts with {a} people and {b} more get on. How many are on the train?", "+"),
    ("A farmer plants {a} rows of {b} trees. How many trees does the farmer plant?", "*"),
    ("A road is {a} km long and {b} km are paved. What is left is how many km?", "-"),
    ("A clerk files {a} letters in an hour. How many does the clerk file in {b} hours?", "*"),
    ("A jar had {a} coins and {b} were spent. How many coins are in the jar?", "-"),
)
_VERBS = {"*": "Multiply", "+": "Add", "-": "Subtract"}


def problems(count: int, first: int) -> Iterator[dict[str, str]]:
    """``count`` problems; different ``first`` give different numbers."""
    for i in range(first, first + count):
        text, sign = _PROBLEMS[i % len(_PROBLEMS)]
        a, b = 20 + (7 * i) % 31, 2 + (5 * i) % 11
        value = {"*": a * b, "+": a + b, "-": a - b}[sign]
        steps = f"{_VERBS[sign]}: {a} {sign} {b} = {value}."
        yield {"question": text.format(a=a, b=b), "answer": f"{steps}\n#### {value}"}


def provide(folder: Path, real: Path) -> bool:
    """Put both files into ``folder``: GSM8K's own where ``real`` has them, else stand-ins.

    Returns whether stand-ins were written.
    """
    if all(_is_gsm8k(real / name) for name in FILES):
        for name in FILES:
            shutil.copy(real / name, folder / name)
        return False
    for name, count, first in zip(FILES, (8, 100), (0, 1000), strict=True):
        lines = [json.dumps(problem) for problem in problems(count, first)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return True


def _is_gsm8k(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return bool(json.loads(file.readline()).keys() >= {"question", "answer"})
    except (OSError, ValueError, AttributeError):
        return False

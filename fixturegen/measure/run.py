"""Measure a checkpoint, and its random twin beside it."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from fixturegen.builder import build
from fixturegen.errors import EngineError
from fixturegen.inspection import checkpoint_folders
from fixturegen.manifest import Manifest
from fixturegen.measure.report import Measurement
from fixturegen.planted.oracle import Oracle
from fixturegen.recipe import Recipe


def measure(
    path: str | Path,
    *,
    prompts: int = 24,
    max_tokens: int = 16,
    steps: int = 3,
    seed: int = 0,
    only: str = "",
    beside: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Measurement:
    """Margins, false alarms and fault detection of the checkpoint, or pair, at ``path``.

    ``prompts`` random prompts are drawn from ``seed``; ``max_tokens`` are generated after each and
    ``steps`` drafted at a time. ``only`` keeps the faults whose class or name contains it.
    ``beside`` builds the recipe with random weights and measures that too. ``progress`` is told
    what is being done.

    Raises EngineError without torch and transformers, CheckpointError for a folder that fixturegen
    did not build.
    """
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise EngineError(
            f"{error.name} is not installed; pip install 'fixturegen[test]'"
        ) from None
    recipe = Manifest.load(checkpoint_folders(path)[0]).load_recipe()
    texts = _prompts(recipe, prompts, seed)
    result = _measure(path, recipe, texts, max_tokens, steps, only, progress)
    if not (beside and recipe.weights == "planted"):
        return result
    with tempfile.TemporaryDirectory() as folder:
        progress("building the random twin")
        twin = dataclasses.replace(recipe, weights="random")
        place = build(twin, Path(folder) / "random", check=False).path
        random = _measure(place, twin, texts, max_tokens, steps, only, progress)
    return dataclasses.replace(result, random=random.rows, random_false_alarms=random.false_alarms)


def _prompts(recipe: Recipe, number: int, seed: int) -> list[list[int]]:
    from fixturegen.measure.subject import random_prompts

    return random_prompts(recipe, number, seed)


def _measure(
    path: str | Path,
    recipe: Recipe,
    prompts: list[list[int]],
    max_tokens: int,
    steps: int,
    only: str,
    progress: Callable[[str], None],
) -> Measurement:
    from fixturegen.measure.margins import measure_margins
    from fixturegen.measure.subject import Subject
    from fixturegen.measure.table import faults, measure_false_alarms, measure_faults

    prefix = f"{recipe.name} ({recipe.weights}): "
    progress(f"{prefix}margins")
    subject = Subject.load(path, prompts, max_tokens, steps)
    margins = measure_margins(path, subject)
    false_alarms = measure_false_alarms(path, subject, lambda name: progress(prefix + name))
    chosen = [f for f in faults(subject) if only in f"{f.kind} {f.name}"]
    rows = []
    for number, row in enumerate(measure_faults(subject, chosen), 1):
        progress(f"{prefix}fault {number} of {len(chosen)}")
        rows.append(row)
    return Measurement(
        recipe=recipe.name,
        planted=subject.planted,
        prompts=len(prompts),
        max_tokens=max_tokens,
        steps=steps,
        guaranteed_margin=Oracle.load(path).margin if subject.planted else None,
        margins=margins,
        rows=rows,
        false_alarms=false_alarms,
    )

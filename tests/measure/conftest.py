"""Planted checkpoints to measure, and their prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixturegen import build, load_recipe
from fixturegen.measure.subject import Subject, random_prompts

TOKENS, STEPS = 8, 3


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build a recipe, once."""
    folder = tmp_path_factory.mktemp("measure")

    def make(name: str) -> Path:
        return build(load_recipe(name), folder / name, check=False).path

    return make


@pytest.fixture(scope="session")
def subjects(checkpoints: Callable[[str], Path]) -> Callable[[str], Subject]:
    """Load a recipe's checkpoint with four prompts, once."""
    made: dict[str, Subject] = {}

    def make(name: str) -> Subject:
        if name not in made:
            prompts = random_prompts(load_recipe(name), 4, seed=1)
            made[name] = Subject.load(checkpoints(name), prompts, TOKENS, STEPS)
        return made[name]

    return make


@pytest.fixture
def subject(subjects: Callable[[str], Subject]) -> Subject:
    """The planted MTP checkpoint."""
    return subjects("deepseek-v3-mtp")

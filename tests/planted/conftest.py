"""Planted checkpoints and prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixturegen import build, load_recipe


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Build a recipe with overrides, once for each combination."""
    folder, made = tmp_path_factory.mktemp("planted"), {}

    def make(name: str = "deepseek-v3-mtp", *overrides: str) -> Path:
        key = (name, *overrides)
        if key not in made:
            out = folder / str(len(made))
            made[key] = build(load_recipe(name, overrides), out, check=False).path
        return made[key]

    return make


def random_prompts(lengths: list[int], vocab: int = 4096, seed: int = 0) -> list[list[int]]:
    """Bos and random tokens, of these lengths."""
    rng = np.random.default_rng(seed)
    return [[0, *rng.integers(3, vocab, n - 1).tolist()] for n in lengths]

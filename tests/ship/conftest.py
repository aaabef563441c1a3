"""A hub on loopback, and small checkpoints to push to it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils.tqdm import disable_progress_bars

from fixturegen import build, hub, load_recipe
from fixturegen.recipe import Recipe
from tests.conftest import TINY
from tests.ship.fakehub import WRITE_TOKEN, FakeHub


@pytest.fixture(scope="session")
def fixturegen_cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of this run's own, shared by its workers; the user's own is left alone."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fixturegen-cache"


@pytest.fixture
def fakehub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running hub that the client uses, with its own retries kept short."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "RETRY_WAIT", 0.01)
    disable_progress_bars()
    with FakeHub() as running:
        yield running


@pytest.fixture
def api(fakehub: FakeHub) -> HfApi:
    """A client of the hub that may write."""
    return HfApi(endpoint=fakehub.endpoint, token=WRITE_TOKEN)


@pytest.fixture(scope="session")
def tiny_pair_recipe() -> Recipe:
    """A random Eagle recipe of about 1 MB."""
    recipe = load_recipe("deepseek-v3-eagle-random", TINY)
    return dataclasses.replace(recipe, targets=())


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint, to change."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def other_checkpoint(tiny_recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny recipe with another seed and routing scale."""
    model = dataclasses.replace(tiny_recipe.model, routed_scaling_factor=1.5)
    recipe = dataclasses.replace(tiny_recipe, seed=1, model=model)
    return build(recipe, tmp_path_factory.mktemp("other") / "checkpoint", check=False).path

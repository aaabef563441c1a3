"""Oracle.load reads the manifest and ``expected.json`` alone: here there is nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixturegen import Oracle, load_recipe
from fixturegen.builder import small_files
from fixturegen.manifest import MANIFEST, Manifest
from fixturegen.planted.margin import guaranteed_margin
from fixturegen.recipe import Recipe


def without_weights(folder: Path, recipe: Recipe) -> Path:
    """All files of a checkpoint but the index and the shards."""
    for plan in recipe.checkpoints:
        place = folder / plan.subfolder
        place.mkdir(parents=True, exist_ok=True)
        for file, data in small_files(recipe, plan).items():
            (place / file).write_bytes(data)
        manifest = Manifest(
            recipe=recipe.to_dict(), role=plan.role, content_hash="0" * 64, files={}, tensors={}
        )
        (place / MANIFEST).write_bytes(manifest.to_bytes())
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_weights(
        tmp_path_factory.mktemp("planted") / "mtp", load_recipe("deepseek-v3-mtp")
    )


def test_the_worked_example_of_the_docs(checkpoint):
    prompt = [0, 1200, 345, 2718, 99, 1729]
    assert Oracle.load(checkpoint).continuation([prompt], 4) == [[1345, 1893, 2594, 2472]]


def test_a_pair_is_read_from_its_folder(tmp_path):
    pair = without_weights(tmp_path / "pair", load_recipe("deepseek-v3-eagle"))
    assert Oracle.load(pair).continuation([[0, 9]], 3) == Oracle.load(pair / "target").continuation(
        [[0, 9]], 3
    )


def test_margin_comes_from_the_recipe(checkpoint):
    assert Oracle.load(checkpoint).margin == guaranteed_margin(load_recipe("deepseek-v3-mtp"))


def test_a_checkpoint_without_a_draft_has_no_known_acceptance(tmp_path):
    recipe = load_recipe("deepseek-v3-mtp", ["draft=none", "num_nextn_predict_layers=0"])
    oracle = Oracle.load(without_weights(tmp_path / "alone", recipe))
    assert oracle.guaranteed([0, 5], 8) == ""
    assert "has no draft" in oracle.guaranteed([0, 5], 8, 1)

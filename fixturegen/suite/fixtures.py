"""The fixtures that a suite runs on: built checkpoints, found or built in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fixturegen.builder import build
from fixturegen.errors import CheckpointError
from fixturegen.manifest import MANIFEST, Manifest
from fixturegen.recipe import DRAFT, TARGET, Recipe, load_recipe


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """One recipe's checkpoints on disk."""

    recipe: Recipe
    target: Path
    draft: Path | None
    #: Content hash of each checkpoint by role.
    hashes: dict[str, str]

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    def planted(self) -> bool:
        """Whether the output is known in advance."""
        return self.recipe.weights == "planted"

    def checkpoint(self, part: str) -> Path:
        """The folder of ``target`` or ``draft``."""
        return self.draft if part == DRAFT and self.draft is not None else self.target


def find(folder: Path, names: Sequence[str]) -> list[Fixture]:
    """The fixtures named, from ``folder``; those not there yet are built into it.

    Raises RecipeError for an unknown name, BuildError when one cannot be built, CheckpointError for
    a folder that is not a fixture.
    """
    return [_find(folder / Path(name).stem, name) for name in names]


def _find(place: Path, name: str) -> Fixture:
    pair = (place / TARGET / MANIFEST).is_file()
    if not pair and not (place / MANIFEST).is_file():
        if place.exists() and any(place.iterdir()):
            raise CheckpointError(f"{place}: not built by fixturegen (no {MANIFEST})")
        build(load_recipe(name), place)
        return _find(place, name)
    folders = {TARGET: place / TARGET, DRAFT: place / DRAFT} if pair else {TARGET: place}
    manifests = {role: Manifest.load(path) for role, path in folders.items()}
    recipe = manifests[TARGET].load_recipe(str(place / MANIFEST))
    return Fixture(
        recipe=recipe,
        target=folders[TARGET],
        draft=folders.get(DRAFT),
        hashes={role: manifest.content_hash for role, manifest in manifests.items()},
    )

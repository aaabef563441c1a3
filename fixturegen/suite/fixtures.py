"""The fixtures that a suite runs on: built checkpoints, found or built in one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    #: Content hash of each checkpoint by role; none where it is not built.
    hashes: dict[str, str]

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    def built(self) -> bool:
        """Whether the checkpoints are there."""
        return bool(self.hashes)

    @property
    def planted(self) -> bool:
        """Whether the output is known in advance."""
        return self.recipe.weights == "planted"

    def checkpoint(self, part: str) -> Path:
        """The folder of ``target`` or ``draft``."""
        return self.draft if part == DRAFT and self.draft is not None else self.target


def find(folder: Path, names: Sequence[str], *, build_missing: bool = True) -> list[Fixture]:
    """The fixtures named, from ``folder``; those not there yet are built into it, or only planned.

    Raises RecipeError for an unknown name, BuildError when one cannot be built, CheckpointError for
    a folder that is not a fixture.
    """
    return [_find(folder / Path(name).stem, name, build_missing) for name in names]


def _find(place: Path, name: str, build_missing: bool) -> Fixture:
    pair = (place / TARGET / MANIFEST).is_file()
    if not pair and not (place / MANIFEST).is_file():
        if place.exists() and any(place.iterdir()):
            raise CheckpointError(f"{place}: not built by fixturegen (no {MANIFEST})")
        recipe = load_recipe(name)
        if not build_missing:
            folders = {plan.role: place / plan.subfolder for plan in recipe.checkpoints}
            return _fixture(recipe, folders, {})
        build(recipe, place)
        return _find(place, name, build_missing)
    folders = {TARGET: place / TARGET, DRAFT: place / DRAFT} if pair else {TARGET: place}
    manifests = {role: Manifest.load(path) for role, path in folders.items()}
    recipe = manifests[TARGET].load_recipe(str(place / MANIFEST))
    return _fixture(recipe, folders, {r: m.content_hash for r, m in manifests.items()})


def _fixture(recipe: Recipe, folders: Mapping[str, Path], hashes: dict[str, str]) -> Fixture:
    return Fixture(recipe=recipe, target=folders[TARGET], draft=folders.get(DRAFT), hashes=hashes)

"""Model test fixtures for inference engines: build, check, plant, run and ship checkpoints."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: public name -> module that defines it; imported at first use, so that the package stays light
_PUBLIC = {
    "BuildResult": "fixturegen.builder",
    "FixturegenError": "fixturegen.errors",
    "ModelConfig": "fixturegen.config",
    "Oracle": "fixturegen.planted",
    "Recipe": "fixturegen.recipe",
    "Target": "fixturegen.check",
    "build": "fixturegen.builder",
    "inspect": "fixturegen.inspection",
    "list_recipes": "fixturegen.recipe",
    "load_recipe": "fixturegen.recipe",
    "verify": "fixturegen.verification",
}
__all__ = [
    "BuildResult",
    "FixturegenError",
    "ModelConfig",
    "Oracle",
    "Recipe",
    "Target",
    "__version__",
    "build",
    "inspect",
    "list_recipes",
    "load_recipe",
    "verify",
]

if TYPE_CHECKING:
    from fixturegen.builder import BuildResult, build
    from fixturegen.check import Target
    from fixturegen.config import ModelConfig
    from fixturegen.errors import FixturegenError
    from fixturegen.inspection import inspect
    from fixturegen.planted import Oracle
    from fixturegen.recipe import Recipe, list_recipes, load_recipe
    from fixturegen.verification import verify


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fixturegen' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)

"""The pytest plugin: checkpoints as fixtures, built once and shared by all workers.

Registered by the entry point ``fixturegen``. Nothing of fixturegen is imported until a fixture is
asked for, so that test runs that use none pay nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fixturegen.cache import Cache
    from fixturegen.checkpoint import Checkpoint
    from fixturegen.recipe import Recipe

    CheckpointFactory = Callable[..., Checkpoint]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's command-line options."""
    group = parser.getgroup("fixturegen", "model test fixtures")
    group.addoption(
        "--fixturegen-cache",
        metavar="DIR",
        help="folder of built checkpoints (default: FIXTUREGEN_CACHE, or the platform's)",
    )
    group.addoption(
        "--fixturegen-offline",
        action="store_true",
        help="sets HF_HUB_OFFLINE for the run; checkpoints are built here, never downloaded",
    )
    group.addoption(
        "--fixturegen-from-hub",
        metavar="REPO@REV",
        action="append",
        default=[],
        help="download and verify checkpoints from REPO, not build them; may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; go offline before anybody imports huggingface_hub."""
    config.addinivalue_line(
        "markers",
        "fixturegen(recipe, targets=(), **overrides): the checkpoint that the fixture "
        "fixturegen_model gives this test; fails when the recipe breaks a kernel bound of a target",
    )
    if config.getoption("fixturegen_offline"):
        if config.getoption("fixturegen_from_hub"):
            raise pytest.UsageError("--fixturegen-offline with --fixturegen-from-hub: choose one")
        os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def fixturegen_cache_dir(request: pytest.FixtureRequest) -> Path:
    """Where built checkpoints are kept. Override it to keep them elsewhere."""
    from fixturegen.cache import default_root

    return Path(request.config.getoption("fixturegen_cache") or default_root())


@pytest.fixture(scope="session")
def fixturegen_seed() -> int | None:
    """Seed of all checkpoints; None leaves each recipe's own. Override it to change it."""
    return None


@pytest.fixture(scope="session")
def fixturegen_dtype() -> str | None:
    """dtype of all checkpoints; None leaves each recipe's own. Override it to change it."""
    return None


@pytest.fixture(scope="session")
def fixturegen_checkpoint(
    request: pytest.FixtureRequest,
    fixturegen_cache_dir: Path,
    fixturegen_seed: int | None,
    fixturegen_dtype: str | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> CheckpointFactory:
    """A factory: ``fixturegen_checkpoint("deepseek-v3-mtp", num_hidden_layers=4)``.

    Overrides are the recipe's keys; a dotted one goes in a mapping: ``**{"planted.noise": 0.1}``.
    """
    from fixturegen.cache import Cache, CacheReadOnly
    from fixturegen.checkpoint import Checkpoint
    from fixturegen.recipe import load_recipe

    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    from_hub = request.config.getoption("fixturegen_from_hub")
    defaults = {"seed": fixturegen_seed, "model.dtype": fixturegen_dtype}

    def cache_in(root: Path) -> Cache:
        builder = _from_hub(from_hub) if from_hub else None
        return Cache(root, run=run, builder=builder, report=_warn)

    def checkpoint(recipe: str | os.PathLike[str], **overrides: Any) -> Checkpoint:
        wanted = {name: value for name, value in defaults.items() if value is not None} | overrides
        resolved = load_recipe(
            recipe, [f"{name}={json.dumps(value)}" for name, value in wanted.items()]
        )
        try:
            return Checkpoint(cache_in(fixturegen_cache_dir).get(resolved))
        except CacheReadOnly as error:
            # All workers of one run share the parent of their own temporary folders.
            base = tmp_path_factory.getbasetemp()
            shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
            _warn(f"{error}; using a temporary cache for this run")
            return Checkpoint(cache_in(shared / "fixturegen-cache").get(resolved))

    return checkpoint


@pytest.fixture(scope="session")
def deepseek_v3_mtp(fixturegen_checkpoint: CheckpointFactory) -> Checkpoint:
    """DeepSeek-V3 with one MTP layer, bf16."""
    return fixturegen_checkpoint("deepseek-v3-mtp")


@pytest.fixture(scope="session")
def deepseek_v3_mtp_fp8(fixturegen_checkpoint: CheckpointFactory) -> Checkpoint:
    """DeepSeek-V3 with one MTP layer, FP8 in 128 x 128 blocks."""
    return fixturegen_checkpoint("deepseek-v3-mtp-fp8")


@pytest.fixture(scope="session")
def deepseek_v3_eagle(fixturegen_checkpoint: CheckpointFactory) -> Checkpoint:
    """DeepSeek-V3 (``.path``) and its Eagle draft (``.draft``), bf16."""
    return fixturegen_checkpoint("deepseek-v3-eagle")


@pytest.fixture
def fixturegen_model(
    request: pytest.FixtureRequest, fixturegen_checkpoint: CheckpointFactory
) -> Checkpoint:
    """The checkpoint that the test's ``fixturegen`` marker names."""
    marker = request.node.get_closest_marker("fixturegen")
    wanted = dict(marker.kwargs) if marker else {}
    recipe = marker.args[0] if marker and marker.args else wanted.pop("recipe", None)
    if recipe is None:
        raise pytest.UsageError(
            f"{request.node.nodeid}: fixturegen_model needs @pytest.mark.fixturegen(recipe=...)"
        )
    targets = wanted.pop("targets", ())
    checkpoint = fixturegen_checkpoint(recipe, **wanted)
    for target in [targets] if isinstance(targets, str) else targets:
        _check(checkpoint.recipe, target)
    return checkpoint


@pytest.fixture
def hf_cache_alias(
    fixturegen_checkpoint: CheckpointFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Mapping[str, str]], dict[str, Path]]:
    """Make hub ids resolve to our checkpoints, offline, for code that takes model ids.

    ``hf_cache_alias({"eagle618/deepseek-v3-random": "deepseek-v3-eagle"})``; a draft is written
    ``"deepseek-v3-eagle:draft"``. The ids resolve in this process and in those it starts, until
    the test ends; other models in the user's own cache stay visible. Returns id -> folder.
    """

    def alias(models: Mapping[str, str]) -> dict[str, Path]:
        from fixturegen.errors import RecipeError
        from fixturegen.manifest import Manifest
        from fixturegen.suite.hubcache import lay_out

        folders: dict[str, Path] = {}
        for model, name in models.items():
            recipe, _, part = name.partition(":")
            checkpoint = fixturegen_checkpoint(recipe)
            folder = {"": checkpoint.path, "target": checkpoint.path, "draft": checkpoint.draft}
            if folder.get(part) is None:
                raise RecipeError(f"hf_cache_alias: {name!r}: {recipe} has no part {part!r}")
            folders[model] = folder[part]  # type: ignore[assignment]
        home = tmp_path / "huggingface"
        lay_out(home, {m: (f, Manifest.load(f).content_hash) for m, f in folders.items()})
        _use_hub_cache(home / "hub", monkeypatch)
        return folders

    return alias


def _use_hub_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point huggingface_hub and transformers here, offline; they read the environment on import."""
    import sys

    from huggingface_hub import constants

    own = Path(constants.HF_HUB_CACHE)
    if own.is_dir() and own != cache:
        for repo in own.glob("models--*"):
            if not (cache / repo.name).exists():
                (cache / repo.name).symlink_to(repo)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub = sys.modules.get("transformers.utils.hub")
    for name, value in {"TRANSFORMERS_CACHE": str(cache), "_is_offline_mode": True}.items():
        if hasattr(hub, name):
            monkeypatch.setattr(hub, name, value)


def _check(recipe: Recipe, target: str) -> None:
    """Fail the test when `recipe` breaks a bound of the kernels that `target` would use."""
    from fixturegen.check import Target, check
    from fixturegen.check.model import from_recipe

    model = from_recipe(recipe)
    report = check(model.config, Target.parse(target), model.draft)
    if report.rejections:
        reasons = "; ".join(f"{f.rule}: {f.title} ({f.inputs})" for f in report.rejections)
        pytest.fail(f"{recipe.name} does not run on {target}: {reasons}", pytrace=False)


def _from_hub(sources: list[str]) -> Callable[[Recipe, Path], object]:
    from fixturegen.hub import pull_recipe

    return lambda recipe, folder: pull_recipe(recipe, folder, sources)


def _warn(message: str) -> None:
    import warnings

    warnings.warn(pytest.PytestWarning(f"fixturegen: {message}"), stacklevel=3)

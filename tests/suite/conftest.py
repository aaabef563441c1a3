"""Fixture folders without weights, and options that use a worker without an engine."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fixturegen.manifest import MANIFEST, Manifest
from fixturegen.recipe import load_recipe
from fixturegen.suite.machine import Machine
from fixturegen.suite.run import Options

HERE = Path(__file__).parent


def write_manifests(folder: Path, name: str) -> None:
    """All that the suite reads of a fixture before an engine loads it."""
    recipe = load_recipe(name)
    for plan in recipe.checkpoints:
        place = folder / name / plan.subfolder
        place.mkdir(parents=True)
        manifest = Manifest(
            recipe=recipe.to_dict(),
            role=plan.role,
            content_hash=(plan.role[0] * 64).replace("t", "7"),
            files={},
            tensors={},
        )
        (place / MANIFEST).write_bytes(manifest.to_bytes())
        (place / "config.json").write_text("{}", encoding="utf-8")


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., Options]:
    """Options for a run on a fixture without weights, with the worker behaving as told."""
    write_manifests(tmp_path / "fixtures", "deepseek-v3-mtp-random")

    def make(behaviour: str = "right", **changes: object) -> Options:
        base = Options(
            suites=("exact",),
            recipes=("deepseek-v3-mtp-random",),
            fixtures=tmp_path / "fixtures",
            out=tmp_path / "out",
            backends=("auto",),
            mla=(True,),
            ks=(1,),
            graphs=(False,),
            worker=(sys.executable, str(HERE / "fake_worker.py"), behaviour),
        )
        return dataclasses.replace(base, **changes)

    return make


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The suite believes that it is on a CPU with vLLM 0.32.0."""
    machine = Machine(gpu="cpu", gpu_name="x86_64", vllm="0.32.0")
    monkeypatch.setattr("fixturegen.suite.machine.local", lambda: machine)
    return machine

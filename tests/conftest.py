"""Shared fixtures: quick recipes, built checkpoints, and the rule for missing engines."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from fixturegen import build, load_recipe
from fixturegen.recipe import Recipe

#: Overrides that make a checkpoint of about 1 MB for tests that need no engine.
TINY = (
    "hidden_size=128",
    "intermediate_size=128",
    "moe_intermediate_size=128",
    "num_attention_heads=2",
    "q_lora_rank=128",
    "n_routed_experts=16",
    "num_hidden_layers=2",
    "vocab_size=512",
    "tokenizer_vocab_size=512",
)


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker that runs engines a core of its own: one-core engines side by side are
    faster than one on all cores, since an engine's start is mostly one thread.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and config.option.markexpr == "vllm" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        core = cores[int(worker.removeprefix("gw")) % len(cores)]
        os.sched_setaffinity(0, {core})
        os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": str(core)}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip vLLM tests without vLLM, or fail them where FIXTUREGEN_REQUIRE_ENGINE is set."""
    if item.get_closest_marker("vllm") is None or importlib.util.find_spec("vllm"):
        return
    reason = "vLLM is not installed; `make test` installs it"
    if os.environ.get("FIXTUREGEN_REQUIRE_ENGINE"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def tiny_recipe() -> Recipe:
    """A random MTP recipe of about 1 MB."""
    return load_recipe("deepseek-v3-mtp-random", TINY)


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tiny_recipe``, built. Copy it before you change it."""
    return build(tiny_recipe, tmp_path_factory.mktemp("tiny") / "checkpoint", check=False).path


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three random default-size recipes, built."""
    folder = tmp_path_factory.mktemp("fixtures")
    for name in ("deepseek-v3-mtp", "deepseek-v3-mtp-fp8", "deepseek-v3-eagle"):
        build(load_recipe(f"{name}-random"), folder / f"{name}-random")
    return folder

"""A pytest plugin for vLLM's own tests: keeps those that fixtures can stand in for, lifts skips.

Loaded with ``-p fixturegen.suite.lift`` in the process that runs vLLM's tests; it changes no file
of theirs. What to do stands in the JSON file named by FIXTUREGEN_SELECTION:

- ``models``: hub id -> names with which the tests that may use it begin;
- ``lift``: hub id -> why its fixture is known to run here (absent when it is not).

What was selected and lifted is written to the file named by FIXTUREGEN_COLLECTED.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixturegen.suite.upstream import COLLECTED, SELECTION

#: Reasons of the skips that the upstream fixtures needed on SM100 and production-accurate ones do
#: not: test_eagle_correctness and test_mtp_correctness, vLLM 0.22.1 to 0.33.0.
STALE = (
    re.compile(r"DeepSeek head_dim=192 not supported on SM100"),
    re.compile(r"DeepSeek MTP: TRTLLM MoE top_k check fails on Blackwell"),
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of other models and lift the stale skips of those that stay."""
    selection = json.loads(Path(os.environ[SELECTION]).read_text(encoding="utf-8"))
    kept, others, collected = [], [], []
    for item in items:
        models = sorted(_models(item, selection["models"]))
        if not models:
            others.append(item)
            continue
        kept.append(item)
        lifted = _lift(item, models, selection["lift"])
        collected.append({"test": item.nodeid, "models": models, "lifted": lifted})
    items[:] = kept
    config.hook.pytest_deselected(items=others)
    Path(os.environ[COLLECTED]).write_text(json.dumps(collected, indent=1), encoding="utf-8")


def _models(item: pytest.Item, models: dict[str, list[str]]) -> set[str]:
    """The hub models that a test's parameters name, if the test is among theirs."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return set()
    named = {text for text in _strings(list(callspec.params.values())) if text in models}
    name = getattr(item, "originalname", item.name)
    return {model for model in named if name.startswith(tuple(models[model]))}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part)


def _lift(item: pytest.Item, models: list[str], lift: dict[str, str]) -> list[dict[str, str]]:
    """Remove the stale skips of a test whose models are all known to run; returns those removed."""
    lifted = []
    for mark in list(item.own_markers):
        reason = str(mark.kwargs.get("reason", ""))
        holds = mark.name == "skipif" and bool(mark.args) and mark.args[0] is True
        if holds and any(r.search(reason) for r in STALE) and all(m in lift for m in models):
            item.own_markers.remove(mark)
            because = "; ".join(dict.fromkeys(lift[m] for m in models))
            lifted.append({"test": item.nodeid, "reason": reason, "because": because})
    return lifted

"""All rules: the modules of :mod:`fixturegen.check.rules` and those that plugins bring."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TypeVar

from fixturegen.check import rules as package
from fixturegen.check.inputs import Derived, KernelInput
from fixturegen.check.rule import FallsBack, PassedOver, Rule
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig
from fixturegen.errors import ConfigError

Input = TypeVar("Input", bound=KernelInput)


@functools.cache
def catalogue() -> dict[str, Rule]:
    """Rules by id, in alphabetical order of their modules, plugins' last.

    A plugin names a module or a list of Rule objects in the entry point group
    ``fixturegen.rules``. Raises ConfigError when two rules share an id.
    """
    found: dict[str, Rule] = {}
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    sources: list[object] = [importlib.import_module(f"{package.__name__}.{n}") for n in names]
    sources += [point.load() for point in entry_points(group="fixturegen.rules")]
    for source in sources:
        declared = source if isinstance(source, list | tuple) else vars(source).values()
        for item in declared:
            if isinstance(item, Rule) and found.setdefault(item.id, item) is not item:
                raise ConfigError(f"two rules have the id {item.id!r}")
    return found


@functools.cache
def targets() -> dict[str, Callable[[ModelConfig, Target], Derived]]:
    """Derivations that plugins bring for hardware of their own, by the target's ``gpu``.

    The entry point group is ``fixturegen.targets``: the name is the ``gpu``, the object a function
    (config, target) -> Derived.
    """
    return {point.name: point.load() for point in entry_points(group="fixturegen.targets")}


@functools.lru_cache(maxsize=16384)
def _speaking(kind: type[KernelInput], backend: str, target: Target) -> tuple[Rule, ...]:
    return tuple(
        r
        for r in catalogue().values()
        if issubclass(kind, r.reads)
        and r.where.covers(target)
        and (not r.where.backends or backend in r.where.backends)
    )


def applicable(x: KernelInput, target: Target) -> list[Rule]:
    """The rules that speak about this input on this target."""
    # mypy mistakes the class of a frozen dataclass for something without a hash
    rules = _speaking(type(x), getattr(x, "backend", ""), target)  # type: ignore[arg-type]
    return [r for r in rules if r.where.takes(x)]


def broken(x: KernelInput, target: Target) -> list[Rule]:
    """The applicable rules whose predicate does not hold."""
    return [r for r in applicable(x, target) if not r.holds(x)]


def objections(x: KernelInput, target: Target) -> list[Rule]:
    """The rules by which the engine passes over this candidate when it chooses."""
    return [r for r in broken(x, target) if isinstance(r.otherwise, PassedOver)]


def settle(x: Input, target: Target) -> tuple[Input, list[Rule]]:
    """The input after every fallback that the engine takes for it, and the rules that led there."""
    taken: list[Rule] = []
    while True:
        x = x.as_passed()
        for r in broken(x, target):
            if isinstance(r.otherwise, FallsBack) and r.otherwise.changes and r not in taken:
                x = dataclasses.replace(x, **r.otherwise.changes)
                taken.append(r)
                break
        else:
            return x, taken

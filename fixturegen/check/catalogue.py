"""All rules: the modules of :mod:`fixturegen.check.rules` and those that plugins bring."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from importlib.metadata import entry_points

from fixturegen.check import rules as package
from fixturegen.check.inputs import KernelInput
from fixturegen.check.rule import FallsBack, PassedOver, Rule
from fixturegen.check.target import Target
from fixturegen.errors import ConfigError


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
            if isinstance(item, Rule):
                if found.setdefault(item.id, item) is not item:
                    raise ConfigError(f"two rules have the id {item.id!r}")
    return found


@functools.cache
def _reading(kind: type[KernelInput]) -> tuple[Rule, ...]:
    return tuple(r for r in catalogue().values() if issubclass(kind, r.reads))


def applicable(x: KernelInput, target: Target) -> list[Rule]:
    """The rules that speak about this input on this target."""
    return [r for r in _reading(type(x)) if r.where.matches(x, target)]


def broken(x: KernelInput, target: Target) -> list[Rule]:
    """The applicable rules whose predicate does not hold."""
    return [r for r in applicable(x, target) if not r.holds(x)]


def objections(x: KernelInput, target: Target) -> list[Rule]:
    """The rules by which the engine passes over this candidate when it chooses."""
    return [r for r in broken(x, target) if isinstance(r.otherwise, PassedOver)]


def settle(x: KernelInput, target: Target) -> KernelInput:
    """The input after every fallback that the engine takes for it."""
    import dataclasses

    for r in broken(x, target):
        if isinstance(r.otherwise, FallsBack) and r.otherwise.changes:
            return settle(dataclasses.replace(x, **r.otherwise.changes), target)
    return x

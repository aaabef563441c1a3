"""What a rule is. Each module in :mod:`fixturegen.check.rules` declares one, or a tight family.

A rule is a predicate over one typed kernel input, wrapped by :func:`rule`::

    @rule(
        id="flashinfer-head-size",
        title="FLASHINFER takes head sizes 64, 128 and 256",
        where=Where(until="0.24.0", backends=("FLASHINFER",)),
        otherwise=PassedOver("head_size not supported"),
        source=Source("vllm", "v1/attention/backends/flashinfer.py", "get_supported_head_sizes"),
        cases=cases(Attention(head_size=128), holds=[{}, ...], breaks=[{"head_size": 192}]),
    )
    def flashinfer_head_size(x: Attention) -> bool:
        '''The user's page.'''
        return x.head_size in (64, 128, 256)

The annotation of the predicate's argument says which input it reads. The predicate holds exactly
when the kernel takes the input. Limits stand in the predicate as literals, so that the tests can
shift each of them and watch a case fail.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fixturegen.check import releases
from fixturegen.check.inputs import KernelInput
from fixturegen.check.target import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Where a rule applies. Empty parts do not restrict."""

    #: Engine whose releases ``since`` and ``until`` name, both included. ``until=None``: to the
    #: newest release read.
    engine: str = "vllm"
    since: str | None = None
    until: str | None = None
    #: GPU architectures such as ``sm100``.
    gpus: tuple[str, ...] = ()
    #: Backends, compared with the input's ``backend``.
    backends: tuple[str, ...] = ()
    #: Environment variables that must be set to a true value.
    env: tuple[str, ...] = ()
    #: Field values that the input must have, such as ``{"version": 4}``.
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def covers(self, target: Target) -> bool:
        """Whether the rule speaks about this target (whose releases were read)."""
        version = target.vllm if self.engine == "vllm" else target.flashinfer_version
        return (
            releases.within(version, self.since, self.until)
            and (not self.gpus or target.gpu in self.gpus)
            and all(target.flag(variable) for variable in self.env)
        )

    def takes(self, x: KernelInput) -> bool:
        """Whether the input has the field values that the rule is about."""
        return not self.inputs or all(getattr(x, n) == v for n, v in self.inputs.items())

    def __str__(self) -> str:
        last = releases.RELEASES[self.engine][-1]
        first = self.since or releases.RELEASES[self.engine][0]
        parts = [f"{self.engine} {first} to {self.until or last}"]
        if self.gpus:
            parts.append("GPU " + ", ".join(self.gpus))
        if self.backends:
            parts.append("backend " + ", ".join(self.backends))
        parts += [f"env {variable}" for variable in self.env]
        parts += [f"{name} = {value}" for name, value in self.inputs.items()]
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The engine raises. ``error`` is a regular expression that finds its message."""

    error: str
    verdict = "rejected"


@dataclass(frozen=True, slots=True)
class PassedOver:
    """The engine asks before it chooses: *auto* tries the next backend, a forced one raises."""

    error: str
    verdict = "rejected"


@dataclass(frozen=True, slots=True)
class FallsBack:
    """The engine carries on with something else. ``changes`` are the input's new field values."""

    to: str
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    verdict = "falls back"


@dataclass(frozen=True, slots=True)
class SilentlyWrong:
    """The engine runs and the output is wrong."""

    what: str
    verdict = "silently wrong"


@dataclass(frozen=True, slots=True)
class Unproven:
    """Outside the predicate nothing is known: neither the source nor a run settles it."""

    why: str
    verdict = "unknown"


Consequence = Rejected | PassedOver | FallsBack | SilentlyWrong | Unproven


@dataclass(frozen=True, slots=True)
class Source:
    """Where the fact was read: a package of the index, a file in it and a symbol."""

    package: str
    file: str
    symbol: str


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a rule's truth table."""

    x: KernelInput
    holds: bool
    #: The smallest step from this input changes the answer.
    at_limit: bool
    changes: Mapping[str, Any]


Changes = Mapping[str, Any]


def cases(
    base: KernelInput,
    *,
    holds: Iterable[Changes] = ({},),
    breaks: Iterable[Changes],
    at_limit: Iterable[Changes] = (),
    past_limit: Iterable[Changes] = (),
) -> tuple[Case, ...]:
    """A truth table: ``base`` with some fields replaced, on each side of the predicate.

    ``at_limit`` still holds and ``past_limit`` just breaks: the cases exactly at the boundary.
    """
    rows = [(c, True, False) for c in holds] + [(c, False, False) for c in breaks]
    rows += [(c, True, True) for c in at_limit] + [(c, False, True) for c in past_limit]
    return tuple(
        Case(dataclasses.replace(base, **changes), good, edge, changes)
        for changes, good, edge in rows
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """One bound of one kernel or loader."""

    id: str
    title: str
    where: Where
    otherwise: Consequence
    source: Source
    cases: tuple[Case, ...]
    predicate: Callable[[Any], bool]
    #: The kernel input type that the predicate reads.
    reads: type[KernelInput]
    #: Id of the rule that asks the same question for other releases, else its own.
    family: str

    @property
    def page(self) -> str:
        """The user's page: the predicate's docstring."""
        return inspect.cleandoc(self.predicate.__doc__ or "")

    @property
    def expression(self) -> str:
        """The exact predicate, as written."""
        return inspect.getsource(self.predicate).rpartition('"""')[2].strip()

    def shown(self, x: KernelInput) -> str:
        """The values that the predicate looks at, ``name=value`` in its order."""
        names = [n for n in self.predicate.__code__.co_names if hasattr(x, n)]
        return " ".join(f"{name}={getattr(x, name)}" for name in names)

    def holds(self, x: KernelInput) -> bool:
        """Whether the kernel takes the input."""
        return bool(self.predicate(x))


def rule(
    *,
    id: str,
    title: str,
    where: Where,
    otherwise: Consequence,
    source: Source,
    cases: tuple[Case, ...],
    variant_of: str = "",
) -> Callable[[Callable[[Any], bool]], Rule]:
    """Declare a rule; see the module's docstring.

    ``variant_of`` names the rule that asks the same question for other releases.
    """

    def declare(predicate: Callable[[Any], bool]) -> Rule:
        (argument, *_) = inspect.signature(predicate).parameters
        reads = typing.get_type_hints(predicate)[argument]
        return Rule(
            id=id,
            title=title,
            where=where,
            otherwise=otherwise,
            source=source,
            cases=cases,
            predicate=predicate,
            reads=reads,
            family=variant_of or id,
        )

    return declare

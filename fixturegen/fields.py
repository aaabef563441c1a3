"""Read plain mappings (YAML, JSON) into frozen dataclasses, with one clear line for each mistake.

A dataclass field declared with :func:`key` carries its own documentation and bounds; :func:`read`
checks a mapping against them. Recipes and ``config.json`` files both come in through here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fixturegen.errors import FixturegenError

T = TypeVar("T")


def key(
    doc: str,
    default: Any = dataclasses.MISSING,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: Sequence[Any] | None = None,
) -> Any:
    """A dataclass field with a one-line ``doc`` and its allowed range or ``choices``."""
    bounds = {"doc": doc, "at_least": at_least, "at_most": at_most, "choices": choices}
    return dataclasses.field(default=default, metadata=bounds)


def nearest(given: str, known: typing.Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest of ``known``, or an empty string."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def read(
    cls: type[T],
    data: Mapping[str, Any],
    where: str,
    error: type[FixturegenError],
    *,
    allow_unknown: bool = False,
) -> T:
    """Make a ``cls`` out of ``data``.

    ``where`` names the file (and the path inside it) in messages. With ``allow_unknown``, keys that
    ``cls`` does not have are left out, as a config.json may hold any number of them.

    Raises ``error`` for a key that is unknown, missing, of a wrong type or out of range.
    """
    if not isinstance(data, Mapping):
        raise error(f"{where}: expected a mapping of keys, got {_show(data)}")
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name in fields:
            spot = f"{where}: {name}"
            values[name] = _typed(hints[name], value, spot, error)
            _bounded(fields[name], values[name], spot, error)
        elif not allow_unknown:
            hint = nearest(str(name), fields) or f"; known keys: {', '.join(sorted(fields))}"
            raise error(f"{where}: unknown key {name!r}{hint}")
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise error(f"{where}: {name} is missing ({f.metadata.get('doc', 'required')})")
    return cls(**values)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names.get(hint, "a list" if typing.get_origin(hint) is tuple else "a mapping")


def _typed(hint: Any, value: Any, spot: str, error: type[FixturegenError]) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [o for o in typing.get_args(hint) if o is not type(None)]
        if value is None and len(options) < len(typing.get_args(hint)):
            return None
        fitting = [o for o in options if _fits(o, value)]
        if len(options) > 1 and not fitting:
            kinds = " or ".join(_kind(o) for o in options)
            raise error(f"{spot} is {_show(value)}; allowed: {kinds}")
        return _typed((fitting or options)[0], value, spot, error)
    if not _fits(hint, value):
        raise error(f"{spot} is {_show(value)}; allowed: {_kind(hint)}")
    if dataclasses.is_dataclass(hint):
        if isinstance(value, Mapping):
            return read(typing.cast("type[Any]", hint), value, spot, error)
        return value
    if origin is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_typed(item, v, f"{spot}[{i}]", error) for i, v in enumerate(value))
    if hint is float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise error(f"{spot} is {_show(value)}; allowed: a finite number")
        return number
    return value


def _fits(hint: Any, value: Any) -> bool:
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, list | tuple)
    if dataclasses.is_dataclass(hint):
        return isinstance(value, (Mapping, typing.cast("type[Any]", hint)))
    return True


def _bounded(
    f: dataclasses.Field[Any], value: Any, spot: str, error: type[FixturegenError]
) -> None:
    low, high, choices = (f.metadata.get(k) for k in ("at_least", "at_most", "choices"))
    for v in value if isinstance(value, tuple) else (value,):
        if v is None:
            continue
        if choices is not None and v not in choices:
            raise error(
                f"{spot} is {_show(v)}; allowed: {', '.join(map(str, choices))}"
                + nearest(str(v), map(str, choices))
            )
        if low is not None and v < low:
            raise error(f"{spot} is {_show(v)}; allowed: at least {low}")
        if high is not None and v > high:
            raise error(f"{spot} is {_show(v)}; allowed: at most {high}")

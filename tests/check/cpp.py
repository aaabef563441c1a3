"""Reads the checks of a C++ function and answers them for given values.

Enough C++ for FlashInfer's and vLLM's argument checks: ``if``/``else``, ``constexpr`` and local
integers, and the macros TVM_FFI_ICHECK(_EQ|_LE|...), FLASHINFER_CHECK and (STD_)TORCH_CHECK. All
other statements are skipped; a check or branch over something else than the given values (a
pointer, a dtype) is skipped too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

COMPARE = {"EQ": "==", "NE": "!=", "LE": "<=", "LT": "<", "GE": ">=", "GT": ">"}
CHECK = re.compile(
    r"(?:TVM_FFI_I?CHECK(?:_(?P<op>EQ|NE|LE|LT|GE|GT))?|FLASHINFER_CHECK|(?:STD_)?TORCH_CHECK)\s*\("
)
CONSTANT = re.compile(
    r"(?:(?:static\s+)?constexpr\s+)?(?:std::)?(?:u?int\w*|bool)\s+(?:const\s+)?(\w+)\s*=\s*([^;]+);"
)


def strip_comments(source: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.S)


def closing(source: str, at: int) -> int:
    """Index of the bracket that closes the one at ``at``; string literals are skipped."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    depth, quote = 0, False
    opening, end = source[at], pairs[source[at]]
    for i in range(at, len(source)):
        c = source[i]
        if c == '"' and source[i - 1] != "\\":
            quote = not quote
        elif not quote and c == opening:
            depth += 1
        elif not quote and c == end:
            depth -= 1
            if depth == 0:
                return i
    raise ValueError("unbalanced brackets")


def function(source: str, header: str) -> Nodes:
    """The checks of the function whose header, up to its brace, the pattern ``header`` finds."""
    source = strip_comments(source)
    found = re.search(header, source)
    if found is None:
        raise LookupError(f"no function matches {header!r}")
    start = source.index("{", found.end() - 1)
    return parse(source[start + 1 : closing(source, start)])


def constants(source: str) -> dict[str, int]:
    """Integer constants at any level of a file, where their value is a plain number."""
    found = re.findall(r"constexpr\s+int\w*\s+(\w+)\s*=\s*(\d+)\s*;", strip_comments(source))
    return {name: int(value) for name, value in found}


def python(expression: str) -> str:
    """The expression in Python; operands are non-negative integers."""
    text = re.sub(r"static_cast<[^<>]*>\s*\(([^()]*)\)", r"(\1)", expression)
    text = re.sub(r"\b(?:args|this)->|\bdata\.", "", text)
    text = (
        text.replace("RoutingMethodType::", "RoutingMethodType_")
        .replace("vllm::moe::", "")
        .replace("marlin::", "")
    )
    text = re.sub(r"std::max\(\{([^{}]*)\}\)", r"max(\1)", text)
    text = text.replace("nullptr", "None").replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text).replace("/", "//")
    choice = re.fullmatch(r"\s*(.+?)\s*\?\s*(.+?)\s*:\s*(.+?)\s*", text, flags=re.S)
    if choice:
        text = f"({choice[2]}) if ({choice[1]}) else ({choice[3]})"
    return " ".join(text.split())


@dataclass
class Checks:
    """What one walk through a function met."""

    failed: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


class Expression:
    """A C++ expression, compiled once as Python."""

    def __init__(self, cpp: str) -> None:
        self.text = python(cpp)
        try:
            self._code = compile(self.text, "<C++>", "eval")
        except SyntaxError:
            self._code = None

    def __call__(self, values: dict[str, object]) -> object:
        """Its value, NotImplemented where it is about something that was not given."""
        if self._code is None:
            return NotImplemented
        try:
            return eval(self._code, {"__builtins__": {"max": max}}, values)
        except (NameError, TypeError, AttributeError):
            return NotImplemented


@dataclass
class Check:
    condition: Expression

    def run(self, values: dict[str, object], result: Checks) -> None:
        verdict = self.condition(values)
        if verdict is NotImplemented:
            result.skipped.append(self.condition.text)
        else:
            (result.passed if verdict else result.failed).append(self.condition.text)


@dataclass
class Set:
    name: str
    value: Expression

    def run(self, values: dict[str, object], result: Checks) -> None:
        value = self.value(values)
        if value is not NotImplemented:
            values[self.name] = value


@dataclass
class If:
    #: Condition (None for ``else``), what it guards, and that as text.
    branches: list[tuple[Expression | None, list[Check | Set | If], str]]

    def run(self, values: dict[str, object], result: Checks) -> None:
        for condition, inner, text in self.branches:
            decision = condition(values) if condition else True
            if decision is NotImplemented:
                result.skipped.append(text)
                return
            if decision:
                for node in inner:
                    node.run(values, result)
                return


Nodes = list[Check | Set | If]


def walk(nodes: Nodes, values: Mapping[str, object]) -> Checks:
    """Run the checks of a function that :func:`parse` read."""
    result, own = Checks(), dict(values)
    for node in nodes:
        node.run(own, result)
    return result


def parse(body: str) -> Nodes:
    """The checks, branches and constants of a function body."""
    nodes: Nodes = []
    at = 0
    while at < len(body):
        if body[at] in " \n;":
            at += 1
        elif body[at] == "#":
            at = (body.find("\n", at) + 1) or len(body)
        elif body[at] == "{":
            end = closing(body, at)
            nodes += parse(body[at + 1 : end])
            at = end + 1
        elif re.match(r"if\b", body[at : at + 3]):
            node, at = _branches(body, at)
            nodes.append(node)
        else:
            at = _statement(body, at, nodes)
    return nodes


def _arguments(text: str) -> Iterator[str]:
    depth, start, quote = 0, 0, False
    for i, c in enumerate(text):
        quote ^= c == '"'
        if not quote:
            depth += (c in "([{") - (c in ")]}")
            if c == "," and depth == 0:
                yield text[start:i]
                start = i + 1
    yield text[start:]


def _branches(body: str, at: int) -> tuple[If, int]:
    """One ``if ... else if ... else`` chain."""
    node = If([])
    while True:
        header = re.compile(r"if\s*(?:constexpr\s*)?\(").match(body, at)
        condition = None
        if header:
            end = closing(body, header.end() - 1)
            condition = Expression(body[header.end() : end])
            at = end + 1
        at += len(body[at:]) - len(body[at:].lstrip())
        if body[at] == "{":
            end = closing(body, at)
            inner, at = body[at + 1 : end], end + 1
        else:
            end = body.index(";", at)
            inner, at = body[at : end + 1], end + 1
        node.branches.append((condition, parse(inner), inner.strip()[:60]))
        following = re.compile(r"\s*else\s*").match(body, at)
        if following is None:
            return node, at
        at = following.end()


def _statement(body: str, at: int, nodes: Nodes) -> int:
    check = CHECK.match(body, at)
    if check:
        end = closing(body, check.end() - 1)
        arguments = list(_arguments(body[check.end() : end]))
        expression = arguments[0]
        if check["op"]:
            expression = f"({arguments[0]}) {COMPARE[check['op']]} ({arguments[1]})"
        nodes.append(Check(Expression(expression)))
        return body.index(";", end) + 1
    constant = CONSTANT.match(body, at)
    if constant:
        nodes.append(Set(constant[1], Expression(constant[2])))
        return constant.end()
    for i in range(at, len(body)):
        if body[i] == ";":
            return i + 1
        if body[i] in "({[":
            return _after_brackets(body, i)
    return len(body)


def _after_brackets(body: str, at: int) -> int:
    """Skip a statement from its first bracket on, to its semicolon or closing brace."""
    while at < len(body):
        if body[at] in "({[":
            brace = body[at] == "{"
            at = closing(body, at) + 1
            if brace:
                return at
        elif body[at] == ";":
            return at + 1
        else:
            at += 1
    return at

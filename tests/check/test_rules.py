"""Every rule's truth table, and proof that the tables notice a changed predicate."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator

import pytest

from fixturegen.check.catalogue import catalogue
from fixturegen.check.rule import Rule

RULES = list(catalogue().values())
every_rule = pytest.mark.parametrize("r", RULES, ids=[r.id for r in RULES])


def test_there_are_rules() -> None:
    assert len(RULES) > 40


@every_rule
def test_truth_table(r: Rule) -> None:
    for case in r.cases:
        assert isinstance(case.x, r.reads)
        assert r.holds(case.x) is case.holds, f"{r.id}: {case.x}"


@every_rule
def test_table_has_both_sides_and_the_boundary(r: Rule) -> None:
    assert any(c.holds for c in r.cases) and any(not c.holds for c in r.cases)
    assert any(c.at_limit and c.holds for c in r.cases), "no case exactly at the limit"
    assert any(c.at_limit and not c.holds for c in r.cases), "no case just past the limit"


@every_rule
def test_page(r: Rule) -> None:
    assert len(r.page) > 40 and len(r.title) <= 90 and "\n" not in r.title
    assert r.expression.startswith("return ") or "return " in r.expression


FLIPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def mutants(r: Rule) -> Iterator[tuple[str, list[Rule]]]:
    """The rule with one comparison flipped, one ``and``/``or`` swapped or one number off by one.

    Where a predicate takes multiples of 8 only, a limit of 257 is the same as 256; a number is
    then shifted by 8 as well, and either mutant may be the one that a case notices.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(r.predicate)))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.decorator_list = []
    function.body = function.body[1:]  # the docstring
    steps = (1, 8) if " % " in r.expression else (1,)

    def compiled() -> Rule:
        code = compile(ast.fix_missing_locations(ast.parse(ast.unparse(tree))), r.id, "exec")
        space = dict(r.predicate.__globals__)
        exec(code, space)
        return dataclasses.replace(r, predicate=space[function.name])

    for node in ast.walk(ast.Module(function.body, [])):
        if isinstance(node, ast.Compare):
            for i, operator in enumerate(node.ops):
                node.ops[i] = FLIPS[type(operator)]()
                yield ast.unparse(node), [compiled()]
                node.ops[i] = operator
        elif isinstance(node, ast.BoolOp):
            operator = node.op
            node.op = FLIPS[type(operator)]()
            yield ast.unparse(node), [compiled()]
            node.op = operator
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            value = node.value
            for sign in (-1, 1):
                alternatives = []
                for step in steps:
                    node.value = value + sign * step
                    alternatives.append(compiled())
                yield f"{value} -> {value + sign}", alternatives
            node.value = value


def survives(r: Rule) -> bool:
    """Whether the rule still answers its whole truth table."""
    try:
        return all(r.holds(case.x) is case.holds for case in r.cases)
    except ZeroDivisionError:
        return False


@every_rule
def test_mutations_fail(r: Rule) -> None:
    found = list(mutants(r))
    assert found, "the predicate has nothing to mutate: put its limits into its body"
    survivors = [what for what, shifted in found if all(survives(m) for m in shifted)]
    assert not survivors, f"{r.id}: no case notices {survivors}"

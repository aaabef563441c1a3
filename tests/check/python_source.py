"""Single functions of an engine's Python source, compiled without importing the engine."""

from __future__ import annotations

import ast
from typing import Any


def function(source: str, name: str, within: str = "") -> ast.FunctionDef:
    """A function of a module, or of the class or function ``within``, without its decorators."""
    tree: ast.AST = ast.parse(source)
    for wanted in filter(None, (within, name)):
        kinds = (ast.FunctionDef, ast.ClassDef)
        tree = next(n for n in ast.walk(tree) if isinstance(n, kinds) and n.name == wanted)
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    return tree


def compiled(node: ast.FunctionDef, **names: Any) -> Any:
    """The function, without its annotations and imports, with these names at hand."""
    node.returns = None
    for argument in (*node.args.args, *node.args.kwonlyargs):
        argument.annotation = None
    node.body = [n for n in node.body if not isinstance(n, ast.Import | ast.ImportFrom)]
    space = dict(names)
    exec(compile(ast.fix_missing_locations(ast.Module([node], [])), node.name, "exec"), space)
    return space[node.name]


def condition(node: ast.expr) -> Any:
    """A code object that evaluates an expression of the source."""
    return compile(ast.Expression(node), "condition", "eval")

"""Will this checkpoint run on that kernel? The catalogue of kernel bounds and its checker.

>>> from fixturegen.check import Target, check
>>> report = check(config, Target.parse("vllm==0.33.0,gpu=sm100"))
>>> report.verdict, report.choices, report.rejections
"""

from __future__ import annotations

from fixturegen.check.breaking import break_rule, check_recipe
from fixturegen.check.report import Finding, Report, check
from fixturegen.check.rule import Rule, Source, Where, cases, rule
from fixturegen.check.target import Target, matrix

__all__ = [
    "Finding",
    "Report",
    "Rule",
    "Source",
    "Target",
    "Where",
    "break_rule",
    "cases",
    "check",
    "check_recipe",
    "matrix",
    "rule",
]

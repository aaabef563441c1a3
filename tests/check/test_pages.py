"""docs/rules.md, ``fixturegen rules`` and what the sources say about each rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fixturegen.check import pages
from fixturegen.check.catalogue import catalogue
from fixturegen.cli import cli

DOCS = Path(__file__).parents[2] / "docs"


def test_rules_page_is_in_step() -> None:
    assert (DOCS / "rules.md").read_text(encoding="utf-8") == pages.markdown(), (
        "run `fixturegen rules --markdown > docs/rules.md`"
    )


def test_rules_lists_all() -> None:
    listed = CliRunner().invoke(cli, ["rules"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == list(catalogue())


def test_one_rule() -> None:
    shown = CliRunner().invoke(cli, ["rules", "fa4-head-dims"]).output
    for part in (
        "return (standard or deepseek) and aligned",
        "vllm 0.20.2 to 0.20.2; GPU sm100, sm103, sm110",
        "is not supported on SM100/SM110",
        "vllm_flash_attn/cute/interface.py, _validate_head_dims",
        "head_size=192 head_size_v=192  no",
    ):
        assert part in shown


def test_a_rule_that_is_not_there() -> None:
    result = CliRunner().invoke(cli, ["rules", "fa4-head-dim"])
    assert result.exit_code == 2 and "did you mean 'fa4-head-dims'" in result.output


@pytest.mark.parametrize("rule", catalogue().values(), ids=lambda r: r.id)
def test_variants_share_what_they_read(rule) -> None:  # type: ignore[no-untyped-def]
    first = catalogue()[rule.family]
    assert first.reads is rule.reads and first.family == first.id


@pytest.mark.parametrize("name", ["deepseek-v3-mtp", "deepseek-v3-mtp-fp8", "deepseek-v3-eagle"])
def test_grids_in_the_docs_are_in_step(name: str) -> None:
    shown = CliRunner().invoke(cli, ["check", name, "--matrix"]).output
    grid = shown.partition("\n\n")[2].partition("\n\n")[0]
    assert grid.count("\n") == 24
    assert f"### {name}\n\n```text\n{grid}\n```\n" in (DOCS / "check.md").read_text(
        encoding="utf-8"
    ), f"put the grid of `fixturegen check {name} --matrix` into docs/check.md"

"""``fixturegen check``."""

from __future__ import annotations

import sys

import click


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--draft", metavar="MODEL", help="Eagle draft to check beside the target.")
@click.option(
    "--target", "lines", multiple=True, metavar="T", help="Target line, or `local`; repeatable."
)
@click.option("--matrix", is_flag=True, help="Check the standard grid of targets.")
@click.option("--explain", is_flag=True, help="Show every rule, kernel input and passed backend.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github", "junit"]),
    default="text",
    show_default=True,
    help="How to print the reports.",
)
@click.option("--strict", is_flag=True, help="Exit with 3 when something is unknown.")
def command(
    model: str,
    draft: str | None,
    lines: tuple[str, ...],
    matrix: bool,
    explain: bool,
    form: str,
    strict: bool,
) -> None:
    """Tell which kernels MODEL runs on, and why not.

    MODEL is a checkpoint folder, a config.json, a recipe or a hub id. Without --target or --matrix
    the targets that a recipe claims are checked, or the default target.

    Exit codes: 0 all accepted (fallbacks included), 1 something is rejected or silently wrong,
    2 bad use, 3 something is unknown and --strict is given.
    """
    from fixturegen.check import formats, local
    from fixturegen.check import matrix as grid
    from fixturegen.check.catalogue import catalogue
    from fixturegen.check.model import load
    from fixturegen.check.repair import repairs
    from fixturegen.check.report import check
    from fixturegen.check.target import Target

    loaded = load(model, draft)
    targets = [local.target() if line == "local" else Target.parse(line) for line in lines]
    if matrix:
        targets += grid()
    if not targets:
        targets = [Target.parse(line) for line in loaded.claims] or [Target()]
    reports = [
        check(
            loaded.config,
            target,
            loaded.draft,
            names=loaded.names,
            draft_names=loaded.draft_names,
        )
        for target in targets
    ]
    fixes = {}
    explained: set[frozenset[str]] = set()
    for report in reports:
        broken = frozenset(catalogue()[f.rule].family for f in report.rejections)
        if broken and (not matrix or broken not in explained):
            explained.add(broken)
            fixes[report.target] = repairs(loaded.config, report.target, loaded.draft)
    if form == "text" and matrix and not explain:
        out = formats.matrix_text(loaded.name, reports, fixes, style=_style)
    elif form == "text":
        out = formats.text(loaded.name, reports, fixes, explain=explain, style=_style)
    else:
        out = {"json": formats.as_json, "github": formats.github, "junit": formats.junit}[form](
            loaded.name, reports, fixes
        )
    click.echo(out, nl=False)
    if any(report.rejections for report in reports):
        sys.exit(1)
    if strict and any(report.verdict == "unknown" for report in reports):
        sys.exit(3)


def _style(text: str, **how: object) -> str:
    """Colour on a terminal, plain text elsewhere."""
    return click.style(text, **how) if sys.stdout.isatty() else text  # type: ignore[arg-type]

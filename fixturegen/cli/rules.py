"""``fixturegen rules``."""

from __future__ import annotations

import click


@click.command()
@click.argument("rule_id", metavar="[ID]", required=False)
@click.option("--markdown", is_flag=True, help="Print the page of all rules, docs/rules.md.")
def command(rule_id: str | None, markdown: bool) -> None:
    """The catalogue of kernel bounds, or one rule with its predicate, source and truth table."""
    from fixturegen.check import pages
    from fixturegen.check.catalogue import catalogue
    from fixturegen.cli.tables import table
    from fixturegen.fields import nearest

    rules = catalogue()
    if markdown:
        click.echo(pages.markdown(), nl=False)
    elif rule_id is None:
        click.echo(table([r.id, r.reads.kernel, r.title] for r in rules.values()))
    elif rule_id in rules:
        click.echo(pages.text(rules[rule_id]), nl=False)
    else:
        raise click.UsageError(
            f"no rule {rule_id!r}; `fixturegen rules` lists them" + nearest(rule_id, rules)
        )

"""``fixturegen doctor``."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from fixturegen.cli.tables import table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Plain data instead of text.")
def command(as_json: bool) -> None:
    """Tell what can and cannot run on this machine, and what to install."""
    from fixturegen.doctor import diagnose

    found = diagnose()
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1))
        return
    click.secho("Versions", bold=True)
    click.echo(_indented([(name, version or "-") for name, version in found.versions.items()]))
    click.secho("GPUs", bold=True)
    rows = [(g.name, g.arch, f"{g.memory} MiB", f"driver {g.driver}") for g in found.gpus]
    click.echo(_indented(rows) if rows else f"  none: {found.gpu_problem}")
    click.secho("Places", bold=True)
    click.echo(_indented(list(found.places.items())))
    click.secho("What runs here", bold=True)
    click.echo(
        _indented([(a.what, "yes" if a.works else f"no: {a.remedy}") for a in found.abilities])
    )


def _indented(rows: Sequence[tuple[str, ...]]) -> str:
    return table([(f"  {row[0]}", *row[1:]) for row in rows])

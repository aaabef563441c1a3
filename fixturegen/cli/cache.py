"""``fixturegen cache``."""

from __future__ import annotations

import datetime
import sys
from typing import TYPE_CHECKING

import click

from fixturegen.cli.tables import table
from fixturegen.units import human, parse_size

if TYPE_CHECKING:
    from fixturegen.cache import Cache


@click.group()
@click.option(
    "--dir", "root", type=click.Path(), help="The cache; FIXTUREGEN_CACHE or the platform's."
)
@click.pass_context
def command(context: click.Context, root: str | None) -> None:
    """List, verify or prune the checkpoints that the pytest plugin keeps."""
    from fixturegen.cache import Cache

    context.obj = Cache(root)


@command.command("list")
@click.pass_obj
def list_(cache: Cache) -> None:
    """Entries with size and last use, the longest unused first."""
    entries = cache.entries()
    rows = [
        (
            entry.name,
            human(entry.nbytes, "B"),
            datetime.datetime.fromtimestamp(entry.last_used).strftime("%Y-%m-%d %H:%M"),
        )
        for entry in entries
    ]
    if rows:
        click.echo(table([("ENTRY", "SIZE", "LAST USED"), *rows], right=(1,)))
    total = human(sum(entry.nbytes for entry in entries), "B")
    click.echo(f"{cache.root}: {len(entries)} entries, {total}")


@command.command()
@click.pass_obj
def verify(cache: Cache) -> None:
    """Hold every entry against its manifest; exit code 1 when one is damaged."""
    from fixturegen.cache import damage

    entries = cache.entries()
    wrong = {entry.name: damage(entry.path) for entry in entries}
    for name, problem in wrong.items():
        click.echo(f"{name}: {problem or 'sound'}", err=bool(problem))
    if any(wrong.values()):
        sys.exit(1)
    click.echo(f"{cache.root}: {len(entries)} entries, all sound")


@command.command()
@click.option("--max-size", required=True, metavar="SIZE", help="What may stay, such as 2GB or 0.")
@click.pass_obj
def prune(cache: Cache, max_size: str) -> None:
    """Remove the longest unused entries until at most SIZE is left."""
    limit = 0 if max_size.strip() == "0" else parse_size(max_size)
    removed = cache.prune(limit)
    for entry in removed:
        click.echo(f"removed {entry.name} ({human(entry.nbytes, 'B')})")
    left = sum(entry.nbytes for entry in cache.entries())
    click.echo(f"{cache.root}: {len(removed)} entries removed, {human(left, 'B')} left")

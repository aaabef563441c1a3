"""``fixturegen pull``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("repo", metavar="REPO[@REV]")
@click.option(
    "-o", "--out", type=click.Path(), help="Folder to make; fixtures/NAME of the repository."
)
@click.option("--force", is_flag=True, help="Replace what is there.")
def command(repo: str, out: str | None, force: bool) -> None:
    """Download a checkpoint from the Hugging Face hub and verify it against its manifest."""
    from fixturegen.cli.push import progress_on_a_terminal_only
    from fixturegen.hub import pull
    from fixturegen.manifest import Manifest

    progress_on_a_terminal_only()
    name, _, revision = repo.partition("@")
    if name.count("/") != 1:
        raise click.BadParameter(f"{name!r}; expected ORG/NAME", param_hint="REPO")
    folder = pull(
        name,
        Path(out) if out else Path("fixtures") / name.partition("/")[2],
        revision=revision or "main",
        force=force,
    )
    click.echo(f"{folder}: verified, content hash {Manifest.load(folder).content_hash[:16]}")

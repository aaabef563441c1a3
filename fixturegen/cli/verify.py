"""``fixturegen verify``."""

from __future__ import annotations

import sys

import click


@click.command()
@click.argument("path", type=click.Path())
@click.option("--regenerate", is_flag=True, help="Compute all bytes anew and compare.")
@click.option(
    "--load",
    "engines",
    multiple=True,
    type=click.Choice(["transformers", "vllm"]),
    help="Also load it with an engine and generate; may be repeated.",
)
def command(path: str, regenerate: bool, engines: tuple[str, ...]) -> None:
    """Tell whether a checkpoint is what it says."""
    from fixturegen.inspection import checkpoint_folders
    from fixturegen.manifest import MANIFEST
    from fixturegen.verification import verify

    problems = verify(path, regenerate=regenerate)
    for problem in problems:
        click.echo(f"{path}: {problem}", err=True)
    if problems:
        click.echo(f"{path}: problems: {len(problems)}", err=True)
        sys.exit(1)
    bare = [f.name for f in checkpoint_folders(path) if not (f / MANIFEST).is_file()]
    if bare:
        click.echo(f"{path}: tensors as config.json has them; no {MANIFEST} to compare bytes with")
    else:
        click.echo(f"{path}: sound{', bytes as the recipe gives them' if regenerate else ''}")
    for engine in engines:
        from fixturegen.load import load

        click.echo(f"{path}: {load(path, engine)}")

"""``fixturegen measure``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command()
@click.argument("path", type=click.Path())
@click.option("--prompts", default=24, show_default=True, type=click.IntRange(min=2))
@click.option("--max-tokens", default=16, show_default=True, type=click.IntRange(min=2))
@click.option(
    "--k", "steps", default=3, show_default=True, type=click.IntRange(1, 6), help="Drafted tokens."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random prompts.")
@click.option("--only", default="", metavar="TEXT", help="Only faults whose class or name has it.")
@click.option("--random/--no-random", "beside", default=True, help="The random twin beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--picture", type=click.Path(), help="Write a PNG: histogram of the margins.")
def command(
    path: str,
    prompts: int,
    max_tokens: int,
    steps: int,
    seed: int,
    only: str,
    beside: bool,
    as_json: bool,
    picture: str | None,
) -> None:
    """Margins and fault detection of a checkpoint, with transformers.

    Exit code 1: a planted checkpoint raised a false alarm, showed fewer than 98 % of the faults, or
    missed one for no known reason.
    """
    from fixturegen.errors import EngineError
    from fixturegen.measure.run import measure

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{text}", nl=False, err=True)

    result = measure(
        path,
        prompts=prompts,
        max_tokens=max_tokens,
        steps=steps,
        seed=seed,
        only=only,
        beside=beside,
        progress=progress,
    )
    progress("")
    from fixturegen.measure import report

    if picture:
        try:
            data = report.picture(result)
        except ImportError as error:
            raise EngineError(
                f"{error.name} is not installed; pip install 'fixturegen[docs]'"
            ) from None
        Path(picture).write_bytes(data)
    click.echo(json.dumps(result.to_dict(), indent=1) if as_json else report.text(result))
    if not result.good:
        sys.exit(1)

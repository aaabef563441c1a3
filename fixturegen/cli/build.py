"""``fixturegen build``."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from fixturegen.cli.tables import table
from fixturegen.units import human, parse_size

if TYPE_CHECKING:
    from fixturegen.recipe import Recipe


def _complete(
    ctx: click.Context, param: click.Parameter, start: str
) -> list[str] | list[CompletionItem]:
    """What the shell offers: the recipes that ship, else files."""
    from fixturegen.recipe import list_recipes

    names = [name for name in list_recipes() if name.startswith(start)]
    return names or [CompletionItem(start, type="file")]


@click.command()
@click.argument("recipes", nargs=-1, metavar="RECIPE...", shell_complete=_complete)
@click.option("-o", "--out", default="fixtures", show_default=True, help="Folder to build into.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--seed", type=int, help="Seed of all values.")
@click.option("--jobs", type=click.IntRange(min=1), help="Threads; one for each core by default.")
@click.option("--max-shard-size", default="2GB", show_default=True, help="Largest shard.")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option("--no-check", is_flag=True, help="Build even what breaks a bound it claims to keep.")
@click.option(
    "--break", "broken", multiple=True, metavar="RULE", help="Smallest fixture that breaks RULE."
)
def command(
    recipes: tuple[str, ...],
    out: str,
    overrides: tuple[str, ...],
    seed: int | None,
    jobs: int | None,
    max_shard_size: str,
    dry_run: bool,
    force: bool,
    no_check: bool,
    broken: tuple[str, ...],
) -> None:
    """Build checkpoints from recipes (names of shipped ones, or YAML files)."""
    from fixturegen.recipe import load_recipe

    if not recipes and not broken:
        raise click.UsageError("name a recipe; `fixturegen list` shows those that ship")
    if broken and not recipes and (overrides or seed is not None):
        raise click.UsageError("--break finds its own values: leave out --set and --seed")
    if seed is not None:
        overrides = (*overrides, f"seed={seed}")
    shard_size = parse_size(max_shard_size)
    loaded = [load_recipe(name, overrides) for name in recipes]
    if broken:
        from fixturegen.check import break_rule

        loaded += [break_rule(rule) for rule in broken]
    for recipe in loaded:
        folder = Path(out) / recipe.name
        if dry_run:
            _dry_run(recipe, folder)
        else:
            check = not no_check and not broken
            _build(recipe, folder, jobs, shard_size, force, check)


def _build(
    recipe: Recipe, folder: Path, jobs: int | None, shard_size: int, force: bool, check: bool
) -> None:
    from tqdm import tqdm

    from fixturegen.builder import build, recipe_size

    start = time.perf_counter()
    with tqdm(
        total=recipe_size(recipe),
        desc=recipe.name,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=not sys.stderr.isatty(),
    ) as bar:
        result = build(
            recipe,
            folder,
            jobs=jobs,
            max_shard_size=shard_size,
            force=force,
            check=check,
            progress=bar.update,
        )
    seconds = time.perf_counter() - start
    done = (
        f"built {human(result.nbytes, 'B')} in {seconds:.1f} s"
        if result.was_built
        else "already built, nothing to do"
    )
    click.echo(f"{recipe.name}: {done}: {folder} ({result.content_hash[:16]})")


def _dry_run(recipe: Recipe, folder: Path) -> None:
    from fixturegen.builder import recipe_size
    from fixturegen.inspection import groups

    click.echo(f"{recipe.name}: {recipe.description}")
    for plan in recipe.checkpoints:
        rows = [["GROUP", "TENSORS", "PARAMETERS", "BYTES"]]
        for group in groups(plan.tensors, plan.config):
            rows.append(
                [group.name, str(group.tensors), human(group.parameters), human(group.nbytes, "B")]
            )
        click.echo(f"\n{folder / plan.subfolder}  ({plan.config.architectures[0]})")
        click.echo(table(rows, right=(1, 2, 3)))
    near = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(near).free
    need = recipe_size(recipe)
    left = human(free - need, "B") if need <= free else "NOT ENOUGH"
    click.echo(f"\nto write: {human(need, 'B')}; disk left afterwards: {left}; nothing was written")

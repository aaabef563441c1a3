"""``fixturegen list``."""

from __future__ import annotations

import json
from typing import Any

import click

from fixturegen.cli.tables import table
from fixturegen.units import human


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Recipes with size, parameters, dtype and purpose."""
    from fixturegen.builder import recipe_size
    from fixturegen.recipe import list_recipes, load_recipe

    rows: list[dict[str, Any]] = []
    for name in list_recipes():
        recipe = load_recipe(name)
        parameters = sum(t.numel for plan in recipe.checkpoints for t in plan.tensors)
        quantization = recipe.model.quantization
        rows.append(
            {
                "recipe": name,
                "size": recipe_size(recipe),
                "parameters": parameters,
                "dtype": quantization.method if quantization else recipe.model.dtype,
                "weights": recipe.weights,
                "draft": recipe.draft,
                "description": recipe.description,
                "purpose": recipe.purpose,
            }
        )
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    head = ["RECIPE", "SIZE", "PARAMETERS", "DTYPE", "WEIGHTS", "DRAFT", "PURPOSE"]
    body: list[list[str]] = [
        [
            row["recipe"],
            human(row["size"], "B"),
            human(row["parameters"]),
            row["dtype"],
            row["weights"],
            row["draft"],
            row["purpose"],
        ]
        for row in rows
    ]
    click.echo(table([head, *body], right=(1, 2)))

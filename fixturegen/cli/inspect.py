"""``fixturegen inspect``."""

from __future__ import annotations

import json

import click

from fixturegen.cli.tables import table
from fixturegen.units import human

DIMS = (
    "hidden_size",
    "num_hidden_layers",
    "first_k_dense_replace",
    "num_nextn_predict_layers",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "vocab_size",
)


@click.command()
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every tensor.")
def command(path: str, as_json: bool) -> None:
    """Dims, tensors, dtypes, shards, recipe and seed of a checkpoint."""
    from fixturegen.inspection import inspect

    found = inspect(path)
    if as_json:
        click.echo(json.dumps([i.to_dict() for i in found], indent=2))
        return
    for item in found:
        manifest = item.manifest
        click.echo(f"{item.path}  ({item.config.architectures[0]})")
        if manifest:
            recipe = manifest.recipe
            click.echo(
                f"recipe {recipe['name']}, seed {recipe['seed']}, {recipe['weights']} weights, "
                f"algorithm {manifest.algorithm}, fixturegen {manifest.fixturegen}\n"
                f"content hash {manifest.content_hash}"
            )
        else:
            click.echo("no manifest: not built by fixturegen")
        dims = [[name, str(getattr(item.config, name))] for name in DIMS]
        click.echo("\n" + table(dims, right=(1,)))
        rows = [["GROUP", "TENSORS", "PARAMETERS", "BYTES"]]
        rows += [
            [g.name, str(g.tensors), human(g.parameters), human(g.nbytes, "B")] for g in item.groups
        ]
        click.echo("\n" + table(rows, right=(1, 2, 3)))
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in item.dtypes.items())
        click.echo(f"\n{len(item.shards)} shards, {human(item.nbytes, 'B')}: {dtypes}\n")

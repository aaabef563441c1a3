"""The command line: one module for each verb, imported only when that verb runs.

A new verb is one line in :data:`COMMANDS` and a module of that name with a ``command``.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from fixturegen import __version__
from fixturegen.errors import FixturegenError

#: verb -> one line of help, so that ``--help`` need not import the verbs
COMMANDS = {
    "list": "Recipes with size, parameters, dtype and purpose.",
    "build": "Build checkpoints from recipes.",
    "inspect": "Dims, tensors, dtypes, shards, recipe and seed of a checkpoint.",
    "verify": "Tell whether a checkpoint is what it says.",
    "check": "Tell which kernels a model runs on, and why not.",
    "rules": "The catalogue of kernel bounds.",
    "oracle": "The known output and acceptance of a planted checkpoint.",
    "measure": "Margins and fault detection of a checkpoint.",
    "suite": "Run vLLM's spec-decode correctness suite against fixtures.",
    "cache": "List, verify or prune the fixture cache.",
    "push": "Upload checkpoints to the Hugging Face hub.",
    "pull": "Download and verify a checkpoint from the hub.",
    "doctor": "What can and cannot run on this machine.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"fixturegen.cli.{'list_' if name == 'list' else name}")
        return module.command  # type: ignore[no-any-return]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from fixturegen.values import ALGORITHM_VERSION

        click.echo(f"fixturegen {__version__} (value algorithm {ALGORITHM_VERSION})")
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Model test fixtures for inference engines.

    Exit codes: 0 good, 1 a check failed, 2 bad use or a mistake in the input,
    3 something unknown with --strict.
    """


def main() -> None:
    """Run the command line; expected errors become one line and exit code 2."""
    try:
        sys.exit(cli.main(standalone_mode=False))  # the code of ctx.exit(), or None
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except FixturegenError as error:
        line = " ".join(str(error).split())  # one line, whatever it quotes
        click.echo(f"error: {line}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:  # a full disk, a folder of somebody else's
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {place}{error.strerror or error}", err=True)
        sys.exit(2)

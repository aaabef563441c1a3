"""``fixturegen suite``."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fixturegen.cli.tables import table
from fixturegen.errors import FixturegenError

if TYPE_CHECKING:
    from fixturegen.suite.report import Report

_ON_OFF = {"on": (True,), "off": (False,), "both": (True, False)}
_MODES = {"eager": (False,), "graphs": (True,), "both": (False, True)}


@click.group(invoke_without_command=True)
@click.option(
    "--suite",
    "which",
    type=click.Choice(["vllm", "exact", "all"]),
    default="all",
    show_default=True,
    help="vLLM's own tests, ours, or both.",
)
@click.option("--fixtures", default="fixtures", show_default=True, help="Folder of the fixtures.")
@click.option(
    "--recipes",
    metavar="A,B",
    help="Fixtures to run on, built if absent. [default: the spec-decode recipes that ship]",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    default=("FLASH_ATTN", "auto"),
    show_default=True,
    help="Attention backend; may be repeated.",
)
@click.option(
    "--mla",
    type=click.Choice(list(_ON_OFF)),
    default="both",
    show_default=True,
    help="Latent attention; off sets VLLM_MLA_DISABLE.",
)
@click.option("--k", "ks", default="1,3", show_default=True, help="Numbers of draft tokens.")
@click.option("--eager", "mode", flag_value="eager", help="Without CUDA graphs only.")
@click.option("--graphs", "mode", flag_value="graphs", help="With CUDA graphs only.")
@click.option("--both", "mode", flag_value="both", default=True, help="Both. [default]")
@click.option("--quick", is_flag=True, help="A quarter of the prompts, none near max_model_len.")
@click.option("--out", default="suite-report", show_default=True, help="Folder of the report.")
@click.option("--workers", type=click.IntRange(min=1), default=1, help="Engines side by side.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    help="Seconds for one engine of ours; a test of vLLM's may take three times as long.",
)
@click.option("--vllm-src", type=click.Path(path_type=Path), help="vLLM's source tree.")
@click.option("--dry-run", is_flag=True, help="List the cases and commands; run nothing.")
@click.option("--resume", is_flag=True, help="Keep verdicts that --out already holds.")
@click.pass_context
def command(
    ctx: click.Context,
    which: str,
    fixtures: str,
    recipes: str | None,
    backends: tuple[str, ...],
    mla: str,
    ks: str,
    mode: str,
    quick: bool,
    out: str,
    workers: int,
    timeout: float,
    vllm_src: Path | None,
    dry_run: bool,
    resume: bool,
) -> None:
    """Run vLLM's spec-decode tests, and stricter ones, against fixtures.

    Exit codes: 0 all that ran passed, 1 something failed or nothing ran, 2 bad use,
    130 interrupted.
    """
    if ctx.invoked_subcommand is not None:
        return
    from fixturegen.suite import run

    options = run.Options(
        suites=("exact", "vllm") if which == "all" else (which,),
        recipes=tuple(recipes.split(",")) if recipes else _default_recipes(),
        fixtures=Path(fixtures),
        out=Path(out),
        backends=tuple(dict.fromkeys(backends)),
        mla=_ON_OFF[mla],
        ks=_numbers(ks),
        graphs=_MODES[mode],
        workers=workers,
        timeout_s=timeout,
        resume=resume,
        quick=quick,
        vllm_src=vllm_src,
        command=shlex.join(["fixturegen", *sys.argv[1:]]),
    )
    if dry_run:
        run.dry_run(options, click.echo)
        return
    signal.signal(signal.SIGTERM, _interrupt)
    report = run.run(options, click.echo)
    _print(report)
    if report.interrupted:
        ctx.exit(130)
    ctx.exit(0 if report.good else 1)


@command.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.pass_context
def compare(ctx: click.Context, old: Path, new: Path) -> None:
    """What changed from report OLD to report NEW (folders or report.json files).

    Exits with 1 when something that passed no longer does.
    """
    from fixturegen.suite.compare import compare as changes
    from fixturegen.suite.compare import regressions
    from fixturegen.suite.report import load

    before, after = load(old), load(new)
    for line in changes(before, after) or ["no change"]:
        click.echo(line)
    ctx.exit(1 if regressions(before, after) else 0)


def _default_recipes() -> tuple[str, ...]:
    """The shipped recipes that stand in for a model of vLLM's tests."""
    from fixturegen.recipe import list_recipes, load_recipe

    return tuple(name for name in list_recipes() if load_recipe(name).stands_for)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise FixturegenError(f"--k {text!r}: expected numbers of 1 or more, such as 1,3")
    return numbers


def _print(report: Report) -> None:
    from fixturegen.suite.outcome import NOT_RUN
    from fixturegen.suite.report import result

    ran = [o for o in report.outcomes if o.status != NOT_RUN]
    rows = [["CASE", "STATUS", "S", "RESULT"]]
    rows += [[o.id, o.status, f"{o.seconds:.0f}", result(o)[:80]] for o in ran]
    if ran:
        click.echo("\n" + table(rows, right=(2,)))
    click.echo(f"\n{report.headline} in {report.seconds:.0f} s")


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt

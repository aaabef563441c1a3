"""``fixturegen oracle``."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import click

from fixturegen.cli.tables import table
from fixturegen.errors import FixturegenError


@click.command()
@click.argument("path", type=click.Path())
@click.option(
    "--prompt-ids", multiple=True, metavar="IDS", help="Token ids, as 0,17,4; repeatable."
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a prompt on each line: token ids, as 0 17 4 or [0, 17, 4], JSON with "
    "prompt_ids, or text.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=32, show_default=True)
@click.option(
    "-k",
    "--k",
    "ks",
    type=click.IntRange(min=1),
    multiple=True,
    help="Speculative tokens; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    path: str,
    prompt_ids: tuple[str, ...],
    prompts: Path | None,
    max_tokens: int,
    ks: tuple[int, ...],
    as_json: bool,
) -> None:
    """The known output and acceptance of a planted checkpoint, without running a model.

    Counters are those of vLLM for greedy decoding with end-of-sequence ignored. Exits with 1 when
    the output of a prompt is not guaranteed, and with 2 when that of none is, and says why.
    """
    from fixturegen.planted import Oracle
    from fixturegen.planted.oracle import total

    oracle = Oracle.load(path)
    try:
        texts = prompts.read_text(encoding="utf-8").splitlines() if prompts else []
    except UnicodeDecodeError:
        raise FixturegenError(f"{prompts} is not UTF-8 text; give one prompt a line") from None
    given = [_ids(text) for text in prompt_ids] + _read(path, texts)
    if not given:
        raise click.UsageError("give --prompt-ids or --prompts")
    reasons = [oracle.guaranteed(p, max_tokens, max(ks, default=0)) for p in given]
    good = [p for p, reason in zip(given, reasons, strict=True) if not reason]
    outputs = oracle.continuation(good, max_tokens)
    each = {k: oracle.speculate(good, max_tokens, k) for k in ks}
    counters = {k: total(each[k], k) for k in ks}
    refused = [(i, reason) for i, reason in enumerate(reasons) if reason]
    if as_json:
        data = {
            "guaranteed_margin": oracle.margin,
            "prompts": [
                {
                    "prompt_ids": prompt,
                    "output_ids": output,
                    "speculation": {str(k): asdict(each[k][i]) for k in ks},
                }
                for i, (prompt, output) in enumerate(zip(good, outputs, strict=True))
            ],
            "speculation": {str(k): asdict(c) for k, c in counters.items()},
            "not_guaranteed": [{"prompt": i, "reason": reason} for i, reason in refused],
        }
        click.echo(json.dumps(data))
    else:
        for output in outputs:
            click.echo(" ".join(map(str, output)))
        if counters:
            rows = [["K", "DRAFTS", "DRAFT TOKENS", "ACCEPTED", "PER POSITION", "LENGTH"]]
            rows += [
                [
                    str(k),
                    str(c.drafts),
                    str(c.draft_tokens),
                    str(c.accepted_tokens),
                    "/".join(map(str, c.accepted_per_position)),
                    f"{c.acceptance_length:.2f}",
                ]
                for k, c in counters.items()
            ]
            click.echo("\n" + table(rows, right=(0, 1, 2, 3, 5)))
        if good:
            click.echo(f"\nguaranteed margin of every token: {oracle.margin:g} logits", err=True)
        for i, reason in refused:
            click.echo(f"prompt {i} is not guaranteed: {reason}", err=True)
    if refused:
        click.get_current_context().exit(1 if good else 2)


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in re.split(r"[\s,\[\]]+", text) if part]
    except ValueError:
        raise FixturegenError(f"{text!r} is not a list of token ids, as 0,17,4") from None


def _read(path: str, lines: list[str]) -> list[list[int]]:
    """Prompts of a file; text goes through the checkpoint's own tokenizer."""
    return [_prompt(path, line) for line in lines if line.strip()]


def _prompt(path: str, line: str) -> list[int]:
    if line.lstrip().startswith("{"):
        try:
            return [int(i) for i in json.loads(line)["prompt_ids"]]
        except (ValueError, KeyError, TypeError):
            raise FixturegenError(f"{line!r} is not a JSON object with prompt_ids") from None
    if re.fullmatch(r"[\s,\[\]\d]+", line):
        return _ids(line)
    ids: list[int] = _tokenizer(path).encode(line).ids
    return ids


@cache
def _tokenizer(path: str) -> Any:
    from tokenizers import Tokenizer

    from fixturegen.inspection import checkpoint_folders

    file = Path(checkpoint_folders(path)[0]) / "tokenizer.json"
    if not file.is_file():
        raise FixturegenError(f"{file} is missing; give prompts as token ids")
    return Tokenizer.from_file(str(file))

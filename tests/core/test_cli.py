"""The command line as a user meets it: output, exit codes, one line for each mistake."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from fixturegen.cli import COMMANDS, cli
from tests.conftest import TINY


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own, with no terminal."""
    return subprocess.run(
        [sys.executable, "-m", "fixturegen", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


SETTINGS = [part for override in TINY for part in ("--set", override)]


def test_help_is_fast_and_lists_every_verb():
    best = min(timed("--help") for _ in range(3))
    assert best < 0.3
    text = run("--help").stdout
    for verb, line in COMMANDS.items():
        assert verb in text and line.split()[0] in text


def timed(*arguments: str) -> float:
    start = time.perf_counter()
    assert run(*arguments).returncode == 0
    return time.perf_counter() - start


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_verb_has_help(verb):
    result = CliRunner().invoke(cli, [verb, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_no_heavy_import(tmp_path):
    """Importing, help, list and a build of random weights need no torch, transformers or vLLM."""
    code = (
        "import sys; from click.testing import CliRunner; from fixturegen.cli import cli;"
        "arguments = sys.argv[1:];"
        "results = [CliRunner().invoke(cli, a, catch_exceptions=False)"
        " for a in (['--help'], ['list'], arguments)];"
        "assert all(r.exit_code == 0 for r in results), [r.output for r in results];"
        "print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    arguments = ["build", "deepseek-v3-mtp-random", "-o", str(tmp_path), "--no-check", *SETTINGS]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_suite_lists_its_cases_without_pytest(tmp_path):
    """As after ``make fixtures``: the core has no pytest, torch or vLLM."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(('pytest', 'torch', 'vllm'));"
        "from fixturegen.cli import cli; cli()"
    )
    command = ["suite", "--dry-run", "--fixtures", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "deepseek-v3-eagle" in done.stdout, done.stderr


def test_list():
    text = run("list").stdout
    assert text.splitlines()[0].split()[:3] == ["RECIPE", "SIZE", "PARAMETERS"]
    rows = json.loads(run("list", "--json").stdout)
    assert {"recipe", "size", "parameters", "dtype", "purpose"} <= set(rows[0])


def test_build_inspect_verify(tmp_path):
    build = ("build", "deepseek-v3-mtp-random", "-o", str(tmp_path), "--no-check", *SETTINGS)
    first = run(*build)
    assert first.returncode == 0, first.stderr
    assert "built" in first.stdout and "\r" not in first.stderr
    assert "already built, nothing to do" in run(*build).stdout
    folder = str(tmp_path / "deepseek-v3-mtp-random")
    shown = run("inspect", folder).stdout
    assert "recipe deepseek-v3-mtp-random, seed 0" in shown and "n_routed_experts" in shown
    (data,) = json.loads(run("inspect", folder, "--json").stdout)
    assert data["tensors"]["lm_head.weight"]["shape"] == [512, 128]
    assert run("verify", folder, "--regenerate").returncode == 0
    changed = run(*build, "--seed", "4")
    assert changed.returncode == 2 and "--force" in changed.stderr


def test_verify_fails_with_1(tiny_checkpoint, tmp_path):
    path = shutil.copytree(tiny_checkpoint, tmp_path / "x")
    (path / "tokenizer.json").unlink()
    done = run("verify", str(path))
    assert done.returncode == 1
    assert "tokenizer.json: missing: the manifest lists it" in done.stderr


def test_dry_run_writes_nothing(tmp_path):
    done = run("build", "deepseek-v3-671b", "--dry-run", "-o", str(tmp_path / "out"))
    assert done.returncode == 0
    assert "experts" in done.stdout and "654 GB" in done.stdout
    assert "nothing was written" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build"], "name a recipe"),
        (["build", "deepseek-v3-mpt"], "did you mean 'deepseek-v3-mtp'?"),
        (["build", "deepseek-v3-mtp", "--set", "hiden_size=1"], "did you mean 'hidden_size'"),
        (["build", "deepseek-v3-mtp-random", "--jobs", "0"], "--jobs"),
        (["build", "deepseek-v3-mtp-random", "--max-shard-size", "big"], "write it as 2GB"),
        (["inspect", "nowhere"], "nowhere: no such folder"),
        (["verify", "nowhere"], "nowhere: no such folder"),
        (["nonsense"], "No such command"),
    ],
)
def test_bad_use_is_one_line_and_exit_2(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_version_names_the_algorithm():
    assert "value algorithm 1" in run("--version").stdout

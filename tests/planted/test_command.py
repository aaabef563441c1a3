"""``fixturegen oracle``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fixturegen.cli.oracle import command
from fixturegen.errors import CheckpointError, FixturegenError
from fixturegen.planted import Oracle
from tests.planted.conftest import random_prompts


@pytest.fixture(scope="module")
def checkpoint(built) -> Path:
    return built("deepseek-v3-mtp")


def ask(checkpoint: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(command, [str(checkpoint), *arguments])
    if isinstance(result.exception, FixturegenError):
        raise result.exception
    return result


def test_golden_prompts_come_out_as_in_expected_json(checkpoint, tmp_path):
    expected = json.loads((checkpoint / "expected.json").read_text())
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(p) for p in expected["prompts"]))
    tokens = str(expected["max_tokens"])
    flags = ["-k", "1", "--k", "2", "-k", "3", "--json"]
    said = json.loads(
        ask(checkpoint, "--prompts", str(file), "--max-tokens", tokens, *flags).stdout
    )
    assert said["guaranteed_margin"] == expected["guaranteed_margin"] > 0
    for prompt, golden in zip(said["prompts"], expected["prompts"], strict=True):
        assert prompt["output_ids"] == golden["output_ids"]
    for k, golden in expected["speculation"].items():
        each = golden.pop("accepted_of_prompt")
        assert said["speculation"][k] == golden
        assert [p["speculation"][k]["accepted_tokens"] for p in said["prompts"]] == each


def test_every_way_to_write_a_prompt(checkpoint, tmp_path):
    (prompt,) = random_prompts([6])
    (output,) = Oracle.load(checkpoint).continuation([prompt], 5)
    file = tmp_path / "prompts"
    file.write_text(
        f"{', '.join(map(str, prompt))}\n{' '.join(map(str, prompt))}\n\n{prompt}\n"
        + json.dumps({"prompt_ids": prompt})
    )
    ids = ",".join(map(str, prompt))
    said = ask(checkpoint, "--prompts", str(file), "--prompt-ids", ids, "--max-tokens", "5")
    assert said.exit_code == 0
    assert said.stdout.split("\n") == [" ".join(map(str, output))] * 5 + [""]


def test_text_goes_through_the_tokenizer(checkpoint, tmp_path):
    from tokenizers import Tokenizer

    text = "Is the vocabulary of 4096 enough?"
    (tmp_path / "prompts").write_text(text)
    said = ask(checkpoint, "--prompts", str(tmp_path / "prompts"), "--json")
    ids = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(text).ids
    assert [p["prompt_ids"] for p in json.loads(said.stdout)["prompts"]] == [ids]


def test_what_is_not_guaranteed_is_named_and_left_out(checkpoint):
    some = ask(checkpoint, "--prompt-ids", "0,5", "--prompt-ids", "5", "-k", "3")
    assert some.exit_code == 1 and len(some.stdout.splitlines()[0].split()) == 32
    assert "prompt 1 is not guaranteed: the prompt must start with bos, id 0" in some.stderr
    none = ask(checkpoint, "--prompt-ids", "0,5", "--max-tokens", "1000000000")
    assert none.exit_code == 2 and "first 2048 tokens" in none.stderr
    assert "margin" not in none.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"ids": [0]}', "is not a JSON object with prompt_ids"),
        ('{"prompt_ids": 3}', "is not a JSON object with prompt_ids"),
        ("{", "is not a JSON object with prompt_ids"),
    ],
)
def test_bad_lines_are_refused(checkpoint, tmp_path, line, message):
    (tmp_path / "prompts").write_text(line)
    with pytest.raises(FixturegenError, match=message):
        ask(checkpoint, "--prompts", str(tmp_path / "prompts"))


def test_a_file_that_is_no_text_is_refused(checkpoint, tmp_path):
    (tmp_path / "prompts").write_bytes(b"\xff\xfe")
    with pytest.raises(FixturegenError, match="is not UTF-8 text"):
        ask(checkpoint, "--prompts", str(tmp_path / "prompts"))


def test_bad_ids_and_bad_folders_are_refused(checkpoint, tiny_checkpoint, tmp_path):
    with pytest.raises(FixturegenError, match="'0,x' is not a list of token ids"):
        ask(checkpoint, "--prompt-ids", "0,x")
    with pytest.raises(CheckpointError, match="no such folder"):
        Oracle.load(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="random weights; only planted ones have an oracle"):
        Oracle.load(tiny_checkpoint)


def test_a_damaged_expected_json_is_refused(checkpoint, tmp_path):
    for name in ("config.json", "fixturegen.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    for text in (None, "{", "[]", "{}"):
        if text is not None:
            (tmp_path / "expected.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"expected.json: missing or malformed"):
            Oracle.load(tmp_path)

"""``fixturegen oracle`` and Oracle.load on a checkpoint without its weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fixturegen import Oracle, load_recipe
from fixturegen.builder import small_files
from fixturegen.cli.oracle import command
from fixturegen.errors import CheckpointError
from fixturegen.manifest import MANIFEST, Manifest


def without_weights(folder: Path, name: str) -> Path:
    """All files of a checkpoint but the index and the shards."""
    recipe = load_recipe(name)
    for plan in recipe.checkpoints:
        place = folder / plan.subfolder
        place.mkdir(parents=True, exist_ok=True)
        for file, data in small_files(recipe, plan).items():
            (place / file).write_bytes(data)
        manifest = Manifest(
            recipe=recipe.to_dict(), role=plan.role, content_hash="0" * 64, files={}, tensors={}
        )
        (place / MANIFEST).write_bytes(manifest.to_bytes())
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_weights(tmp_path_factory.mktemp("planted") / "mtp", "deepseek-v3-mtp")


def run(*arguments: str):
    return CliRunner().invoke(command, list(arguments))


def test_the_worked_example_of_the_docs(checkpoint):
    prompt = [0, 1200, 345, 2718, 99, 1729]
    assert Oracle.load(checkpoint).continuation([prompt], 4) == [[1345, 1893, 2594, 2472]]
    done = run(str(checkpoint), "--prompt-ids", "0,1200,345,2718,99,1729", "--max-tokens", "4")
    assert done.exit_code == 0 and done.output.startswith("1345 1893 2594 2472\n")
    assert "guaranteed margin of every token: 4.63 logits" in done.output


def test_golden_prompts_are_what_the_oracle_says(checkpoint):
    data = json.loads((checkpoint / "expected.json").read_bytes())
    oracle = Oracle.load(checkpoint)
    prompts = [p["prompt_ids"] for p in data["prompts"]]
    outputs = oracle.continuation(prompts, data["max_tokens"])
    assert outputs == [p["output_ids"] for p in data["prompts"]]
    for k, counters in data["speculation"].items():
        each = oracle.speculate(prompts, data["max_tokens"], int(k))
        assert [c.accepted_tokens for c in each] == counters["accepted_of_prompt"]
        assert sum(c.drafts for c in each) == counters["drafts"]


def test_json_counts_and_says_what_is_not_guaranteed(checkpoint, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("[0, 17, 4]\nThe quick brown fox\n\n")
    done = run(
        str(checkpoint),
        "--prompts",
        str(file),
        "--prompt-ids",
        "5 6",
        "-k",
        "1",
        "-k",
        "3",
        "--json",
    )
    assert done.exit_code == 1
    data = json.loads(done.output)
    assert data["prompts"][0]["prompt_ids"] == [0, 17, 4]
    assert data["prompts"][1]["prompt_ids"][0] == 0 < len(data["prompts"][1]["prompt_ids"]) - 1
    assert data["not_guaranteed"] == [
        {"prompt": 0, "reason": "the prompt must start with bos, id 0"}
    ]
    assert data["speculation"]["3"]["draft_tokens"] == 3 * data["speculation"]["3"]["drafts"]


def test_a_pair_is_read_from_its_folder(tmp_path):
    pair = without_weights(tmp_path / "pair", "deepseek-v3-eagle")
    assert Oracle.load(pair).continuation([[0, 9]], 3) == Oracle.load(pair / "target").continuation(
        [[0, 9]], 3
    )


def test_mistakes_are_named(checkpoint, tmp_path):
    assert "give --prompt-ids or --prompts" in run(str(checkpoint)).output
    assert "'x' is not a list of token ids" in run(str(checkpoint), "--prompt-ids", "x").output
    random = without_weights(tmp_path / "random", "deepseek-v3-mtp-random")
    with pytest.raises(CheckpointError, match="has random weights"):
        Oracle.load(random)
    (checkpoint / "expected.json").rename(checkpoint / "kept")
    try:
        with pytest.raises(CheckpointError, match=r"expected\.json: missing or malformed"):
            Oracle.load(checkpoint)
    finally:
        (checkpoint / "kept").rename(checkpoint / "expected.json")

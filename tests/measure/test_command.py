"""``fixturegen measure`` from the outside."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fixturegen", "measure", *arguments],
        capture_output=True,
        text=True,
        timeout=2400,
        check=False,
    )


def test_a_folder_of_nothing_is_one_line_and_2(tmp_path):
    done = run(str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_json_text_and_picture(checkpoints, tmp_path):
    path, picture = str(checkpoints("deepseek-v3-mtp")), tmp_path / "margins.png"
    few = ("--prompts", "2", "--max-tokens", "4", "--only", "group")
    done = run(path, *few, "--json", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    margins = data["margins"]
    assert margins["smallest"] >= margins["guaranteed"] > 0
    assert margins["safety_factor"] == pytest.approx(
        margins["smallest"] / margins["largest_logit_difference"]
    )
    assert not any(row["found"] for row in data["false_alarms"])
    names = [row["name"] for row in data["faults"]]
    assert "group limit ignored" in names and "draft: group limit ignored" in names
    assert names == [row["name"] for row in data["random_faults"]]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepseek-v3-mtp"])
def test_almost_every_fault_is_found_and_nothing_else(checkpoints, name):
    """The whole table: 24 prompts x 16 tokens."""
    done = run(str(checkpoints(name)), "--no-random")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "not found: lm_head: one column lost: a random rotation" in done.stdout
    assert "reason unknown" not in done.stdout

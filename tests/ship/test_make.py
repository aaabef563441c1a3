"""`make fixtures` and `make upload` in a fresh checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixturegen.verification import verify
from tests.ship.fakehub import WRITE_TOKEN, FakeHub
from tests.ship.test_docs import ROOT

DEFAULT = ("deepseek-v3-mtp", "deepseek-v3-mtp-fp8", "deepseek-v3-eagle")


@pytest.mark.slow
def test_make_fixtures_then_upload(fakehub: FakeHub, tmp_path: Path) -> None:
    """Nothing but Python, make and a package index; then the same checkpoints on a hub."""
    checkout = tmp_path / "checkout"
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        checkout.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, checkout)
    for name in ("fixturegen", "configs"):
        shutil.copytree(ROOT / name, checkout / name)

    def make(*words: str) -> str:
        done = subprocess.run(
            ["make", *words],
            cwd=checkout,
            env=os.environ
            | {"HF_ENDPOINT": fakehub.endpoint, "HF_TOKEN": WRITE_TOKEN, "HF_HUB_DISABLE_XET": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = make("fixtures", f"PYTHON={sys.executable}")
    for name in DEFAULT:
        assert f"{name}: built" in said
        assert verify(checkout / "fixtures" / name) == []
    assert "RECIPE" in said and "PURPOSE" in said
    assert make("fixtures").count("already built") == len(DEFAULT)
    make("upload", "ORG=org")
    assert set(fakehub.repos) == {f"org/{name}" for name in (*DEFAULT, f"{DEFAULT[2]}-draft")}

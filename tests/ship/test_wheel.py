"""The wheel and the sdist, and the tutorial from an empty environment, offline."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.ship.test_docs import ROOT, blocks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return out


def test_wheel_carries_what_it_needs(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    recipes = {path.name for path in (ROOT / "configs").glob("*.yaml")}
    assert recipes <= {Path(n).name for n in names if n.startswith("fixturegen/configs/")}
    data = {p.relative_to(ROOT).as_posix() for p in (ROOT / "fixturegen/data").rglob("*.*")}
    assert {name for name in data if "__pycache__" not in name} <= names
    assert "fixturegen/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert not any(name.startswith("tests/") for name in names)


def test_sdist_carries_the_tests(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "configs/deepseek-v3-mtp.yaml", "LICENSE", "mkdocs.yml"} <= names


def test_tutorial_from_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    """Install the wheel, then the tutorial's commands as written, with no way to a network."""
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    folder = tmp_path / "reader"
    folder.mkdir()
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    online = clean | {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    dead = "http://127.0.0.1:9"
    offline = online | {
        "HTTP_PROXY": dead,
        "HTTPS_PROXY": dead,
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "home" / "cache"),
    }
    said: dict[str, str] = {}
    for block in blocks(ROOT / "docs" / "tutorial.md"):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        if block.language != "console":
            continue
        for command in block.commands:
            is_install = command.startswith("pip install fixturegen ")
            if is_install:
                command = command.replace("fixturegen", str(wheel), 1)
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=folder,
                env=online if is_install else offline,
                capture_output=True,
                text=True,
            )
            said[command] = done.stdout
            assert done.returncode == 0, f"{block}\n$ {command}\n{done.stdout}{done.stderr}"
    tests = [text for command, text in said.items() if command.startswith("pytest")]
    assert re.search(r"1 failed, 1 passed", tests[0]) and "exit code 1" in tests[0], tests[0]
    assert re.search(r"prompt 1 .*position \d+: expected token \d+, got \d+", tests[0]), tests[0]
    assert "margin of at least" in tests[0]
    assert "2 passed" in tests[-1]
    packages = subprocess.run(
        [bin_ / "python", "-m", "pip", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert not re.search(r"^(torch|transformers|vllm|scipy|rich)\b", packages, re.MULTILINE)

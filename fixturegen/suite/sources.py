"""vLLM's own tests, from a source tree or from the source release of the installed version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs

from fixturegen.errors import EngineError
from fixturegen.suite.machine import release


def tests_folder(version: str, given: Path | None) -> Path:
    """The folder ``tests`` of vLLM ``version``: in ``given``, in the cache, or fetched with pip.

    Raises EngineError when ``given`` has none or is another version's, or pip cannot fetch it.
    """
    if given is not None:
        return _given(version, given)
    cached = Path(platformdirs.user_cache_dir("fixturegen")) / "vllm-tests" / version
    if not (cached / "tests").is_dir():
        _fetch(version, cached)
    return cached / "tests"


def _given(version: str, tree: Path) -> Path:
    tests = tree / "tests"
    if not tests.is_dir():
        raise EngineError(f"--vllm-src {tree}: has no tests folder; name vLLM's source tree")
    found = tree_version(tree)
    if found and release(found) != release(version):
        raise EngineError(
            f"--vllm-src {tree} is vLLM {found} and vLLM {version} is installed; its tests would "
            "test another engine: check out that version or leave the option out"
        )
    return tests


def tree_version(tree: Path) -> str:
    """The version of a source tree, by its PKG-INFO or its git tag; empty when neither tells."""
    info = tree / "PKG-INFO"
    if info.is_file():
        match = re.search(r"^Version: (\S+)", info.read_text(encoding="utf-8"), re.MULTILINE)
        return match[1] if match else ""
    describe = ["git", "-C", str(tree), "describe", "--tags", "--exact-match"]
    try:
        done = subprocess.run(describe, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().removeprefix("v") if done.returncode == 0 else ""


def _fetch(version: str, cached: Path) -> None:
    """Download the source release with pip and keep its tests.

    pip insists on computing the metadata of a source release, which vLLM's build script may refuse
    without a compiler or a GPU; by then the archive lies unpacked in pip's temporary folder.
    """
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        source = ["--no-deps", "--no-binary", "vllm", "--no-build-isolation", "--no-clean"]
        try:
            done = subprocess.run(
                [*pip, *source, "--dest", scratch, f"vllm=={version}"],
                env=_environment(scratch),
                capture_output=True,
                text=True,
                timeout=900,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"pip did not fetch the source release of vLLM {version} within 900 s; give its "
                "source tree with --vllm-src"
            ) from None
        for archive in Path(scratch).glob("vllm-*.tar.gz"):
            shutil.unpack_archive(archive, scratch)
        trees = [
            p.parent for p in Path(scratch).glob("**/PKG-INFO") if (p.parent / "tests").is_dir()
        ]
        if not trees:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EngineError(
                f"the source release of vLLM {version} cannot be fetched with pip ({last}); "
                "give its source tree with --vllm-src"
            )
        partial = Path(scratch) / "kept"
        partial.mkdir()
        shutil.move(trees[0] / "tests", partial / "tests")
        shutil.copy(trees[0] / "PKG-INFO", partial / "PKG-INFO")
        partial.rename(cached)


def _environment(scratch: str) -> dict[str, str]:
    return {**os.environ, "TMPDIR": scratch, "VLLM_TARGET_DEVICE": "empty"}

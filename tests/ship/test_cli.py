"""`push`, `pull` and shell completion in processes of their own; the hub is on loopback."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from fixturegen import build
from fixturegen.manifest import MANIFEST
from fixturegen.recipe import Recipe
from tests.ship.fakehub import READ_TOKEN, WRITE_TOKEN, Blob, FakeHub
from tests.ship.test_docs import ROOT

#: Words, and a token -> exit code, stdout, stderr.
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(fakehub: FakeHub, tmp_path: Path) -> Run:
    def run(*words: str, token: str = WRITE_TOKEN) -> tuple[int, str, str]:
        env = os.environ | {
            "HF_ENDPOINT": fakehub.endpoint,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": token,
        }
        done = subprocess.run(
            [sys.executable, "-m", "fixturegen", *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr and token not in done.stdout + done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_checkpoints_life(
    run: Run, fakehub: FakeHub, checkpoint: Path, other_checkpoint: Path, tmp_path: Path
) -> None:
    push = ("push", str(checkpoint), "--repo", "org/tiny")
    code, out, _ = run(*push, "--dry-run")
    assert code == 0 and "new repository" in out and "added" in out
    assert not fakehub.repos
    code, out, _ = run(*push, "--tag", "v1")
    assert code == 0 and "pushed and read back" in out
    code, out, _ = run(*push)
    assert code == 0 and "already holds these bytes" in out

    other = ("push", str(other_checkpoint), "--repo", "org/tiny")
    code, out, err = run(*other)
    assert code == 2 and "pass --yes" in err
    assert "config routed_scaling_factor: 2.5 -> 1.5" in out and "content hash" in out
    code, out, _ = run(*other, "--yes")
    assert code == 0 and "pushed" in out

    code, out, _ = run("pull", "org/tiny@v1")
    assert code == 0 and "verified" in out
    pulled = tmp_path / "fixtures" / "tiny" / MANIFEST
    assert pulled.read_bytes() == (checkpoint / MANIFEST).read_bytes()


def test_pair_goes_to_two_repositories(
    run: Run, fakehub: FakeHub, tiny_pair_recipe: Recipe, tmp_path: Path
) -> None:
    pair = build(tiny_pair_recipe, tmp_path / "pair", check=False).path
    code, out, _ = run("push", str(pair), "--repo", "org/", "--collection")
    assert code == 0, out
    name = f"org/{tiny_pair_recipe.name}"
    assert set(fakehub.repos) == {name, f"{name}-draft"}
    for repo, part in ((name, "target"), (f"{name}-draft", "draft")):
        assert fakehub.files(repo)[MANIFEST] == (pair / part / MANIFEST).read_bytes()
        assert f'"model": "{name}-draft"'.encode() in fakehub.files(repo)["README.md"]
    (collection,) = fakehub.collections.values()
    assert {item["id"] for item in collection["items"]} == set(fakehub.repos)


def test_bar_on_a_terminal_only(run: Run, fakehub: FakeHub, checkpoint: Path) -> None:
    """`run` has pipes, where there is no bar; here stderr is a terminal."""
    _, _, err = run("push", str(checkpoint), "--repo", "org/quiet")
    assert "%|" not in err
    words = [sys.executable, "-m", "fixturegen", "push", str(checkpoint), "--repo", "org/bar"]
    settings = {"HF_ENDPOINT": fakehub.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": WRITE_TOKEN}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with subprocess.Popen(
        words, env=os.environ | settings, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # what Linux says where nobody writes any more
            while chunk := os.read(ours, 4096):
                shown += chunk
    os.close(ours)
    assert process.returncode == 0, shown
    assert b"100%|" in shown, shown
    assert WRITE_TOKEN.encode() not in shown


def complete(**settings: str) -> str:
    """What our command, found as a shell finds it, answers to a shell's completion."""
    program = Path(sys.executable).parent / "fixturegen"
    done = subprocess.run(
        [program], env=os.environ | settings, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    """The page's line for each shell asks for a script; it calls back as `complete` does below."""
    page = (ROOT / "docs" / "how-to" / "shell-completion.md").read_text(encoding="utf-8")
    assert f"_FIXTUREGEN_COMPLETE={shell}_source fixturegen" in page
    script = complete(_FIXTUREGEN_COMPLETE=f"{shell}_source")
    assert f"_FIXTUREGEN_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fixturegen pu", {"push", "pull"}),
        ("fixturegen cache pr", {"prune"}),
        ("fixturegen build --dr", {"--dry-run"}),
        ("fixturegen build deepseek-v3-eag", {"deepseek-v3-eagle", "deepseek-v3-eagle-random"}),
    ],
)
def test_completion(line: str, offered: set[str]) -> None:
    said = complete(
        _FIXTUREGEN_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(line.count(" "))
    )
    assert {word.partition(",")[2] for word in said.splitlines()} == offered


def test_bad_use_is_one_line(run: Run, fakehub: FakeHub, checkpoint: Path, tmp_path: Path) -> None:
    repo = fakehub.create("org/theirs")
    repo.add_commit("main", {"model.safetensors": Blob(b"x", True)})
    path = str(checkpoint)
    cases = {
        ("push", path, "--repo", "no-slash"): "expected ORG/NAME",
        ("push", path, path, "--repo", "org/one"): "ORG/ for several paths",
        ("push", str(tmp_path / "nothing"), "--repo", "org/x"): "no such folder",
        ("push", path, "--repo", "org/theirs"): "not made by fixturegen",
        ("push", path, "--repo", "org/x", "--create-pr", "--tag", "t"): "cannot be tagged",
        ("pull", "org/nothing"): "no such repository",
        ("pull", "nothing"): "expected ORG/NAME",
        ("pull", "org/theirs"): f"no {MANIFEST}",
        ("pull", "org/theirs", "-o", f"{path}/config.json/x"): "config.json: File exists",
    }
    for words, message in cases.items():
        code, out, err = run(*words)
        assert (code, message in err, out) == (2, True, ""), (words, err)
    code, _, err = run("push", path, "--repo", "org/x", token=READ_TOKEN)
    assert code == 2 and "write access" in err

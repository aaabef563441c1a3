"""Every command and example in the README and the documentation is executed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from fixturegen import Oracle, list_recipes
from fixturegen.checkpoint import Checkpoint
from tests.ship.fakehub import WRITE_TOKEN, FakeHub

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Generated, held against the code by test_generated_pages_are_current or by tests/check.
GENERATED = {"rules.md", "cli.md", "api.md", "recipe-keys.md"}

#: Commands that other tests execute, with the test (or CI step) that does.
ELSEWHERE = {
    r"make (test|lint)": ".ci/run",
    r"make (fixtures|upload)": "tests/ship/test_make.py",
    r"pip install fixturegen pytest": "tests/ship/test_wheel.py",
    r"fixturegen suite\b(?!.*--dry-run)": "tests/suite, with --dry-run here",
    r"fixturegen verify .*--load vllm": "tests/core/test_engines.py",
    r"fixturegen measure\b": "tests/measure",
    r"pytest -n auto --fixturegen-cache": "tests/ship/test_pytest_plugin.py",
}

#: What stands in no block of commands although it looks like one, with the reason.
SHOWN_ONLY = {
    r"fixturegen check MODEL \[": "the usage, not a command",
    r"python (-m pytest )?tests/": "tests, and the harness of one",
    r"fixturegen measure\b": "tests/measure",
    r"python -m sglang": "SGLang is not among the dependencies of the tests",
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What a reader would type: after prompts in a console block, each line of a shell one;
        of a CI job, its steps that are ours."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        if self.language == "yaml":
            return re.findall(r"^ *- (?:run: )?((?:fixturegen|pytest) .*)$", self.text, re.M)
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: Path) -> Iterator[Block]:
    pattern = r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$'
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        line = text[: match.start()].count("\n") + 1
        yield Block(page, line, match[1], match[2] or "", match[3])


ALL = [block for page in PAGES if page.name not in GENERATED for block in blocks(page)]
SHELL = ("console", "bash", "sh", "yaml")
#: The tutorial starts with an installation, so tests/ship/test_wheel.py runs it in an empty one.
HERE = [page for page in PAGES if page.name not in {*GENERATED, "tutorial.md"}]


def elsewhere(command: str) -> str | None:
    return next((where for pattern, where in ELSEWHERE.items() if re.match(pattern, command)), None)


@pytest.fixture(scope="session")
def shipped(
    fixturegen_checkpoint: Callable[..., Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What `make fixtures` and the first commands of most pages leave behind."""
    folder = tmp_path_factory.mktemp("shipped")
    for name in list_recipes():
        if name != "deepseek-v3-671b":
            (folder / name).symlink_to(fixturegen_checkpoint(name).folder)
    return folder


@pytest.fixture
def reader(fakehub: FakeHub, tmp_path: Path, shipped: Path) -> dict[str, str]:
    """The environment of a reader: our commands, a cache, a hub; fixtures/ in the folder."""
    shutil.copytree(shipped, tmp_path / "fixtures", symlinks=True)
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HF_ENDPOINT": fakehub.endpoint,
        "HF_TOKEN": WRITE_TOKEN,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "FIXTUREGEN_CACHE": str(tmp_path / "cache"),
    }


def test_there_is_something_to_run() -> None:
    commands = [c for block in ALL if block.language in SHELL for c in block.commands]
    assert len(commands) > 30
    verbs = {c.split()[1] for c in commands if c.startswith("fixturegen ")}
    assert verbs >= {
        "list",
        "build",
        "inspect",
        "verify",
        "check",
        "rules",
        "oracle",
        "push",
        "pull",
    }


@pytest.mark.parametrize("page", [p.relative_to(ROOT).as_posix() for p in HERE])
def test_no_command_is_hidden(page: str) -> None:
    """Text and indented blocks hold output, so that whatever can be typed is run below."""
    shown = "\n".join(block.text for block in blocks(ROOT / page) if block.language == "text")
    prose = re.sub(
        r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S
    )
    indented = "\n".join(re.findall(r"^ {4}(.*)$", prose, re.M))
    program = r"^(?:\$ )?((?:fixturegen|make|pip|python|pytest) .*)$"
    for line in re.findall(program, f"{shown}\n{indented}", re.M):
        assert any(re.match(pattern, line) for pattern in SHOWN_ONLY), line


@pytest.mark.parametrize("page", [p.relative_to(ROOT).as_posix() for p in HERE])
def test_commands(page: str, reader: dict[str, str], tmp_path: Path) -> None:
    """The commands of one page, in order, in one folder."""
    for block in blocks(ROOT / page):
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        if block.language not in SHELL:
            continue
        for command in block.commands:
            if re.match(r"fixturegen suite (?!compare)", command):
                command = re.sub(r"(\s#.*)?$", " --dry-run", command, count=1)
            elif elsewhere(command):
                continue
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=tmp_path,
                env=reader,
                capture_output=True,
                text=True,
                timeout=120,
            )
            said = f"{block}\n$ {command}\n{done.stdout}{done.stderr}"
            # check answers with 1 when it rejects, which a page may want to show
            is_rejection = command.startswith("fixturegen check") and "REJECTED" in done.stdout
            assert done.returncode == is_rejection, said
            assert "Traceback" not in done.stderr, said


def is_test(block: Block) -> bool:
    return "def test_" in block.text


PYTHON = [block for block in ALL if block.language == "python"]
WITH_VLLM = [block for block in PYTHON if re.search(r"^(import|from) vllm\b", block.text, re.M)]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize(
    "block",
    [b for b in PYTHON if is_test(b) and b not in WITH_VLLM and b.page.name != "tutorial.md"],
    ids=str,
)
def test_example_tests_pass(block: Block, reader: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_example.py"],
        cwd=tmp_path,
        env=reader,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("block", WITH_VLLM, ids=str)
def test_examples_with_vllm_run(block: Block, reader: dict[str, str], tmp_path: Path) -> None:
    """Tests as their users write them, and lines for a prompt, on a real engine."""
    (tmp_path / "test_example.py").write_text(block.text, encoding="utf-8")
    pytest_words = ["-m", "pytest", "-q", "--fixturegen-offline", "test_example.py"]
    words = pytest_words if is_test(block) else ["-c", block.text]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=reader | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_expected_json_self_test(shipped: Path) -> None:
    """The self-test that other engines are told to write: right answers pass, a wrong one fails."""
    (block,) = [b for b in PYTHON if b.title == "self_test.py"]
    scope: dict[str, object] = {}
    exec(compile(block.text, str(block), "exec"), scope)
    self_test = scope["self_test"]
    assert callable(self_test)
    path = shipped / "deepseek-v3-mtp"
    oracle = Oracle.load(path)
    self_test(path, lambda prompt, count: oracle.continuation([prompt], count)[0])
    with pytest.raises(AssertionError, match="prompt 0, position 5"):
        self_test(
            path,
            lambda prompt, count: [
                token + (i == 5) for i, token in enumerate(oracle.continuation([prompt], count)[0])
            ],
        )


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "yaml"], ids=str)
def test_yaml_parses(block: Block) -> None:
    assert yaml.safe_load(block.text)


@pytest.mark.parametrize("page", [p.relative_to(ROOT).as_posix() for p in PAGES])
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?://|#|mailto:", link):
            assert ((ROOT / page).parent / link.partition("#")[0]).exists(), link


def test_generated_pages_are_current() -> None:
    code = "import json, docs.generate as g; print(json.dumps(g.pages()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for path, text in yaml.safe_load(done.stdout).items():
        assert (ROOT / "docs" / path).read_text(encoding="utf-8") == text, (
            f"docs/{path} is out of date: run python docs/generate.py"
        )


def first_column(page: str, heading: str) -> set[str]:
    """The code in the first column of the table below a heading."""
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("name", ["fixturegen.json", "expected.json"])
def test_file_formats_are_as_written(name: str, shipped: Path) -> None:
    content = json.loads((shipped / "deepseek-v3-mtp" / name).read_text(encoding="utf-8"))
    assert first_column("files.md", f"`{name}`") == content.keys()


def test_the_plugins_page_names_all_it_has() -> None:
    import fixturegen.pytest_plugin as plugin

    fixtures = {
        name
        for name, thing in vars(plugin).items()
        if type(thing).__name__ == "FixtureFunctionDefinition" and not name.startswith("_")
    }
    assert len(fixtures) >= 9 and first_column("pytest.md", "Fixtures") == fixtures
    attributes = {name for name in vars(Checkpoint) if not name.startswith("_")}
    written = first_column("pytest.md", "The object")
    assert {name[1:].partition("(")[0] for name in written} == attributes
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True
    )
    options = set(re.findall(r"^ +(--fixturegen-\S+?)[= ]", said.stdout, re.M))
    written = first_column("pytest.md", "Options")
    assert {option.split()[0] for option in written} == options != set()


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        if not name.startswith("results/"):
            assert f"- {name}\n" in text + "\n", f"{name} is not in mkdocs.yml"


@pytest.mark.slow
def test_site_builds_offline(tmp_path: Path) -> None:
    bin_ = Path(sys.executable).parent  # where mkdocs is, so `make` need not install it
    done = subprocess.run(
        ["make", "-o", ".venv/docs", "docs", f"BIN={bin_}", f"SITE={tmp_path}"],
        cwd=ROOT,
        env=os.environ | {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    fetched = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://(?!example)")
    for page in pages:
        assert not fetched.search(page.read_text(encoding="utf-8")), f"{page} fetches something"

"""The pytest plugin, driven as its users drive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from fixturegen import build, load_recipe
from fixturegen.cache import Cache
from fixturegen.hub import push
from tests.conftest import TINY
from tests.ship.fakehub import WRITE_TOKEN, FakeHub

pytest_plugins = ["pytester"]

TINY_TEST = f"""
import pytest

SIZE = dict(pair.split("=") for pair in {TINY!r})
SIZE = {{key: int(value) for key, value in SIZE.items()}}

@pytest.fixture(scope="session")
def tiny(fixturegen_checkpoint):
    return fixturegen_checkpoint("deepseek-v3-mtp-random", **SIZE)

@pytest.mark.parametrize("i", range(8))
def test_it(tiny, i):
    assert tiny.path.is_dir() and tiny.draft is None
    assert tiny.config.hidden_size == 128
    assert tiny.recipe.name == "deepseek-v3-mtp-random"
    kwargs = tiny.llm_kwargs(num_speculative_tokens=2, max_model_len=64)
    assert kwargs["model"] == str(tiny.path) and kwargs["max_model_len"] == 64
    assert kwargs["speculative_config"] == {{"method": "mtp", "num_speculative_tokens": 2}}
    assert "speculative_config" not in tiny.llm_kwargs(num_speculative_tokens=None)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with a cache of its own."""
    monkeypatch.setenv("FIXTUREGEN_CACHE", str(pytester.path / "cache"))
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    return pytester


def entries(project: pytest.Pytester) -> list[str]:
    return [entry.name for entry in Cache(project.path / "cache").entries()]


@pytest.mark.parametrize(
    "options", [(), ("-n", "2"), ("--import-mode=importlib",)], ids=["plain", "xdist", "importlib"]
)
def test_factory(project: pytest.Pytester, options: tuple[str, ...]) -> None:
    project.makepyfile(TINY_TEST)
    project.runpytest_subprocess("-q", *options).assert_outcomes(passed=8)
    assert len(entries(project)) == 1


def test_without_the_plugin(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it():\n    pass\n")
    project.runpytest_subprocess("-p", "no:fixturegen").assert_outcomes(passed=1)


@pytest.mark.parametrize("option", ["--version", "--help", "--fixtures"])
def test_plugin_imports_nothing_heavy(option: str, tmp_path: Path) -> None:
    code = (
        "import sys, pytest; pytest.main(sys.argv[1:]);"
        "heavy = {'numpy', 'yaml', 'huggingface_hub', 'torch', 'transformers', 'click', 'vllm'};"
        "own = {n for n in sys.modules if n.startswith('fixturegen.')};"
        "print(sorted(heavy & {*sys.modules}), sorted(own))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, option], cwd=tmp_path, capture_output=True, text=True
    )
    imported = out.stdout.splitlines()[-1]
    # some releases of pytest answer --version before they load any plugin
    assert imported in ("[] []", "[] ['fixturegen.pytest_plugin']")


def test_cache_option_seed_and_dtype(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def fixturegen_seed():
            return 5

        @pytest.fixture(scope="session")
        def fixturegen_dtype():
            return "float16"
        """
    )
    project.makepyfile(
        TINY_TEST
        + """
def test_seed_and_dtype(tiny, fixturegen_cache_dir):
    assert tiny.recipe.seed == 5 and tiny.config.dtype == "float16"
    assert fixturegen_cache_dir.name == "elsewhere" and fixturegen_cache_dir in tiny.path.parents
"""
    )
    result = project.runpytest_subprocess("--fixturegen-cache", str(project.path / "elsewhere"))
    result.assert_outcomes(passed=9)
    assert not (project.path / "cache").exists()


def test_damaged_entry_is_rebuilt_and_reported(project: pytest.Pytester) -> None:
    project.makepyfile(TINY_TEST)
    project.runpytest_subprocess().assert_outcomes(passed=8)
    (entry,) = Cache(project.path / "cache").entries()
    (entry.path / "config.json").write_text("{}")
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=8, warnings=1)
    result.stdout.fnmatch_lines(["*config.json does not have*building it again*"])


def test_unusable_cache_falls_back(project: pytest.Pytester) -> None:
    project.makepyfile(TINY_TEST)
    (project.path / "cache").write_text("a file, not a folder")
    result = project.runpytest_subprocess("-n", "2")
    result.stdout.fnmatch_lines(["*using a temporary cache for this run*"])
    assert result.parseoutcomes()["passed"] == 8


def test_two_runs_at_once(project: pytest.Pytester) -> None:
    project.makepyfile(TINY_TEST)
    runs = [
        subprocess.Popen([sys.executable, "-m", "pytest", "-q"], cwd=project.path, stdout=-1)
        for _ in range(2)
    ]
    assert [run.wait() for run in runs] == [0, 0], [run.communicate()[0] for run in runs]
    assert len(entries(project)) == 1


def test_killed_worker(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import os, time
        import fixturegen.builder
        real = fixturegen.builder.build

        def build(recipe, folder, **options):
            if not os.path.exists("killed"):
                folder.mkdir(parents=True)
                (folder / "config.json").write_text("half")
                open("killed", "w").write(str(os.getpid()))
                time.sleep(60)
            return real(recipe, folder, **options)

        fixturegen.builder.build = build
        """
    )
    project.makepyfile(TINY_TEST)
    with subprocess.Popen([sys.executable, "-m", "pytest", "-n", "2"], cwd=project.path) as run:
        killed = project.path / "killed"
        for _ in range(300):
            if killed.exists() and killed.read_text():
                break
            time.sleep(0.1)
        os.kill(int(killed.read_text()), signal.SIGKILL)
        run.wait()
    assert len(entries(project)) <= 1
    project.runpytest_subprocess("-n", "2").assert_outcomes(passed=8)
    assert len(entries(project)) == 1


def test_marker_and_targets(project: pytest.Pytester) -> None:
    project.makepyfile(
        f"""
        import pytest

        SIZE = {dict(pair.split("=") for pair in TINY)!r}
        SIZE = {{key: int(value) for key, value in SIZE.items()}}
        RECIPE = "deepseek-v3-mtp-random"

        @pytest.mark.fixturegen(recipe=RECIPE, targets="vllm==0.33.0,gpu=sm90", **SIZE)
        def test_runs(fixturegen_model):
            assert fixturegen_model.recipe.name == RECIPE

        @pytest.mark.fixturegen(
            RECIPE,
            targets=["vllm==0.20.2,gpu=sm100,attention=FLASH_ATTN,env=VLLM_MLA_DISABLE=1"],
            **SIZE
        )
        def test_breaks_a_bound(fixturegen_model):
            pass

        def test_without_marker(fixturegen_model):
            pass
        """
    )
    result = project.runpytest_subprocess("--strict-markers")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*does not run on vllm==0.20.2*fa4-head-dims*",
            "*fixturegen_model needs @pytest.mark.fixturegen*",
        ]
    )


def test_hub_alias(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import os
        import subprocess
        import sys

        from huggingface_hub import snapshot_download
        from transformers import AutoConfig

        RECIPE = "deepseek-v3-eagle-random"
        CODE = "from huggingface_hub import snapshot_download as s; print(s('org/draft'))"

        def test_alias(hf_cache_alias):
            folders = hf_cache_alias(
                {"org/target": RECIPE, "org/draft": f"{RECIPE}:draft"}
            )
            assert AutoConfig.from_pretrained("org/target").n_routed_experts == 32
            for model, folder in folders.items():
                there = snapshot_download(model)
                assert os.path.samefile(f"{there}/config.json", folder / "config.json")
            said = subprocess.check_output([sys.executable, "-c", CODE], text=True).strip()
            assert os.path.samefile(f"{said}/config.json", folders["org/draft"] / "config.json")

        def test_undone():
            from huggingface_hub import constants
            assert "HF_HUB_CACHE" not in os.environ and not constants.HF_HUB_OFFLINE

        def test_unknown_part(hf_cache_alias):
            hf_cache_alias({"org/x": "deepseek-v3-mtp-random:draft"})
        """
    )
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*deepseek-v3-mtp-random has no part 'draft'*"])


def test_offline(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        def test_it():
            from huggingface_hub import constants
            assert constants.HF_HUB_OFFLINE
        """
    )
    project.runpytest_subprocess("--fixturegen-offline").assert_outcomes(passed=1)
    result = project.runpytest_subprocess("--fixturegen-offline", "--fixturegen-from-hub", "a/b")
    result.stderr.fnmatch_lines(["*choose one"])


def test_from_hub(
    project: pytest.Pytester, fakehub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = HfApi(endpoint=fakehub.endpoint, token=WRITE_TOKEN)
    folder = build(load_recipe("deepseek-v3-mtp-random", TINY), project.path / "built", check=False)
    push(folder.path, "org/tiny", api=api, tag="v1")
    monkeypatch.setenv("HF_ENDPOINT", fakehub.endpoint)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    project.makeconftest(
        """
        import fixturegen.builder

        def build(*arguments, **options):
            raise AssertionError("it was built, not downloaded")

        fixturegen.builder.build = build
        """
    )
    project.makepyfile(TINY_TEST)
    options = ("--fixturegen-from-hub", "org/tiny@v1")
    project.runpytest_subprocess("-n", "2", *options).assert_outcomes(passed=8)
    shards = fakehub.count("GET /org/tiny/resolve/v1") + fakehub.count(".safetensors")
    project.runpytest_subprocess(*options).assert_outcomes(passed=8)
    assert fakehub.count("GET /org/tiny/resolve/v1") + fakehub.count(".safetensors") == shards


def test_from_hub_with_another_recipe(
    project: pytest.Pytester, fakehub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", fakehub.endpoint)
    project.makepyfile(TINY_TEST)
    fakehub.create("org/tiny")
    result = project.runpytest_subprocess("--fixturegen-from-hub", "org/tiny")
    result.assert_outcomes(errors=8)
    result.stdout.fnmatch_lines(["*HubError:*"])


ALL_AT_ONCE = """
import os, time
from pathlib import Path

RECIPES = ("deepseek-v3-mtp-random", "deepseek-v3-mtp-fp8-random", "deepseek-v3-eagle-random")

def test_it(fixturegen_checkpoint):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    Path(f"ready-{worker}").touch()
    while len(list(Path().glob("ready-*"))) < int(os.environ["WORKERS"]):
        time.sleep(0.01)
    for name in RECIPES:
        assert fixturegen_checkpoint(name).path.is_dir()
    Path(f"done-{worker}").touch()
"""

COUNT_BUILDS = """
import fixturegen.builder
import fixturegen.cache
import fixturegen.checkpoint
import fixturegen.tokenizer
real = fixturegen.builder.build

def build(recipe, folder, **options):
    with open("builds", "a") as log:
        log.write(recipe.name + "\\n")
    return real(recipe, folder, **options)

fixturegen.builder.build = build
"""


@pytest.mark.slow
def test_eight_workers_build_each_once(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight workers that ask for three fixtures at one moment: each is built once for all."""
    project.makeconftest(COUNT_BUILDS)
    project.makepyfile(test_all=ALL_AT_ONCE)
    monkeypatch.setenv("WORKERS", "8")
    assert project.runpytest_subprocess("-q", "-n", "8", "--dist", "each").ret == 0
    builds = (project.path / "builds").read_text().split()
    assert len(builds) == 3 == len(set(builds))
    assert len(list(project.path.glob("done-*"))) == 8

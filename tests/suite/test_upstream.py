"""vLLM's tests on fixtures: found by collection, fed from a private cache, skips lifted."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fixturegen.errors import EngineError
from fixturegen.suite import gsm8k, run, sources, upstream
from fixturegen.suite.machine import Machine
from fixturegen.suite.outcome import ERROR, FAILED, NOT_RUN, PASSED
from fixturegen.suite.report import Report
from fixturegen.suite.run import Options
from tests.suite.conftest import write_manifests

#: Tests of the shape of vLLM's: a hub model among the parameters, a skip by platform, GSM8K's files
#: from the temp dir. What needs no engine of it is real: the hub cache, pytest, the files.
UPSTREAM = """
import json, os, tempfile
import pytest
from huggingface_hub import snapshot_download


def _files(*models):
    return [set(os.listdir(snapshot_download(model))) for model in models]


@pytest.mark.skipif(
    True, reason="DeepSeek head_dim=192 not supported on SM100/SM110 (Blackwell)"
)
@pytest.mark.parametrize(
    "model_setup",
    [("eagle", "eagle618/deepseek-v3-random", "eagle618/eagle-deepseek-v3-random", 1)],
    ids=["deepseek_eagle"],
)
@pytest.mark.parametrize("attn_backend", ["FLASH_ATTN", "TRITON_ATTN"])
def test_eagle_correctness_light(model_setup, attn_backend):
    if attn_backend == "TRITON_ATTN":
        pytest.skip("TRITON_ATTN does not support multi-token eagle spec decode")
    target, draft = _files(*model_setup[1:3])
    assert "config.json" in target and "config.json" in draft
    print("eagle target=x: exact text matches=99/100 (required=61)")


@pytest.mark.parametrize(
    "model_setup",
    [
        pytest.param(("mtp", "ZixiQi/DeepSeek-V3-4layers-MTP-FP8", 1, None), id="deepseek"),
        pytest.param(("mtp", "XiaomiMiMo/MiMo-7B-Base", 1, None), id="mimo"),
    ],
)
def test_mtp_correctness(model_setup):
    assert _files(model_setup[1])
    lines = open(os.path.join(tempfile.gettempdir(), "train.jsonl")).read().splitlines()
    assert len(lines) >= 5 and json.loads(lines[0])["answer"].split()[-1].isdigit()
    matches = 41
    assert matches >= 81, f"only {matches}/100 outputs matched"


@pytest.mark.parametrize("model", ["eagle618/deepseek-v3-random"])
def test_something_else(model):
    raise AssertionError("not among the tests that the fixture stands in for")
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source tree that says it is vLLM 0.33.0."""
    folder = tmp_path / "vllm-0.33.0"
    place = folder / "tests" / "v1" / "spec_decode"
    place.mkdir(parents=True)
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.33.0\n")
    (place / "test_all.py").write_text(UPSTREAM)
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text("raise ImportError('the source, not the engine')")
    return folder


@pytest.fixture
def blackwell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite believes that it is on an SM100 GPU with vLLM 0.33.0."""
    machine = Machine(gpu="sm100", gpu_name="B200", gpu_count=1, vllm="0.33.0")
    monkeypatch.setattr("fixturegen.suite.machine.local", lambda: machine)


def suite(
    options: Callable[..., Options],
    tmp_path: Path,
    source: Path,
    echo: Callable[[str], None] = print,
    **changes: object,
) -> Report:
    names = ("deepseek-v3-eagle", "deepseek-v3-mtp-fp8")
    for name in names:
        if not (tmp_path / "fixtures" / name).exists():
            write_manifests(tmp_path / "fixtures", name)
    return run.run(options(suites=("vllm",), recipes=names, vllm_src=source, **changes), echo)


@pytest.mark.usefixtures("blackwell")
def test_vllms_tests_run_unmodified(
    options: Callable[..., Options], tmp_path: Path, source: Path
) -> None:
    report = suite(options, tmp_path, source)
    here = {o.id.partition("::")[2]: o for o in report.outcomes if o.gpu == "sm100"}
    assert {name: o.status for name, o in here.items()} == {
        "test_eagle_correctness_light[FLASH_ATTN-deepseek_eagle] on deepseek-v3-eagle": PASSED,
        "test_eagle_correctness_light[TRITON_ATTN-deepseek_eagle] on deepseek-v3-eagle": NOT_RUN,
        "test_mtp_correctness[deepseek] on deepseek-v3-mtp-fp8": FAILED,
    }
    passed = here["test_eagle_correctness_light[FLASH_ATTN-deepseek_eagle] on deepseek-v3-eagle"]
    assert passed.measured == {"equal": 99, "outputs": 100}
    assert passed.prediction["verdict"] == "falls back"
    assert (
        "only 41/100 outputs matched"
        in here["test_mtp_correctness[deepseek] on deepseek-v3-mtp-fp8"].reason
    )
    skipped = here["test_eagle_correctness_light[TRITON_ATTN-deepseek_eagle] on deepseek-v3-eagle"]
    assert "TRITON_ATTN does not support" in skipped.reason
    assert len(report.lifted) == 2
    assert report.lifted[0]["reason"].startswith("DeepSeek head_dim=192 not supported")
    assert "deepseek-v3-eagle" in report.lifted[0]["because"]
    assert any("stand-ins were used" in note for note in report.notes)
    assert [o.gpu for o in report.outcomes if o.status == NOT_RUN].count("sm90") == 2
    lines: list[str] = []
    again = suite(options, tmp_path, source, lines.append, resume=True)
    started = [line for line in lines if line.endswith(" ...")]
    assert [("TRITON_ATTN" in line) for line in started] == [True], "a skip is no verdict"
    assert again.counts == report.counts
    assert len(again.lifted) == 2


@pytest.mark.usefixtures("blackwell")
def test_a_skip_stays_where_check_objects(
    options: Callable[..., Options],
    tmp_path: Path,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fixturegen.suite.prediction import Prediction

    said = Prediction(target="here", verdict="rejected", because="a bound")
    monkeypatch.setattr(upstream, "predict", lambda *args: said)
    report = suite(options, tmp_path, source)
    eagle = [o for o in report.outcomes if "eagle_correctness_light" in o.id and o.gpu == "sm100"]
    assert {o.status for o in eagle} == {NOT_RUN}
    assert all("head_dim=192 not supported" in o.reason for o in eagle)
    assert not report.lifted


@pytest.mark.usefixtures("blackwell")
def test_a_tree_of_another_version_is_one_line(
    options: Callable[..., Options], tmp_path: Path, source: Path
) -> None:
    (source / "PKG-INFO").write_text("Name: vllm\nVersion: 0.32.0\n")
    report = suite(options, tmp_path, source)
    here = [o for o in report.outcomes if o.gpu == "sm100"]
    assert {o.status for o in here} == {ERROR}
    assert "is vLLM 0.32.0 and vLLM 0.33.0 is installed" in here[0].reason
    assert "\n" not in here[0].reason


@pytest.mark.usefixtures("blackwell")
def test_tests_that_cannot_be_collected_are_one_line(
    options: Callable[..., Options], tmp_path: Path, source: Path
) -> None:
    test = source / "tests" / "v1" / "spec_decode" / "test_all.py"
    test.write_text("import vllm_needs_this\n" + UPSTREAM)
    report = suite(options, tmp_path, source)
    here = [o for o in report.outcomes if o.gpu == "sm100"]
    assert {o.status for o in here} == {ERROR}
    assert "No module named 'vllm_needs_this'" in here[0].reason


def test_without_a_gpu_they_are_listed(
    options: Callable[..., Options], tmp_path: Path, source: Path, cpu: Machine
) -> None:
    report = suite(options, tmp_path, source)
    assert {o.status for o in report.outcomes} == {NOT_RUN}
    here = [o for o in report.outcomes if o.gpu == "cpu"]
    assert [o.reason for o in here] == ["vLLM's own tests need a GPU"] * 2
    elsewhere = [o for o in report.outcomes if o.gpu == "sm100"]
    assert all(o.prediction["verdict"] in ("accepted", "falls back") for o in elsewhere)


def test_given_tree_without_tests(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has no tests folder"):
        sources.tests_folder("0.33.0", tmp_path)


@pytest.mark.parametrize("refuses", [False, True], ids=["archive", "metadata refused"])
def test_source_release_comes_through_pip(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """With real pip, from a local index; vLLM's build script may refuse to compute metadata."""
    setup = (
        "raise SystemExit('no compiler')" if refuses else "from setuptools import setup; setup()"
    )
    (source / "setup.py").write_text(setup)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "vllm"\nversion = "0.33.0"\n[tool.setuptools]\npackages = []\n'
    )
    index = tmp_path / "index"
    index.mkdir()
    with tarfile.open(index / "vllm-0.33.0.tar.gz", "w:gz") as archive:
        archive.add(source, "vllm-0.33.0")
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    tests = sources.tests_folder("0.33.0", None)
    assert (tests / "v1" / "spec_decode" / "test_all.py").read_text() == UPSTREAM
    assert not (tests.parent / "vllm").exists()
    for file in index.iterdir():
        file.unlink()
    assert sources.tests_folder("0.33.0", None) == tests, "the second time from the cache"
    with pytest.raises(EngineError, match=r"cannot be fetched with pip .*give its source tree"):
        sources.tests_folder("0.32.0", None)


def test_stand_ins_have_the_form_of_gsm8k(tmp_path: Path) -> None:
    real, made = tmp_path / "real", tmp_path / "made"
    real.mkdir()
    made.mkdir()
    assert gsm8k.provide(made, real)
    for name, count in (("train.jsonl", 5), ("test.jsonl", 50)):
        problems = [json.loads(line) for line in (made / name).read_text().splitlines()]
        assert len(problems) >= count
        for problem in problems:
            steps, _, value = problem["answer"].partition("\n#### ")
            assert steps.endswith(f"= {int(value)}.")
            assert problem["question"].endswith("?")


def test_real_gsm8k_files_are_preferred(tmp_path: Path) -> None:
    real, made = tmp_path / "real", tmp_path / "made"
    real.mkdir()
    made.mkdir()
    for name in gsm8k.FILES:
        (real / name).write_text('{"question": "Q", "answer": "#### 1"}\n')
    assert not gsm8k.provide(made, real)
    assert (made / "test.jsonl").read_text().startswith('{"question": "Q"')


@pytest.mark.slow
@pytest.mark.vllm
def test_vllms_real_tests_are_found_by_collection(
    options: Callable[..., Options], tmp_path: Path
) -> None:
    """The source release of the installed version, fetched with pip; its Eagle file needs a GPU
    even to be collected, so what is found here is the MTP test."""
    from fixturegen.suite import fixtures, machine

    names = ("deepseek-v3-mtp-fp8",)
    write_manifests(tmp_path / "fixtures", *names)
    here = machine.local()
    found = fixtures.find(tmp_path / "fixtures", names)
    tests = sources.tests_folder(here.vllm, None)
    plan = upstream._collect(found, here, tmp_path / "vllm", tests, (), 60)
    assert [test.job.id for test in plan.tests] == [
        "test_mtp.py::test_mtp_correctness[deepseek] on deepseek-v3-mtp-fp8"
    ]


@pytest.mark.slow
def test_the_patch_in_the_docs_applies(tmp_path: Path) -> None:
    """To the source release that the page names."""
    page = Path(__file__).parents[2] / "docs" / "vllm-patch.md"
    text = page.read_text(encoding="utf-8")
    (tmp_path / "vllm.patch").write_text(text.split("```diff\n")[1].split("```")[0])
    tree = sources.tests_folder("0.33.0", None).parent
    check = ["git", "apply", "--check", "--verbose", str(tmp_path / "vllm.patch")]
    done = subprocess.run(check, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Checking patch") == 7
    assert "skipif" in text and "0.33.0" in text

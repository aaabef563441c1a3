"""Orchestration: what runs, what is listed, what survives, what is reported."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from fixturegen.cli import cli
from fixturegen.errors import FixturegenError
from fixturegen.suite import run, worker
from fixturegen.suite.jobs import MARK, Job, run_jobs
from fixturegen.suite.machine import Machine, release
from fixturegen.suite.outcome import ERROR, FAILED, NOT_RUN, PASSED
from fixturegen.suite.report import Report, load
from fixturegen.suite.run import Options
from fixturegen.suite.scenarios import MAX_MODEL_LEN, MAX_NUM_BATCHED_TOKENS

Make = Callable[..., Options]
pytestmark = pytest.mark.usefixtures("cpu")


def statuses(report: Report) -> dict[str, str]:
    """Status by the last parts of the id, of the cases for this machine."""
    return {o.id.split("/", 3)[3]: o.status for o in report.outcomes if o.gpu == "cpu"}


def of(report: Report, ending: str) -> object:
    return next(o for o in report.outcomes if o.gpu == "cpu" and o.id.endswith(ending))


def test_a_right_engine_passes(options: Make) -> None:
    lines: list[str] = []
    report = run.run(options(), lines.append)
    assert statuses(report) == {
        "target/eager": PASSED,
        "target/eager/start-2": PASSED,
        "mtp-1/eager": PASSED,
    }
    assert report.good
    drafted = of(report, "mtp-1/eager").measured
    assert drafted["equal"] == drafted["outputs"] == 166
    assert drafted["acceptance_length"] == 1.4
    assert drafted["accepted_per_pos"] == [20]
    asked = {
        s["name"]: (s["batch"], s["prompt_tokens"][1], s["equal"]) for s in drafted["scenarios"]
    }
    assert {batch for batch, *_ in asked.values()} >= {1, 7, 100}
    assert asked["up to max_model_len"] == (2, MAX_MODEL_LEN - 5, 2)
    assert asked["long, chunked prefill"][1] > MAX_NUM_BATCHED_TOKENS
    assert all(s["prefix_cache_hits"] for s in drafted["scenarios"] if s["name"] == "prefix cache")
    assert any(line.startswith("[3/3]") and "passed" in line for line in lines)


def test_what_cannot_run_is_listed_with_a_prediction(options: Make) -> None:
    report = run.run(options(backends=("auto", "FLASH_ATTN"), graphs=(False, True)), print)
    left = [o for o in report.outcomes if o.status == NOT_RUN]
    assert {o.gpu for o in left} == {"cpu", "sm90", "sm100"}
    reasons = {o.reason for o in left if o.gpu == "cpu"}
    assert any("CUDA graphs need a GPU" in r for r in reasons)
    assert any("FLASH_ATTN needs a GPU" in r for r in reasons)
    blackwell = [o for o in left if o.gpu == "sm100" and "/auto/" in o.id]
    assert all(o.reason == "needs SM100; this machine has CPU" for o in blackwell)
    assert all(o.prediction["verdict"] in ("accepted", "falls back") for o in blackwell)
    assert all(o.prediction["choices"]["moe"] for o in blackwell)
    assert all(any("flashinfer" in s for s in o.prediction["sources"]) for o in blackwell)


@pytest.mark.parametrize(
    "behaviour, reason",
    [
        ("crash", "the worker was killed by signal 9 during: start the engine"),
        ("error", "ValueError: Free memory on device is less than desired"),
        ("port", "the worker was ended with code 1 during: start the engine: OSError: [Errno 98]"),
        ("hang", "no answer within 10 s during: start the engine"),
    ],
)
def test_a_case_that_breaks_does_not_stop_the_rest(
    options: Make, behaviour: str, reason: str
) -> None:
    limit = 10 if behaviour == "hang" else 60
    report = run.run(options(behaviour, ks=(1, 3), timeout_s=limit), print)
    assert statuses(report) == {
        "target/eager": PASSED,
        "target/eager/start-2": PASSED,
        "mtp-1/eager": ERROR,
        "mtp-3/eager": ERROR,
    }
    assert of(report, "mtp-1/eager").reason.startswith(reason)
    assert not report.good


def test_nothing_of_a_hanging_worker_is_left(options: Make) -> None:
    run.run(options("hang", timeout_s=10), print)
    left = [
        p
        for p in Path("/proc").glob("[0-9]*/cmdline")
        if os.access(p, os.R_OK) and b"left behind" in p.read_bytes()
    ]
    assert not left


def test_wrong_tokens_fail_and_are_explained(options: Make) -> None:
    report = run.run(options("wrong"), print)
    outcome = of(report, "mtp-1/eager")
    assert outcome.status == FAILED
    first = outcome.failures[0]
    assert "prompt 0 token 2: expected 7, got 9999, margin 1.5" in first.message
    assert "out of a prefill the same token is right" in first.message
    assert first.place == "state after verification"
    assert outcome.measured["equal_share"] == 0


def test_another_backend_than_predicted_fails(
    options: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fixturegen.suite.prediction import Prediction

    said = Prediction(target="here", verdict="accepted", choices={"attention": "CPU_ATTN"})
    monkeypatch.setattr(run, "predict", lambda *args: said)
    report = run.run(options("other backend"), print)
    outcome = of(report, "mtp-1/eager")
    assert outcome.status == FAILED
    assert outcome.reason.endswith("check predicted CPU_ATTN, the engine chose OTHER")


def test_a_refusal_that_check_predicted_is_not_an_error(
    options: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fixturegen.suite.prediction import Prediction

    def predicting(pattern: str) -> Report:
        said = Prediction(target="here", verdict="rejected", errors=(pattern,))
        monkeypatch.setattr(run, "predict", lambda *args: said)
        return run.run(options("error"), print)

    refused = of(predicting("Free memory on .* is less"), "mtp-1/eager")
    assert refused.status == NOT_RUN
    assert refused.reason.startswith("refused as predicted: ValueError: Free memory")
    assert of(predicting("head size not supported"), "mtp-1/eager").status == ERROR
    ran = of(predicting("anything"), "target/eager")
    assert ran.status == FAILED
    assert "check predicted that this does not run" in ran.reason


def test_a_random_fixture_without_a_reference_is_not_judged(options: Make, tmp_path: Path) -> None:
    broken = dataclasses.replace(options(), worker=(sys.executable, "-c", "raise SystemExit(3)"))
    report = run.run(broken, print)
    assert statuses(report)["target/eager"] == ERROR
    assert of(report, "mtp-1/eager").reason.startswith("no reference: ")


def test_interrupt_leaves_a_report_of_what_ran(options: Make) -> None:
    report = run.run(options("interrupt"), print)
    assert report.interrupted
    assert statuses(report) == {
        "target/eager": PASSED,
        "target/eager/start-2": PASSED,
        "mtp-1/eager": NOT_RUN,
    }
    assert of(report, "mtp-1/eager").reason == "interrupted"


def test_resume_runs_only_what_has_no_verdict(options: Make) -> None:
    run.run(options("interrupt"), print)
    lines: list[str] = []
    report = run.run(options("right", resume=True), lines.append)
    assert report.good
    started = [line for line in lines if line.endswith("...")]
    assert len(started) == 1
    assert "mtp-1" in started[0]


def test_resume_does_not_trust_another_fixture(options: Make, tmp_path: Path) -> None:
    run.run(options(), print)
    manifest = tmp_path / "fixtures" / "deepseek-v3-mtp-random" / "fixturegen.json"
    data = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(data | {"content_hash": "0" * 64}))
    lines: list[str] = []
    run.run(options(resume=True), lines.append)
    assert sum(line.endswith("...") for line in lines) == 3


def test_dry_run_writes_nothing(options: Make, tmp_path: Path) -> None:
    lines: list[str] = []
    both = ("deepseek-v3-mtp-random", "deepseek-v3-eagle")
    run.dry_run(options(recipes=both, suites=("exact", "vllm")), lines.append)
    assert not options().out.exists()
    assert [p.name for p in (tmp_path / "fixtures").iterdir()] == ["deepseek-v3-mtp-random"]
    assert any(line.startswith("deepseek-v3-eagle: not there yet") for line in lines)
    assert any(line.endswith("not run: vLLM's own tests need a GPU") for line in lines)
    assert any("python" in line and "case.json" in line for line in lines)
    assert any("not run: needs SM100" in line for line in lines)


@pytest.mark.parametrize(
    "vllm, said", [("", "vLLM is not installed"), ("0.19.1", "vLLM 0.19.1 is older than 0.26")]
)
def test_no_usable_vllm(
    options: Make, monkeypatch: pytest.MonkeyPatch, vllm: str, said: str
) -> None:
    machine = Machine(gpu="cpu", vllm=vllm)
    monkeypatch.setattr("fixturegen.suite.machine.local", lambda: machine)
    lines: list[str] = []
    report = run.run(options(), lines.append)
    assert sum(said in line for line in lines) == 1
    assert set(statuses(report).values()) == {NOT_RUN}
    assert said in of(report, "mtp-1/eager").reason
    assert not report.good
    assert load(options().out).counts == report.counts


def test_full_disk(options: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full refuses every write as a full disk does."""

    def full(path: Path, data: object) -> None:
        with open("/dev/full", "w") as file:
            file.write("x" * 10_000)

    monkeypatch.setattr("fixturegen.suite.exact.write_json", full)
    report = run.run(options(), print)
    assert set(statuses(report).values()) == {ERROR}
    assert "No space left on device" in of(report, "target/eager").reason


def test_a_report_that_cannot_be_written_goes_elsewhere(
    options: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").touch()
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    lines: list[str] = []
    made = run.run(options(), lines.append)
    assert any("report cannot be written: File exists" in line for line in lines)
    place = Path(lines[-1].removeprefix("report: ")).parent
    assert place.parent == tmp_path / "spare"
    assert load(place).counts == made.counts == {PASSED: 0, FAILED: 0, ERROR: 3, NOT_RUN: 6}


def test_a_job_that_cannot_start_does_not_stop_the_rest(tmp_path: Path) -> None:
    def job(name: str, cwd: Path) -> Job:
        return Job(id=name, command=("true",), log=tmp_path / name, timeout_s=10, cwd=cwd)

    first, second = run_jobs([job("a", tmp_path / "none"), job("b", tmp_path)], 1)
    assert "No such file" in first.not_started and not first.timed_out
    assert (second.returncode, second.not_started) == (0, "")


def test_pinned_jobs_share_the_cores(tmp_path: Path) -> None:
    code = "import os; print(*os.sched_getaffinity(0))"
    wait = "import time; time.sleep(0.3);"  # the job is bound right after its start
    jobs = [
        Job(id=n, command=(sys.executable, "-c", wait + code), log=tmp_path / n, timeout_s=30)
        for n in "ab"
    ]
    assert [ended.returncode for ended in run_jobs(jobs, 2, pin=True)] == [0, 0]
    a, b = (set((tmp_path / n).read_text().split()) for n in "ab")
    assert a | b == {str(core) for core in os.sched_getaffinity(0)}
    assert len(a | b) == 1 or not a & b


def test_reports(options: Make) -> None:
    made = run.run(options("wrong"), print)
    out = options().out
    assert json.dumps(load(out).to_dict()) == json.dumps(made.to_dict())
    root = ElementTree.parse(out / "junit.xml").getroot()
    assert len(root.findall(".//testcase")) == len(made.outcomes)
    assert len(root.findall(".//failure")) == 1
    assert len(root.findall(".//skipped")) == made.counts[NOT_RUN]
    page = (out / "report.html").read_text()
    assert "viewport" in page
    assert "http://" not in page and "https://" not in page
    assert "state after verification" in page
    text = (out / "report.md").read_text()
    assert "2 passed, 1 failed, 6 not run" in text
    assert "| deepseek-v3-mtp-random/auto/mla/mtp-1/eager | failed |" in text
    assert "| batches of 7 | 7 | 4 to 58 | 3 | 28/56 |" in text


def test_a_report_of_another_format_is_refused(options: Make) -> None:
    run.run(options(), print)
    path = options().out / "report.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2', 1))
    with pytest.raises(FixturegenError, match="format 2 is not supported"):
        load(path)


def test_terminated_command_line_leaves_no_worker(options: Make, tmp_path: Path) -> None:
    """SIGTERM, as CI sends it, ends the workers and leaves a report."""
    script = tmp_path / "main.py"
    script.write_text(
        "from fixturegen.cli import main\n"
        "from fixturegen.suite import exact\n"
        f"exact.WORKER = {options('hang').worker!r}\n"
        "main()\n"
    )
    command = [sys.executable, str(script), "suite", "--suite", "exact"]
    command += ["--recipes", "deepseek-v3-mtp-random", "--fixtures", str(tmp_path / "fixtures")]
    command += ["--backend", "auto", "--mla", "on", "--eager", "--k", "1"]
    command += ["--out", str(options().out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "mtp-1/eager ..." in line:
            break
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait(60) == 130
    assert load(options().out).interrupted


def test_compare_from_the_command_line(options: Make, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    run.run(options("right", out=good), print)
    run.run(options("wrong", out=bad), print)
    worse = CliRunner().invoke(cli, ["suite", "compare", str(good), str(bad / "report.json")])
    assert worse.exit_code == 1
    assert "mtp-1/eager [cpu]: passed -> failed (state after verification" in worse.output
    same = CliRunner().invoke(cli, ["suite", "compare", str(good), str(good)])
    assert (same.exit_code, same.output) == (0, "no change\n")
    none = CliRunner().invoke(cli, ["suite", "compare", str(good), str(tmp_path)])
    assert isinstance(none.exception, FixturegenError)
    assert "report.json: cannot be read" in str(none.exception)


@pytest.mark.parametrize("k", ["0", "x", "1,-3", ""])
def test_bad_k_is_one_line(k: str) -> None:
    with pytest.raises(FixturegenError, match=r"^--k .*: expected numbers of 1 or more"):
        CliRunner().invoke(cli, ["suite", "--k", k, "--dry-run"], catch_exceptions=False)


def test_atomic_results(tmp_path: Path) -> None:
    worker.write_json(tmp_path / "a.json", {"a": 1})
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_release() -> None:
    assert release("0.32.0+cpu") == (0, 32, 0)
    assert release("0.33.0rc1") == (0, 33, 0)
    assert MARK.isupper()

"""The exact suite on a real vLLM: it passes, and faults put into vLLM's code make it fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fixturegen import build, load_recipe
from fixturegen.suite import diagnosis, exact, fixtures, machine
from fixturegen.suite.cases import Case
from fixturegen.suite.jobs import run_jobs
from fixturegen.suite.outcome import FAILED, NOT_RUN, PASSED, Outcome
from fixturegen.suite.prediction import predict
from fixturegen.suite.report import load
from tests.suite.faulty_worker import FAULTS

pytestmark = pytest.mark.vllm
RECIPE = "deepseek-v3-mtp"

#: Fault -> the place that the suite must name.
PLACES = {
    "softmax_scale": diagnosis.FORWARD,
    "routed_scale": diagnosis.FORWARD,
    "kv_slot": diagnosis.REJECTION,
    "stale_kv": diagnosis.REJECTION,
    "position": diagnosis.REJECTION,
    "accepted_count": diagnosis.ACCEPTANCE,
    "bonus_token": diagnosis.BONUS,
    "draft_hidden": diagnosis.DRAFT,
    "draft_token": diagnosis.DRAFT,
    "draft_position": diagnosis.DRAFT_STEPS,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the planted MTP fixture."""
    folder = tmp_path_factory.mktemp("fixtures")
    build(load_recipe(RECIPE), folder / RECIPE)
    return folder


def outcome(folder: Path, out: Path, fault: str) -> Outcome:
    """MTP with three draft tokens, with a fault in vLLM."""
    here = machine.local()
    (fixture,) = fixtures.find(folder, [RECIPE])
    shared = exact.Run(
        machine=here,
        fixtures={RECIPE: fixture},
        out=out,
        timeout_s=280,
        quick=True,
        worker=(sys.executable, "-m", "tests.suite.faulty_worker", fault),
    )
    case = Case(
        recipe=RECIPE, backend="auto", mla=True, speculation="mtp:3", graphs=False, gpu=here.gpu
    )
    (ended,) = run_jobs([exact.prepare(shared, case, None)], 1)
    return exact.verdict(shared, case, ended, None, predict(case, fixture, here))


def test_a_right_engine_passes(folder: Path, tmp_path: Path) -> None:
    """From the command line: target alone, twice, and with MTP; every token and counter."""
    command = [sys.executable, "-m", "fixturegen", "suite", "--suite", "exact"]
    command += ["--recipes", RECIPE, "--fixtures", str(folder), "--out", str(tmp_path)]
    command += ["--backend", "auto", "--mla", "on", "--k", "3", "--eager", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [o for o in load(tmp_path).outcomes if o.status != NOT_RUN]
    assert [o.status for o in ran] == [PASSED] * 3
    for o in ran:
        assert o.measured["equal"] == o.measured["outputs"] >= 50
        assert o.choices["decode"] == o.prediction["choices"]["decode"] or o.gpu == "cpu"
        assert o.choices["moe"] == o.prediction["choices"]["moe"]
    drafted = ran[2].measured
    assert {c: drafted[c] for c in drafted["predicted"]} == drafted["predicted"]
    assert drafted["accepted_tokens"] > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_and_placed(folder: Path, tmp_path: Path, fault: str) -> None:
    found = outcome(folder, tmp_path, fault)
    assert found.status == FAILED, found.reason
    assert {f.place for f in found.failures} == {PLACES[fault]}, found.failures

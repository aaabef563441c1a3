"""The exact suite on a real vLLM: it passes, and faults put into vLLM's code make it fail."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from fixturegen import build, load_recipe
from fixturegen.suite import diagnosis, exact, fixtures, machine
from fixturegen.suite.cases import Case
from fixturegen.suite.jobs import Ended
from fixturegen.suite.outcome import FAILED, NOT_RUN, PASSED, Outcome
from fixturegen.suite.prediction import predict
from fixturegen.suite.report import load
from fixturegen.suite.worker import write_json
from tests.suite import faulty_worker

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


#: Scenarios that a faulty engine is asked: three batch sizes are enough to tell the places apart.
ASKED = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the planted MTP fixture."""
    folder = tmp_path_factory.mktemp("fixtures")
    build(load_recipe(RECIPE), folder / RECIPE)
    return folder


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> ForkServerContext:
    """Starts processes that have imported vLLM already, which takes longer than an engine's run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vllm.entrypoints.llm", "vllm.v1.engine.core", __name__])
    return context


def outcome(fork: ForkServerContext, folder: Path, out: Path, fault: str) -> Outcome:
    """MTP with three draft tokens, with a fault in vLLM."""
    here = machine.local()
    (fixture,) = fixtures.find(folder, [RECIPE])
    run = exact.Run(machine=here, fixtures={RECIPE: fixture}, out=out, timeout_s=280, quick=True)
    case = Case(
        recipe=RECIPE, backend="auto", mla=True, speculation="mtp:3", graphs=False, gpu=here.gpu
    )
    job = exact.prepare(run, case, None)
    file = run.folder(case) / "case.json"
    asked = json.loads(file.read_text())
    write_json(file, asked | {"scenarios": asked["scenarios"][:ASKED]})
    env = exact.environment(run, case)
    process = fork.Process(target=faulty_worker.main, args=(fault, env, str(file), str(job.log)))
    process.start()
    process.join(job.timeout_s)
    process.kill()
    ended = Ended(job=job, returncode=process.exitcode, seconds=0.0)
    return exact.verdict(run, case, ended, None, predict(case, fixture, here))


def test_a_right_engine_passes(folder: Path, tmp_path: Path) -> None:
    """From the command line: target alone, twice, and with MTP; every token and counter."""
    command = [sys.executable, "-m", "fixturegen", "suite", "--suite", "exact"]
    command += ["--recipes", RECIPE, "--fixtures", str(folder), "--out", str(tmp_path)]
    command += ["--backend", "auto", "--mla", "on", "--k", "3", "--eager", "--quick"]
    command += ["--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [o for o in load(tmp_path).outcomes if o.status != NOT_RUN]
    assert [o.status for o in ran] == [PASSED] * 3
    for o in ran:
        assert o.measured["equal"] == o.measured["outputs"] >= 50
        assert o.choices["moe"] == o.prediction["choices"]["moe"]
    (drafted,) = (o.measured for o in ran if o.id.endswith("/mtp-3/eager"))
    assert {c: drafted[c] for c in drafted["predicted"]} == drafted["predicted"]
    assert drafted["accepted_tokens"] > 0


@pytest.mark.parametrize("fault", faulty_worker.FAULTS)
def test_a_fault_is_caught_and_placed(
    fork: ForkServerContext, folder: Path, tmp_path: Path, fault: str
) -> None:
    found = outcome(fork, folder, tmp_path, fault)
    assert found.status == FAILED, found.reason
    assert {f.place for f in found.failures} == {PLACES[fault]}, found.failures

"""The ``vllm`` suite: vLLM's own DeepSeek tests, unmodified, on our fixtures."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fixturegen
from fixturegen.errors import EngineError
from fixturegen.suite import gsm8k, hubcache, sources
from fixturegen.suite.cases import LISTED_GPUS, Case
from fixturegen.suite.fixtures import Fixture
from fixturegen.suite.jobs import Ended, Job
from fixturegen.suite.machine import Machine
from fixturegen.suite.outcome import ERROR, FAILED, NOT_RUN, PASSED, Failure, Outcome
from fixturegen.suite.prediction import Prediction, predict

SUITE = "vllm"

#: The pytest plugin in the process that runs vLLM's tests, named only: it needs pytest.
LIFT = "fixturegen.suite.lift"
#: Environment variables that name the plugin's input and output.
SELECTION = "FIXTUREGEN_SELECTION"
COLLECTED = "FIXTUREGEN_COLLECTED"

#: Backend and draft tokens with which vLLM's tests start each kind of fixture (MLA disabled).
_UPSTREAM = {"mtp": ("auto", 1), "eagle": ("FLASH_ATTN", 3)}


@dataclass(frozen=True, kw_only=True)
class Test:
    """One of vLLM's tests on one fixture."""

    job: Job
    prediction: Prediction
    #: File in which the plugin says which skips it lifted.
    collected: Path
    #: File in which the outcome is kept, and what it is the outcome of.
    kept: Path
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Tests to run, and outcomes that are known without running."""

    tests: tuple[Test, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    notes: tuple[str, ...] = ()


def plan(
    fixtures: Sequence[Fixture], machine: Machine, out: Path, given: Path | None, timeout_s: float
) -> Plan:
    """Find vLLM's tests by collection and lay out what they need.

    Whatever stands in the way becomes an outcome, so that the other suite still runs.
    """
    standing = [f for f in fixtures if f.recipe.stands_for]
    elsewhere = [
        _unrun(f, gpu, machine, f"needs {gpu.upper()}; this machine has {machine.gpu.upper()}")
        for gpu in LISTED_GPUS
        if gpu != machine.gpu
        for f in standing
    ]
    if not standing:
        return Plan(notes=("no fixture of this run stands in for a model of vLLM's tests",))
    if why := obstacle(machine):
        here = [_unrun(f, machine.gpu, machine, why) for f in standing]
        return Plan(outcomes=(*here, *elsewhere))
    try:
        tests = sources.tests_folder(machine.vllm, given)
        return _collect(standing, machine, out.absolute() / "vllm", tests, elsewhere, timeout_s)
    except (EngineError, OSError) as error:
        wrong = [_unrun(f, machine.gpu, machine, str(error), ERROR) for f in standing]
        return Plan(outcomes=(*wrong, *elsewhere))


def obstacle(machine: Machine) -> str:
    """Why vLLM's own tests cannot run on ``machine``, or an empty string."""
    return machine.problem or ("" if machine.on_gpu else "vLLM's own tests need a GPU")


def _case(fixture: Fixture, gpu: str) -> Case:
    backend, k = _UPSTREAM[fixture.recipe.draft]
    return Case(
        recipe=fixture.name,
        backend=backend,
        mla=False,
        speculation=f"{fixture.recipe.draft}:{k}",
        graphs=True,
        gpu=gpu,
    )


def _unrun(
    fixture: Fixture, gpu: str, machine: Machine, reason: str, status: str = NOT_RUN
) -> Outcome:
    tests = "+".join(dict.fromkeys(t for s in fixture.recipe.stands_for for t in s.tests))
    return Outcome(
        id=f"{tests}[{fixture.name}]",
        suite=SUITE,
        gpu=gpu,
        status=status,
        reason=reason,
        prediction=predict(_case(fixture, gpu), fixture, machine).to_dict(),
    )


def _collect(
    fixtures: Sequence[Fixture],
    machine: Machine,
    folder: Path,
    tests: Path,
    elsewhere: Sequence[Outcome],
    timeout_s: float,
) -> Plan:
    for name in ("gsm8k", "cache", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if not (folder / "tests").is_dir():
        shutil.copytree(tests, folder / "tests")  # alone: beside vllm/ it would be imported
    notes = []
    if gsm8k.provide(folder / "gsm8k", Path(tempfile.gettempdir())):
        notes.append("GSM8K's train.jsonl and test.jsonl were not there: stand-ins were used")
    models = {s.model: s.tests for f in fixtures for s in f.recipe.stands_for}
    _select(folder / "all.json", models, {})
    collected, error = _collected(folder, models)
    planned: list[Test] = []
    outcomes = list(elsewhere)
    for fixture in fixtures:
        mine = {s.model: s.tests for s in fixture.recipe.stands_for}
        found = [entry["test"] for entry in collected if mine.keys() >= set(entry["models"])]
        if not found:
            reason = f"vLLM's test was not collected: {error}"
            outcomes.append(_unrun(fixture, machine.gpu, machine, reason, ERROR))
            continue
        prediction = predict(_case(fixture, machine.gpu), fixture, machine)
        runs = prediction.verdict in ("accepted", "falls back")
        because = f"check {prediction.verdict} {fixture.name} on {prediction.target}"
        selection = folder / f"{fixture.name}.json"
        _select(selection, mine, dict.fromkeys(mine, because) if runs else {})
        hubcache.lay_out(
            folder / fixture.name,
            {
                s.model: (fixture.checkpoint(s.part), fixture.hashes[s.part])
                for s in fixture.recipe.stands_for
            },
        )
        planned += [_test(folder, fixture, test, prediction, machine, timeout_s) for test in found]
    return Plan(tests=tuple(planned), outcomes=tuple(outcomes), notes=tuple(notes))


def _select(path: Path, models: Mapping[str, Sequence[str]], runs: Mapping[str, str]) -> None:
    """Write what the plugin reads."""
    selection = {"models": {m: list(t) for m, t in models.items()}, "lift": dict(runs)}
    path.write_text(json.dumps(selection, indent=1), encoding="utf-8")


def _collected(folder: Path, models: Iterable[str]) -> tuple[list[dict[str, Any]], str]:
    """What pytest finds in the files that name one of the models, and the last error it met."""
    files = [
        str(path.relative_to(folder))
        for path in sorted((folder / "tests").rglob("test_*.py"))
        if any(m in path.read_text(encoding="utf-8", errors="replace") for m in models)
    ]
    if not files:
        raise EngineError(f"no test of this vLLM names any of {', '.join(models)}")
    found = folder / "collected.json"
    found.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [*_pytest(), "--collect-only", "-q", "--continue-on-collection-errors", *files],
            cwd=folder,
            env={**os.environ, **_environment(folder, "all", found)},
            capture_output=True,
            text=True,
            timeout=600,
        )
    except subprocess.TimeoutExpired:
        raise EngineError("pytest did not collect vLLM's tests within 600 s") from None
    errors = [line for line in done.stdout.splitlines() if line.startswith("E  ")]
    lines = errors or done.stderr.strip().splitlines() or done.stdout.strip().splitlines()
    error = lines[-1].removeprefix("E").strip() if lines else f"pytest gave {done.returncode}"
    try:
        return json.loads(found.read_text(encoding="utf-8")), error
    except (OSError, ValueError):
        return [], error


def _pytest() -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", LIFT]


def _environment(folder: Path, selection: str, collected: Path) -> dict[str, str]:
    """Variables of vLLM's tests, beside the user's own."""
    package = str(Path(fixturegen.__file__).parent.parent)
    return {
        "HF_HOME": str(folder / selection),
        "HF_HUB_CACHE": str(folder / selection / "hub"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        SELECTION: str(folder / f"{selection}.json"),
        COLLECTED: str(collected),
    }


def _test(
    folder: Path,
    fixture: Fixture,
    test: str,
    prediction: Prediction,
    machine: Machine,
    timeout_s: float,
) -> Test:
    place = folder / "runs" / re.sub(r"[^\w.-]+", "_", f"{fixture.name} {test}")[-150:]
    collected = place.with_name(place.name + ".json")
    job = Job(
        id=f"{test.rpartition('/')[2]} on {fixture.name}",
        command=(*_pytest(), "-s", "-rA", f"--junitxml={place}.xml", test),
        log=place.with_name(place.name + ".txt"),
        timeout_s=timeout_s,
        env=_environment(folder, fixture.name, collected),
        temp_files=tuple(folder / "gsm8k" / name for name in gsm8k.FILES),
        cwd=folder,
    )
    parts = [job.id, machine.vllm, sorted(fixture.hashes.items()), sorted(machine.env.items())]
    return Test(
        job=job,
        prediction=prediction,
        collected=collected,
        kept=place.with_name(place.name + ".outcome.json"),
        fingerprint=hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
    )


def lifted(test: Test) -> list[dict[str, str]]:
    """The skips that were lifted when ``test`` ran."""
    try:
        entries = json.loads(test.collected.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [skip for entry in entries for skip in entry["lifted"]]


def verdict(test: Test, ended: Ended, machine: Machine, out: Path) -> Outcome:
    """The outcome of one of vLLM's tests, from its JUnit file and its output."""
    job = ended.job
    log = job.log.read_text(encoding="utf-8", errors="replace") if job.log.is_file() else ""
    status, reason = _status(ended)
    return Outcome(
        id=job.id,
        suite=SUITE,
        gpu=machine.gpu,
        status=status,
        seconds=ended.seconds,
        reason=reason,
        failures=(Failure(scenario="vLLM's test", message=reason),) if status == FAILED else (),
        measured=_matches(log),
        prediction=test.prediction.to_dict(),
        command=_command(job),
        log=str(job.log.relative_to(out.absolute())),
    )


def interrupted(test: Test, machine: Machine) -> Outcome:
    """The outcome of a test that was not reached."""
    return Outcome(
        id=test.job.id,
        suite=SUITE,
        gpu=machine.gpu,
        status=NOT_RUN,
        reason="interrupted",
        prediction=test.prediction.to_dict(),
    )


def _status(ended: Ended) -> tuple[str, str]:
    if ended.not_started:
        return ERROR, f"cannot be started: {ended.not_started}"
    if ended.timed_out:
        return ERROR, f"no end within {ended.job.timeout_s:.0f} s"
    try:
        path = next(a for a in ended.job.command if a.startswith("--junitxml=")).partition("=")[2]
        case = ElementTree.parse(path).getroot().find(".//testcase")
    except (OSError, ElementTree.ParseError):
        case = None
    if case is None:
        return ERROR, f"pytest ended with code {ended.returncode} and no result"
    for tag, status in (("failure", FAILED), ("error", ERROR), ("skipped", NOT_RUN)):
        if (element := case.find(tag)) is not None:
            return status, (element.get("message") or "").strip().split("\n")[0][:400]
    return PASSED, ""


def _matches(log: str) -> dict[str, Any]:
    """How many outputs were equal, where the test's output says so.

    Newer releases print ``exact text matches=99/100``, older ones each pair that differs.
    """
    if found := re.search(r"exact text matches=(\d+)/(\d+)", log):
        return {"equal": int(found[1]), "outputs": int(found[2])}
    misses = len(re.findall(r"^ref_output: ", log, re.MULTILINE))
    return {"misses": misses} if "test session starts" in log else {}


def _command(job: Job) -> str:
    """The command line that runs a test again by hand, from the report's folder."""
    env = [f"{name}={value}" for name, value in job.env.items()]
    words = [f'"{w}"' if re.search(r"[\[\] ]", w) else w for w in job.command[1:]]
    text = " ".join(["cd vllm &&", *env, "TMPDIR=$PWD/gsm8k", "python", *words])
    return text.replace(str(job.cwd), "$PWD")

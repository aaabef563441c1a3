"""The ``vllm`` suite: vLLM's own DeepSeek tests, unmodified, on our fixtures."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fixturegen
from fixturegen.errors import EngineError
from fixturegen.suite import gsm8k, hubcache, lift, sources
from fixturegen.suite.cases import LISTED_GPUS, Case
from fixturegen.suite.fixtures import Fixture
from fixturegen.suite.jobs import Ended, Job
from fixturegen.suite.machine import Machine, python
from fixturegen.suite.outcome import ERROR, FAILED, NOT_RUN, PASSED, Failure, Outcome
from fixturegen.suite.prediction import Prediction, predict

SUITE = "vllm"

#: Backend and draft tokens with which vLLM's tests start each kind of fixture (MLA disabled).
_UPSTREAM = {"mtp": ("auto", 1), "eagle": ("FLASH_ATTN", 3)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Tests to run, and outcomes that are known without running."""

    jobs: tuple[Job, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    lifted: tuple[Mapping[str, str], ...] = ()
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
    obstacle = machine.problem or ("" if machine.on_gpu else "vLLM's own tests need a GPU")
    if obstacle:
        here = [_unrun(f, machine.gpu, machine, obstacle) for f in standing]
        return Plan(outcomes=(*here, *elsewhere))
    try:
        tests = sources.tests_folder(machine.vllm, given)
        return _collect(standing, machine, out.absolute() / "vllm", tests, elsewhere, timeout_s)
    except EngineError as error:
        wrong = [_unrun(f, machine.gpu, machine, str(error), ERROR) for f in standing]
        return Plan(outcomes=(*wrong, *elsewhere))


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
    for name in ("tmp", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if not (folder / "tests").is_dir():
        shutil.copytree(tests, folder / "tests")  # alone: beside vllm/ it would be imported
    notes = []
    if gsm8k.provide(folder / "tmp", Path(tempfile.gettempdir())):
        notes.append("GSM8K's train.jsonl and test.jsonl were not there: stand-ins were used")
    by_model = {s.model: (f, s) for f in fixtures for s in f.recipe.stands_for}
    hubcache.lay_out(
        folder / "hf",
        {m: (f.checkpoint(s.part), f.hashes[s.part]) for m, (f, s) in by_model.items()},
    )
    predictions = {f.name: predict(_case(f, machine.gpu), f, machine) for f in fixtures}
    runs = {
        model: f"check {predictions[f.name].verdict} {f.name} on {predictions[f.name].target}"
        for model, (f, _) in by_model.items()
        if predictions[f.name].verdict in ("accepted", "falls back")
    }
    selection = {
        "models": {model: list(s.tests) for model, (_, s) in by_model.items()},
        "lift": runs,
        "collected": str(folder / "collected.json"),
    }
    (folder / "selection.json").write_text(json.dumps(selection, indent=1), encoding="utf-8")
    collected, error = _collected(folder, list(by_model))
    found = {entry["test"]: by_model[entry["models"][0]][0].name for entry in collected}
    lost = [
        _unrun(f, machine.gpu, machine, f"vLLM's test was not collected: {error}", ERROR)
        for f in fixtures
        if f.name not in found.values()
    ]
    return Plan(
        jobs=tuple(_job(folder, test, timeout_s) for test in found),
        outcomes=(*lost, *elsewhere),
        predictions={test: predictions[name] for test, name in found.items()},
        lifted=tuple(entry for test in collected for entry in test["lifted"]),
        notes=tuple(notes),
    )


def _collected(folder: Path, models: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """What pytest finds in the files that name one of the models, and the last error it met."""
    files = [
        str(path.relative_to(folder))
        for path in sorted((folder / "tests").rglob("test_*.py"))
        if any(m in path.read_text(encoding="utf-8", errors="replace") for m in models)
    ]
    if not files:
        raise EngineError(f"no test of this vLLM names any of {', '.join(models)}")
    (folder / "collected.json").unlink(missing_ok=True)
    done = subprocess.run(
        [*_pytest(), "--collect-only", "-q", "--continue-on-collection-errors", *files],
        cwd=folder,
        env={**os.environ, **_environment(folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    errors = [line for line in done.stdout.splitlines() if line.startswith("E  ")]
    lines = errors or done.stderr.strip().splitlines() or done.stdout.strip().splitlines()
    error = lines[-1].removeprefix("E").strip() if lines else f"pytest gave {done.returncode}"
    try:
        return json.loads((folder / "collected.json").read_text(encoding="utf-8")), error
    except (OSError, ValueError):
        return [], error


def _pytest() -> list[str]:
    return [*python(), "-m", "pytest", "-p", "no:cacheprovider", "-p", lift.__name__]


def _environment(folder: Path) -> dict[str, str]:
    """Variables of vLLM's tests, beside the user's own."""
    package = str(Path(fixturegen.__file__).parent.parent)
    return {
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_CACHE": str(folder / "hf" / "hub"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        lift.SELECTION: str(folder / "selection.json"),
    }


def _job(folder: Path, test: str, timeout_s: float) -> Job:
    place = folder / "runs" / re.sub(r"[^\w.-]+", "_", test)[-150:]
    return Job(
        id=test,
        command=(*_pytest(), "-s", "-rA", f"--junitxml={place}.xml", test),
        log=place.with_name(place.name + ".txt"),
        timeout_s=timeout_s,
        env=_environment(folder),
        cwd=folder,
    )


def verdict(plan: Plan, ended: Ended, machine: Machine, out: Path) -> Outcome:
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
        prediction=plan.predictions[job.id].to_dict(),
        command=f"(cd {job.cwd} && {_shell(job)})",
        log=str(job.log.relative_to(out.absolute())),
    )


def interrupted(plan: Plan, job: Job, machine: Machine) -> Outcome:
    """The outcome of a test that was not reached."""
    return Outcome(
        id=job.id,
        suite=SUITE,
        gpu=machine.gpu,
        status=NOT_RUN,
        reason="interrupted",
        prediction=plan.predictions[job.id].to_dict(),
    )


def _status(ended: Ended) -> tuple[str, str]:
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


def _shell(job: Job) -> str:
    env = [f"{name}={value}" for name, value in job.env.items()]
    words = [*env, "python", *job.command[1:]]
    return " ".join(f"'{w}'" if re.search(r"[\[\] ]", w) else w for w in words)

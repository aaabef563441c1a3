"""The ``exact`` suite: case files for the workers, and verdicts on what they bring back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixturegen.planted import Oracle
from fixturegen.suite import defects, diagnosis, judge
from fixturegen.suite.cases import Case
from fixturegen.suite.diagnosis import Difference
from fixturegen.suite.fixtures import Fixture
from fixturegen.suite.jobs import Ended, Job
from fixturegen.suite.machine import Machine
from fixturegen.suite.outcome import ERROR, FAILED, NOT_RUN, PASSED, Failure, Outcome
from fixturegen.suite.prediction import Prediction
from fixturegen.suite.scenarios import (
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    Scenario,
    scenarios,
)
from fixturegen.suite.worker import STEP, write_json

#: KV cache of one engine. All prompts of a scenario fit, so that nothing is preempted.
KV_CACHE_BYTES = 2 * 2**30

#: With less than this left a disk counts as full.
_FULL_BYTES = 2**20

WORKER = (sys.executable, "-m", "fixturegen.suite.worker")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that the cases of one run share."""

    machine: Machine
    fixtures: Mapping[str, Fixture]
    out: Path
    timeout_s: float
    quick: bool = False
    #: Command that takes a case file.
    worker: tuple[str, ...] = WORKER

    def folder(self, case: Case) -> Path:
        """Where a case keeps its files."""
        return self.out / "cases" / re.sub(r"[^\w.-]+", "_", case.id)


def _all_scenarios(run: Run, case: Case) -> list[Scenario]:
    fixture = run.fixtures[case.recipe]
    config = fixture.recipe.model
    return scenarios(
        bos=config.bos_token_id or 0,
        tokens=min(fixture.recipe.tokenizer_vocab_size, config.vocab_size),
        planted=fixture.planted,
        k=case.k,
        quick=run.quick,
    )


def asked(run: Run, case: Case) -> list[Scenario]:
    """The scenarios that the case puts to its engine.

    Of a planted fixture only prompts that its oracle vouches for are asked.
    """
    found = [
        s for s in _all_scenarios(run, case) if defects.of_scenario(case, s, run.machine) is None
    ]
    oracle = _oracle(run.fixtures[case.recipe])
    if oracle is None:
        return found

    def vouched(scenario: Scenario) -> Scenario:
        k = 0 if scenario.clipped else case.k
        prompts = (p for p in scenario.prompts if not oracle.guaranteed(p, _room(p, scenario), k))
        return dataclasses.replace(scenario, prompts=tuple(prompts))

    return [s for s in map(vouched, found) if s.prompts]


def _room(prompt: Sequence[int], scenario: Scenario) -> int:
    """Tokens that the engine generates after ``prompt``."""
    return min(scenario.max_tokens, MAX_MODEL_LEN - len(prompt))


def obstacle(run: Run, case: Case) -> str:
    """Why the oracle of a planted fixture cannot judge the case, or an empty string."""
    oracle = _oracle(run.fixtures[case.recipe])
    first = _all_scenarios(run, case)[0]
    return oracle.guaranteed(first.prompts[0], first.max_tokens, case.k) if oracle else ""


def left_out(run: Run, case: Case) -> set[defects.Defect]:
    """The defects of this engine for which scenarios are left out of the case."""
    found = (defects.of_scenario(case, s, run.machine) for s in _all_scenarios(run, case))
    return {defect for defect in found if defect is not None}


def case_file(run: Run, case: Case, reference: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the worker reads.

    ``engine``: keyword arguments of ``vllm.LLM``. ``scenarios``: name, prompts (token ids),
    max_tokens, batch, temperature, and the expected outputs where they are known.
    ``result``: the file to write.
    """
    fixture = run.fixtures[case.recipe]
    engine: dict[str, Any] = {
        "model": str(fixture.target.absolute()),
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
        "enforce_eager": not case.graphs,
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
        "seed": 0,
    }
    if run.machine.on_gpu:
        engine["gpu_memory_utilization"] = 0.05  # only a demand on free memory: the cache is fixed
    if case.backend != "auto":
        engine["attention_config"] = {"backend": case.attention}
    if case.k:
        speculative: dict[str, Any] = {"method": case.method, "num_speculative_tokens": case.k}
        if case.method == "eagle":
            speculative |= {"model": str(fixture.checkpoint("draft").absolute())}
        engine["speculative_config"] = speculative
    oracle = _oracle(fixture)
    found = []
    for scenario in asked(run, case):
        entry = dataclasses.asdict(scenario)
        if oracle is not None:
            said = oracle.continuation(scenario.prompts, scenario.max_tokens)
            pairs = zip(scenario.prompts, said, strict=True)
            entry["expected"] = [tokens[: _room(prompt, scenario)] for prompt, tokens in pairs]
        elif reference is not None:
            entry["expected"] = _outputs(reference, scenario.name)
        else:
            entry["expected"] = None
        found.append(entry)
    result = run.folder(case) / "result.json"
    return {"id": case.id, "engine": engine, "scenarios": found, "result": str(result.absolute())}


def _oracle(fixture: Fixture) -> Oracle | None:
    return Oracle.load(fixture.target) if fixture.planted and fixture.built else None


def _outputs(result: Mapping[str, Any], name: str) -> Any:
    return next((s["outputs"] for s in result["scenarios"] if s["name"] == name), None)


def environment(run: Run, case: Case) -> dict[str, str]:
    """Variables of the worker, beside the user's own."""
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        **case.env,
    }
    if case.graphs:  # engines that compile the same thing side by side must not share a cache
        env["VLLM_CACHE_ROOT"] = str(run.folder(case).absolute() / "cache")
    if not run.machine.on_gpu:
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process: half the time to start
    return env


def prepare(run: Run, case: Case, reference: Mapping[str, Any] | None) -> Job:
    """Write the case file and give the job that runs it."""
    folder = run.folder(case)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)
    write_json(folder / "case.json", case_file(run, case, reference))
    return Job(
        id=case.id,
        command=(*run.worker, str((folder / "case.json").absolute())),
        log=folder / "log.txt",
        timeout_s=run.timeout_s,
        env=environment(run, case),
    )


def command(run: Run, case: Case) -> str:
    """The command line that runs the case again by hand, from the report's folder."""
    env = environment(run, case)
    words = [f"{n}={v}" for n, v in env.items() if n != "VLLM_CACHE_ROOT"]
    file = run.folder(case).relative_to(run.out) / "case.json"
    return " ".join([*words, "python", *run.worker[1:], str(file)])


def fingerprint(run: Run, case: Case) -> str:
    """Changes whenever a stored result no longer answers the case."""
    fixture = run.fixtures[case.recipe]
    parts = [
        case.id,
        case.gpu,
        run.machine.vllm,
        sorted(fixture.hashes.items()),
        sorted(run.machine.env.items()),
        [dataclasses.asdict(s) for s in asked(run, case)],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def load_result(run: Run, case: Case) -> dict[str, Any] | None:
    """What the worker wrote, or None."""
    try:
        result = json.loads((run.folder(case) / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def not_run(case: Case, reason: str, prediction: Prediction) -> Outcome:
    """The outcome of a case that cannot run here."""
    return Outcome(
        id=case.id,
        suite="exact",
        gpu=case.gpu,
        status=NOT_RUN,
        reason=reason,
        prediction=prediction.to_dict(),
    )


def tidy(run: Run, case: Case) -> None:
    """Remove compiled kernels that the engine left beside the result."""
    shutil.rmtree(run.folder(case) / "cache", ignore_errors=True)


def failed_to_run(case: Case, reason: str, prediction: Prediction) -> Outcome:
    """The outcome of a case that should have run and could not be started."""
    return dataclasses.replace(not_run(case, reason, prediction), status=ERROR)


def verdict(
    run: Run,
    case: Case,
    ended: Ended,
    reference: Mapping[str, Any] | None,
    prediction: Prediction,
) -> Outcome:
    """The outcome of a case whose worker has ended."""
    result = load_result(run, case)
    log = run.folder(case) / "log.txt"
    common: dict[str, Any] = {
        "id": case.id,
        "suite": "exact",
        "gpu": case.gpu,
        "seconds": ended.seconds,
        "prediction": prediction.to_dict(),
        "command": command(run, case),
        "log": str(log.relative_to(run.out)),
    }
    if result is None or "error" in result:
        reason = _why_no_result(ended, result, log)
        if prediction.explains(log):
            return Outcome(**common, status=NOT_RUN, reason=f"refused as predicted: {reason}")
        return Outcome(**common, status=ERROR, reason=reason)
    failures, measured = _judge(run, case, result, reference)
    failures += judge.wrong_predictions(prediction.choices, result["choices"])
    if case.k and run.machine.on_gpu and not result["choices"].get("async_scheduling"):
        text = "async scheduling is off; vLLM's own tests demand that it is on by default"
        failures.append(Failure(scenario="engine start", message=text, place=diagnosis.ENGINE))
    if prediction.verdict == "rejected":
        text = f"check predicted that this does not run ({prediction.because}) and it runs"
        failures.append(Failure(scenario="engine start", message=text, place=diagnosis.PREDICTION))
    return Outcome(
        **common,
        status=FAILED if failures else PASSED,
        reason=f"{failures[0].place}: {failures[0].message}" if failures else "",
        failures=tuple(failures),
        measured={"engine_start_s": result["engine_start_s"], **measured},
        choices=result["choices"],
    )


def _judge(
    run: Run, case: Case, result: Mapping[str, Any], reference: Mapping[str, Any] | None
) -> tuple[list[Failure], dict[str, Any]]:
    fixture = run.fixtures[case.recipe]
    oracle = _oracle(fixture)
    stored = json.loads((run.folder(case) / "case.json").read_text(encoding="utf-8"))
    wanted, got = stored["scenarios"], result["scenarios"]
    failures: list[Failure] = []
    found: list[Difference] = []
    for scenario, outcome in zip(wanted, got, strict=True):
        failures += judge.wrong_lengths(scenario, outcome, MAX_MODEL_LEN)
        found += judge.differences(scenario, outcome)
        if scenario["cached"] and result["choices"]["prefix_caching"]:
            failures += _no_hits(outcome)
        if case.k and oracle is None and not scenario["clipped"]:
            failures += judge.impossible_counters(scenario["name"], case.k, outcome)
    total = sum(len(s["outputs"]) for s in got)
    measured: dict[str, Any] = {"outputs": total, "scenarios": []}
    for scenario, outcome in zip(wanted, got, strict=True):
        lengths = [len(prompt) for prompt in scenario["prompts"]]
        wrong = sum(d.scenario == scenario["name"] for d in found)
        entry = {
            "name": scenario["name"],
            "batch": scenario["batch"] or len(lengths),
            "prompt_tokens": [min(lengths), max(lengths)],
            "outputs": len(lengths),
            "equal": len(lengths) - wrong if scenario["expected"] is not None else None,
            "prefix_cache_hits": outcome["counters"].get("prefix_cache_hits", 0),
            "seconds": outcome["seconds"],
        }
        measured["scenarios"].append(entry)
    if wanted[0]["expected"] is not None:
        measured["equal"] = total - len(found)
        measured["equal_share"] = round(1 - len(found) / total, 4)
    if case.k:
        whole = [o for s, o in zip(wanted, got, strict=True) if not s["clipped"]]
        measured["acceptance_length"] = judge.acceptance_length(whole)
        for counter in judge.COUNTERS:
            measured[counter] = _sum(s["counters"].get(counter) for s in whole)
    if oracle is None:
        failures += _loosely(case, wanted, got, found)
        return failures, measured

    def continuation(difference: Difference) -> Sequence[int]:
        scenario = next(s for s in wanted if s["name"] == difference.scenario)
        said = difference.got[: difference.position + 1]
        history = [*scenario["prompts"][difference.prompt], *said]
        return list(oracle.continuation([history], 4)[0])

    place = (
        diagnosis.of_tokens(
            found,
            speculative=bool(case.k),
            scenarios=[s["name"] for s in wanted],
            continuation=continuation,
        )
        if found
        else ""
    )
    failures += judge.token_failures(found, got, place)
    if case.k:
        expected = {s["name"]: _predicted(oracle, s, case) for s in wanted if not s["clipped"]}
        measured["predicted"] = {c: _sum(e[c] for e in expected.values()) for c in judge.COUNTERS}
        told = {d.scenario for d in found}  # wrong tokens make wrong counters
        for outcome in whole:
            if outcome["name"] not in told and not outcome["counters"].get("preemptions"):
                failures += judge.counter_failures(
                    outcome["name"], expected[outcome["name"]], outcome["counters"]
                )
    return failures, measured


def _loosely(
    case: Case,
    wanted: Sequence[Mapping[str, Any]],
    got: Sequence[Mapping[str, Any]],
    found: Sequence[Difference],
) -> list[Failure]:
    """Random weights: vLLM's own rule on all outputs, ``equal > int(share x outputs)``."""
    outputs = sum(len(outcome["outputs"]) for outcome in got)
    if outputs - len(found) > int(judge.LOOSE_SHARE[case.method] * outputs):
        return []
    names = [scenario["name"] for scenario in wanted]
    place = diagnosis.of_tokens(found, speculative=bool(case.k), scenarios=names)
    return judge.token_failures(found, got, place)


def _no_hits(outcome: Mapping[str, Any]) -> list[Failure]:
    if outcome["counters"].get("prefix_cache_hits", 0) > 0:
        return []
    text = "prefix caching is on and nothing came out of the cache"
    return [Failure(scenario=outcome["name"], message=text, place=diagnosis.PREFIX)]


def _predicted(oracle: Oracle, scenario: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Counters of a scenario: the sum over its prompts."""
    each = oracle.speculate(scenario["prompts"], scenario["max_tokens"], case.k)
    return {
        "drafts": sum(e.drafts for e in each),
        "draft_tokens": sum(e.draft_tokens for e in each),
        "accepted_tokens": sum(e.accepted_tokens for e in each),
        "accepted_per_pos": _sum(e.accepted_per_position for e in each),
    }


def _sum(values: Any) -> Any:
    present = [v for v in values if v is not None]
    if present and isinstance(present[0], list | tuple):
        return [sum(column) for column in zip(*present, strict=True)]
    return sum(present)


def _why_no_result(ended: Ended, result: Mapping[str, Any] | None, log: Path) -> str:
    """One line on a worker that failed, crashed, hung or never started."""
    if ended.not_started:
        return f"cannot be started: {ended.not_started}"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    steps = [line.split(STEP, 1)[1].strip() for line in lines if STEP in line]
    at = f" during: {steps[-1]}" if steps else ""
    if ended.timed_out:
        return f"no answer within {ended.job.timeout_s:.0f} s{at}; raise --timeout if it is slow"
    if result is None:
        code = ended.returncode or 0
        how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        full = shutil.disk_usage(log.parent).free < _FULL_BYTES
        cause = f"the disk of {log.parent} is full" if full else root_cause(lines)
        return f"the worker was {how}{at}" + (f": {cause}" if cause else "")
    error: str = result["error"]
    if cause := root_cause(lines):
        error = cause
    return error + at


_ERROR = re.compile(r"(?:^|\s)((?:[A-Za-z_.]*(?:Error|Exception|Interrupt)): .+)$")


def root_cause(lines: Sequence[str]) -> str:
    """The last error line of a log that is not vLLM's remark about a failed engine core."""
    for line in reversed(lines):
        found = _ERROR.search(line)
        if found and "Engine core" not in line and "EngineDeadError" not in line:
            return found[1].strip()[:300]
    return ""

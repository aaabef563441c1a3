"""One run of the suites: what can run runs, what cannot is listed, and a report is left."""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixturegen.errors import FixturegenError
from fixturegen.suite import exact, fixtures, machine, report, upstream
from fixturegen.suite.cases import Case, matrix
from fixturegen.suite.jobs import Job, run_jobs
from fixturegen.suite.outcome import Outcome, save, saved
from fixturegen.suite.prediction import Prediction, predict
from fixturegen.suite.report import Report

Echo = Callable[[str], None]
Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run. The command line has one option for each."""

    suites: tuple[str, ...]
    recipes: tuple[str, ...]
    fixtures: Path
    out: Path
    backends: tuple[str, ...] = ("FLASH_ATTN", "auto")
    mla: tuple[bool, ...] = (True, False)
    ks: tuple[int, ...] = (1, 3)
    graphs: tuple[bool, ...] = (False, True)
    workers: int = 1
    timeout_s: float = 300.0
    resume: bool = False
    quick: bool = False
    vllm_src: Path | None = None
    #: How it was called, for the report.
    command: str = ""
    worker: tuple[str, ...] = exact.WORKER


@dataclass(frozen=True)
class _Planned:
    """A case of the exact suite, what check says of it, and why it cannot run (or nothing)."""

    case: Case
    prediction: Prediction
    obstacle: str

    def not_run(self, reason: str) -> Outcome:
        return exact.not_run(self.case, reason, self.prediction)


@dataclass
class _Progress:
    """Outcomes so far, and what the progress lines need."""

    echo: Echo
    total: int = 0
    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    ran: int = 0
    began: float = field(default_factory=time.monotonic)

    def list(self, outcome: Outcome) -> None:
        """Add an outcome that needed no run."""
        self.outcomes.setdefault((outcome.suite, outcome.gpu, outcome.id), outcome)

    def started(self, job: Job) -> None:
        self.echo(f"[{self.ran + 1}/{self.total}] {job.id} ...")

    def ended(self, outcome: Outcome, problem: str = "") -> None:
        """Add the outcome of a run, and say what stood in the way of keeping it."""
        self.outcomes[outcome.suite, outcome.gpu, outcome.id] = outcome
        self.ran += 1
        left = (time.monotonic() - self.began) / self.ran * (self.total - self.ran)
        text = report.result(outcome)
        self.echo(
            f"[{self.ran}/{self.total}] {outcome.id}: {outcome.status}, {outcome.seconds:.0f} s"
            + (f": {text}" if text else "")
            + (f" (about {_clock(left)} left)" if self.ran < self.total else "")
        )
        if problem:
            self.echo(f"--resume will run it again: {problem}")


def run(options: Options, echo: Echo) -> Report:
    """Run the suites and write the report into ``options.out``.

    Raises FixturegenError for bad input; whatever goes wrong with an engine is in the report. On
    Ctrl-C the running cases are ended and the report says what ran until then.
    """
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    began = time.monotonic()
    shared = _shared(options)
    here = shared.machine
    if here.problem:
        echo(here.problem)
    planned = _planned(options, shared)
    progress = _Progress(echo)
    for p in planned:
        if p.obstacle:
            progress.list(p.not_run(p.obstacle))
    tests = upstream.Plan()
    lifted: list[dict[str, str]] = []
    interrupted = False
    try:
        if "vllm" in options.suites:
            found = list(shared.fixtures.values())
            tests = upstream.plan(found, here, options.out, options.vllm_src, 3 * options.timeout_s)
            for outcome in tests.outcomes:
                progress.list(outcome)
        ready = [p for p in planned if not p.obstacle]
        progress.total = len(ready) + len(tests.tests)
        _run_exact(options, shared, ready, progress)
        waiting: dict[str, upstream.Test] = {}
        for test in tests.tests:
            known = saved(test.kept, test.fingerprint) if options.resume else None
            if known is not None:
                progress.ended(known)
                lifted += upstream.lifted(test)
            else:
                waiting[test.job.id] = test
        for ended in run_jobs([test.job for test in waiting.values()], 1, progress.started):
            test = waiting[ended.job.id]
            outcome = upstream.verdict(test, ended, here, options.out)
            lifted += upstream.lifted(test)
            progress.ended(outcome, save(test.kept, test.fingerprint, outcome))
    except KeyboardInterrupt:
        interrupted = True
        echo("interrupted; writing a report of what ran")
    for p in planned:
        progress.list(p.not_run("interrupted"))
    for test in tests.tests:
        progress.list(upstream.interrupted(test, here))
    done = Report(
        started=started,
        seconds=round(time.monotonic() - began, 1),
        interrupted=interrupted,
        command=options.command,
        machine=here,
        fixtures={name: fixture.hashes for name, fixture in shared.fixtures.items()},
        outcomes=tuple(progress.outcomes.values()),
        lifted=tuple(lifted),
        notes=(*tests.notes, *_left_out(shared, planned)),
    )
    echo(f"report: {_written(done, options.out, echo) / report.HTML}")
    return done


def _written(done: Report, out: Path, echo: Echo) -> Path:
    """Where the report is: ``out``, or a temporary folder when that cannot be written."""
    try:
        report.write(done, out)
    except FixturegenError as error:
        echo(str(error))
        out = Path(tempfile.mkdtemp(prefix="fixturegen-report-"))
        report.write(done, out)
    return out


def dry_run(options: Options, echo: Echo) -> None:
    """List the cases and the commands; run and write nothing."""
    shared = _shared(options, build_missing=False)
    for fixture in shared.fixtures.values():
        if not fixture.built:
            echo(f"{fixture.name}: not there yet, would be built into {options.fixtures}")
    for p in _planned(options, shared):
        if p.obstacle:
            echo(f"{p.case.id} [{p.case.gpu}]: not run: {p.obstacle}")
        else:
            echo(f"{p.case.id} [{p.case.gpu}]\n    {exact.command(shared, p.case)}")
    if "vllm" in options.suites:
        obstacle = upstream.obstacle(shared.machine)
        for fixture in shared.fixtures.values():
            for stand in fixture.recipe.stands_for:
                tests = ", ".join(stand.tests)
                line = f"vLLM's {tests}: {stand.model} -> {fixture.checkpoint(stand.part)}"
                echo(line + (f": not run: {obstacle}" if obstacle else ""))


def _shared(options: Options, *, build_missing: bool = True) -> exact.Run:
    found = fixtures.find(options.fixtures, options.recipes, build_missing=build_missing)
    return exact.Run(
        machine=machine.local(),
        fixtures={fixture.name: fixture for fixture in found},
        out=options.out,
        timeout_s=options.timeout_s,
        quick=options.quick,
        worker=options.worker,
    )


def _planned(options: Options, shared: exact.Run) -> list[_Planned]:
    if "exact" not in options.suites:
        return []
    cases = matrix(
        [fixture.recipe for fixture in shared.fixtures.values()],
        shared.machine,
        backends=options.backends,
        mla=options.mla,
        ks=options.ks,
        graphs=options.graphs,
    )
    return [
        _Planned(
            case,
            predict(case, shared.fixtures[case.recipe], shared.machine),
            case.obstacle(shared.machine) or exact.obstacle(shared, case),
        )
        for case in cases
    ]


def _run_exact(
    options: Options, shared: exact.Run, planned: Sequence[_Planned], progress: _Progress
) -> None:
    """References of random fixtures first: the other cases are compared with them."""
    references: dict[Case, dict[str, Any] | None] = {}
    for stage in (True, False):
        waiting: dict[str, _Planned] = {}
        jobs = []
        for p in planned:
            planted = shared.fixtures[p.case.recipe].planted
            if (p.case.reference and not planted) is not stage:
                continue
            kept = shared.folder(p.case) / "outcome.json"
            known = saved(kept, exact.fingerprint(shared, p.case)) if options.resume else None
            if known is not None:
                progress.ended(known)
                continue
            reference = references.get(p.case.reference_case)
            if not stage and not planted and reference is None:
                why = f"no reference: {p.case.reference_case.id} brought no result"
                progress.ended(exact.failed_to_run(p.case, why, p.prediction))
                continue
            try:
                jobs.append(exact.prepare(shared, p.case, reference))
            except OSError as error:
                why = f"{shared.folder(p.case)}: cannot be written: {error.strerror}"
                progress.ended(exact.failed_to_run(p.case, why, p.prediction))
                continue
            waiting[jobs[-1].id] = p
        pin = not shared.machine.on_gpu
        for ended in run_jobs(jobs, options.workers, progress.started, pin=pin):
            p = waiting[ended.job.id]
            reference = references.get(p.case.reference_case)
            outcome = exact.verdict(shared, p.case, ended, reference, p.prediction)
            exact.tidy(shared, p.case)
            kept = shared.folder(p.case) / "outcome.json"
            progress.ended(outcome, save(kept, exact.fingerprint(shared, p.case), outcome))
        if stage:
            references = {p.case: exact.load_result(shared, p.case) for p in planned}


def _left_out(shared: exact.Run, planned: Sequence[_Planned]) -> list[str]:
    """Scenarios that a known defect of this engine makes meaningless."""
    ready = (p.case for p in planned if not p.obstacle)
    found = {defect.what for case in ready for defect in exact.left_out(shared, case)}
    return [f"scenarios left out: {what}" for what in sorted(found)]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"

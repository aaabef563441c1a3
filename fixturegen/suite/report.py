"""report.json, report.md, report.html and junit.xml of one run."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fixturegen.errors import FixturegenError
from fixturegen.suite.machine import Machine
from fixturegen.suite.outcome import ERROR, FAILED, NOT_RUN, PASSED, STATUSES, Outcome

#: Version of report.json; raised when a key changes its meaning.
FORMAT = 1

JSON, MARKDOWN, HTML, JUNIT = "report.json", "report.md", "report.html", "junit.xml"

#: Columns of :func:`asked`.
ASKED = ("scenario", "prompts per call", "prompt tokens", "cases", "as expected")


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that one run found out."""

    started: str
    seconds: float
    interrupted: bool
    command: str
    machine: Machine
    #: Content hash of each checkpoint, by recipe and role.
    fixtures: Mapping[str, Mapping[str, str]]
    outcomes: tuple[Outcome, ...]
    #: Skips of vLLM's own tests that were lifted.
    lifted: tuple[Mapping[str, str], ...] = ()
    #: What a reader should know: stand-ins used, scenarios left out.
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Number of outcomes by status."""
        found = Counter(o.status for o in self.outcomes)
        return {status: found[status] for status in STATUSES}

    @property
    def good(self) -> bool:
        """Whether something ran and nothing that ran failed."""
        counts = self.counts
        return bool(counts[PASSED]) and not counts[FAILED] and not counts[ERROR]

    @property
    def headline(self) -> str:
        """``"12 passed, 1 failed, 4 not run"``."""
        return ", ".join(f"{n} {status}" for status, n in self.counts.items() if n) or "no cases"

    def to_dict(self) -> dict[str, Any]:
        """The content of report.json."""
        return {
            "format": FORMAT,
            "started": self.started,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "command": self.command,
            "machine": asdict(self.machine),
            "fixtures": {name: dict(hashes) for name, hashes in self.fixtures.items()},
            "counts": self.counts,
            "lifted": [dict(entry) for entry in self.lifted],
            "notes": list(self.notes),
            "cases": [outcome.to_dict() for outcome in self.outcomes],
        }


def load(path: Path) -> Report:
    """Read a report.json, or the one in a folder; raises FixturegenError."""
    file = path / JSON if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise FixturegenError(
                f"{file}: format {data['format']} is not supported, only {FORMAT}"
            )
        return Report(
            started=data["started"],
            seconds=data["seconds"],
            interrupted=data["interrupted"],
            command=data["command"],
            machine=Machine(**data["machine"]),
            fixtures=data["fixtures"],
            outcomes=tuple(Outcome.from_dict(case) for case in data["cases"]),
            lifted=tuple(data["lifted"]),
            notes=tuple(data["notes"]),
        )
    except OSError as error:
        raise FixturegenError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FixturegenError(f"{file}: not a report of this suite: {error!r}") from None


def write(report: Report, out: Path) -> None:
    """Write all four files; each appears complete or not at all. Raises FixturegenError."""
    contents = {
        JSON: json.dumps(report.to_dict(), indent=1) + "\n",
        MARKDOWN: markdown(report),
        HTML: html(report),
        JUNIT: junit(report),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            partial = out / f".{name}.partial"
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, out / name)
    except OSError as error:
        raise FixturegenError(f"{out}: report cannot be written: {error.strerror}") from None


def environment_rows(report: Report) -> list[tuple[str, str]]:
    """What the run was on, for people."""
    machine = report.machine
    gpu = f"{machine.gpu_name} ({machine.gpu.upper()})" if machine.on_gpu else "none (CPU)"
    rows = [("GPU", gpu if machine.gpu_count < 2 else f"{machine.gpu_count} x {gpu}")]
    if machine.driver:
        rows.append(("driver", machine.driver))
    rows += list(machine.packages.items())
    rows += [(f"env {name}", value) for name, value in machine.env.items()]
    for name, hashes in report.fixtures.items():
        rows += [(f"fixture {name} ({role})", digest[:16]) for role, digest in hashes.items()]
    return rows


def chosen(outcome: Outcome) -> str:
    """Backends and options that really ran, in a few words."""
    shown = ("attention", "prefill", "decode", "flash_attention", "moe", "linear")
    options = ("async_scheduling", "chunked_prefill", "prefix_caching")
    parts = [
        f"{name} {value}"
        for name, value in outcome.choices.items()
        if name.removeprefix("draft ") in shown
    ]
    on = [name.replace("_", " ") for name in options if outcome.choices.get(name)]
    return ", ".join([*parts, *on])


def asked(report: Report) -> list[tuple[str, ...]]:
    """What the engines of the exact suite were asked, one row for each scenario.

    Scenario, prompts per call, shortest and longest prompt, cases, and how many of the outputs that
    have an expectation (a reference run has none) were as expected.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for outcome in report.outcomes:
        for scenario in outcome.measured.get("scenarios", ()):
            found.setdefault(scenario["name"], []).append(scenario)
    rows = []
    for name, each in found.items():
        shortest = min(s["prompt_tokens"][0] for s in each)
        longest = max(s["prompt_tokens"][1] for s in each)
        batch = max(s["batch"] for s in each)
        compared = [s for s in each if s["equal"] is not None]
        outputs, equal = (sum(s[n] for s in compared) for n in ("outputs", "equal"))
        numbers = (batch, f"{shortest} to {longest}", len(each), f"{equal}/{outputs}")
        rows.append((name, *map(str, numbers)))
    return rows


def unrun(report: Report) -> list[tuple[Outcome, list[str]]]:
    """What did not run: for each reason and prediction an outcome, and the cases it stands for."""
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for o in report.outcomes:
        if o.status == NOT_RUN:
            groups.setdefault((o.suite, o.gpu, o.reason, prediction(o)), []).append(o)
    return [(group[0], [o.id for o in group]) for group in groups.values()]


def result(outcome: Outcome) -> str:
    """What was found, in a few words."""
    m = outcome.measured
    parts = [outcome.reason] if outcome.reason else []
    if "equal" in m:
        parts.append(f"{m['equal']}/{m['outputs']} outputs equal")
    if m.get("acceptance_length"):
        parts.append(f"acceptance length {m['acceptance_length']:.2f}")
    if outcome.status == NOT_RUN and outcome.prediction:
        parts.append(prediction(outcome))
    return "; ".join(parts)


def prediction(outcome: Outcome) -> str:
    """``check``'s words on a case."""
    p = outcome.prediction
    if not p:
        return ""
    chosen = ", ".join(f"{name} {value}" for name, value in p.get("choices", {}).items())
    text = f"check: {p['verdict']}"
    return text + (f" ({chosen})" if chosen else "") + (f": {p['because']}" if p["because"] else "")


def markdown(report: Report) -> str:
    """A summary to paste into a pull request."""
    lines = [f"### fixturegen suite: {report.headline}", ""]
    if report.interrupted:
        lines += ["**Interrupted: what follows is what ran until then.**", ""]
    lines += [f"- {name}: {value}" for name, value in environment_rows(report)]
    lines += [f"- note: {note}" for note in report.notes]
    lines += [
        f'- lifted skip: `{e["test"]}` ("{e["reason"]}"): {e["because"]}' for e in report.lifted
    ]
    ran = [o for o in report.outcomes if o.status != NOT_RUN]
    if rows := asked(report):
        lines += ["", "| " + " | ".join(ASKED) + " |", "|---" * len(ASKED) + "|"]
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    if ran:
        lines += ["", "| case | status | s | backends chosen | result |", "|---|---|---|---|---|"]
        lines += [
            f"| {_cell(o.id)} | {o.status} | {o.seconds:.0f} | {_cell(chosen(o))} "
            f"| {_cell(result(o))} |"
            for o in ran
        ]
    failed = [o for o in ran if o.failures]
    for outcome in failed:
        lines += ["", f"**{outcome.id}**", ""]
        lines += [f"- {f.scenario}: {f.message} ({f.explained})" for f in outcome.failures]
        lines += ["", f"    {outcome.command}"]
    if left := unrun(report):
        lines += ["", f"<details><summary>{report.counts[NOT_RUN]} not run</summary>", ""]
        lines += ["| cases | GPU | why | check's prediction |", "|---|---|---|---|"]
        lines += [
            f"| {_cell('<br>'.join(ids))} | {o.gpu} | {_cell(o.reason)} | {_cell(prediction(o))} |"
            for o, ids in left
        ]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def junit(report: Report) -> str:
    """JUnit XML, one test suite for each of ours."""
    root = ElementTree.Element("testsuites", name="fixturegen suite")
    for suite in dict.fromkeys(o.suite for o in report.outcomes):
        outcomes = [o for o in report.outcomes if o.suite == suite]
        counts = Counter(o.status for o in outcomes)
        element = ElementTree.SubElement(
            root,
            "testsuite",
            name=suite,
            tests=str(len(outcomes)),
            failures=str(counts[FAILED]),
            errors=str(counts[ERROR]),
            skipped=str(counts[NOT_RUN]),
            time=f"{sum(o.seconds for o in outcomes):.1f}",
            timestamp=report.started,
        )
        for outcome in outcomes:
            _junit_case(element, outcome)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _junit_case(parent: ElementTree.Element, outcome: Outcome) -> None:
    case = ElementTree.SubElement(
        parent,
        "testcase",
        classname=f"fixturegen.{outcome.suite}.{outcome.gpu}",
        name=outcome.id,
        time=f"{outcome.seconds:.1f}",
    )
    tag = {FAILED: "failure", ERROR: "error", NOT_RUN: "skipped"}.get(outcome.status)
    if tag:
        element = ElementTree.SubElement(case, tag, message=_printable(result(outcome)))
        element.text = _printable(
            "\n".join(f"{f.scenario}: {f.message} ({f.explained})" for f in outcome.failures)
        )


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c for c in text if c >= " " or c in "\n\t")


def html(report: Report) -> str:
    """One self-contained page."""
    import jinja2

    source = resources.files("fixturegen.suite").joinpath("report.html.j2").read_text("utf-8")
    env = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return str(
        env.from_string(source).render(
            report=report,
            environment=environment_rows(report),
            ran=[o for o in report.outcomes if o.status != NOT_RUN],
            left=unrun(report),
            asked_of=ASKED,
            asked=asked(report),
            chosen=chosen,
            result=result,
            prediction=prediction,
        )
    )

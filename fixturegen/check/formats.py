"""Reports as text, JSON, GitHub annotations and JUnit XML."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from fixturegen import __version__
from fixturegen.check.catalogue import catalogue
from fixturegen.check.repair import Repair
from fixturegen.check.report import Finding, Report
from fixturegen.check.target import Target
from fixturegen.cli.tables import table

#: Version of the JSON document; it changes when a key changes its meaning or goes away.
JSON_VERSION = 1

#: Verdict -> word in a matrix cell, and colour on a terminal.
WORDS = {
    "accepted": ("ok", "green"),
    "falls back": ("back", "yellow"),
    "unknown": ("?", "magenta"),
    "silently wrong": ("WRONG", "red"),
    "rejected": ("NO", "red"),
}

Style = Callable[..., str]


def _plain(text: str, **_: Any) -> str:
    return text


def text(
    name: str,
    reports: Sequence[Report],
    repairs: Mapping[Target, Sequence[Repair]],
    *,
    explain: bool = False,
    style: Style = _plain,
) -> str:
    """A few lines for each target: choices, what is not accepted, and what would clear it.

    ``explain`` adds what each kernel receives, which backends were passed over and why, and every
    accepted rule.
    """
    parts = [f"{name}\n"]
    for report in reports:
        colour = WORDS[report.verdict][1]
        choices = ", ".join(f"{topic} {choice}" for topic, choice in report.choices.items())
        parts.append(f"{style(report.verdict.upper(), fg=colour, bold=True)}  {report.target}")
        parts.append(f"  {choices}" if choices else "  nothing is known")
        if explain:
            for kernel in report.kernels:
                parts.append(f"  {kernel.part} {kernel.kernel}: {kernel}")
            for backend, ids in report.passed_over:
                parts.append(f"  passed over {backend}: {', '.join(ids)}")
        findings = [f for f in report.findings if explain or f.verdict != "accepted"]
        rows = [
            [f.verdict, f.rule, f.part if f.part != "target" else "", f.inputs, _consequence(f)]
            for f in sorted(findings, key=lambda f: f.verdict == "accepted")
        ]
        parts += ["  " + line for line in _coloured(rows, style)]
        parts += [f"  unknown: {reason}" for reason in report.unknown]
        parts += [f"  to clear: {repair}" for repair in repairs.get(report.target, ())]
        parts.append("")
    return "\n".join(parts)


def _coloured(rows: list[list[str]], style: Style) -> list[str]:
    lines = table(rows).split("\n") if rows else []
    return [
        style(line[: len(row[0])], fg=WORDS[row[0]][1]) + line[len(row[0]) :]
        for line, row in zip(lines, rows, strict=True)
    ]


def _consequence(finding: Finding) -> str:
    if finding.verdict == "accepted":
        return finding.title
    if finding.error:
        return f"{finding.consequence}: /{finding.error}/"
    return f"to {finding.consequence}" if finding.verdict == "falls back" else finding.consequence


def matrix_text(
    name: str,
    reports: Sequence[Report],
    repairs: Mapping[Target, Sequence[Repair]],
    *,
    style: Style = _plain,
) -> str:
    """One cell for each release (columns), path and GPU (rows), then the reasons behind them."""
    versions = list(dict.fromkeys(r.target.vllm for r in reports))
    rows: dict[tuple[str, str, str], dict[str, Report]] = {}
    for report in reports:
        target = report.target
        path = "MLA off" if target.mla_disabled else "MLA on"
        rows.setdefault((path, target.attention, target.gpu), {})[target.vllm] = report
    lines = [["", "attention", "gpu", *versions]]
    for (path, backend, gpu), cells in rows.items():
        lines.append([path, backend, gpu, *(WORDS[cells[v].verdict][0] for v in versions)])
    drawn = table(lines).split("\n")
    for word, colour in WORDS.values():
        drawn = [line.replace(f" {word}", " " + style(word, fg=colour)) for line in drawn]
    legend = ", ".join(f"{word} {verdict}" for verdict, (word, _) in WORDS.items())
    parts = [name, "", *drawn, "", legend, ""]
    reasons: dict[tuple[str, str, str], list[Target]] = {}
    for report in reports:
        for f in report.findings:
            if f.verdict != "accepted":
                reasons.setdefault((f.verdict, f.rule, _consequence(f)), []).append(report.target)
    for (verdict, rule, consequence), where in sorted(
        reasons.items(), key=lambda item: list(WORDS).index(item[0][0]), reverse=True
    ):
        colour = WORDS[verdict][1]
        parts.append(f"{style(verdict, fg=colour)}  {rule}: {catalogue()[rule].title}")
        parts.append(f"    {consequence}")
        parts.append(f"    {_where(where)}")
    gaps: dict[str, list[Target]] = {}
    for report in reports:
        for reason in report.unknown:
            gaps.setdefault(reason, []).append(report.target)
    for reason, where in gaps.items():
        parts.append(f"{style('unknown', fg=WORDS['unknown'][1])}  {reason}")
        parts.append(f"    {_where(where)}")
    fixes: dict[str, dict[str, None]] = {}
    for repair in (repair for found in repairs.values() for repair in found):
        fixes.setdefault(" and ".join(repair.changes), {}).update(dict.fromkeys(repair.clears))
    parts += ["", *(f"to clear: {change} clears {', '.join(ids)}" for change, ids in fixes.items())]
    return "\n".join(parts) + "\n"


def _where(targets: Iterable[Target]) -> str:
    """Releases and GPUs of some targets, in few words."""
    targets = list(targets)
    versions = list(dict.fromkeys(t.vllm for t in targets))
    gpus = list(dict.fromkeys(t.gpu for t in targets))
    paths = dict.fromkeys("MLA off" if t.mla_disabled else "MLA on" for t in targets)
    span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
    return f"{', '.join(paths)}; vLLM {span}; {', '.join(gpus)} ({len(targets)} targets)"


def to_dict(
    name: str, reports: Sequence[Report], repairs: Mapping[Target, Sequence[Repair]]
) -> dict[str, Any]:
    """The JSON document, described in docs/check.md."""
    return {
        "version": JSON_VERSION,
        "fixturegen": __version__,
        "model": name,
        "targets": [
            {
                "target": str(report.target),
                "verdict": report.verdict,
                "choices": report.choices,
                "kernels": [
                    {"part": k.part, "kernel": k.kernel, **k.fields()} for k in report.kernels
                ],
                "findings": [dataclasses.asdict(f) for f in report.findings],
                "passed_over": [
                    {"backend": backend, "rules": list(ids)} for backend, ids in report.passed_over
                ],
                "unknown": list(report.unknown),
                "repairs": [
                    {
                        "changes": list(r.changes),
                        "clears": list(r.clears),
                        "leaves": list(r.leaves),
                    }
                    for r in repairs.get(report.target, ())
                ],
            }
            for report in reports
        ],
    }


def as_json(
    name: str, reports: Sequence[Report], repairs: Mapping[Target, Sequence[Repair]]
) -> str:
    """:func:`to_dict`, indented."""
    return json.dumps(to_dict(name, reports, repairs), indent=2) + "\n"


def github(name: str, reports: Sequence[Report], repairs: Mapping[Target, Sequence[Repair]]) -> str:
    """GitHub workflow commands: an error, warning or notice for what is not accepted."""
    level = {
        "rejected": "error",
        "silently wrong": "error",
        "unknown": "warning",
        "falls back": "notice",
    }
    lines = []
    for report in reports:
        for f in report.findings:
            if f.verdict != "accepted":
                message = f"{f.verdict}: {f.title} ({f.inputs}); {_consequence(f)}; {report.target}"
                title = _escape(f"{name}: {f.rule}", property=True)
                lines.append(f"::{level[f.verdict]} title={title}::{_escape(message)}")
        for reason in report.unknown:
            title = _escape(f"{name}: unknown", property=True)
            lines.append(f"::warning title={title}::{_escape(f'{reason}; {report.target}')}")
    return "\n".join(lines) + "\n" if lines else ""


def _escape(message: str, *, property: bool = False) -> str:
    """Escaping of workflow commands; properties escape more."""
    for char, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        message = message.replace(char, code)
    if property:
        message = message.replace(":", "%3A").replace(",", "%2C")
    return message


def junit(name: str, reports: Sequence[Report], repairs: Mapping[Target, Sequence[Repair]]) -> str:
    """JUnit XML: a test suite for each target, a test case for each rule's answer."""
    root = ElementTree.Element("testsuites", name=f"fixturegen check {name}")
    for report in reports:
        failures, skipped = len(report.rejections), len(report.of("unknown")) + len(report.unknown)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=str(report.target),
            tests=str(len(report.findings) + len(report.unknown)),
            failures=str(failures),
            errors="0",
            skipped=str(skipped),
        )
        for f in report.findings:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"{f.part}.{f.kernel}", name=f"{f.rule} {f.inputs}"
            )
            if f.verdict in ("rejected", "silently wrong"):
                failure = ElementTree.SubElement(case, "failure", message=_consequence(f))
                failure.text = "\n".join(str(r) for r in repairs.get(report.target, ()))
            elif f.verdict == "unknown":
                ElementTree.SubElement(case, "skipped", message=f.consequence)
            elif f.verdict == "falls back":
                ElementTree.SubElement(case, "system-out").text = f"falls back to {f.consequence}"
        for reason in report.unknown:
            case = ElementTree.SubElement(suite, "testcase", classname="coverage", name=reason)
            ElementTree.SubElement(case, "skipped", message=reason)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode", xml_declaration=True)
    # characters that no XML document may hold, from the name of a file
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text) + "\n"

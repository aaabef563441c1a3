"""Check one config on one target: derive what the kernels receive, ask every rule, say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fixturegen.check import attention, linears, loading, mla, moe
from fixturegen.check.catalogue import applicable, broken, catalogue, settle, targets
from fixturegen.check.inputs import Derived, KernelInput
from fixturegen.check.rule import FallsBack, PassedOver, Rule, SilentlyWrong, Unproven
from fixturegen.check.target import Target
from fixturegen.config import EAGLE3_ARCHITECTURES, ModelConfig

#: Verdicts, best first.
VERDICTS = ("accepted", "falls back", "unknown", "silently wrong", "rejected")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One rule's answer about one kernel input."""

    rule: str
    verdict: str
    title: str
    kernel: str
    part: str
    #: The values that the rule looked at, ``name=value``.
    inputs: str
    #: What happens instead, empty when accepted.
    consequence: str = ""
    #: Regular expression that finds the engine's message, empty when there is none.
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything about one config on one target."""

    target: Target
    #: What the engine chooses: ``attention`` or ``prefill`` and ``decode``, ``flash_attention``,
    #: ``moe``, each also as ``draft ...`` where the draft's differs.
    choices: dict[str, str]
    #: What each kernel receives.
    kernels: tuple[KernelInput, ...]
    findings: tuple[Finding, ...]
    #: Backends that *auto* went past, with the ids of the rules that say why.
    passed_over: tuple[tuple[str, tuple[str, ...]], ...]
    #: What the catalogue cannot tell.
    unknown: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The worst of all verdicts."""
        found = {f.verdict for f in self.findings} | ({"unknown"} if self.unknown else set())
        return max(found or {"unknown"}, key=VERDICTS.index)

    def of(self, *verdicts: str) -> list[Finding]:
        """Findings with one of these verdicts."""
        return [f for f in self.findings if f.verdict in verdicts]

    @property
    def rejections(self) -> list[Finding]:
        """What stops the checkpoint from running rightly: rejected or silently wrong."""
        return self.of("rejected", "silently wrong")


def check(
    config: ModelConfig,
    target: Target,
    draft: ModelConfig | None = None,
    *,
    names: Collection[str] | None = None,
    draft_names: Collection[str] | None = None,
) -> Report:
    """Check a config, with its Eagle draft and its tensor names where there are any.

    A release between two that were read is answered where both agree; outside them everything is
    unknown. Raises ConfigError for a config that no engine path understands.
    """
    neighbours = target.known()
    if not neighbours:
        return Report(
            target=target,
            choices={},
            kernels=(),
            findings=(),
            passed_over=(),
            unknown=(f"the catalogue does not cover {target.vllm} on {target.gpu}",),
        )
    reports = [_check(config, known, draft, names, draft_names) for known in neighbours]
    return _merge(target, reports)


def rejected(
    config: ModelConfig, target: Target, draft: ModelConfig | None = None
) -> dict[str, str]:
    """Ids of the rules that reject a bare config, with the values they saw; no report around it.

    Empty where nothing is known.
    """
    found: dict[str, str] = {}
    for known in target.known():
        for path in _paths(config, known, draft, None, None):
            for x in path.inputs:
                for rule in broken(settle(x, known)[0], known):
                    if rule.otherwise.verdict in ("rejected", "silently wrong"):
                        found[rule.id] = rule.shown(x)
    return found


def _check(
    config: ModelConfig,
    target: Target,
    draft: ModelConfig | None,
    names: Collection[str] | None,
    draft_names: Collection[str] | None,
) -> Report:
    paths = _paths(config, target, draft, names, draft_names)
    kernels: dict[KernelInput, None] = {}
    findings: dict[tuple[str, str, str], Finding] = {}
    for x in (x for path in paths for x in path.inputs):
        final, fallbacks = settle(x, target)
        kernels[final] = None
        for rule in fallbacks:
            found = _finding(rule, x)
            findings[rule.id, found.part, found.inputs] = found
        for rule in applicable(final, target):
            found = _finding(rule, final)
            findings.setdefault((rule.id, found.part, found.inputs), found)
    return Report(
        target=target,
        choices={name: choice for path in paths for name, choice in path.choices.items()},
        kernels=tuple(kernels),
        findings=tuple(findings.values()),
        passed_over=tuple(p for path in paths for p in path.passed_over),
        unknown=tuple(dict.fromkeys(u for path in paths for u in path.unknown)),
    )


def _paths(
    config: ModelConfig,
    target: Target,
    draft: ModelConfig | None,
    names: Collection[str] | None,
    draft_names: Collection[str] | None,
) -> list[Derived]:
    """All engine paths of a target whose releases were read."""
    plugin = targets().get(target.gpu)
    if plugin is not None:
        return [plugin(config, target)]
    paths = _layers(config, target, "target")
    if draft is not None:
        beside = target
        if draft.architectures[0] in EAGLE3_ARCHITECTURES:  # always MLA, never MoE
            draft = dataclasses.replace(draft, n_routed_experts=None)
            env = tuple(e for e in target.env if e[0] != "VLLM_MLA_DISABLE")
            beside = dataclasses.replace(target, env=env)
        paths += _layers(draft, beside, "draft")
    return [*paths, loading.derive(config, target, draft, names, draft_names)]


def _layers(config: ModelConfig, target: Target, part: str) -> list[Derived]:
    """The paths that a decoder layer of ``config`` takes."""
    config = dataclasses.replace(config, dtype=target.computes_in(config.dtype))
    path = attention if target.mla_disabled else mla
    derived = [path.derive(config, target, part)]
    derived += [moe.derive(config, target, part), linears.derive(config, target, part)]
    if part == "target":
        return derived
    return [
        dataclasses.replace(d, choices={f"{part} {n}": c for n, c in d.choices.items()})
        for d in derived
    ]


def _finding(rule: Rule, x: KernelInput) -> Finding:
    finding = Finding(
        rule=rule.id,
        verdict="accepted",
        title=rule.title,
        kernel=x.kernel,
        part=x.part,
        inputs=rule.shown(x),
    )
    if rule.holds(x):
        return finding
    otherwise = rule.otherwise
    error = ""
    match otherwise:
        case FallsBack(to=text):
            pass
        case SilentlyWrong(what=text):
            pass
        case Unproven(why=text):
            pass
        case PassedOver(error=error):
            text = "the engine refuses the backend when it is chosen"
        case _:
            error = otherwise.error
            text = "the engine raises"
    return dataclasses.replace(finding, verdict=otherwise.verdict, consequence=text, error=error)


def _merge(target: Target, reports: Sequence[Report]) -> Report:
    """One answer from the releases around the target's: what they agree on, else unknown."""
    first, *others = reports
    if not others:
        return dataclasses.replace(first, target=target)
    rules = catalogue()
    families = dict.fromkeys(rules[f.rule].family for report in reports for f in report.findings)
    findings: list[Finding] = []
    for family in families:
        answers = [[f for f in r.findings if rules[f.rule].family == family] for r in reports]
        if len({frozenset((f.verdict, f.consequence) for f in a) for a in answers}) == 1:
            findings += answers[0]
        else:
            said = [
                f"{report.target.vllm}: "
                + (", ".join(sorted({f.verdict for f in answer})) or "does not apply")
                for report, answer in zip(reports, answers, strict=True)
            ]
            example = next(f for answer in answers for f in answer)
            findings.append(
                dataclasses.replace(
                    example, verdict="unknown", consequence="; ".join(said), error=""
                )
            )
    topics = list(dict.fromkeys(t for report in reports for t in report.choices))
    agreed = {
        t: first.choices.get(t, "unknown")
        if len({r.choices.get(t) for r in reports}) == 1
        else "unknown"
        for t in topics
    }
    return Report(
        target=target,
        choices=agreed,
        kernels=tuple(k for k in first.kernels if all(k in r.kernels for r in others)),
        findings=tuple(findings),
        passed_over=tuple(p for p in first.passed_over if all(p in r.passed_over for r in others)),
        unknown=tuple(dict.fromkeys(u for report in reports for u in report.unknown)),
    )

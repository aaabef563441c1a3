"""A built recipe as a test sees it: paths, config, and what its output must be."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixturegen.errors import CheckpointError
from fixturegen.inspection import checkpoint_folders, read_config
from fixturegen.manifest import Manifest
from fixturegen.recipe import Recipe

if TYPE_CHECKING:
    from fixturegen.config import ModelConfig
    from fixturegen.planted import Oracle


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint or Eagle pair in ``folder``."""

    folder: Path

    @cached_property
    def path(self) -> Path:
        """The target model's folder, for ``model=``."""
        return checkpoint_folders(self.folder)[0]

    @cached_property
    def draft(self) -> Path | None:
        """The Eagle draft's folder; None for a model with MTP layers or without a draft."""
        return next(iter(checkpoint_folders(self.folder)[1:]), None)

    @cached_property
    def manifest(self) -> Manifest:
        """The target's manifest."""
        return Manifest.load(self.path)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe as resolved, overrides included."""
        return self.manifest.load_recipe(str(self.path))

    @cached_property
    def config(self) -> ModelConfig:
        """The target's config."""
        return read_config(self.path)

    @cached_property
    def oracle(self) -> Oracle:
        """Knows the output; raises CheckpointError for random weights, whose output none knows."""
        if self.recipe.weights != "planted":
            raise CheckpointError(
                f"{self.recipe.name} has {self.recipe.weights} weights, so its output is not known "
                "in advance; use a recipe with weights: planted"
            )
        from fixturegen.planted import Oracle

        return Oracle.load(self.path)

    @cached_property
    def expected(self) -> dict[str, Any]:
        """``expected.json``: golden prompts, token ids, margins and acceptance counts."""
        path = self.path / "expected.json"
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file; only planted checkpoints have one")
        return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def prompts(self) -> list[dict[str, list[int]]]:
        """The golden prompts in the form that ``LLM.generate`` takes."""
        return [{"prompt_token_ids": golden["prompt_ids"]} for golden in self.expected["prompts"]]

    def sampling_params(self, **overrides: Any) -> Any:
        """Greedy ``vllm.SamplingParams`` for as many tokens as ``expected.json`` has."""
        import vllm

        greedy = {"temperature": 0, "ignore_eos": True, "max_tokens": self.expected["max_tokens"]}
        return vllm.SamplingParams(**greedy | overrides)

    def llm_kwargs(
        self, *, num_speculative_tokens: int | None = 1, **overrides: Any
    ) -> dict[str, Any]:
        """Keyword arguments for ``vllm.LLM``, speculation included.

        ``num_speculative_tokens=None`` gives the target alone; ``overrides`` win over ours.
        """
        kwargs: dict[str, Any] = {
            "model": str(self.path),
            "trust_remote_code": False,
            "max_model_len": 2048,
        }
        speculative: dict[str, Any] = {"num_speculative_tokens": num_speculative_tokens}
        if self.draft is not None:
            speculative |= {"method": "eagle", "model": str(self.draft)}
        elif self.config.num_nextn_predict_layers:
            speculative |= {"method": "mtp"}
        if num_speculative_tokens is not None and "method" in speculative:
            kwargs["speculative_config"] = speculative
        return kwargs | overrides

    def assert_outputs(self, outputs: Iterable[Any]) -> None:
        """Fail unless every token of ``LLM.generate``'s outputs is the one the weights were
        planted for.

        The message names the prompt, the position, the token expected and got, and the margin in
        logits by which the expected token should have won. For greedy sampling with ``ignore_eos``.
        Raises CheckpointError for random weights, and for a prompt that the oracle does not vouch
        for.
        """
        __tracebackhide__ = True
        prompts, texts, generated = [], [], []
        for output in outputs:
            prompts.append(list(output.prompt_token_ids))
            texts.append(_short(output))
            generated.append(list(output.outputs[0].token_ids))
        if not prompts:
            raise AssertionError("no outputs to compare")
        longest = max(map(len, generated))
        for text, prompt, got in zip(texts, prompts, generated, strict=True):
            if reason := self.oracle.guaranteed(prompt, len(got)):
                raise CheckpointError(f"{self.recipe.name}: prompt {text}: {reason}")
        continuations = self.oracle.continuation(prompts, longest)
        wrong = []
        for number, got in enumerate(generated):
            expected = continuations[number][: len(got)]
            differ = [i for i in range(len(got)) if got[i] != expected[i]]
            if not got:
                wrong.append(f"prompt {number} ({texts[number]}): no tokens")
            elif differ:
                at = differ[0]
                wrong.append(
                    f"prompt {number} ({texts[number]}), position {at}: expected token "
                    f"{expected[at]}, got {got[at]}; {len(differ)} of {len(got)} tokens differ"
                )
        if wrong:
            more = [f"and {len(wrong) - 10} more"] if len(wrong) > 10 else []
            raise AssertionError(
                f"{self.recipe.name}: {len(wrong)} of {len(prompts)} outputs are wrong, each token "
                f"with a margin of at least {self.oracle.margin:.3g} logits\n"
                + "\n".join(wrong[:10] + more)
            )


def _short(output: Any) -> str:
    """A prompt in a few characters."""
    text = output.prompt if output.prompt is not None else str(list(output.prompt_token_ids))
    return repr(text if len(text) <= 40 else f"{text[:37]}...")

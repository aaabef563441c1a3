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
        """Knows the output; raises CheckpointError for random weights, whose output nobody knows."""
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

    def llm_kwargs(
        self, *, num_speculative_tokens: int | None = 1, **overrides: Any
    ) -> dict[str, Any]:
        """Keyword arguments for ``vllm.LLM``, speculation included.

        ``num_speculative_tokens=None`` gives the target alone; ``overrides`` win over ours.
        """
        kwargs: dict[str, Any] = {
            "model": str(self.path),
            "trust_remote_code": False,
            "max_model_len": min(2048, self.config.max_position_embeddings),
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

        The message names the prompt, the position, the token expected and got, and the margin by
        which the expected token should have won. Greedy sampling with ``ignore_eos`` is assumed.
        """
        __tracebackhide__ = True
        wrong = []
        count = 0
        for number, output in enumerate(outputs):
            count += 1
            prompt = list(output.prompt_token_ids)
            got = list(output.outputs[0].token_ids)
            expected = list(self.oracle.continuation(prompt, len(got)))
            if not got:
                wrong.append(f"prompt {number}: no tokens")
            elif got != expected:
                at = next(
                    i for i, pair in enumerate(zip(expected, got, strict=True)) if len({*pair}) > 1
                )
                margin = self.oracle.margins(prompt, len(got))[at]
                wrong.append(
                    f"prompt {number} ({_short(output)}), position {at}: expected token "
                    f"{expected[at]}, got {got[at]}; margin {margin:.3g} guaranteed, "
                    f"{sum(a != b for a, b in zip(expected, got, strict=True))} of {len(got)} differ"
                )
        if not count:
            raise AssertionError("no outputs to compare")
        if wrong:
            shown = "\n".join(wrong[:10])
            more = f"\nand {len(wrong) - 10} more" if len(wrong) > 10 else ""
            raise AssertionError(
                f"{self.recipe.name}: {len(wrong)} of {count} outputs are wrong\n{shown}{more}"
            )


def _short(output: Any) -> str:
    """A prompt in a few characters."""
    text = output.prompt if output.prompt is not None else str(list(output.prompt_token_ids))
    return repr(text if len(text) <= 40 else f"{text[:37]}...")

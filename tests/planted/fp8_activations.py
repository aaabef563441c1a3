"""FP8 activations simulated in transformers: inputs of quantised matrices rounded as engines do.

    python -m tests.planted.fp8_activations CHECKPOINT...

prints wrong tokens and margins (logits) of each checkpoint, over 960 tokens.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from fixturegen import Oracle
from fixturegen.measure.reference import Batch, Reference, next_logits
from tests.planted.conftest import random_prompts

LENGTHS = [1, 2, 5, 7, 9, 16, 20, 24, 30, 33, 40, 52, 61, 68, 70, 80, 90, 100, 110, 130]


def rounded(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Round a module's input to e4m3 codes in groups of 128 with a scale each."""
    x, *rest = arguments
    groups = x.unflatten(-1, (-1, 128)).float()
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    codes = (groups / scale).to(torch.float8_e4m3fn).float()
    return (codes * scale).flatten(-2).to(x.dtype), *rest


def install(layers: list[Any]) -> int:
    """Round the inputs of all matrices of ``layers`` that are stored as FP8; returns how many."""
    quantized = [
        module
        for layer in layers
        for name, module in layer.named_modules()
        if name.endswith(("_proj", "_proj_with_mqa", "mlp.experts"))
    ]
    for module in quantized:
        module.register_forward_pre_hook(rounded)
    return len(quantized)


def main() -> None:
    """Print a line for each checkpoint."""
    for path in sys.argv[1:]:
        oracle, model = Oracle.load(path), Reference.load(path)
        install(list(model.target.layers))
        margins, wrong = [], 0
        for seed in range(3):
            prompts = random_prompts(LENGTHS, seed=seed)
            truth = oracle.continuation(prompts, 16)
            logits = next_logits(model.target, Batch.of(prompts, truth)).float()
            right = torch.tensor(truth)[..., None]
            others = logits.scatter(-1, right, -torch.inf).amax(-1)
            margin = logits.gather(-1, right)[..., 0] - others
            margins.append(margin.flatten())
            wrong += int((margin <= 0).sum())
        every = torch.cat(margins)
        print(
            f"{path}: {wrong} of {len(every)} tokens wrong; margin: smallest {every.min():.2f}, "
            f"1 % {every.quantile(0.01):.2f}, median {every.median():.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Tokens, margins and counters of many prompts in transformers against the oracle.

    python -m tests.planted.run_transformers CHECKPOINT... [--prompts 1000] [--tokens 32]
        [--dtype float32] [--fp8-activations]

prints a line of JSON for each checkpoint; margins are in logits. Texts are given whole: the first
token that is not the argmax is the first that generation would get wrong.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from fixturegen import Oracle
from fixturegen.measure.reference import Batch, Reference, count, hidden_states, propose
from fixturegen.planted.oracle import total
from tests.planted.conftest import random_prompts

LONGEST, BATCH, STEPS = 130, 20, 3


def rounded(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Round a module's input to e4m3 codes in groups of 128 with a scale each, as engines do."""
    x, *rest = arguments
    groups = x.unflatten(-1, (-1, 128)).float()
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    codes = (groups / scale).to(torch.float8_e4m3fn).float()
    return (codes * scale).flatten(-2).to(x.dtype), *rest


def round_activations(layers: list[Any]) -> int:
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


@torch.inference_mode()
def run(path: Path, prompts: int, tokens: int, dtype: str, fp8_activations: bool) -> dict[str, Any]:
    """Compare ``prompts`` prompts of 1 to LONGEST tokens with the oracle."""
    oracle, model = Oracle.load(path), Reference.load(path, dtype)
    layers = [*model.target.layers, *(model.draft.layers if model.draft else ())]
    if fp8_activations:
        round_activations(layers)
    lengths = sorted(1 + i % LONGEST for i in range(prompts))  # of like lengths, for less padding
    texts = random_prompts(lengths)
    margins, drafts, wrong = [], [], 0
    for start in range(0, prompts, BATCH):
        part = texts[start : start + BATCH]
        truth = oracle.continuation(part, tokens + STEPS - 1)
        batch = Batch.of(part, truth)
        hidden = hidden_states(model.target, batch)
        logits = model.target.head(hidden[:, batch.prompt - 1 : -STEPS]).float()
        right = torch.tensor(truth)[:, :tokens, None]
        others = logits.scatter(-1, right, -torch.inf).amax(-1)
        margin = logits.gather(-1, right)[..., 0] - others
        margins.append(margin.flatten())
        wrong += int((margin <= 0).any(1).sum())
        if model.draft:
            proposed = propose(model.draft, batch, hidden, STEPS).tolist()
            drafts.append(count(truth, proposed, tokens))
    every = torch.cat(margins)
    result: dict[str, Any] = {
        "checkpoint": path.name,
        "dtype": dtype,
        "fp8_activations": fp8_activations,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "prompts": prompts,
        "wrong_prompts": wrong,
        "tokens": len(every),
        "wrong_tokens": int((every <= 0).sum()),
        "margin": {
            "guaranteed": oracle.margin,
            "smallest": round(float(every.min()), 3),
            "1 %": round(float(every.quantile(0.01)), 3),
            "median": round(float(every.median()), 3),
        },
    }
    if drafts:
        result["counters"] = asdict(total(drafts, STEPS))
        result["predicted"] = asdict(total(oracle.speculate(texts, tokens, STEPS), STEPS))
    return result


def main() -> None:
    """Print a line for each checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--fp8-activations", action="store_true")
    a = parser.parse_args()
    for path in a.paths:
        print(json.dumps(run(path, a.prompts, a.tokens, a.dtype, a.fp8_activations)), flush=True)


if __name__ == "__main__":
    main()

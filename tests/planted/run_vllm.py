"""Generate with a real vLLM: in a process of its own, or many cells by one command.

    python -m tests.planted.run_vllm --out FILE [--only TEXT]

runs every cell of `cells` that FILE does not have yet and appends a line of JSON for each: outputs
and counters of batches of 1, 7, 28 and 200 prompts of 1 to 1,500 tokens against the oracle.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fixturegen import Oracle, build, load_recipe
from fixturegen.planted.oracle import total
from tests.planted.conftest import random_prompts

TOKENS = 32
LONGEST = 1500
CHILD = "--child"
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")


@dataclass(frozen=True)
class Answer:
    """What an engine made of one batch: tokens of each prompt, its counters where it drafted."""

    tokens: list[list[int]]
    metrics: dict[str, Any]


def generate(
    path: Path,
    batches: Sequence[list[list[int]]],
    tokens: int,
    k: int = 0,
    environment: dict[str, str] | None = None,
    temperature: float = 0.0,
    timeout: float = 300,
    **engine: Any,
) -> list[Answer]:
    """Start one engine and give it one batch after the other, with ``k`` drafted tokens."""
    pair = (path / "draft").is_dir()
    if k and pair:
        draft = {"method": "eagle", "model": str(path / "draft"), "num_speculative_tokens": k}
    else:
        draft = {"method": "mtp", "num_speculative_tokens": k}
    request = {
        "engine": {
            "model": str(path / "target" if pair else path),
            "max_model_len": 2048,
            **({"speculative_config": draft} if k else {}),
            **engine,
        },
        "batches": batches,
        "sampling": {"temperature": temperature, "max_tokens": tokens},
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.planted.run_vllm", CHILD],
        cwd=Path(__file__).parents[2],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=os.environ | (environment or {}),
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [Answer(**a) for a in json.loads(done.stdout.splitlines()[-1])]


def predicted(oracle: Oracle, prompts: list[list[int]], tokens: int, k: int) -> dict[str, Any]:
    """The counters as vLLM names them."""
    if not k:
        return {}
    t = total(oracle.speculate(prompts, tokens, k), k)
    values = (t.drafts, t.draft_tokens, t.accepted_tokens, list(t.accepted_per_position))
    return dict(zip(COUNTERS, values, strict=True))


def serve() -> None:
    """The process with the engine: a request on standard input, answers on the last line."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import vllm

    request = json.load(sys.stdin)
    llm = vllm.LLM(**request["engine"], enforce_eager=True, disable_log_stats=False)
    sampling = vllm.SamplingParams(**request["sampling"], ignore_eos=True)
    answers, before = [], {}
    for batch in request["batches"]:
        prompts = [{"prompt_token_ids": p} for p in batch]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        after = {
            m.name.removeprefix("vllm:spec_decode_num_"): np.array(
                getattr(m, "values", None) or m.value
            )
            for m in llm.get_metrics()
            if "spec_decode" in m.name
        }
        answers.append(
            {
                "tokens": [list(o.outputs[0].token_ids) for o in outputs],
                "metrics": {name: (n - before.get(name, 0)).tolist() for name, n in after.items()},
            }
        )
        before = after
    print("\n" + json.dumps(answers), flush=True)


def cells() -> Iterator[dict[str, Any]]:
    """Every cell: recipe, acceptance, k and MLA."""
    for mla in ("on", "off"):
        for recipe, ks in (("deepseek-v3-mtp", (0, 1, 3, 6)), ("deepseek-v3-eagle", (0, 1, 3))):
            for acceptance in (0, 0.3, 0.7, 1):
                for k in ks:
                    if k or acceptance == 0.7:  # a target does not know its draft
                        yield {"recipe": recipe, "acceptance": acceptance, "k": k, "mla": mla}


def run(cell: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One engine start: four batches against the oracle."""
    import vllm

    recipe = load_recipe(cell["recipe"], [f"acceptance={cell['acceptance']}"])
    path = build(recipe, folder / f"{recipe.name}-{cell['acceptance']}", check=False).path
    oracle, k = Oracle.load(path), cell["k"]
    batches = [
        random_prompts(np.geomspace(LONGEST if n == 1 else 1, LONGEST, n).astype(int).tolist())
        for n in (1, 7, 28, 200)
    ]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "4"}  # room for 200 prompts: nothing is preempted
    if cell["mla"] == "off":
        environment["VLLM_MLA_DISABLE"] = "1"
    started = time.monotonic()
    answers = generate(path, batches, TOKENS, k, environment, timeout=3600)
    results = []
    for prompts, answer in zip(batches, answers, strict=True):
        right = oracle.continuation(prompts, TOKENS)
        results.append(
            {
                "prompts": len(prompts),
                "wrong_prompts": sum(a != b for a, b in zip(answer.tokens, right, strict=True)),
                "counters": answer.metrics,
                "predicted": predicted(oracle, prompts, TOKENS, k),
            }
        )
    return cell | {
        "vllm": vllm.__version__,
        "seconds": round(time.monotonic() - started),
        "batches": results,
    }


def main() -> None:
    """Run what is missing in the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="cells whose JSON has this text")
    a = parser.parse_args()
    lines = a.out.read_text().splitlines() if a.out.exists() else []
    keys = ("recipe", "acceptance", "k", "mla")
    done = [{key: json.loads(line)[key] for key in keys} for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells():
            if cell not in done and a.only in json.dumps(cell):
                result = run(cell, Path(folder))
                with a.out.open("a") as file:
                    file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    serve() if CHILD in sys.argv else main()

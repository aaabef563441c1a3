"""Generate with a real vLLM: in a process of its own, or many cells by one command.

    python -m tests.planted.run_vllm --out FILE [--gpu] [--graphs] [--only TEXT] [--workers N]

runs every cell of `cells` that FILE does not have yet and appends a line of JSON for each: outputs
and counters of batches of 1, 7, 28 and 200 prompts of 1 to 1,500 tokens against the oracle.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
            "enforce_eager": True,
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
    llm = vllm.LLM(**request["engine"], disable_log_stats=False)
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


def cells(gpu: bool, graphs: bool) -> Iterator[dict[str, Any]]:
    """Every cell: recipe, acceptance, k and MLA; on a GPU the FP8 recipe too, graphs at k = 3."""
    recipes = {"deepseek-v3-mtp": (0, 1, 3, 6), "deepseek-v3-eagle": (0, 1, 3)}
    if gpu:
        recipes["deepseek-v3-mtp-fp8"] = (0, 1, 3)
    for mla in ("on", "off"):
        for recipe, ks in recipes.items():
            for acceptance in (0, 0.3, 0.7, 1):
                for k in (3,) if graphs else ks:
                    if k or acceptance == 0.7:  # a target does not know its draft
                        cell = {"recipe": recipe, "acceptance": acceptance, "k": k, "mla": mla}
                        yield cell | ({"graphs": graphs} if gpu else {})


def run(cell: dict[str, Any]) -> dict[str, Any]:
    """One engine start: four batches against the oracle."""
    batches = [
        random_prompts(np.geomspace(LONGEST if n == 1 else 1, LONGEST, n).astype(int).tolist())
        for n in (1, 7, 28, 200)
    ]
    environment, engine = {"VLLM_MLA_DISABLE": "1" if cell["mla"] == "off" else "0"}, {}
    # room for 200 prompts: nothing is preempted
    if "graphs" in cell:
        engine = {
            "enforce_eager": not cell["graphs"],
            "gpu_memory_utilization": 0.05,
            "kv_cache_memory_bytes": 3 << 30,
        }
    else:
        environment["VLLM_CPU_KVCACHE_SPACE"] = "4"
    with tempfile.TemporaryDirectory() as folder:
        environment["VLLM_CACHE_ROOT"] = folder + "/cache"
        recipe = load_recipe(cell["recipe"], [f"acceptance={cell['acceptance']}"])
        path = build(recipe, Path(folder, recipe.name), check=False).path
        oracle, k = Oracle.load(path), cell["k"]
        started = time.monotonic()
        answers = generate(path, batches, TOKENS, k, environment, timeout=3600, **engine)
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
        "vllm": importlib.metadata.version("vllm" if "graphs" in cell else "vllm-cpu"),
        "seconds": round(time.monotonic() - started),
        "batches": results,
    }


def main() -> None:
    """Run what is missing in the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu", action="store_true", help="cells for a GPU, auto backend")
    parser.add_argument("--graphs", action="store_true", help="compiled, with CUDA graphs")
    parser.add_argument("--only", default="", help="cells whose JSON has this text")
    parser.add_argument("--workers", type=int, default=1, help="engines side by side")
    a = parser.parse_args()
    lines = a.out.read_text().splitlines() if a.out.exists() else []
    todo = [c for c in cells(a.gpu, a.graphs) if a.only in json.dumps(c)]
    todo = [c for c in todo if not any(c.items() <= json.loads(line).items() for line in lines)]
    failed = False
    with ThreadPoolExecutor(a.workers) as pool:
        for future in as_completed([pool.submit(run, cell) for cell in todo]):
            if error := future.exception():
                failed = True
                print(error, file=sys.stderr, flush=True)
            else:
                with a.out.open("a") as file:
                    file.write(json.dumps(future.result()) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    serve() if CHILD in sys.argv else main()

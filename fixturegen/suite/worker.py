"""One engine in a process of its own: ``python -m fixturegen.suite.worker CASE.json``.

The case file says what to run (see :func:`fixturegen.suite.exact.case_file`); the result file that
it names appears complete or not at all. A worker that is killed leaves none.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Printed before each step, so that the log of a worker that hangs says where.
STEP = "fixturegen step:"

#: vLLM's counters of speculative decoding -> the report's names.
COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "accepted_per_pos",
    "vllm:prefix_cache_hits": "prefix_cache_hits",
    "vllm:num_preemptions": "preemptions",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the case named on the command line; returns the exit code."""
    (path,) = argv if argv is not None else sys.argv[1:]
    case = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        result = run(case)
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip()
        result = {"error": f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"}
    write_json(Path(case["result"]), result)
    return 1 if "error" in result else 0


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Start the engine, run every scenario, and read what the engine chose."""
    _step("import vllm")
    from vllm import LLM

    _step("start the engine")
    start = time.perf_counter()
    llm = LLM(
        **case["engine"],
        disable_log_stats=False,
        worker_extension_cls="fixturegen.suite.probe.Probe",
    )
    ready = time.perf_counter()
    (choices, *_) = llm.collective_rpc("fixturegen_choices")
    config = llm.llm_engine.vllm_config
    choices["async_scheduling"] = bool(config.scheduler_config.async_scheduling)
    choices["chunked_prefill"] = bool(config.scheduler_config.enable_chunked_prefill)
    choices["prefix_caching"] = bool(config.cache_config.enable_prefix_caching)
    choices["block_size"] = config.cache_config.block_size
    ran = [_run_scenario(llm, scenario) for scenario in case["scenarios"]]
    return {"choices": choices, "engine_start_s": round(ready - start, 2), "scenarios": ran}


def _run_scenario(llm: Any, scenario: dict[str, Any]) -> dict[str, Any]:
    _step(scenario["name"])
    prompts, expected = scenario["prompts"], scenario["expected"]
    batch = scenario["batch"] or len(prompts)
    before = _counters(llm)
    start = time.perf_counter()
    outputs: list[list[int]] = []
    for i in range(0, len(prompts), batch):
        outputs += _generate(
            llm, prompts[i : i + batch], scenario["max_tokens"], scenario["temperature"]
        )
    seconds = time.perf_counter() - start
    after = _counters(llm)
    result = {
        "name": scenario["name"],
        "outputs": outputs,
        "counters": {name: _minus(value, before.get(name)) for name, value in after.items()},
        "seconds": round(seconds, 2),
    }
    if expected is not None:
        result["divergences"] = _divergences(llm, prompts, expected, outputs)
    return result


def _generate(
    llm: Any, prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float
) -> list[list[int]]:
    from vllm import SamplingParams

    sampling = [
        SamplingParams(
            temperature=temperature,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            seed=i if temperature else None,
        )
        for i in range(len(prompts))
    ]
    requests = [{"prompt_token_ids": list(p)} for p in prompts]
    done = llm.generate(requests, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in done]


def _divergences(
    llm: Any,
    prompts: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    at_most: int = 3,
) -> list[dict[str, Any]]:
    """The first differences, each asked again: prompt and right tokens up to there, one token.

    ``recomputed`` is what the same engine says when that position comes out of a fresh prefill, and
    ``margin`` how far it puts the expected token above the one that came (in log-probability,
    None when either is not among the 20 best).
    """
    from vllm import SamplingParams

    found: list[dict[str, Any]] = []
    for i, (want, got) in enumerate(zip(expected, outputs, strict=True)):
        if list(want) == list(got):
            continue
        at = next(
            (p for p, (a, b) in enumerate(zip(want, got, strict=False)) if a != b),
            min(len(want), len(got)),
        )
        entry: dict[str, Any] = {"prompt": i, "position": at}
        if at < len(want) and len(found) < at_most:
            _step(f"ask again for token {at} of prompt {i}")
            llm.reset_prefix_cache()
            request = {"prompt_token_ids": [*prompts[i], *want[:at]]}
            sampling = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True)
            (answer,) = llm.generate([request], sampling, use_tqdm=False)
            (best,) = answer.outputs[0].logprobs
            entry["recomputed"] = answer.outputs[0].token_ids[0]
            right, came = best.get(want[at]), best.get(got[at]) if at < len(got) else None
            entry["margin"] = round(right.logprob - came.logprob, 3) if right and came else None
        found.append(entry)
    return found


def _counters(llm: Any) -> dict[str, Any]:
    counters: dict[str, Any] = {}
    for metric in llm.get_metrics():
        if name := COUNTERS.get(metric.name):
            value = list(metric.values) if hasattr(metric, "values") else metric.value
            counters[name] = _plus(counters[name], value) if name in counters else value
    return counters


def _plus(a: Any, b: Any) -> Any:
    return [x + y for x, y in zip(a, b, strict=True)] if isinstance(a, list) else a + b


def _minus(after: Any, before: Any) -> Any:
    if before is None:
        return after
    if isinstance(after, list):
        return [x - y for x, y in zip(after, before, strict=True)]
    return after - before


def _step(text: str) -> None:
    print(STEP, text, flush=True)


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` to ``path``, complete or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())

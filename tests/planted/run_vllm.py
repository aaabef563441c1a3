"""Generate with a real vLLM in a process of its own: JSON in, JSON out.

The request on standard input has ``engine`` (arguments of ``vllm.LLM``), ``prompts`` (ids) and
``sampling``. The answer is the last line of standard output.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    import vllm

    request = json.load(sys.stdin)
    llm = vllm.LLM(**request["engine"], enforce_eager=True, disable_log_stats=False)
    sampling = vllm.SamplingParams(**request["sampling"], ignore_eos=True)
    prompts = [{"prompt_token_ids": p} for p in request["prompts"]]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    metrics = {
        m.name.removeprefix("vllm:spec_decode_num_"): getattr(m, "values", None) or m.value
        for m in llm.get_metrics()
        if "spec_decode" in m.name
    }
    tokens = [list(o.outputs[0].token_ids) for o in outputs]
    print("\n" + json.dumps({"tokens": tokens, "metrics": metrics}), flush=True)


if __name__ == "__main__":
    main()

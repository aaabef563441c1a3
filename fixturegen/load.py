"""Load a checkpoint with a real engine and generate a few tokens."""

from __future__ import annotations

import logging
import os
import re
from os import PathLike
from pathlib import Path
from typing import Any

from fixturegen.errors import EngineError
from fixturegen.inspection import checkpoint_folders, read_config

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples has he now?\nAnswer:"
TOKENS = 8


def load(path: str | PathLike[str], engine: str) -> str:
    """Load the checkpoint at ``path`` with ``"transformers"`` or ``"vllm"`` and generate.

    With a draft or MTP layers, vLLM runs with speculative decoding. Returns one line that says what
    was seen. Raises EngineError when the engine is absent, refuses the checkpoint, leaves out
    weights, or never drafts.
    """
    target, *draft = checkpoint_folders(path)
    return {"transformers": _transformers, "vllm": _vllm}[engine](target, *draft)


def _transformers(target: Path, draft: Path | None = None) -> str:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise EngineError(f"{error.name} is not installed; pip install 'fixturegen[test]'") from None
    config = read_config(target)
    options: dict[str, Any] = {}
    if config.quantization:
        options["quantization_config"] = transformers.FineGrainedFP8Config(dequantize=True)
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            target, dtype=torch.bfloat16, output_loading_info=True, **options
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    except Exception as error:
        raise EngineError(f"{target}: transformers refuses it: {_line(error)}") from error
    mtp = re.compile(
        "|".join(
            rf"model\.layers\.{config.num_hidden_layers + i}\."
            for i in range(config.num_nextn_predict_layers)
        )
        or "$."
    )
    wrong = {
        "missing": sorted(info["missing_keys"]),
        "mismatched": sorted(map(str, info["mismatched_keys"])),
        "unexpected": sorted(k for k in info["unexpected_keys"] if not mtp.match(k)),
    }
    for kind, names in wrong.items():
        if names:
            raise EngineError(f"{target}: transformers finds {kind} weights: {', '.join(names[:5])}")
    prompt = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        output = model.generate(prompt, max_new_tokens=TOKENS, do_sample=False, pad_token_id=2)
    new = output[0, prompt.shape[1] :].tolist()
    return f"transformers {transformers.__version__} loads it, all weights used, generates {new}"


def _vllm(target: Path, draft: Path | None = None) -> str:
    # one process, so that an engine failure is an exception here
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import vllm
    except ImportError as error:
        raise EngineError(
            f"vllm cannot be imported ({error}); pip install 'fixturegen[vllm]'"
        ) from None
    logging.getLogger("vllm").setLevel(logging.ERROR)
    config = read_config(target)
    options: dict[str, Any] = {}
    if draft:
        options["speculative_config"] = {
            "method": "eagle",
            "model": str(draft),
            "num_speculative_tokens": 2,
        }
    elif config.num_nextn_predict_layers:
        options["speculative_config"] = {"method": "mtp", "num_speculative_tokens": 2}
    try:
        llm = vllm.LLM(
            model=str(target),
            max_model_len=512,
            max_num_seqs=4,
            enforce_eager=True,
            disable_log_stats=False,
            **options,
        )
        sampling = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        output = llm.generate([PROMPT], sampling, use_tqdm=False)
    except Exception as error:
        raise EngineError(f"{target}: vLLM refuses it: {_line(error)}") from error
    counts = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
    said = f"vllm {vllm.__version__} loads it, generates {list(output[0].outputs[0].token_ids)}"
    if not options:
        return said
    drafted = counts.get("vllm:spec_decode_num_draft_tokens") or 0
    accepted = counts.get("vllm:spec_decode_num_accepted_tokens") or 0
    if not drafted:
        raise EngineError(f"{target}: vLLM loads it but proposed no draft tokens")
    return f"{said}, {drafted} tokens drafted, {accepted} accepted"


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"

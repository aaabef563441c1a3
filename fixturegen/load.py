"""Load a checkpoint with a real engine and generate a few tokens."""

from __future__ import annotations

import logging
import os
from os import PathLike
from pathlib import Path
from typing import Any

from fixturegen.config import ModelConfig
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
        raise EngineError(
            f"{error.name} is not installed; pip install 'fixturegen[test]'"
        ) from None
    try:
        model = transformers_model(target)
        tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"{target}: transformers refuses it: {_line(error)}") from error
    prompt = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        output = model.generate(prompt, max_new_tokens=TOKENS, do_sample=False, pad_token_id=2)
    new = output[0, prompt.shape[1] :].tolist()
    return f"transformers {transformers.__version__} loads it, all weights used, generates {new}"


def transformers_model(folder: Path, dtype: str | None = None) -> Any:
    """The target as transformers' ``DeepseekV3ForCausalLM``, in ``dtype`` or the config's own.

    FP8 weights are dequantised here: transformers 5.19 refuses matrices that are no multiple of the
    block, such as the 576 rows of ``kv_a_proj_with_mqa``.

    Raises EngineError when weights are missing, of another shape, or unexpected (MTP layers, which
    transformers leaves out, excepted).
    """
    import torch
    import transformers

    config = read_config(folder)
    torch_dtype = getattr(torch, dtype or config.dtype)
    source: dict[str, Any] = {"pretrained_model_name_or_path": folder}
    if config.quantization:
        plain = transformers.AutoConfig.from_pretrained(folder)
        del plain.quantization_config
        source = {
            "pretrained_model_name_or_path": None,
            "config": plain,
            "state_dict": dequantized(folder, config, torch_dtype),
        }
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()  # its report of MTP tensors is no news
    transformers.utils.logging.disable_progress_bar()
    try:
        model, info = transformers.DeepseekV3ForCausalLM.from_pretrained(
            **source, dtype=torch_dtype, output_loading_info=True
        )
    finally:
        transformers.utils.logging.set_verbosity(verbosity)
    last = config.num_hidden_layers + config.num_nextn_predict_layers
    mtp = tuple(f"model.layers.{i}." for i in range(config.num_hidden_layers, last))
    wrong = {
        "missing": sorted(info["missing_keys"]),
        "mismatched": sorted(map(str, info["mismatched_keys"])),
        "unexpected": sorted(k for k in info["unexpected_keys"] if not k.startswith(mtp or "\0")),
    }
    for kind, names in wrong.items():
        if names:
            raise EngineError(
                f"{folder}: transformers finds {kind} weights: {', '.join(names[:5])}"
            )
    return model.eval()


def dequantized(folder: Path, config: ModelConfig, dtype: Any) -> dict[str, Any]:
    """All tensors of a checkpoint as torch tensors, FP8 ones times their block scales."""
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    block = config.quantization.weight_block_size if config.quantization else None
    for name in [n for n in tensors if n.endswith("_scale_inv")]:
        high, wide = block or (128, 128)
        scale = tensors.pop(name).repeat_interleave(high, 0).repeat_interleave(wide, 1)
        codes = tensors[name.removesuffix("_scale_inv")].float()
        values = codes * scale[: codes.shape[0], : codes.shape[1]]
        tensors[name.removesuffix("_scale_inv")] = values.to(dtype)
    return tensors


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

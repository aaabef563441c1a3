"""Asks one vLLM release's own attention selectors, in a process of its own.

    python attention_probe.py VLLM_SOURCE < questions.json > answers.json

As :mod:`oracle_probe` does for MoE: the release's Python is imported from its source tree, the
platform is patched to a CUDA device of the asked capability, compiled extensions are stubs. Three
kinds of question are answered: the FlashAttention version of a layer, the backend that is chosen
for a layer, and the prefill backend of an MLA layer.
"""

import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator

import oracle_probe


def patch_engine() -> None:
    """All FlashAttention versions and FlashMLA are built in; the GPU says which of them it runs."""
    from vllm.v1.attention.ops import flashmla
    from vllm.vllm_flash_attn import flash_attn_interface

    for version in (2, 3, 4):
        setattr(flash_attn_interface, f"FA{version}_AVAILABLE", True)
    flashmla._is_flashmla_available = lambda: (True, None)


def without_buffers() -> None:
    """What modules ask of a GPU when they are imported: work spaces and its size."""
    import torch

    for name in ("empty", "zeros"):
        setattr(torch, name, _elsewhere(getattr(torch, name)))
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(multi_processor_count=132)


def _elsewhere(allocate: Callable[..., object]) -> Callable[..., object]:
    def allocated(*size: object, **how: object) -> object:
        if how.get("device") is None:
            return allocate(*size, **how)
        return allocate(0)

    return allocated


class Model:
    """The few attributes of ModelConfig that selectors read, for one layer's dims."""

    is_hybrid = is_diffusion = is_mm_prefix_lm = False
    rswa_window = None

    def __init__(self, question: dict) -> None:
        import torch

        dims = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
        self.hf_text_config = types.SimpleNamespace(**{d: question.get(d, 0) for d in dims})
        if question.get("index_topk"):
            self.hf_text_config.index_topk = question["index_topk"]
        self.hf_config = self.hf_text_config
        self.dtype = getattr(torch, question.get("dtype", "bfloat16"))
        self._question = question

    def get_head_size(self) -> int:
        return self._question["head_size"]

    def get_num_attention_heads(self, parallel_config: object) -> int:
        return self._question.get("num_heads", 128)

    def get_num_kv_heads(self, parallel_config: object) -> int:
        return self._question.get("num_heads", 128)


def version(question: dict, config: object) -> str:
    """What get_flash_attn_version says for the layer's dims."""
    from vllm.v1.attention.backends import fa_utils

    known = inspect.signature(fa_utils.get_flash_attn_version).parameters
    given = {"head_size": question["head_size"], "head_size_v": question["head_size_v"]}
    if question["caller"] == "decoder":
        given = {"head_size": question["head_size"], "supports_fa4_hd256": True}
    return str(fa_utils.get_flash_attn_version(**{k: v for k, v in given.items() if k in known}))


def backend(question: dict, config: object) -> str:
    """The backend that the platform chooses, or the selector's error."""
    from vllm.platforms import current_platform
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    asked = question["backend"]
    values = {
        "head_size": question["head_size"],
        "dtype": config.model_config.dtype,
        "kv_cache_dtype": question["kv_cache_dtype"],
        "block_size": question["block_size"] or None,
        "use_mla": question["use_mla"],
        "has_sink": False,
        "use_sparse": bool(question.get("index_topk")),
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "attn_type": "decoder",
        "use_batch_invariant": bool(question.get("env", {}).get("VLLM_BATCH_INVARIANT")),
    }
    fields = selector.AttentionSelectorConfig._fields
    selected = selector.AttentionSelectorConfig(**{k: v for k, v in values.items() if k in fields})
    path = current_platform.get_attn_backend_cls(
        None if asked == "auto" else AttentionBackendEnum[asked],
        selected,
        num_heads=question["num_heads"],
    )
    return next(b.name for b in AttentionBackendEnum if _path(b) == path)


def _path(member: object) -> str:
    try:
        return member.get_path()
    except ValueError:
        return ""


def prefill(question: dict, config: object) -> str:
    """The MLA prefill backend that is chosen, or the selector's error."""
    from vllm.v1.attention.backends.mla import prefill as package
    from vllm.v1.attention.backends.mla.prefill import registry, selector

    for name in ("_auto_select_mla_prefill_backend", "get_mla_prefill_backend"):
        getattr(getattr(selector, name), "cache_clear", lambda: None)()
    for member in registry.MLAPrefillBackendEnum:
        if member.name in ("FLASHINFER", "TRTLLM_RAGGED", "TOKENSPEED_MLA"):
            member.get_class().is_available = classmethod(lambda cls: True)
    asked = question["prefill"]
    enum = registry.MLAPrefillBackendEnum
    config.attention_config.mla_prefill_backend = None if asked == "auto" else enum[asked]
    return package.get_mla_prefill_backend(config).get_name()


KINDS = {"version": version, "backend": backend, "prefill": prefill}


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of packages that backends import from and never call here."""

    packages = ("flashinfer", "tokenspeed_mla", "vllm.vllm_flash_attn._vllm_fa")

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(self.packages):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = lambda attribute: type(attribute, (), {})  # type: ignore[method-assign]


def answers(questions: list[dict]) -> Iterator[str]:
    oracle_probe.stub_packages()
    del sys.modules["flashinfer"]
    sys.meta_path.insert(0, Stubs())
    without_buffers()
    import vllm.envs as envs

    device = oracle_probe.patch_platform()
    oracle_probe.patch_packages()
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms.interface import PlatformEnum

    config = VllmConfig()
    device._enum = PlatformEnum.CUDA
    importlib.import_module("vllm.v1.attention.backends.fa_utils")
    patch_engine()
    for question in questions:
        oracle_probe.CAPABILITY = tuple(question["capability"])
        os.environ.pop("VLLM_BATCH_INVARIANT", None)
        os.environ.update(question.get("env", {}))
        getattr(envs, "disable_envs_cache", lambda: None)()
        config.model_config = Model(question)
        config.attention_config.flash_attn_version = question.get("flash_attn_version") or None
        config.cache_config.cache_dtype = question.get("kv_cache_dtype", "auto")
        with set_current_vllm_config(config):
            try:
                yield KINDS[question["kind"]](question, config)
            except (ValueError, NotImplementedError) as error:
                yield f"error: {error}"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"
    out, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, sys.argv[1])
    json.dump(list(answers(json.load(sys.stdin))), out)

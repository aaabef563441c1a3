"""Reads from a running vLLM worker which kernels it really uses.

vLLM mixes this class into its worker (``worker_extension_cls``) and the suite calls it through
``collective_rpc``, in whatever process the worker lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Attributes in which vLLM's MoE methods keep the backend that they selected.
_MOE_BACKENDS = ("unquantized_backend", "fp8_backend", "nvfp4_backend", "mxfp4_backend")

#: Attributes in which vLLM's FP8 linear methods keep the kernel that they selected.
_LINEAR_KERNELS = ("w8a8_block_fp8_linear", "fp8_linear")


class Probe:
    """Mixed into vLLM's worker; only adds one method."""

    def fixturegen_choices(self) -> dict[str, Any]:
        """Names of the backends of the target's and the draft's layers.

        Each value is one name, or several joined by ``+`` when layers differ.
        """
        layers = self.vllm_config.compilation_config.static_forward_context  # type: ignore[attr-defined]
        attention = [layer for layer in layers.values() if hasattr(layer, "attn_backend")]
        runner = self.model_runner  # type: ignore[attr-defined]
        models = [runner.get_model()]
        for name in ("drafter", "speculator"):  # by the generation of vLLM's model runner
            draft = getattr(getattr(runner, name, None), "model", None)
            if draft is not None:
                models.append(draft)
        modules = [module for model in models for module in model.modules()]
        methods = [getattr(m, "quant_method", m) for m in modules]
        return {
            "attention": _joined(layer.attn_backend.get_name() for layer in attention),
            "prefill": _joined(
                layer.prefill_backend.get_name()
                for layer in attention
                if getattr(layer, "prefill_backend", None) is not None
            ),
            "flash_attn_version": _joined(
                version
                for layer in attention
                for part in (layer.impl, getattr(layer, "prefill_backend", None))
                if (version := getattr(part, "vllm_flash_attn_version", None)) is not None
            ),
            "moe": _joined(
                getattr(backend, "value", backend)
                for method in methods
                for name in _MOE_BACKENDS
                if (backend := getattr(method, name, None)) is not None
            ),
            "linear": _joined(
                type(kernel).__name__
                for method in methods
                for name in _LINEAR_KERNELS
                if (kernel := getattr(method, name, None)) is not None
            ),
            "attention_layers": len(attention),
        }


def _joined(names: Iterable[object]) -> str:
    return "+".join(sorted({str(name) for name in names}))

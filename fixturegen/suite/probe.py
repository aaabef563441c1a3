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
        """The backends in use, by the names that ``check`` gives to its predictions.

        ``attention``, or ``prefill`` and ``decode`` with MLA, ``flash_attention``, ``moe``, and
        ``linear`` for FP8; those of the draft's layers under ``draft ...`` where they differ.
        A value is one name, or several joined by ``+`` when layers differ among themselves.
        """
        runner = self.model_runner  # type: ignore[attr-defined]
        choices = _choices(runner.get_model())
        for name in ("drafter", "speculator"):  # by the generation of vLLM's model runner
            draft = getattr(getattr(runner, name, None), "model", None)
            if draft is not None:
                found = _choices(draft)
                choices |= {f"draft {n}": v for n, v in found.items() if v != choices.get(n)}
        return choices


def _choices(model: Any) -> dict[str, str]:
    modules = list(model.modules())
    layers = [m for m in modules if hasattr(m, "attn_backend") and hasattr(m, "impl")]
    prefills = [p for m in layers if (p := getattr(m, "prefill_backend", None)) is not None]
    methods = [getattr(m, "quant_method", m) for m in modules]
    versions = [getattr(p, "vllm_flash_attn_version", None) for p in prefills] or [
        getattr(m.impl, "vllm_flash_attn_version", None) for m in layers
    ]
    moe = (getattr(m, name, None) for m in methods for name in _MOE_BACKENDS)
    linear = (getattr(m, name, None) for m in methods for name in _LINEAR_KERNELS)
    found = {
        "decode" if prefills else "attention": (m.attn_backend.get_name() for m in layers),
        "prefill": (p.get_name() for p in prefills),
        "flash_attention": (f"FA{version}" for version in versions if version),
        "moe": (backend.name for backend in moe if backend is not None),
        "linear": (type(kernel).__name__ for kernel in linear if kernel is not None),
    }
    joined = {name: _joined(values) for name, values in found.items()}
    return {name: value for name, value in joined.items() if value}


def _joined(names: Iterable[str]) -> str:
    return "+".join(sorted(set(names)))

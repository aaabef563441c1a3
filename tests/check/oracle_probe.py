"""Asks one vLLM release's own MoE oracle, in a process of its own.

    python oracle_probe.py VLLM_SOURCE < questions.json > answers.json

The release's Python is imported from its source tree; the platform is patched to a CUDA device of
the asked capability on which every optional kernel package is installed. A question is a mapping
(capability, scheme, backend, ep, ...); the answer is what ``select_*_moe_backend`` returned, or the
error's text.
"""

import dataclasses
import importlib
import importlib.machinery
import inspect
import json
import logging
import os
import sys
import types
from collections.abc import Iterator

ORACLES = {"bf16": "unquantized", "fp8": "fp8", "nvfp4": "nvfp4"}
#: C++ answers of vllm._custom_ops by capability: cutlass_scaled_mm_supports_fp4 and the like.
CAPABILITY = (9, 0)


def stub_packages() -> None:
    """Compiled extensions and packages that are imported at the top and never called here."""
    compiled = ("_C", "_C_stable_libtorch", "_moe_C", "_moe_C_stable_libtorch", "_flashmla_C")
    for name in (
        "flashinfer",
        "gguf",
        "gguf.constants",
        "gguf.quants",
        *(f"vllm.{c}" for c in compiled),
    ):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__file__ = name
        module.__getattr__ = lambda attribute: type(attribute, (), {})  # type: ignore[method-assign]
        sys.modules.setdefault(name, module)


def patch_platform() -> type:
    """A CUDA platform whose capability is read from this module at every call.

    It says "unspecified" until the oracles are imported, so that no compiled extension is wanted.
    """
    import vllm.platforms
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability, PlatformEnum

    class Device(CudaPlatformBase):
        _enum = PlatformEnum.UNSPECIFIED
        device_name = "patched"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*CAPABILITY)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "patched"

    vllm.platforms._current_platform = Device()
    return Device


def patch_packages() -> None:
    """FlashInfer and DeepGEMM are there; compiled capability questions are answered here."""
    import vllm._custom_ops as ops
    import vllm.utils.deep_gemm as deep_gemm
    import vllm.utils.flashinfer as flashinfer

    for name, value in list(vars(flashinfer).items()):
        if name.startswith("has_flashinfer") and callable(value):
            setattr(flashinfer, name, lambda *_, **__: True)
    deep_gemm.has_deep_gemm = lambda: True
    for name in ("is_deep_gemm_supported", "is_deep_gemm_e8m0_used"):
        function = getattr(deep_gemm, name, None)
        if function is not None:
            setattr(deep_gemm, name, getattr(function, "__wrapped__", function))
    ops.cutlass_scaled_mm_supports_fp8 = lambda capability: capability >= 89
    ops.cutlass_scaled_mm_supports_block_fp8 = lambda capability: capability >= 90
    ops.cutlass_group_gemm_supported = lambda capability: 90 <= capability < 110
    ops.cutlass_scaled_mm_supports_fp4 = lambda capability: 100 <= capability < 130


def moe_config(question: dict) -> object:
    """The release's FusedMoEConfig for one question; fields it lacks are left out."""
    import torch
    from vllm.model_executor.layers.fused_moe import config

    ep, tp = question["ep"], question["tp"]
    values = {
        "num_experts": question["n_routed_experts"],
        "num_logical_experts": question["n_routed_experts"],
        "num_local_experts": question["n_routed_experts"] // ep,
        "experts_per_token": question["num_experts_per_tok"],
        "hidden_dim": question["hidden_size"],
        "intermediate_size": question["intermediate_size"] * (tp if ep == 1 else 1),
        "intermediate_size_per_partition": question["intermediate_size"],
        "activation": config.MoEActivation.SILU,
        "device": "cpu",
        "routing_method": router(question).routing_method_type,
        "in_dtype": getattr(torch, question["dtype"]),
        "moe_backend": question["backend"],
        "max_num_tokens": 256,
    }
    parallel = {
        "tp_size": 1 if ep > 1 else tp,
        "ep_size": ep,
        "use_ep": ep > 1,
        "all2all_backend": "allgather_reducescatter",
        "enable_eplb": False,
    }
    for name in ("pcp_size", "dp_size", "sp_size"):
        parallel[name] = 1
    for name in ("tp_rank", "pcp_rank", "dp_rank", "ep_rank"):
        parallel[name] = 0
    values["moe_parallel_config"] = build(config.FusedMoEParallelConfig, parallel)
    made = build(config.FusedMoEConfig, values)
    made.intermediate_size_per_partition = question["intermediate_size"]
    return made


def router(question: dict) -> object:
    """The release's router for DeepSeek's arguments (DeepseekV2MoE.__init__)."""
    import torch
    from vllm.model_executor.layers.fused_moe.router import router_factory

    values = {
        "top_k": question["num_experts_per_tok"],
        "global_num_experts": question["n_routed_experts"],
        "renormalize": question["norm_topk_prob"],
        "use_grouped_topk": True,
        "num_expert_group": question["n_group"],
        "topk_group": question["topk_group"],
        "scoring_func": question["scoring_func"],
        "e_score_correction_bias": torch.zeros(1) if question["bias"] else None,
    }
    return router_factory.create_fused_moe_router(**values)


def build(cls: type, values: dict) -> object:
    """An instance from those values that are parameters of the class."""
    known = {f.name for f in dataclasses.fields(cls) if f.init}
    return cls(**{name: value for name, value in values.items() if name in known})


def oracle(name: str) -> types.ModuleType:
    return importlib.import_module(f"vllm.model_executor.layers.fused_moe.oracle.{name}")


def answer(question: dict) -> dict[str, object]:
    """Router class, routing method, MoE backend (or the oracle's error), and who routes."""
    global CAPABILITY
    CAPABILITY = tuple(question["capability"])
    for variable in [v for v in os.environ if v.startswith(("VLLM_USE", "VLLM_MOE", "VLLM_TEST"))]:
        del os.environ[variable]
    for variable in ("VLLM_BATCH_INVARIANT", "VLLM_FLASHINFER_MOE_BACKEND"):
        os.environ.pop(variable, None)
    os.environ.update(question.get("env", {}))
    name = ORACLES[question["scheme"]]
    from vllm.model_executor.layers.quantization.utils import quant_utils

    keys = {
        "bf16": {},
        "fp8": {
            "weight_key": quant_utils.kFp8Static128BlockSym,
            "activation_key": quant_utils.kFp8Dynamic128Sym,
        },
        "nvfp4": {
            "weight_key": quant_utils.kNvfp4Static,
            "activation_key": quant_utils.kNvfp4Dynamic,
        },
    }[question["scheme"]]
    select = getattr(oracle(name), f"select_{name}_moe_backend")
    if "use_ep" in inspect.signature(select).parameters:  # 0.19
        keys = {"use_ep": question["ep"] > 1, "use_dp": False}
    try:
        config = moe_config(question)
        if question["scheme"] == "fp8":
            keys["weight_key"] = fp8_weight_key(config, keys)
        chosen = select(config, **keys)
    except (ValueError, NotImplementedError) as error:
        backend, kernel = f"error: {error}", None
    else:
        chosen, kernel = chosen if isinstance(chosen, tuple) else (chosen, None)
        backend = chosen.name
    made = router(question)
    return {
        "router": type(made).__name__,
        "routing": made.routing_method_type.name,
        "backend": backend,
        "fused_routing": kernel.is_monolithic() if kernel is not None else None,
    }


def fp8_weight_key(config: object, keys: dict) -> object:
    """The weight's block shape as Fp8MoEMethod.__init__ adapts it before it asks the oracle."""
    from vllm.model_executor.layers.quantization.utils import quant_utils

    module = oracle("fp8")
    if hasattr(module, "resolve_fp8_moe_weight_block_shape"):
        resolve = module.resolve_fp8_moe_weight_block_shape
        shape = resolve(config, [128, 128], keys["activation_key"], True)[0]
    elif hasattr(module, "refine_fp8_moe_block_shape"):
        shape = module.refine_fp8_moe_block_shape(config, [128, 128]) or [128, 128]
    else:
        return keys["weight_key"]
    group = quant_utils.GroupShape(*shape)
    return quant_utils.create_fp8_quant_key(static=True, group_shape=group)


def answers(questions: list[dict]) -> Iterator[dict[str, object]]:
    stub_packages()
    import vllm.envs  # noqa: F401

    device = patch_platform()
    patch_packages()
    for name in ORACLES.values():
        oracle(name)
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms.interface import PlatformEnum

    config = VllmConfig()
    device._enum = PlatformEnum.CUDA
    with set_current_vllm_config(config):
        for question in questions:
            yield answer(question)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"
    out, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, sys.argv[1])
    json.dump(list(answers(json.load(sys.stdin))), out)

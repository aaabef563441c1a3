"""What each MoE backend takes when vLLM's oracle asks it (``is_supported_config``)."""

from fixturegen.check.inputs import MoE
from fixturegen.check.rule import PassedOver, Source, Where, cases, rule

FUSED_MOE = "vllm/model_executor/layers/fused_moe"
ORACLE = f"{FUSED_MOE}/oracle"
EXPERTS = f"{FUSED_MOE}/experts"

EVERY = (
    "FLASHINFER_TRTLLM",
    "FLASHINFER_CUTLASS",
    "FLASHINFER_CUTEDSL",
    "DEEPGEMM",
    "VLLM_CUTLASS",
    "TRITON",
    "MARLIN",
    "EMULATION",
)
DEVICE = "kernel does not support current device"
SCHEME = "kernel does not support quantization scheme"


@rule(
    id="moe-bf16-backends",
    title="Unquantised experts run on TRITON, FLASHINFER_TRTLLM or FLASHINFER_CUTLASS",
    where=Where(backends=EVERY, inputs={"scheme": "bf16"}),
    otherwise=PassedOver("is not supported for unquantized MoE"),
    source=Source("vllm", f"{ORACLE}/unquantized.py", "map_unquantized_backend"),
    cases=cases(
        MoE(scheme="bf16"),
        holds=[{"backend": "TRITON"}, {"backend": "FLASHINFER_CUTLASS"}],
        breaks=[{"backend": "DEEPGEMM"}, {"backend": "MARLIN"}],
        at_limit=[{}],
        past_limit=[{"backend": "FLASHINFER_CUTEDSL"}],
    ),
)
def moe_bf16_backends(x: MoE) -> bool:
    """The others read quantised weights only; asking for one by `--moe-backend` raises.

    From 0.33.0 `marlin`, and from 0.26.0 `humming`, are ignored for unquantised layers instead.
    """
    return x.backend in ("TRITON", "FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS")


@rule(
    id="moe-fp8-backends",
    title="FP8 experts run on TRITON, DEEPGEMM, MARLIN or FlashInfer's TRTLLM and CUTLASS",
    where=Where(backends=EVERY, inputs={"scheme": "fp8"}),
    otherwise=PassedOver("CUTLASS FP8 MoE backend is disabled|is not supported for FP8 MoE"),
    source=Source("vllm", f"{ORACLE}/fp8.py", "select_fp8_moe_backend"),
    cases=cases(
        MoE(),
        holds=[{"backend": b} for b in ("TRITON", "DEEPGEMM", "MARLIN", "FLASHINFER_CUTLASS")],
        breaks=[{"backend": "EMULATION"}],
        at_limit=[{}],
        past_limit=[{"backend": "VLLM_CUTLASS"}],
    ),
)
def moe_fp8_backends(x: MoE) -> bool:
    """vLLM's own CUTLASS kernels are switched off for FP8 checkpoints (`allow_vllm_cutlass`)."""
    return x.backend in ("TRITON", "DEEPGEMM", "MARLIN", "FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS")


@rule(
    id="moe-nvfp4-backends",
    title="NVFP4 experts run on FlashInfer, vLLM's CUTLASS or MARLIN",
    where=Where(until="0.19.1", backends=EVERY, inputs={"scheme": "nvfp4"}),
    otherwise=PassedOver("is not supported for NvFp4 MoE|activation format"),
    source=Source("vllm", f"{ORACLE}/nvfp4.py", "map_nvfp4_backend"),
    cases=cases(
        MoE(scheme="nvfp4"),
        holds=[{"backend": b} for b in ("FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN")],
        breaks=[{"backend": "TRITON"}, {"backend": "EMULATION"}],
        at_limit=[{}],
        past_limit=[{"backend": "FLASHINFER_CUTEDSL"}],
    ),
)
def moe_nvfp4_backends(x: MoE) -> bool:
    """FLASHINFER_CUTEDSL is there too, but only for the batched format of DeepEP low latency."""
    return x.backend in ("FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN")


@rule(
    id="moe-nvfp4-backends-0.20.2",
    variant_of="moe-nvfp4-backends",
    title="NVFP4 experts run on FlashInfer, vLLM's CUTLASS, MARLIN or emulation",
    where=Where(since="0.20.2", backends=EVERY, inputs={"scheme": "nvfp4"}),
    otherwise=PassedOver("is not supported for NvFp4 MoE"),
    source=Source("vllm", f"{ORACLE}/nvfp4.py", "map_nvfp4_backend"),
    cases=cases(
        MoE(scheme="nvfp4"),
        holds=[{"backend": b} for b in EVERY if b not in ("TRITON", "DEEPGEMM")],
        breaks=[{"backend": "TRITON"}],
        at_limit=[{}],
        past_limit=[{"backend": "DEEPGEMM"}],
    ),
)
def moe_nvfp4_backends_0_20_2(x: MoE) -> bool:
    """TRITON and DEEPGEMM have no NVFP4 kernels."""
    return x.backend not in ("TRITON", "DEEPGEMM")


@rule(
    id="moe-trtllm-gpu",
    title="FLASHINFER_TRTLLM runs on SM100 to SM109",
    where=Where(backends=("FLASHINFER_TRTLLM",)),
    otherwise=PassedOver(f"{DEVICE}|FlashInfer TRTLLM MoE backend is not available"),
    source=Source("vllm", f"{EXPERTS}/trtllm_fp8_moe.py", "_supports_current_device"),
    cases=cases(
        MoE(),
        holds=[{"capability": 103}],
        breaks=[{"capability": 90}, {"capability": 120}],
        at_limit=[{"capability": 100}, {"capability": 109}],
        past_limit=[{"capability": 99}, {"capability": 110}],
    ),
)
def moe_trtllm_gpu(x: MoE) -> bool:
    """Its kernels are compiled for the first Blackwell family only, not for SM110 and SM12x."""
    return 100 <= x.capability < 110


@rule(
    id="moe-trtllm-bf16-routing",
    title="Unquantised FLASHINFER_TRTLLM does the routing itself, where it knows the method",
    where=Where(
        since="0.20.2",
        until="0.22.1",
        backends=("FLASHINFER_TRTLLM",),
        inputs={"scheme": "bf16"},
    ),
    otherwise=PassedOver("kernel does not support routing method"),
    source=Source("vllm", f"{EXPERTS}/trtllm_bf16_moe.py", "_supports_routing_method"),
    cases=cases(
        MoE(scheme="bf16"),
        holds=[{"routing": r} for r in ("Llama4", "Renormalize", "RenormalizeNaive")],
        breaks=[{"routing": "Default"}, {"routing": "Unspecified"}],
        at_limit=[{}],
        past_limit=[{"routing": "SigmoidRenorm"}],
    ),
)
def moe_trtllm_bf16_routing(x: MoE) -> bool:
    """DeepSeek-V2's softmax without renormalisation (`Default`) goes to another backend."""
    return x.routing in ("DeepSeekV3", "Llama4", "Renormalize", "RenormalizeNaive")


@rule(
    id="moe-trtllm-bf16-routing-0.19.1",
    variant_of="moe-trtllm-bf16-routing",
    title="Unquantised FLASHINFER_TRTLLM does the routing itself, where it knows the method",
    where=Where(until="0.19.1", backends=("FLASHINFER_TRTLLM",), inputs={"scheme": "bf16"}),
    otherwise=PassedOver("FlashInfer TRTLLM MoE backend is not available"),
    source=Source("vllm", f"{FUSED_MOE}/flashinfer_trtllm_moe.py", "_supports_routing_method_bf16"),
    cases=cases(
        MoE(scheme="bf16"),
        holds=[{"routing": "Default"}],
        breaks=[{"routing": "Unspecified"}],
        at_limit=[{}],
        past_limit=[{"routing": "Unspecified"}],
    ),
)
def moe_trtllm_bf16_routing_0_19_1(x: MoE) -> bool:
    """Sigmoid routing without a bias, and softmax with one, have no name in this release."""
    return x.routing != "Unspecified"


@rule(
    id="moe-trtllm-bf16-routing-0.24",
    variant_of="moe-trtllm-bf16-routing",
    title="Unquantised FLASHINFER_TRTLLM does the routing itself, where it knows the method",
    where=Where(since="0.24.0", backends=("FLASHINFER_TRTLLM",), inputs={"scheme": "bf16"}),
    otherwise=PassedOver("kernel does not support (routing method|parallel config)"),
    source=Source("vllm", f"{EXPERTS}/trtllm_bf16_moe.py", "_supports_routing_method"),
    cases=cases(
        MoE(scheme="bf16"),
        holds=[{"routing": r} for r in ("RenormalizeNaive", "SigmoidRenorm", "Sigmoid")],
        breaks=[{"routing": "Unspecified"}],
        at_limit=[{}],
        past_limit=[{"routing": "Default"}],
    ),
)
def moe_trtllm_bf16_routing_0_24(x: MoE) -> bool:
    """The class that lets vLLM do the routing (0.26.0) works with all-to-all kernels only."""
    return x.routing not in ("Default", "Unspecified")


@rule(
    id="moe-trtllm-experts-2048",
    title="FLASHINFER_TRTLLM takes up to 2048 experts",
    where=Where(since="0.28.0", backends=("FLASHINFER_TRTLLM",), inputs={"scheme": "fp8"}),
    otherwise=PassedOver("FlashInfer TRTLLM routing supports at most 2048 experts"),
    source=Source("vllm", f"{EXPERTS}/trtllm_fp8_moe.py", "TrtLlmFp8ExpertsBase"),
    cases=cases(
        MoE(),
        breaks=[{"n_routed_experts": 4096}],
        at_limit=[{"n_routed_experts": 2048}],
        past_limit=[{"n_routed_experts": 2049}],
    ),
)
def moe_trtllm_experts_2048(x: MoE) -> bool:
    """Selection's limit. With DeepSeek-V3's routing the wrapper stops at 512 experts earlier."""
    return x.n_routed_experts <= 2048


@rule(
    id="moe-trtllm-bf16-experts-2048",
    title="Unquantised FLASHINFER_TRTLLM takes up to 2048 experts",
    where=Where(since="0.28.0", backends=("FLASHINFER_TRTLLM",), inputs={"scheme": "bf16"}),
    otherwise=PassedOver("FlashInfer TRTLLM routing supports at most 2048 experts"),
    source=Source("vllm", f"{EXPERTS}/trtllm_bf16_moe.py", "TrtLlmBf16ExpertsBase"),
    cases=cases(
        MoE(scheme="bf16"),
        breaks=[{"n_routed_experts": 4096}],
        at_limit=[{"n_routed_experts": 2048}],
        past_limit=[{"n_routed_experts": 2049}],
    ),
)
def moe_trtllm_bf16_experts_2048(x: MoE) -> bool:
    """Selection's limit; FlashInfer's grouped routing kernel stops at 512 experts earlier."""
    return x.n_routed_experts <= 2048


@rule(
    id="moe-trtllm-nvfp4-hidden",
    title="NVFP4 on FLASHINFER_TRTLLM wants a hidden size that 512 divides",
    where=Where(until="0.19.1", backends=("FLASHINFER_TRTLLM",), inputs={"scheme": "nvfp4"}),
    otherwise=PassedOver("hidden dim is not supported"),
    source=Source("vllm", f"{EXPERTS}/trtllm_nvfp4_moe.py", "_supports_shape"),
    cases=cases(
        MoE(scheme="nvfp4"),
        holds=[{"hidden_size": 7168}],
        breaks=[{"hidden_size": 256}],
        at_limit=[{"hidden_size": 512}],
        past_limit=[{"hidden_size": 511}, {"hidden_size": 513}, {"hidden_size": 640}],
    ),
)
def moe_trtllm_nvfp4_hidden(x: MoE) -> bool:
    """Later releases pad the hidden size with zeros instead."""
    return x.hidden_size % 512 == 0


@rule(
    id="moe-flashinfer-cutlass-gpu",
    title="FLASHINFER_CUTLASS runs on SM90, SM10x, SM11x and SM12x",
    where=Where(until="0.20.2", backends=("FLASHINFER_CUTLASS",)),
    otherwise=PassedOver(f"{DEVICE}|FlashInfer CUTLASS MoE backend is not available"),
    source=Source("vllm", f"{FUSED_MOE}/flashinfer_cutlass_moe.py", "_supports_current_device"),
    cases=cases(
        MoE(),
        holds=[{"capability": c} for c in (103, 110, 120)],
        breaks=[{"capability": 80}, {"capability": 89}],
        at_limit=[{"capability": 90}, {"capability": 100}, {"capability": 129}],
        past_limit=[{"capability": c} for c in (89, 91, 99, 130)],
    ),
)
def moe_flashinfer_cutlass_gpu(x: MoE) -> bool:
    """SM90 exactly, and every Blackwell family."""
    return x.capability == 90 or 100 <= x.capability < 130


@rule(
    id="moe-flashinfer-cutlass-gpu-0.22",
    variant_of="moe-flashinfer-cutlass-gpu",
    title="FLASHINFER_CUTLASS runs on SM90, SM10x and SM12x",
    where=Where(since="0.22.1", backends=("FLASHINFER_CUTLASS",)),
    otherwise=PassedOver(DEVICE),
    source=Source("vllm", f"{EXPERTS}/flashinfer_cutlass_moe.py", "_supports_current_device"),
    cases=cases(
        MoE(),
        holds=[{"capability": 103}, {"capability": 121}],
        breaks=[{"capability": 89}, {"capability": 110}],
        at_limit=[{"capability": c} for c in (90, 100, 109, 120, 129)],
        past_limit=[{"capability": c} for c in (89, 91, 99, 110, 119, 130)],
    ),
)
def moe_flashinfer_cutlass_gpu_0_22(x: MoE) -> bool:
    """SM110 was taken out after FlashInfer issue 3134."""
    return x.capability == 90 or 100 <= x.capability < 110 or 120 <= x.capability < 130


@rule(
    id="moe-flashinfer-cutlass-bf16-ep",
    title="Unquantised FLASHINFER_CUTLASS wants expert parallelism in vLLM 0.19",
    where=Where(until="0.19.1", backends=("FLASHINFER_CUTLASS",), inputs={"scheme": "bf16"}),
    otherwise=PassedOver("FlashInfer CUTLASS MoE backend is not available"),
    source=Source("vllm", f"{ORACLE}/unquantized.py", "select_unquantized_moe_backend"),
    cases=cases(
        MoE(scheme="bf16", ep=8),
        breaks=[{"ep": 1}],
        at_limit=[{"ep": 2}],
        past_limit=[{"ep": 1}],
    ),
)
def moe_flashinfer_cutlass_bf16_ep(x: MoE) -> bool:
    """And no data parallelism. From 0.20.2 it runs without."""
    return x.ep > 1


@rule(
    id="moe-flashinfer-cutlass-fp8",
    title="FLASHINFER_CUTLASS reads FP8 blocks on SM90 only",
    where=Where(backends=("FLASHINFER_CUTLASS",), inputs={"scheme": "fp8"}),
    otherwise=PassedOver(SCHEME),
    source=Source("vllm", f"{EXPERTS}/flashinfer_cutlass_moe.py", "_supports_quant_scheme"),
    cases=cases(
        MoE(),
        holds=[{"capability": 90}],
        breaks=[{"capability": 100}, {"capability": 120}],
        at_limit=[{"capability": 90}],
        past_limit=[{"capability": 89}, {"capability": 91}],
    ),
)
def moe_flashinfer_cutlass_fp8(x: MoE) -> bool:
    """On SM90 *auto* prefers it under expert parallelism, and TRITON otherwise."""
    return x.capability == 90


@rule(
    id="moe-flashinfer-cutlass-nvfp4",
    title="FLASHINFER_CUTLASS computes NVFP4 from SM100 on",
    where=Where(backends=("FLASHINFER_CUTLASS",), inputs={"scheme": "nvfp4"}),
    otherwise=PassedOver(SCHEME),
    source=Source("vllm", f"{EXPERTS}/flashinfer_cutlass_moe.py", "_supports_quant_scheme"),
    cases=cases(
        MoE(),
        holds=[{"capability": 120}],
        breaks=[{"capability": 90}],
        at_limit=[{"capability": 100}],
        past_limit=[{"capability": 99}],
    ),
)
def moe_flashinfer_cutlass_nvfp4(x: MoE) -> bool:
    """FP4 tensor cores start with Blackwell; before it, MARLIN unpacks the weights."""
    return x.capability >= 100


@rule(
    id="moe-flashinfer-cutedsl-gpu",
    title="FLASHINFER_CUTEDSL runs on SM10x",
    where=Where(since="0.20.2", backends=("FLASHINFER_CUTEDSL",)),
    otherwise=PassedOver(DEVICE),
    source=Source("vllm", f"{EXPERTS}/flashinfer_cutedsl_moe.py", "_supports_current_device"),
    cases=cases(
        MoE(),
        holds=[{"capability": 103}],
        breaks=[{"capability": 90}, {"capability": 120}],
        at_limit=[{"capability": 100}, {"capability": 109}],
        past_limit=[{"capability": 99}, {"capability": 110}],
    ),
)
def moe_flashinfer_cutedsl_gpu(x: MoE) -> bool:
    """*auto* finds FLASHINFER_TRTLLM first on the same GPUs."""
    return 100 <= x.capability < 110


@rule(
    id="moe-deepgemm-gpu",
    title="DEEPGEMM runs on SM90 and SM10x",
    where=Where(until="0.22.1", backends=("DEEPGEMM",)),
    otherwise=PassedOver(DEVICE),
    source=Source("vllm", "vllm/platforms/cuda.py", "CudaPlatformBase.support_deep_gemm"),
    cases=cases(
        MoE(),
        holds=[{"capability": 103}],
        breaks=[{"capability": 80}, {"capability": 120}],
        at_limit=[{"capability": 90}, {"capability": 100}, {"capability": 109}],
        past_limit=[{"capability": c} for c in (89, 91, 99, 110)],
    ),
)
def moe_deepgemm_gpu(x: MoE) -> bool:
    """`VLLM_USE_DEEP_GEMM=0` takes it out of *auto*'s list, `=1` insists on it."""
    return x.capability == 90 or 100 <= x.capability < 110


@rule(
    id="moe-deepgemm-gpu-0.24",
    variant_of="moe-deepgemm-gpu",
    title="DEEPGEMM runs on SM90, SM10x and SM12x",
    where=Where(since="0.24.0", backends=("DEEPGEMM",)),
    otherwise=PassedOver(DEVICE),
    source=Source("vllm", "vllm/platforms/cuda.py", "CudaPlatformBase.support_deep_gemm"),
    cases=cases(
        MoE(),
        holds=[{"capability": 103}, {"capability": 121}],
        breaks=[{"capability": 80}, {"capability": 110}],
        at_limit=[{"capability": c} for c in (90, 100, 109, 120, 129)],
        past_limit=[{"capability": c} for c in (89, 91, 99, 110, 119, 130)],
    ),
)
def moe_deepgemm_gpu_0_24(x: MoE) -> bool:
    """With it, FP8 experts on SM12x moved from TRITON to DEEPGEMM in 0.24.0."""
    return x.capability == 90 or 100 <= x.capability < 110 or 120 <= x.capability < 130


@rule(
    id="moe-triton-fp8-gpu",
    title="TRITON multiplies FP8 from SM89 on",
    where=Where(backends=("TRITON",), inputs={"scheme": "fp8"}),
    otherwise=PassedOver(SCHEME),
    source=Source("vllm", f"{EXPERTS}/triton_moe.py", "TritonExperts._supports_quant_scheme"),
    cases=cases(
        MoE(),
        holds=[{"capability": 120}],
        breaks=[{"capability": 80}],
        at_limit=[{"capability": 89}],
        past_limit=[{"capability": 88}],
    ),
)
def moe_triton_fp8_gpu(x: MoE) -> bool:
    """SM80 has no FP8 tensor cores: *auto* lands on MARLIN, which reads FP8 as stored weights."""
    return x.capability >= 89


@rule(
    id="moe-vllm-cutlass-nvfp4-gpu",
    title="vLLM's CUTLASS kernels compute NVFP4 on SM100 to SM129",
    where=Where(backends=("VLLM_CUTLASS",), inputs={"scheme": "nvfp4"}),
    otherwise=PassedOver(DEVICE),
    source=Source("vllm", f"{EXPERTS}/cutlass_moe.py", "CutlassExpertsFp4"),
    cases=cases(
        MoE(),
        holds=[{"capability": 110}],
        breaks=[{"capability": 90}],
        at_limit=[{"capability": 100}, {"capability": 129}],
        past_limit=[{"capability": 99}, {"capability": 130}],
    ),
)
def moe_vllm_cutlass_nvfp4_gpu(x: MoE) -> bool:
    """On SM110 *auto* comes here from 0.22.1 on, when FlashInfer's CUTLASS left that GPU."""
    return 100 <= x.capability < 130


@rule(
    id="moe-vllm-cutlass-nvfp4-ep",
    title="vLLM's NVFP4 CUTLASS kernels have no expert parallelism before 0.32",
    where=Where(until="0.30.0", backends=("VLLM_CUTLASS",), inputs={"scheme": "nvfp4"}),
    otherwise=PassedOver("kernel does not support parallel config"),
    source=Source("vllm", f"{EXPERTS}/cutlass_moe.py", "CutlassExpertsFp4"),
    cases=cases(
        MoE(),
        breaks=[{"ep": 8}],
        at_limit=[{"ep": 1}],
        past_limit=[{"ep": 2}],
    ),
)
def moe_vllm_cutlass_nvfp4_ep(x: MoE) -> bool:
    """*auto* goes on to MARLIN, which decompresses the weights as it multiplies."""
    return x.ep <= 1


@rule(
    id="moe-batch-invariant",
    title="Batch invariance leaves TRITON and emulation",
    where=Where(since="0.20.2", until="0.26.0", backends=EVERY, env=("VLLM_BATCH_INVARIANT",)),
    otherwise=PassedOver("kernel does not support batch invariance"),
    source=Source("vllm", f"{FUSED_MOE}/modular_kernel.py", "FusedMoEExperts.is_supported_config"),
    cases=cases(
        MoE(backend="TRITON"),
        holds=[{"backend": "EMULATION"}],
        breaks=[{"backend": "MARLIN"}, {"backend": "FLASHINFER_TRTLLM"}],
        at_limit=[{}],
        past_limit=[{"backend": "DEEPGEMM"}],
    ),
)
def moe_batch_invariant(x: MoE) -> bool:
    """`VLLM_BATCH_INVARIANT=1` wants kernels whose sums do not depend on the batch."""
    return x.backend in ("TRITON", "EMULATION")


@rule(
    id="moe-batch-invariant-0.28",
    variant_of="moe-batch-invariant",
    title="Batch invariance leaves TRITON, emulation and vLLM's CUTLASS",
    where=Where(since="0.28.0", backends=EVERY, env=("VLLM_BATCH_INVARIANT",)),
    otherwise=PassedOver("kernel does not support batch invariance"),
    source=Source("vllm", f"{FUSED_MOE}/modular_kernel.py", "FusedMoEExperts.is_supported_config"),
    cases=cases(
        MoE(backend="TRITON"),
        holds=[{"backend": "EMULATION"}, {"backend": "VLLM_CUTLASS"}],
        breaks=[{"backend": "MARLIN"}, {"backend": "FLASHINFER_TRTLLM"}],
        at_limit=[{}],
        past_limit=[{"backend": "DEEPGEMM"}],
    ),
)
def moe_batch_invariant_0_28(x: MoE) -> bool:
    """`VLLM_BATCH_INVARIANT=1` wants kernels whose sums do not depend on the batch."""
    return x.backend in ("TRITON", "EMULATION", "VLLM_CUTLASS")


@rule(
    id="moe-fp8-refined-blocks",
    title="Only TRITON reads FP8 blocks finer than 128",
    where=Where(since="0.30.0", backends=EVERY, inputs={"scheme": "fp8"}),
    otherwise=PassedOver(SCHEME),
    source=Source("vllm", f"{ORACLE}/fp8.py", "refine_fp8_moe_block_shape"),
    cases=cases(
        MoE(),
        holds=[{"backend": "TRITON", "block": 64, "intermediate_size": 64}],
        breaks=[{"block": 64, "intermediate_size": 64}, {"backend": "MARLIN", "block": 32}],
        at_limit=[{"block": 128}],
        past_limit=[{"block": 127}, {"block": 129}],
    ),
)
def moe_fp8_refined_blocks(x: MoE) -> bool:
    """When TP cuts through a block, vLLM spreads its scale over finer blocks while loading.

    Until 0.28.0 such a split was refused: see `fp8-moe-blocks`.
    """
    return x.block == 128 or x.backend == "TRITON"

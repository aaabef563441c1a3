"""What a kernel or loader receives: the typed inputs that rules read.

One dataclass per question an engine asks. They are filled in by one module per engine path
(``attention.py``, ``mla.py``, ``moe.py``, ``linears.py``, ``loading.py``); no rule reads a raw
config. Sizes are counts of elements on one rank unless said otherwise. Defaults are DeepSeek-V3's
on one GPU, so that a truth table need only name what it varies.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelInput:
    """Base of all inputs. ``part`` says which of target, mtp and draft it belongs to."""

    kernel: ClassVar[str] = ""
    part: str = "target"

    def fields(self) -> dict[str, object]:
        """Field values in order, without ``part``."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "part"}

    def as_passed(self) -> Self:
        """The input as the layer hands it on, after the engine has settled on its fields."""
        return self

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.fields().items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention(KernelInput):
    """A candidate backend of an attention layer (MLA off), as the engine's selector asks it."""

    kernel: ClassVar[str] = "attention"
    backend: str = "FLASH_ATTN"
    #: Major number of the GPU's compute capability.
    gpu_major: int = 10
    head_size: int = 192
    #: The value head dim before the engine pads it to ``head_size``.
    v_head_dim: int = 128
    #: Heads on one rank.
    num_heads: int = 128
    #: Latent that the kernel works on: none with MLA off.
    kv_lora_rank: int = 0
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    #: KV cache block size asked for, 0 for the backend's own.
    block_size: int = 0
    #: FlashAttention version this layer would call, and the one before its dims are looked at.
    flash_attn: int = 4
    default_flash_attn: int = 4
    #: Tokens that DeepSeek-V3.2's indexer picks, 0 for dense attention.
    index_topk: int = 0
    #: Rotary embedding: ``yarn`` or ``default``.
    rope: str = "yarn"


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashAttention(KernelInput):
    """One call of FlashAttention ``version``: the dims its kernel receives."""

    kernel: ClassVar[str] = "FlashAttention"
    version: int = 4
    head_size: int = 192
    head_size_v: int = 192
    #: Bytes of one element; FA4 wants rows aligned to 16 bytes.
    element_size: int = 2
    kv_cache_dtype: str = "auto"
    block_size: int = 0
    #: ``decoder`` (a whole attention layer) or ``mla_prefill``.
    caller: str = "decoder"

    def as_passed(self) -> FlashAttention:
        """FA2 has one head dim: MLA prefill zero-pads a narrower V for it."""
        if self.version == 2 and self.head_size_v < self.head_size:
            return dataclasses.replace(self, head_size_v=self.head_size)
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class MLAPrefill(KernelInput):
    """A candidate prefill backend of an MLA layer."""

    kernel: ClassVar[str] = "MLA prefill"
    backend: str = "FLASH_ATTN"
    gpu_major: int = 10
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    num_heads: int = 128
    dtype: str = "bfloat16"
    #: FlashAttention version before head dims are looked at.
    flash_attn: int = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class MLADecode(KernelInput):
    """A candidate decode backend of an MLA layer."""

    kernel: ClassVar[str] = "MLA decode"
    backend: str = "FLASHINFER_MLA"
    gpu_major: int = 10
    #: Latent width, from which V is read as well.
    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64
    qk_nope_head_dim: int = 128
    v_head_dim: int = 128
    #: Query heads on one rank.
    num_heads: int = 128
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    block_size: int = 0
    #: Tokens of one request in a decode step: 1, or 1 + draft tokens.
    query_len: int = 1
    #: Tokens that DeepSeek-V3.2's indexer picks, 0 for dense attention.
    index_topk: int = 0
    #: Rotary embedding: ``yarn`` or ``default``.
    rope: str = "yarn"

    @property
    def head_size(self) -> int:
        """Width of a cached token: the latent and the rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class MoE(KernelInput):
    """A candidate backend of the routed experts, as the engine's oracle asks it."""

    kernel: ClassVar[str] = "MoE"
    backend: str = "FLASHINFER_TRTLLM"
    #: ``bf16`` (not quantised), ``fp8`` (128 x 128 blocks) or ``nvfp4``.
    scheme: str = "fp8"
    dtype: str = "bfloat16"
    #: CUDA compute capability as one number: 90, 100, 103. 0 on a CPU.
    capability: int = 100
    hidden_size: int = 7168
    #: One expert's width on one rank, and over all ranks.
    intermediate_size: int = 2048
    full_intermediate_size: int = 2048
    #: Side of the FP8 scale blocks as the kernel reads them.
    block: int = 128
    n_routed_experts: int = 256
    #: vLLM's RoutingMethodType: ``DeepSeekV3``, ``RenormalizeNaive``, ``Unspecified``, ...
    routing: str = "DeepSeekV3"
    #: Ranks that an expert's width is split over, and ranks that the experts are split over.
    tp: int = 1
    ep: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing(KernelInput):
    """One call of a routing (expert choice) kernel. All counts are over all ranks.

    Backends: ``trtllm`` (inside FlashInfer's TRTLLM MoE), ``vllm`` (vLLM's fused CUDA kernel),
    ``torch`` (vLLM's grouped_topk in torch), ``topk`` (groups ignored), ``cpu`` and
    ``fused_topk_deepseek`` (FlashInfer's kernel of that name, which vLLM does not call).
    """

    kernel: ClassVar[str] = "routing"
    backend: str = "trtllm"
    #: Weight scheme of the MoE behind it: FlashInfer has one launcher for each.
    scheme: str = "fp8"
    #: DeepSeek-V3's routing: sigmoid, bias, groups. Else FlashInfer's kernel without groups.
    grouped: bool = True
    n_routed_experts: int = 256
    #: 0 when the config sets it to null.
    n_group: int = 8
    topk_group: int = 4
    num_experts_per_tok: int = 8
    #: The checkpoint has e_score_correction_bias: a group's score is its best two experts' sum.
    bias: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear(KernelInput):
    """One linear layer as the quantised kernel sees it under tensor parallelism."""

    kernel: ClassVar[str] = "linear"
    name: str = "self_attn.o_proj"
    #: ``row`` splits the input, ``column`` the outputs, ``replicated`` neither.
    split: str = "row"
    #: ``bf16`` (not quantised), ``fp8`` (128 x 128 blocks) or ``nvfp4``.
    scheme: str = "fp8"
    tp: int = 1
    #: Width of the input on one rank, and over all ranks.
    input_size: int = 16384
    full_input_size: int = 16384
    #: Rows on one rank; several when matrices are merged into one layer. And over all ranks.
    output_sizes: tuple[int, ...] = (7168,)
    full_output_sizes: tuple[int, ...] = (7168,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel(KernelInput):
    """What is divided among ranks."""

    kernel: ClassVar[str] = "parallel"
    num_attention_heads: int = 128
    #: 0 for a model without routed experts.
    n_routed_experts: int = 256
    #: Widths of the dense MLPs and of the shared experts.
    widths: tuple[int, ...] = (18432, 2048)
    tp: int = 1
    ep: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading(KernelInput):
    """What the engine's loader expects and the checkpoint holds.

    Tensor counts are 0 for a bare config, whose tensors are taken to be complete.
    """

    kernel: ClassVar[str] = "loading"
    #: The model class that the engine looks up.
    architecture: str = "DeepseekV3ForCausalLM"
    #: The loader looks for parameters that no tensor was loaded into: not in quantised models, nor
    #: in an Eagle draft, whose ``load_weights`` does not say what it loaded.
    tracked: bool = True
    topk_method: str | None = "noaux_tc"
    #: Gates with and without e_score_correction_bias.
    gates_with_bias: int = 0
    gates_without_bias: int = 0
    #: Norms (and an MTP layer's ``eh_proj``) that the loader needs and the checkpoint lacks, other
    #: tensors, and those of an MTP layer that repeat the target's.
    missing_norms: int = 0
    missing: int = 0
    missing_copies: int = 0
    #: Tensors that the loader has no place for.
    unexpected: int = 0
    #: The first names behind the counts.
    examples: tuple[str, ...] = ()
    num_attention_heads: int = 128
    num_key_value_heads: int = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafting(KernelInput):
    """What speculative decoding expects of its draft."""

    kernel: ClassVar[str] = "drafting"
    #: ``mtp``, ``eagle`` or ``eagle3``.
    backend: str = "mtp"
    num_nextn_predict_layers: int = 1
    num_speculative_tokens: int = 1
    #: MTP layers without any tensor in the checkpoint.
    missing_layers: int = 0
    #: Residual widths, which the draft's input projection joins.
    hidden_size: int = 7168
    target_hidden_size: int = 7168


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """What one engine path makes of a config on a target."""

    #: What the engine chooses, by topic: ``{"attention": "FLASH_ATTN", "flash_attn": "FA4"}``.
    choices: dict[str, str]
    inputs: tuple[KernelInput, ...]
    #: Candidates that *auto* went past, with the ids of the rules that say why.
    passed_over: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: What the catalogue cannot tell about this target, one line each.
    unknown: tuple[str, ...] = ()

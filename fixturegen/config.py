"""The model configuration: ``config.json`` of the DeepSeek family as one typed object.

Key names and defaults are those of Hugging Face's ``DeepseekV3Config`` (transformers 5), plus the
keys that engines read and that class lacks (``topk_method``, ``scoring_func``, ``moe_layer_freq``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fixturegen.errors import ConfigError
from fixturegen.fields import key, nearest, read

LARGEST = 2**31 - 1

#: Layers, and experts of all layers together, above which no list of tensors is made.
MOST_LAYERS, MOST_EXPERTS = 10_000, 2_000_000

#: Keys whose defaults differ from DeepSeek-V3's, by model type (their configuration classes).
MODEL_TYPES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {},
    "deepseek_v2": {
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "moe_intermediate_size": 1407,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "n_group": None,
        "topk_group": None,
        "num_experts_per_tok": None,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 0,
        "max_position_embeddings": 2048,
        "num_nextn_predict_layers": 0,
    },
    "deepseek_v32": {},
    "kimi_k2": {"topk_method": "noaux_tc"},
    "deepseek_mtp": {},
}

#: Architectures of an Eagle draft whose weights vLLM's ``deepseek_eagle.py`` reads.
EAGLE_ARCHITECTURE = "EagleDeepSeekMTPModel"

#: Architectures of an Eagle3 draft with a DeepSeek decoder (vLLM's ``deepseek_eagle3.py``).
EAGLE3_ARCHITECTURES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """YaRN parameters as DeepSeek-V3's config.json spells them."""

    type: str = key("kind of scaling", "yarn", choices=("yarn",))
    factor: float = key("context extension factor", 40.0, at_least=1)
    beta_fast: float = key("YaRN beta_fast", 32.0, at_least=0)
    beta_slow: float = key("YaRN beta_slow", 1.0, at_least=0)
    mscale: float = key("attention scale numerator", 1.0, at_least=0)
    mscale_all_dim: float = key("attention scale denominator", 1.0, at_least=0)
    original_max_position_embeddings: int = key(
        "context length before scaling", 4096, at_least=1, at_most=LARGEST
    )


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """How the large linear layers are stored."""

    method: str = key("quantization method", "fp8", choices=("fp8", "nvfp4"))
    weight_block_size: tuple[int, ...] | None = key(
        "rows and columns that share one FP8 scale", (128, 128), at_least=1, at_most=LARGEST
    )
    scale_fmt: str | None = key("FP8 scale format", None, choices=("ue8m0",))


def _size(doc: str, default: Any) -> Any:
    return key(doc, default, at_least=1, at_most=LARGEST)


def _count(doc: str, default: Any) -> Any:
    return key(doc, default, at_least=0, at_most=LARGEST)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Dimensions and routing of one checkpoint. All sizes are counts of elements."""

    model_type: str = key("config family", "deepseek_v3", choices=(*MODEL_TYPES, "eagle"))
    architectures: tuple[str, ...] = key("engine model class", ("DeepseekV3ForCausalLM",))
    vocab_size: int = _size("rows of the embedding", 129280)
    hidden_size: int = _size("width of the residual stream", 7168)
    intermediate_size: int = _size("width of a dense layer's MLP", 18432)
    moe_intermediate_size: int = _size("width of one expert", 2048)
    num_hidden_layers: int = key(
        "layers of the target, MTP layers not counted", 61, at_least=1, at_most=MOST_LAYERS
    )
    num_nextn_predict_layers: int = key("MTP layers", 1, at_least=0, at_most=MOST_LAYERS)
    num_attention_heads: int = _size("attention heads", 128)
    num_key_value_heads: int | None = _size("must equal num_attention_heads for MLA", None)
    q_lora_rank: int | None = _size("query latent width, null for a direct projection", 1536)
    kv_lora_rank: int = _size("key/value latent width", 512)
    qk_nope_head_dim: int = _size("head dim without rotary embedding", 128)
    qk_rope_head_dim: int = _size("head dim with rotary embedding", 64)
    v_head_dim: int = _size("value head dim", 128)
    n_routed_experts: int | None = _size("routed experts of a MoE layer", 256)
    n_shared_experts: int | None = _count("shared experts of a MoE layer", 1)
    num_experts_per_tok: int | None = _size("routed experts per token (top-k)", 8)
    n_group: int | None = _size("expert groups", 8)
    topk_group: int | None = _size("groups a token may use", 4)
    topk_method: str | None = key(
        "router kind", "noaux_tc", choices=("noaux_tc", "group_limited_greedy", "greedy")
    )
    scoring_func: str = key("router score", "sigmoid", choices=("sigmoid", "softmax"))
    norm_topk_prob: bool = key("normalise the chosen weights", True)
    routed_scaling_factor: float = key("factor on the routed experts' sum", 2.5, at_least=0)
    first_k_dense_replace: int = _count("leading dense layers", 3)
    moe_layer_freq: int = _size("every how many layers is MoE", 1)
    hidden_act: str = key("activation", "silu", choices=("silu",))
    rms_norm_eps: float = key("RMSNorm epsilon", 1e-6, at_least=0)
    max_position_embeddings: int = _size("longest context", 163840)
    rope_theta: float = key("rotary base", 10000.0, at_least=1)
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = key("lm_head is the embedding", False)
    attention_bias: bool = key("biases in attention projections", False)
    dtype: str = key("stored dtype", "bfloat16", choices=("bfloat16", "float16", "float32"))
    quantization: Quantization | None = None
    bos_token_id: int | None = _count("begin-of-sequence id", 0)
    eos_token_id: int | tuple[int, ...] | None = _count("end-of-sequence id", 1)
    pad_token_id: int | None = _count("padding id", None)
    index_topk: int | None = _size("DeepSeek-V3.2 sparse attention top-k", None)
    index_n_heads: int | None = _size("DeepSeek-V3.2 indexer heads", None)
    index_head_dim: int | None = _size("DeepSeek-V3.2 indexer head dim", None)

    @property
    def qk_head_dim(self) -> int:
        """Query/key head dim: ``qk_nope_head_dim + qk_rope_head_dim``."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def is_eagle_draft(self) -> bool:
        """Whether this is the config of an Eagle draft rather than of a target."""
        return self.architectures[0] == EAGLE_ARCHITECTURE

    def is_moe_layer(self, index: int) -> bool:
        """Whether decoder layer ``index`` (MTP layers follow the target's) has routed experts."""
        return (
            self.n_routed_experts is not None
            and index >= self.first_k_dense_replace
            and index % self.moe_layer_freq == 0
        )

    def validate(self, where: str = "config.json") -> None:
        """Raise ConfigError when the keys contradict each other."""

        def wrong(text: str) -> ConfigError:
            return ConfigError(f"{where}: {text}")

        experts, groups = self.n_routed_experts, self.n_group
        if experts is not None:
            if groups is not None and experts % groups:
                raise wrong(
                    f"n_routed_experts {experts} is not divisible by n_group {groups}; "
                    f"nearest: {experts - experts % groups or groups} or "
                    f"{experts + groups - experts % groups}"
                )
            if groups is not None and self.topk_group is not None and self.topk_group > groups:
                raise wrong(
                    f"topk_group {self.topk_group} is more than n_group {groups}; "
                    f"allowed: 1 to {groups}"
                )
            if self.num_experts_per_tok is not None and self.num_experts_per_tok > experts:
                raise wrong(
                    f"num_experts_per_tok {self.num_experts_per_tok} is more than "
                    f"n_routed_experts {experts}"
                )
            layers = self.num_hidden_layers + self.num_nextn_predict_layers
            if layers * experts > MOST_EXPERTS:
                raise wrong(
                    f"n_routed_experts {experts} in each of {layers} layers are too many; "
                    f"allowed: {MOST_EXPERTS} in all"
                )
        if self.qk_rope_head_dim % 2:
            raise wrong(f"qk_rope_head_dim {self.qk_rope_head_dim} is odd; rotary pairs need even")
        kv_heads = self.num_key_value_heads
        if kv_heads is not None and self.num_attention_heads % kv_heads:
            raise wrong(
                f"num_attention_heads {self.num_attention_heads} is not divisible by "
                f"num_key_value_heads {kv_heads}"
            )
        if self.quantization is not None and self.quantization.method == "fp8":
            block = self.quantization.weight_block_size
            if block is not None and len(block) != 2:
                raise wrong(
                    f"weight_block_size {list(block)} must hold two sizes, such as 128, 128"
                )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """Read a config.json of the DeepSeek-V2/V3/V3.1/V3.2/R1, Kimi-K2 or Moonlight family.

        Keys that do not matter here are ignored; missing ones take the family's own defaults.
        Raises ConfigError naming key, value and what is allowed; an unknown family is refused.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where}: expected a JSON object, got {type(data).__name__}")
        if isinstance(data.get("model"), Mapping) and data.get("model_type") == "eagle":
            return cls.from_dict(data["model"], f"{where}: model")
        model_type = data.get("model_type")
        if str(model_type) not in MODEL_TYPES and not (
            model_type == "eagle" and data.get("architectures") == [EAGLE_ARCHITECTURE]
        ):
            known = ", ".join(MODEL_TYPES)
            raise ConfigError(
                f"{where}: model_type {model_type!r} is not understood; known: {known}"
                + nearest(str(model_type), MODEL_TYPES)
            )
        # vLLM's deepseek_v2.py reads these two with its own defaults; transformers has no such keys
        absent = {"topk_method": None, "scoring_func": "softmax"}
        values = {**absent, **MODEL_TYPES.get(str(model_type), {}), **data}
        values["rope_theta"], values["rope_scaling"] = _rope(data, where)
        values["quantization"] = _quantization(data.get("quantization_config"), where)
        if "dtype" not in values or values["dtype"] is None:
            values["dtype"] = data.get("torch_dtype") or "bfloat16"
        # null means "not used" only where the type says so; elsewhere it means "the default"
        for name in [n for n, v in values.items() if v is None and n not in _NULLABLE]:
            del values[name]
        config = read(cls, values, where, ConfigError, allow_unknown=True)
        if not config.architectures:
            raise ConfigError(f"{where}: architectures is empty; allowed: one class name")
        if config.num_key_value_heads is None:
            config = dataclasses.replace(config, num_key_value_heads=config.num_attention_heads)
        config.validate(where)
        return config

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json as vLLM, SGLang and transformers read it.

        An Eagle draft's config nests the decoder's under ``model``, the form that vLLM's
        ``EAGLEConfig`` (transformers_utils/configs/eagle.py) takes.
        """
        data = dataclasses.asdict(self)
        quantization = data.pop("quantization")
        data["architectures"] = list(self.architectures)
        if isinstance(self.eos_token_id, tuple):
            data["eos_token_id"] = list(self.eos_token_id)
        if quantization is not None and quantization["method"] == "fp8":
            data["quantization_config"] = {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": list(quantization["weight_block_size"]),
            }
            if quantization["scale_fmt"]:
                data["quantization_config"]["scale_fmt"] = quantization["scale_fmt"]
        for name in ("index_topk", "index_n_heads", "index_head_dim"):
            if data[name] is None:
                del data[name]
        data |= {
            "ep_size": 1,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": True,
            "torch_dtype": self.dtype,
        }
        if self.is_eagle_draft:
            return {
                "model_type": "eagle",
                "architectures": [EAGLE_ARCHITECTURE],
                "dtype": self.dtype,
                "torch_dtype": self.dtype,
                "model": dict(sorted(data.items())),
            }
        return dict(sorted(data.items()))


_NULLABLE = {f.name for f in dataclasses.fields(ModelConfig) if "None" in str(f.type)} | {
    "eos_token_id"
}


def _rope(data: Mapping[str, Any], where: str) -> tuple[Any, RopeScaling | None]:
    """``rope_theta`` and YaRN scaling from the old spelling or transformers 5's rope_parameters."""
    params = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(params, Mapping):
        raise ConfigError(f"{where}: rope_scaling is {params!r}; allowed: a mapping or null")
    if any(isinstance(value, Mapping) for value in params.values()):
        raise ConfigError(f"{where}: rope_parameters for each kind of layer are not understood")
    theta = data.get("rope_theta") or params.get("rope_theta") or 10000.0
    kind = params.get("type", params.get("rope_type", "default"))
    if kind == "default":
        return theta, None
    if kind not in ("yarn", "deepseek_yarn"):
        raise ConfigError(f"{where}: rope_scaling type {kind!r} is not understood; known: yarn")
    names = {f.name for f in dataclasses.fields(RopeScaling)} - {"type"}
    values = {n: params[n] for n in names if params.get(n) is not None}
    return theta, read(RopeScaling, values, f"{where}: rope_scaling", ConfigError)


def _quantization(data: Any, where: str) -> Quantization | None:
    """Block FP8 (DeepSeek's own format) or NVFP4; anything else is refused by name."""
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: quantization_config is {data!r}; allowed: a mapping or null")
    method = data.get("quant_method")
    algorithm = str(data.get("quant_algo") or data.get("format") or "").lower()
    if method == "fp8":
        values = {k: data[k] for k in ("weight_block_size", "scale_fmt") if k in data}
        values.setdefault("weight_block_size", None)
        spot = f"{where}: quantization_config"
        return read(Quantization, values, spot, ConfigError, allow_unknown=True)
    if method in ("modelopt", "modelopt_fp4", "compressed-tensors") and "fp4" in algorithm:
        return Quantization(method="nvfp4", weight_block_size=None)
    raise ConfigError(
        f"{where}: quant_method {method!r} is not understood; known: fp8, modelopt (NVFP4)"
    )

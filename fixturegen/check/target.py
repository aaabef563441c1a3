"""A target: the engine, machine and options that a checkpoint is checked for, in one line."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points

from fixturegen.check import releases
from fixturegen.errors import ConfigError

#: GPUs the catalogue covers, with their compute capability. "cpu" is vLLM's CPU build.
GPUS: dict[str, tuple[int, int]] = {
    "cpu": (0, 0),
    "sm80": (8, 0),
    "sm86": (8, 6),
    "sm89": (8, 9),
    "sm90": (9, 0),
    "sm100": (10, 0),
    "sm103": (10, 3),
    "sm110": (11, 0),
    "sm120": (12, 0),
    "sm121": (12, 1),
}


@functools.cache
def _plugins() -> tuple[str, ...]:
    """Hardware that plugins bring; see :func:`fixturegen.check.catalogue.targets`."""
    return tuple(point.name for point in entry_points(group="fixturegen.targets"))


#: GPUs of the standard grid.
MATRIX_GPUS = ("sm80", "sm90", "sm100", "sm103", "sm110", "sm120")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where a checkpoint should run.

    ``Target.parse(str(target)) == target``; the first parts are always printed, the optional ones
    when they differ from their defaults.
    """

    vllm: str = "0.33.0"
    gpu: str = "sm100"
    tp: int = 1
    #: Attention backend asked for, ``auto`` for the engine's own choice.
    attention: str = "auto"
    #: MoE backend asked for (``--moe-backend``).
    moe: str = "auto"
    #: Environment variables that change the engine's choices.
    env: tuple[tuple[str, str], ...] = ()
    kv_cache_dtype: str = "auto"
    #: Ranks that experts are split over; above 1 they are not split by tensor parallelism.
    ep: int = 1
    #: ``none``, or method and draft tokens such as ``mtp:1``, ``eagle:3``.
    speculation: str = "none"
    #: MLA prefill backend asked for (``attention_config.mla_prefill_backend``).
    prefill: str = "auto"
    #: FlashAttention version asked for (``attention_config.flash_attn_version``), 0 for auto.
    flash_attn_version: int = 0
    #: KV cache block size asked for, 0 for the backend's own.
    block_size: int = 0
    #: What the engine computes in (``--dtype``); ``auto`` is the checkpoint's, and 16 bits where
    #: that is float32 (vLLM: ``_resolve_auto_dtype``).
    dtype: str = "auto"
    #: FlashInfer version, empty for the one the vLLM release pins.
    flashinfer: str = ""

    def __post_init__(self) -> None:
        for name in ("tp", "ep"):
            if getattr(self, name) < 1:
                raise ConfigError(f"target: {name}={getattr(self, name)} must be at least 1")
        if not re.fullmatch(r"sm[0-9]{2,3}", self.gpu) and self.gpu not in (*GPUS, *_plugins()):
            raise ConfigError(
                f"target: gpu={self.gpu!r} is not known; known: {', '.join((*GPUS, *_plugins()))}"
            )
        for name in ("vllm", "flashinfer"):
            version = getattr(self, name)
            if version and not releases.VERSION.fullmatch(version):
                raise ConfigError(f"target: {name}=={version} is not a release, such as 0.33.0")
        if not re.fullmatch(r"none|(mtp|eagle|eagle3):[1-9][0-9]{0,2}", self.speculation):
            raise ConfigError(
                f"target: speculation={self.speculation!r}; allowed: none, mtp:K, eagle:K, eagle3:K"
            )
        if self.flash_attn_version not in (0, 2, 3, 4):
            raise ConfigError(
                f"target: flash_attn_version={self.flash_attn_version}; allowed: 2, 3, 4"
            )
        if self.dtype not in ("auto", "bfloat16", "float16", "float32"):
            raise ConfigError(
                f"target: dtype={self.dtype!r}; allowed: auto, bfloat16, float16, float32"
            )
        if self.block_size < 0:
            raise ConfigError(f"target: block_size={self.block_size} must not be negative")

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read one target line; every part is optional.

        ``vllm==0.33.0,gpu=sm100,tp=4,attention=FLASH_ATTN,moe=auto,env=VLLM_MLA_DISABLE=1``.
        Several ``env=`` parts add up. Raises ConfigError naming the part that is wrong.
        """
        values: dict[str, object] = {}
        env: list[tuple[str, str]] = []
        types = {f.name: f.type for f in dataclasses.fields(cls)}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, value = part.partition("=")
            value = value.removeprefix("=")
            if name not in types or not equals or not value:
                raise ConfigError(
                    f"target: {part!r} is not understood; parts are name=value with the names "
                    + ", ".join(types)
                )
            if name == "env":
                variable, equals, setting = value.partition("=")
                if not equals:
                    raise ConfigError(f"target: env={value} must be env=NAME=VALUE")
                env.append((variable, setting))
            elif name in values:
                raise ConfigError(f"target: {name} is given twice")
            elif types[name] == "int":
                if not re.fullmatch(r"[0-9]{1,6}", value):
                    raise ConfigError(f"target: {name}={value!r} must be a whole number")
                values[name] = int(value)
            else:
                values[name] = value
        return cls(**values, env=tuple(env))  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = [f"vllm=={self.vllm}", f"gpu={self.gpu}", f"tp={self.tp}"]
        parts += [f"attention={self.attention}", f"moe={self.moe}"]
        parts += [f"env={name}={value}" for name, value in self.env]
        parts += [f"kv_cache_dtype={self.kv_cache_dtype}"]
        for field in dataclasses.fields(self)[7:]:
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(f"{field.name}{'==' if field.name == 'flashinfer' else '='}{value}")
        return ",".join(parts)

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA compute capability, (0, 0) for a CPU."""
        if self.gpu.startswith("sm"):
            return GPUS.get(self.gpu, (int(self.gpu[2:-1]), int(self.gpu[-1])))
        return (0, 0)

    @property
    def mla_disabled(self) -> bool:
        """Whether VLLM_MLA_DISABLE turns the latent attention path off."""
        return self.flag("VLLM_MLA_DISABLE")

    def flag(self, variable: str) -> bool:
        """Whether an environment variable is set to a true integer, as vLLM's envs.py reads it."""
        value = dict(self.env).get(variable, "0")
        return value.strip().lower() not in ("", "0", "false")

    def computes_in(self, stored: str) -> str:
        """The dtype of a model whose checkpoint is stored in ``stored``."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if stored == "float32" else stored

    @property
    def flashinfer_version(self) -> str:
        """The FlashInfer that runs: the one asked for, else the vLLM release's pin."""
        return self.flashinfer or releases.VLLM.get(self.vllm, "")

    @property
    def draft_tokens(self) -> int:
        """Draft tokens per step, 0 without speculation."""
        return int(self.speculation.partition(":")[2] or 0)

    def known(self) -> tuple[Target, ...]:
        """The targets with releases that were read which together answer for this one.

        This target itself when its versions were read, its neighbours when they lie between two
        that were, none when a version or the GPU lies outside the catalogue.
        """
        if self.gpu not in (*GPUS, *_plugins()):
            return ()
        versions = itertools.product(
            releases.neighbours("vllm", self.vllm),
            releases.neighbours("flashinfer", self.flashinfer) if self.flashinfer else ("",),
        )
        return tuple(dataclasses.replace(self, vllm=v, flashinfer=f) for v, f in versions)


def matrix() -> Iterator[Target]:
    """The standard grid: releases x GPUs x MLA on/off x attention FLASH_ATTN/auto.

    With MLA on, FLASH_ATTN means the MLA variant of it: FLASH_ATTN_MLA.
    """
    off = (("VLLM_MLA_DISABLE", "1"),)
    for version, gpu, env, auto in itertools.product(
        releases.VLLM, MATRIX_GPUS, ((), off), (False, True)
    ):
        backend = "auto" if auto else "FLASH_ATTN" if env else "FLASH_ATTN_MLA"
        yield Target(vllm=version, gpu=gpu, env=env, attention=backend)

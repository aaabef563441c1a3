"""Build speed and memory, against the obvious alternative and the disk.

    python benchmarks/build.py [--folder DIR] [--planted] [--memory]

1. At least 600 M parameters in bf16: a plain write of as many bytes, fixturegen, then
   ``DeepseekV3ForCausalLM(config)`` cast to bf16 with ``save_pretrained``; each in a process of its
   own, each with its data on the disk at the end.
2. Planted weights beside random ones, on the default recipe and on one of 700 M parameters or more:
   the best of three builds of each, in turns, with imports done.
3. With ``--memory``: peak memory of builds of about 1, 4 and 10 GB.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: About 720 M parameters: a wide target with 64 experts a layer.
LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 4,
    "n_routed_experts": 64,
    "num_nextn_predict_layers": 0,
    "vocab_size": 32768,
}

#: The same width with the layers that planted weights have: three and an MTP layer.
LARGE_PLANTED = {**LARGE, "num_hidden_layers": 3, "num_nextn_predict_layers": 1}

MEASURE = """
import json, resource, sys, time
{setup}
start = time.perf_counter()
{work}
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({{"seconds": seconds, "peak": peak}}))
"""

FIXTUREGEN = (
    "from fixturegen import build, load_recipe",
    "build(load_recipe({recipe!r}, {overrides!r}), {out!r}, check=False)",
)
TRANSFORMERS = (
    "import os, torch\nfrom transformers import AutoConfig, DeepseekV3ForCausalLM\n"
    "config = AutoConfig.from_pretrained({config!r})",
    "DeepseekV3ForCausalLM(config).to(torch.bfloat16).save_pretrained({out!r})\n"
    "for name in os.listdir({out!r}):\n"
    "    with open(os.path.join({out!r}, name), 'rb+') as file:\n"
    "        os.fsync(file.fileno())",
)
PLAIN = (
    "import os\nblock = os.urandom(2**20)",
    "with open({out!r}, 'wb') as file:\n"
    "    for _ in range({nbytes} // len(block)):\n"
    "        file.write(block)\n"
    "    file.flush()\n"
    "    os.fsync(file.fileno())",
)


def measure(code: tuple[str, str], **values: object) -> dict[str, float]:
    """Run setup and work in a new process; seconds of the work and peak bytes of the process."""
    setup, work = (part.format(**values) for part in code)
    script = MEASURE.format(setup=setup, work=work)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def speed(folder: Path) -> None:
    """Fixturegen against transformers and a plain write."""
    from fixturegen import load_recipe
    from fixturegen.builder import recipe_size

    overrides = [f"{key}={value}" for key, value in LARGE.items()] + ["draft=none", "targets=[]"]
    recipe = load_recipe("deepseek-v3-mtp-random", overrides)
    nbytes = recipe_size(recipe)
    parameters = sum(t.numel for t in recipe.checkpoints[0].tensors)
    config = folder / "config"
    config.mkdir()
    (config / "config.json").write_text(json.dumps(recipe.model.to_dict()))
    print(f"{parameters / 1e6:.0f} M parameters, {nbytes / 1e9:.2f} GB")
    runs = {
        "plain write": (PLAIN, {"nbytes": nbytes}),
        "fixturegen": (FIXTUREGEN, {"recipe": recipe.name, "overrides": overrides}),
        "transformers": (TRANSFORMERS, {"config": str(config)}),
    }
    seconds = {}
    for name, (code, values) in runs.items():
        result = measure(code, out=str(folder / name), **values)
        seconds[name] = result["seconds"]
        print(
            f"{name:13} {result['seconds']:6.2f} s  {nbytes / result['seconds'] / 1e9:5.2f} GB/s  "
            f"{parameters / result['seconds'] / 1e9:5.2f} G parameters/s  "
            f"peak {result['peak'] / 1e6:6.0f} MB"
        )
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(
        f"fixturegen is {seconds['transformers'] / seconds['fixturegen']:.1f} times as fast as "
        f"transformers and takes {seconds['fixturegen'] / seconds['plain write']:.2f} times "
        "a plain write"
    )


def planted(folder: Path) -> None:
    """Builds of planted weights against builds of random weights of the same shapes."""
    from fixturegen import load_recipe

    sizes = {"default": [], "large": [f"{k}={v}" for k, v in LARGE_PLANTED.items()]}
    for size, changes in sizes.items():
        overrides = [*changes, "targets=[]"]
        best = {}
        for name in ("deepseek-v3-mtp-random", "deepseek-v3-mtp") * 3:
            out = folder / name
            result = measure(FIXTUREGEN, recipe=name, overrides=overrides, out=str(out))
            best[name] = min(result["seconds"], best.get(name, math.inf))
            shutil.rmtree(out)
        random_seconds, planted_seconds = best.values()
        tensors = load_recipe("deepseek-v3-mtp", overrides).checkpoints[0].tensors
        print(
            f"{size}, {sum(t.numel for t in tensors) / 1e6:.0f} M parameters: random "
            f"{random_seconds:.2f} s, planted {planted_seconds:.2f} s, "
            f"{planted_seconds / random_seconds:.2f} times"
        )


def memory(folder: Path) -> None:
    """Peak memory against checkpoint size."""
    from fixturegen import load_recipe
    from fixturegen.builder import recipe_size

    for layers in (3, 10, 25):
        overrides = [f"{k}={v}" for k, v in LARGE.items() if k != "num_hidden_layers"]
        overrides += [f"num_hidden_layers={layers}", "draft=none", "targets=[]"]
        size = recipe_size(load_recipe("deepseek-v3-mtp-random", overrides))
        out = str(folder / "memory")
        result = measure(FIXTUREGEN, recipe="deepseek-v3-mtp-random", overrides=overrides, out=out)
        print(
            f"{size / 1e9:5.1f} GB: peak {result['peak'] / 1e6:4.0f} MB, "
            f"{size / result['seconds'] / 1e9:.2f} GB/s"
        )
        shutil.rmtree(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where to write (removed afterwards)")
    parser.add_argument("--memory", action="store_true", help="also 1, 4 and 10 GB builds")
    parser.add_argument("--planted", action="store_true", help="planted against random alone")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        planted(Path(name))
        if arguments.planted:
            raise SystemExit
        speed(Path(name))
        if arguments.memory:
            memory(Path(name))

"""Load small random checkpoints on both sides of a bound with the installed vLLM, and compare.

    python tests/check/loads.py --out loads.json [--workers 8] [--timeout 150] [--only TEXT]

Each sample is a recipe with overrides (and sometimes one edit of its files) on a target. It is
built, ``check`` says what will happen, and a process of its own really starts the engine and
generates. The file holds one row a sample; ``tests/check/loads/`` keeps what machines gave, and
``test_loads.py`` holds today's rules against it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixturegen import build, load_recipe
from fixturegen.check import Target, check, local
from fixturegen.check.model import Model, from_recipe

#: Engines that cannot import what the environment lacks are not asked to.
WITHOUT = {"VLLM_USE_DEEP_GEMM": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
MTP, FP8, EAGLE = (f"deepseek-v3-{n}-random" for n in ("mtp", "mtp-fp8", "eagle"))
OFF = "env=VLLM_MLA_DISABLE=1"


@dataclass(frozen=True)
class Sample:
    """One checkpoint on one target. ``rule`` is the bound it probes; a rule has several sides.

    ``edit`` changes a file after the build: ``{"config": {key: value}}`` (of the draft when there
    is one), ``{"drop": regex}`` or ``{"add": name}`` of tensors.
    """

    rule: str
    recipe: str
    overrides: tuple[str, ...] = ()
    target: str = ""
    edit: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique and readable."""
        parts = (self.rule, self.recipe, *self.overrides, self.target, *map(str, self.edit.items()))
        return " ".join(filter(None, parts))


def dims(nope: int, rope: int, v: int) -> tuple[str, ...]:
    """Overrides for head dims."""
    return f"qk_nope_head_dim={nope}", f"qk_rope_head_dim={rope}", f"v_head_dim={v}"


def routing(experts: int, groups: int, chosen: int, top: int) -> tuple[str, ...]:
    """Overrides for routing."""
    return (
        f"n_routed_experts={experts}",
        f"n_group={groups}",
        f"topk_group={chosen}",
        f"num_experts_per_tok={top}",
    )


#: What the loader and the configuration decide, on any device.
ANYWHERE = [
    Sample("mtp-layers", MTP, target="speculation=mtp:1"),
    Sample(
        "mtp-layers",
        MTP,
        target="speculation=mtp:1",
        edit={"config": {"num_nextn_predict_layers": 0}},
    ),
    Sample("mtp-draft-tokens", MTP, ("num_nextn_predict_layers=2",), "speculation=mtp:2"),
    Sample("mtp-draft-tokens", MTP, ("num_nextn_predict_layers=2",), "speculation=mtp:3"),
    Sample("eagle-layers", EAGLE, target="speculation=eagle:2"),
    Sample(
        "eagle-layers",
        EAGLE,
        target="speculation=eagle:2",
        edit={"config": {"num_nextn_predict_layers": 0}},
    ),
    Sample(
        "eagle-hidden-size",
        EAGLE,
        target="speculation=eagle:1",
        edit={"config": {"vocab_size": 2048}},  # the target's are shared: nothing asks
    ),
    Sample("mtp-weights", MTP, target="speculation=mtp:1", edit={"drop": r"model\.layers\.3\."}),
    Sample("gate-bias-missing-unseen", MTP, edit={"drop": "e_score_correction_bias"}),
    Sample("gate-bias-missing-quantised", FP8, edit={"drop": "e_score_correction_bias"}),
    Sample("gate-bias-unexpected", MTP, edit={"config": {"topk_method": "greedy"}}),
    Sample("norms-missing", MTP, edit={"drop": r"^model\.norm\.weight"}),
    Sample("tensors-missing-unseen", MTP, edit={"drop": r"layers\.0\.self_attn\.o_proj\.weight"}),
    Sample("tensors-missing-quantised", FP8, edit={"drop": r"^model\.norm\.weight"}),
    Sample("tensors-unexpected", MTP, edit={"add": "model.layers.0.self_attn.q_proj.weight"}),
]

#: vLLM's CPU build.
CPU = [
    Sample("cpu-mla-head-size", MTP),
    Sample("cpu-mla-head-size", MTP, ("kv_lora_rank=256",)),
    Sample("cpu-attn-head-size", MTP, dims(128, 64, 192), OFF),
    Sample("cpu-attn-head-size", MTP, dims(144, 64, 128), OFF),
    Sample("cpu-attn-head-size", MTP, dims(192, 64, 256), OFF),
    Sample("cpu-attn-head-size", MTP, dims(256, 64, 128), OFF),
    Sample("mla-off-pads-v", MTP, dims(128, 64, 256), OFF),
    Sample("cpu-default-rope", MTP, ("rope_scaling=null",)),
    Sample("moe-cpu-group-score", MTP, routing(16, 8, 4, 4)),
    Sample("moe-cpu-group-score", MTP, routing(8, 8, 4, 4)),
    Sample("moe-cpu-chosen", MTP, routing(16, 8, 4, 8)),
    Sample("moe-cpu-chosen", MTP, routing(16, 8, 2, 8)),
]

SM90 = [
    # attention with MLA off
    Sample("flash-attn-head-size", MTP, dims(128, 64, 128), f"attention=FLASH_ATTN,{OFF}"),
    Sample("flash-attn-head-size", MTP, dims(128, 64, 192), f"attention=FLASH_ATTN,{OFF}"),
    Sample("flash-attn-head-size", MTP, dims(192, 64, 256), f"attention=FLASH_ATTN,{OFF}"),
    Sample("flash-attn-head-size", MTP, dims(132, 64, 128), f"attention=FLASH_ATTN,{OFF}"),
    Sample("mla-off-pads-v", MTP, dims(128, 64, 200), f"attention=FLASH_ATTN,{OFF}"),
    Sample("flash-attn-block-size", MTP, target=f"attention=FLASH_ATTN,{OFF},block_size=32"),
    Sample("flash-attn-block-size", MTP, target=f"attention=FLASH_ATTN,{OFF},block_size=24"),
    Sample("flash-attn-fp8-kv-cache", MTP, target=f"attention=FLASH_ATTN,{OFF},kv_cache_dtype=fp8"),
    Sample(
        "flash-attn-fp8-kv-cache", MTP, target=f"attention=FLASH_ATTN,{OFF},kv_cache_dtype=fp8_e5m2"
    ),
    Sample("flash-attn-dtype", MTP, ("dtype=float32",), f"attention=FLASH_ATTN,{OFF}"),
    Sample("flash-attn-dtype", MTP, target=f"attention=FLASH_ATTN,{OFF},dtype=float32"),
    Sample("triton-attn-head-size", MTP, dims(16, 16, 16), f"attention=TRITON_ATTN,{OFF}"),
    Sample("triton-attn-head-size", MTP, dims(8, 16, 16), f"attention=TRITON_ATTN,{OFF}"),
    Sample("triton-attn-block-size", MTP, target=f"attention=TRITON_ATTN,{OFF},block_size=24"),
    Sample("flex-attention-kv-cache", MTP, target=f"attention=FLEX_ATTENTION,{OFF}"),
    Sample(
        "flex-attention-kv-cache",
        MTP,
        target=f"attention=FLEX_ATTENTION,{OFF},kv_cache_dtype=fp8",
    ),
    Sample("turboquant-kv-cache", MTP, target=f"attention=TURBOQUANT,{OFF}"),
    Sample("mla-off-backend", MTP, target=f"attention=FLASHMLA,{OFF}"),
    Sample(
        "batch-invariant-attention-0.20",
        MTP,
        target=f"attention=FLEX_ATTENTION,{OFF},env=VLLM_BATCH_INVARIANT=1",
    ),
    # MLA
    Sample("mla-on-backend", MTP, target="attention=TRITON_ATTN"),
    Sample("flash-attn-mla-kv-cache", MTP, target="attention=FLASH_ATTN_MLA"),
    Sample("flash-attn-mla-kv-cache", MTP, target="attention=FLASH_ATTN_MLA,kv_cache_dtype=fp8"),
    Sample("flash-attn-mla-block-size", MTP, target="attention=FLASH_ATTN_MLA,block_size=32"),
    Sample("flash-attn-mla-block-size", MTP, target="attention=FLASH_ATTN_MLA,block_size=24"),
    Sample("flashmla-block-size", MTP, target="attention=FLASHMLA,block_size=64"),
    Sample("flashmla-block-size", MTP, target="attention=FLASHMLA,block_size=32"),
    Sample("flashmla-dims", MTP, ("kv_lora_rank=256",), "attention=FLASHMLA"),
    Sample("triton-mla-fp8-kv-cache", MTP, target="attention=TRITON_MLA,kv_cache_dtype=fp8"),
    Sample("triton-mla-head-size", MTP, ("kv_lora_rank=256",), "attention=TRITON_MLA"),
    Sample("triton-mla-head-size", MTP, ("kv_lora_rank=384",), "attention=TRITON_MLA"),
    Sample("mla-decode-sm10x", MTP, target="attention=CUTLASS_MLA"),
    Sample("mla-dtype", MTP, ("dtype=float32",), "attention=TRITON_MLA"),
    Sample("mla-dtype", MTP, target="attention=TRITON_MLA,dtype=float32"),
    Sample("mla-prefill-flash-attn-nope", MTP, dims(64, 64, 128)),
    Sample("mla-prefill-flash-attn-nope", MTP, dims(192, 64, 256)),
    Sample("mla-prefill-flash-attn-nope", MTP, dims(96, 64, 128)),
    Sample("mla-prefill-v", MTP, dims(64, 64, 192)),
    # routing and experts
    Sample("moe-grouped-topk-fallback", MTP, routing(16, 8, 4, 4)),
    Sample("moe-grouped-topk-fallback", MTP, routing(8, 8, 4, 4)),
    Sample("moe-grouped-topk-chosen", MTP, routing(16, 8, 4, 8)),
    Sample("moe-grouped-topk-chosen", MTP, routing(16, 8, 2, 8)),
    Sample("moe-grouped-topk-limits", MTP, routing(64, 32, 16, 8)),
    Sample("moe-grouped-topk-limits", MTP, routing(128, 64, 16, 8)),
    Sample("moe-grouped-topk-limits", MTP, routing(64, 8, 8, 32)),
    Sample("moe-grouped-topk-limits", MTP, routing(64, 8, 8, 33)),
    Sample("moe-bf16-backends", MTP, target="moe=TRITON"),
    Sample("moe-bf16-backends", MTP, target="moe=MARLIN"),
    Sample("moe-trtllm-gpu", FP8, target="moe=FLASHINFER_TRTLLM"),
    Sample("fp8-moe-blocks", FP8, ("moe_intermediate_size=384",)),
    Sample("fp8-moe-blocks", FP8, ("moe_intermediate_size=320",)),
    Sample("fp8-activation-groups", FP8, ("hidden_size=384",)),
    Sample("fp8-activation-groups", FP8, ("hidden_size=320",)),
    Sample("fp8-merged-blocks", FP8, ("intermediate_size=640",)),
    Sample("fp8-merged-blocks", FP8, ("intermediate_size=576",)),
    Sample("fp8-row-parallel", FP8, ("q_lora_rank=192",)),
]


def samples(gpu: str) -> list[Sample]:
    """What is loaded on a device."""
    return ANYWHERE + (CPU if gpu == "cpu" else SM90)


def target(sample: Sample, machine: Target) -> Target:
    """The sample's target on this machine's engine."""
    off = ",env=VLLM_USE_DEEP_GEMM=0" if machine.gpu != "cpu" else ""
    where = Target.parse(f"vllm=={machine.vllm},gpu={machine.gpu},{sample.target}{off}")
    if where.attention == "auto" and not dict(where.env).get("VLLM_MLA_DISABLE"):
        return dataclasses.replace(where, attention=machine.attention)  # AMX_MLA on some CPUs
    return where


def prepare(sample: Sample, folder: Path) -> None:
    """Build the sample into ``folder`` and make its edit."""
    import torch
    from safetensors.torch import load_file, save_file

    recipe = load_recipe(sample.recipe, sample.overrides)
    path = build(recipe, folder, check=False).path
    parts = [p.parent for p in sorted(path.rglob("config.json"))]
    last = next((p for p in parts if p.name == "draft"), parts[-1])
    if changes := sample.edit.get("config"):
        config = json.loads((last / "config.json").read_text())
        if "model" in config:  # an Eagle draft's own
            changes = {"model": config["model"] | changes}
        (last / "config.json").write_text(json.dumps(config | changes))
    if "drop" in sample.edit or "add" in sample.edit:
        (file,) = last.glob("*.safetensors")
        tensors = load_file(file)
        if drop := sample.edit.get("drop"):
            tensors = {n: t for n, t in tensors.items() if not re.search(drop, n)}
        if add := sample.edit.get("add"):
            tensors[add] = torch.zeros(8, 8)
        save_file(tensors, file, {"format": "pt"})
        (last / "model.safetensors.index.json").unlink()


def engine(where: Target, folder: Path) -> dict[str, Any]:
    """Keyword arguments of ``vllm.LLM``."""
    draft = where.speculation.partition(":")
    path = folder / "target" if (folder / "target").is_dir() else folder
    arguments: dict[str, Any] = {
        "model": str(path),
        "max_model_len": 512,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "seed": 0,
        "tensor_parallel_size": where.tp,
        "kv_cache_dtype": where.kv_cache_dtype,
        "dtype": where.dtype,
        "kv_cache_memory_bytes": 1 << 30,
    }
    if where.gpu != "cpu":
        arguments["gpu_memory_utilization"] = 0.03  # the cache's size is given
    if where.attention not in ("auto", "AMX_MLA"):
        arguments["attention_config"] = {"backend": where.attention}
    if where.moe != "auto":
        arguments["moe_backend"] = where.moe.lower()
    if where.block_size:
        arguments["block_size"] = where.block_size
    if where.speculation != "none":
        arguments["speculative_config"] = {
            "method": draft[0],
            "num_speculative_tokens": int(draft[2]),
            **({"model": str(folder / "draft")} if draft[0] == "eagle" else {}),
        }
    return arguments


#: Runs in a process of its own: arguments of the engine in, its last line out.
CHILD = """
import json, sys, traceback
try:
    import vllm
    llm = vllm.LLM(**json.loads(sys.argv[1]))
    prompts = [{"prompt_token_ids": [0, *range(3, n)]} for n in (200, 5)]
    sampling = vllm.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    said = {"ran": [list(o.outputs[0].token_ids) for o in outputs]}
except BaseException as error:
    traceback.print_exc()
    said = {"error": f"{type(error).__name__}: {error}"}
print("\\nresult " + json.dumps(said), flush=True)
"""


def run(sample: Sample, machine: Target, timeout: float) -> dict[str, Any]:
    """One row: what ``check`` says, what happened, whether they agree."""
    where = target(sample, machine)
    row: dict[str, Any] = {
        "rule": sample.rule,
        "recipe": sample.recipe,
        "overrides": list(sample.overrides),
        "edit": sample.edit,
        "target": str(where),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        prepare(sample, folder)
        environment = {
            **os.environ,
            **WITHOUT,
            **dict(where.env),
            "HF_HUB_OFFLINE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CACHE_ROOT": f"{temporary}/cache",
            "VLLM_NO_USAGE_STATS": "1",
        }
        output = Path(temporary) / "log"
        with output.open("wb") as file:
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, json.dumps(engine(where, folder))],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                child.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        text = output.read_text(errors="replace")
        said = re.findall(r"^result (\{.*\})$", text, re.M)
        happened = (
            json.loads(said[-1]) if said else {"error": f"no result, exit {child.returncode}"}
        )
        log = clean(text, temporary)
        row["happened"] = "ran" if "ran" in happened else clean(happened["error"], temporary)[:400]
        row["agrees"], row["verdict"] = judge(sample, where, row["happened"], log)
        if not row["agrees"]:
            row["log"] = log[-3000:]
    return row


def clean(text: str, *folders: str) -> str:
    """Without the paths of this machine, and short."""
    for folder in folders:
        text = text.replace(folder, "")
    return re.sub(r"(/[\w.+-]+){3,}/", "", text)[-60000:]


def model(sample: Sample) -> Model:
    """What ``check`` is asked about, from the recipe and the edit; nothing is built."""
    recipe = load_recipe(sample.recipe, sample.overrides)
    found = from_recipe(recipe)
    parts = {p.role: {t.name for t in p.tensors} for p in recipe.checkpoints}
    configs = {"target": found.config, **({"draft": found.draft} if found.draft else {})}
    last = list(configs)[-1]
    if changes := sample.edit.get("config"):
        configs[last] = dataclasses.replace(configs[last], **changes)
    if drop := sample.edit.get("drop"):
        parts[last] = {n for n in parts[last] if not re.search(drop, n)}
    if add := sample.edit.get("add"):
        parts[last] = parts[last] | {add}
    return Model(
        name=sample.name,
        config=configs["target"],
        draft=configs.get("draft"),
        names=parts["target"],
        draft_names=parts.get("draft"),
    )


def judge(sample: Sample, where: Target, happened: str, log: str = "") -> tuple[bool, str]:
    """Whether what happened is what ``check`` says, and the verdict with its rules."""
    found = model(sample)
    drafts = where.speculation != "none"
    report = check(
        found.config,
        where,
        found.draft if drafts else None,
        names=found.names,
        draft_names=found.draft_names if drafts else None,
    )
    rules = [f.rule for f in report.findings if f.verdict == report.verdict]
    said = report.verdict + (": " + ", ".join(rules) if report.verdict != "accepted" else "")
    ran = happened == "ran"
    if report.verdict == "unknown":
        return True, said
    if report.verdict != "rejected":
        return ran, said
    errors = [f.error for f in report.of("rejected") if f.error]
    return not ran and any(re.search(e, happened + log) for e in errors), said


def main(argv: Iterable[str] | None = None) -> int:
    """Load all samples; exit code 1 where one disagrees."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=150)
    parser.add_argument("--only", default="")
    options = parser.parse_args(list(argv) if argv is not None else None)
    machine = local.target()
    rows: list[dict[str, Any]] = []

    def one(sample: Sample) -> None:
        try:
            row = run(sample, machine, options.timeout)
        except Exception as error:
            row = {
                "rule": sample.rule,
                "name": sample.name,
                "agrees": False,
                "harness": repr(error),
            }
        rows.append(row)
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(
            "ok  " if row["agrees"] else "DIFF",
            sample.name,
            row.get("verdict"),
            "|",
            str(row.get("happened", row.get("harness")))[:150],
            flush=True,
        )

    chosen = [s for s in samples(machine.gpu) if options.only in s.name]
    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(one, chosen))
    return int(not all(r["agrees"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())

"""The attention catalogue against the engine's own selectors, release by release.

The questions are put to the release itself (attention_probe.py) and to the catalogue; every
disagreement fails. The number of agreements is recorded with each test.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sources

from fixturegen.check import attention, mla
from fixturegen.check.catalogue import broken, catalogue, settle
from fixturegen.check.inputs import Attention, Derived, MLADecode, MLAPrefill
from fixturegen.check.releases import VLLM
from fixturegen.check.rule import Rejected
from fixturegen.check.target import GPUS, Target
from fixturegen.config import ModelConfig

PROBE = Path(__file__).with_name("attention_probe.py")
CUDA = {name: capability for name, capability in GPUS.items() if name != "cpu"}
KV_CACHES = ("auto", "bfloat16", "fp8", "fp8_e5m2")

pytestmark = pytest.mark.slow

Question = dict[str, Any]


def versions(vllm: str) -> Iterator[Question]:
    """FlashAttention versions: all head dims, GPUs, callers and overrides."""
    for gpu, size, asked, caller in itertools.product(
        CUDA, range(8, 513, 8), (0, 2, 3, 4), ("decoder", "mla_prefill")
    ):
        if caller == "decoder" and vllm == "0.20.2" and gpu == "sm90" and size > 256:
            continue  # upgraded by the layer itself, not by the function that is asked here
        for size_v in {size} if caller == "decoder" else {64, 128, 256, size}:
            question = {"kind": "version", "gpu": gpu, "head_size": size, "head_size_v": size_v}
            question |= {"caller": caller, "flash_attn_version": asked}
            yield question
    for gpu in CUDA:
        question = {"kind": "version", "gpu": gpu, "head_size": 128, "head_size_v": 128}
        yield question | {"caller": "decoder", "env": {"VLLM_BATCH_INVARIANT": "1"}}


def plain_layers(vllm: str) -> Iterator[Question]:
    """Layers with MLA off: head sizes across every backend's limits."""
    for gpu, backend, invariant, size, dtype, kv_cache, block in itertools.product(
        CUDA,
        ("auto", *attention.BACKENDS, "FLASHMLA"),
        ({}, {"VLLM_BATCH_INVARIANT": "1"}) if vllm != "0.19.1" else ({},),
        (8, 16, 24, 31, 32, 64, 96, 128, 136, 192, 200, 250, 256, 264, 320, 512, 520, 576),
        ("bfloat16", "float32"),
        KV_CACHES,
        (0, 8, 16, 24, 128),
    ):
        question = {"kind": "backend", "gpu": gpu, "use_mla": False, "backend": backend}
        question |= {"head_size": size, "dtype": dtype, "kv_cache_dtype": kv_cache}
        yield question | {"block_size": block, "num_heads": 16, "env": invariant}


def mla_layers(vllm: str) -> Iterator[Question]:
    """MLA layers: latents, dims, heads, block sizes and caches across every backend's limits."""
    for gpu, backend, rank, rope, nope, v, topk, kv_cache, block, heads in itertools.product(
        CUDA,
        ("auto", *attention.MLA_BACKENDS, "FLASH_ATTN"),
        (128, 256, 448, 512, 576),
        (0, 32, 64),
        (32, 64, 96, 128, 192),
        (64, 128, 256),
        (0, 2048),
        KV_CACHES,
        (0, 8, 16, 32, 64, 128),
        (16, 128),
    ):
        if topk and (rope, rank) not in ((64, 256), (64, 512)):
            continue  # no DeepSeek-V3.2: other families' variants of the sparse backends
        question = {"kind": "backend", "gpu": gpu, "use_mla": True, "backend": backend}
        question |= {"head_size": rank + rope, "kv_lora_rank": rank, "qk_rope_head_dim": rope}
        question |= {"qk_nope_head_dim": nope, "v_head_dim": v, "index_topk": topk}
        yield question | {"kv_cache_dtype": kv_cache, "block_size": block, "num_heads": heads}


def prefills(vllm: str) -> Iterator[Question]:
    """MLA prefill: dims across every backend's lists."""
    for gpu, asked, nope, rope, v, dtype in itertools.product(
        CUDA,
        ("auto", *mla.PREFILL),
        (16, 64, 128, 192, 256),
        (0, 64, 32),
        (64, 128, 192, 256),
        ("bfloat16", "float32"),
    ):
        question = {"kind": "prefill", "gpu": gpu, "prefill": asked, "head_size": 576}
        question |= {"qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": v}
        yield question | {"dtype": dtype}


def predicted(vllm: str, question: Question) -> tuple[str, set[str]]:
    """The catalogue's answer: a name or ``none``, and the rules against the backend asked for."""
    env = tuple(question.get("env", {}).items())
    if question["kind"] == "version":
        asked = Target(
            vllm=vllm,
            gpu=question["gpu"],
            env=env,
            flash_attn_version=question.get("flash_attn_version", 0),
        )
        call = attention.flash_attention(
            asked, question["head_size"], question["head_size_v"], caller=question["caller"]
        )
        final = settle(call, asked)[0]
        refused = [r for r in broken(final, asked) if r.id.startswith("fa-version")]
        return "None" if refused else str(final.version), set()
    dims = {k: question[k] for k in question if k.endswith(("_dim", "_rank"))}
    config = ModelConfig(dtype=question.get("dtype", "bfloat16"), rope_scaling=None, **dims)
    if question["kind"] == "prefill":
        target = Target(vllm=vllm, gpu=question["gpu"], prefill=question["prefill"])
        return answer_of(mla.derive(config, target), "prefill", target.prefill)
    options = {"kv_cache_dtype": question["kv_cache_dtype"], "block_size": question["block_size"]}
    target = Target(
        vllm=vllm, gpu=question["gpu"], env=env, attention=question["backend"], **options
    )
    if question["use_mla"]:
        heads = question["num_heads"]
        config = ModelConfig(
            num_attention_heads=heads, index_topk=question["index_topk"] or None, **dims
        )
        return answer_of(mla.derive(config, target), "decode", target.attention)
    size = question["head_size"]
    config = ModelConfig(
        qk_nope_head_dim=size, qk_rope_head_dim=0, v_head_dim=size, dtype=config.dtype
    )
    return answer_of(attention.derive(config, target), "attention", target.attention)


def answer_of(derived: Derived, topic: str, asked: str) -> tuple[str, set[str]]:
    kind = {"attention": Attention, "prefill": MLAPrefill, "decode": MLADecode}[topic]
    ids = {i for backend, ids in derived.passed_over for i in ids if backend == asked}
    return derived.choices[topic], {i for i in ids if catalogue()[i].reads is kind}


def agree(answer: str, guess: str, against: set[str]) -> bool:
    """The same backend; or a refusal whose message each of the rules finds by its pattern."""
    if guess != "none":
        return answer == guess
    patterns = [catalogue()[i].otherwise.error for i in against]  # type: ignore[union-attr]
    every = any if "Unknown attention backend" in answer else all  # nothing else is asked then
    return answer.startswith("error: ") and every(re.search(p, answer) for p in patterns)


@pytest.mark.parametrize("vllm", VLLM)
def test_engine_agrees(vllm: str, record_property: Callable[[str, object], None]) -> None:
    kinds = [versions, plain_layers, mla_layers]
    if vllm not in ("0.19.1", "0.20.2"):  # no selector of prefill backends yet
        kinds.append(prefills)
    questions: list[Question] = []
    for kind in kinds:
        grid = list(kind(vllm))
        questions += random.Random(vllm).sample(grid, min(len(grid), 4000))
    for question in questions:
        question["capability"] = CUDA[question["gpu"]]
    source = sources.vllm_source(vllm)
    done = subprocess.run(
        [sys.executable, PROBE, source],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts: dict[str, int] = {}
    wrong = []
    for question, answer in zip(questions, json.loads(done.stdout), strict=True):
        guess, against = predicted(vllm, question)
        if guess == "unknown":
            counts["unknown"] = counts.get("unknown", 0) + 1
        elif agree(answer, guess, against):
            counts[question["kind"]] = counts.get(question["kind"], 0) + 1
        else:
            wrong.append(f"{question}: the engine says {answer}, the catalogue {guess} {against}")
    record_property("agreements", counts)
    print(f"vllm {vllm}: {counts}")
    assert not wrong, "\n".join([f"{len(wrong)} disagreements", *wrong[:10]])
    assert counts.get("unknown", 0) < len(questions) / 20


@pytest.mark.parametrize("vllm", list(VLLM)[1:])  # 0.19.1: see test_fa4_tmem
def test_bundled_fa4(vllm: str, record_property: Callable[[str, object], None]) -> None:
    """vLLM's own copy of FA4, over all head dims and GPUs; its check is taken from the wheel."""
    path = "vllm/vllm_flash_attn/cute/interface.py"
    text = sources.wheel_file("vllm", vllm, path).read_text()
    check = function(text, "_validate_head_dims")
    assert agreements(check, vllm, record_property) == 4 * 64 * 64
    assert "alignment = 16 // v.element_size()" in text or "16 // q.element_size()" in text


def function(text: str, name: str) -> Callable[..., None]:
    """One function of a module that cannot be imported here."""
    import ast

    tree = ast.parse(text)
    (node,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    node.returns, node.decorator_list = None, []
    for argument in node.args.args:
        argument.annotation = None
    space: dict[str, Any] = {}
    exec(compile(ast.Module([node], []), name, "exec"), space)
    return space[name]  # type: ignore[no-any-return]


def agreements(
    check: Callable[..., None], vllm: str, record_property: Callable[[str, object], None]
) -> int:
    """Compare a ``_validate_head_dims`` with the rules of ``vllm``: how often they agree."""
    from fixturegen.check.inputs import FlashAttention

    count, wrong = 0, []
    sizes = range(8, 513, 8)
    for (gpu, (major, _)), size, size_v in itertools.product(CUDA.items(), sizes, sizes):
        if major not in (9, 10, 11):
            continue  # FA4 does not exist there
        try:
            check(size, size_v, major, 16 // 2)
            accepts = True
        except AssertionError:
            accepts = False
        x = FlashAttention(head_size=size, head_size_v=size_v)
        target = Target(vllm=vllm, gpu=gpu)
        refused = [r for r in broken(x, target) if isinstance(r.otherwise, Rejected)]
        if accepts == (not refused):
            count += 1
        else:
            wrong.append((gpu, size, size_v, accepts, [r.id for r in refused]))
    record_property("agreements", count)
    print(f"vllm {vllm}, FA4 head dims: {count} agreements")
    assert not wrong, wrong[:10]
    return count


@pytest.mark.parametrize("release", ["4.0.0b8", "4.0.0b16", "4.0.0b36"])
def test_flash_attn_4(release: str, record_property: Callable[[str, object], None]) -> None:
    """flash-attn-4 itself: the vLLM release whose bundled copy has the same check on SM10x."""
    text = sources.wheel_file("flash-attn-4", release, "flash_attn/cute/interface.py").read_text()
    validate = function(text, "_validate_head_dims")
    vllm = "0.20.2" if release == "4.0.0b8" else "0.33.0"

    def check(size: int, size_v: int, major: int, alignment: int) -> None:
        # on SM90 vLLM's copy goes up to 512 where flash-attn-4 stops at 256
        if major != 9 or max(size, size_v) <= 256:
            validate(size, size_v, major, alignment)

    assert agreements(check, vllm, record_property) == 4 * 64 * 64


def test_fa4_tmem() -> None:
    """The copy in 0.19.1: the constructor's own arithmetic, with prompts above 128 tokens."""
    import ast

    from fixturegen.check.inputs import FlashAttention
    from fixturegen.check.rules.flash_attention_dims import fa4_tmem_sm100

    path = "vllm/vllm_flash_attn/cute/flash_fwd_sm100.py"
    text = sources.wheel_file("vllm", "0.19.1", path).read_text()
    tree = ast.parse(text)
    (init,) = (
        f
        for c in ast.walk(tree)
        if isinstance(c, ast.ClassDef) and c.name == "FlashAttentionForwardSm100"
        for f in c.body
        if isinstance(f, ast.FunctionDef) and f.name == "__init__"
    )
    lines = [
        ast.unparse(n)
        for n in init.body
        if isinstance(n, ast.Assign | ast.Assert)
        and any(word in ast.unparse(n) for word in ("tmem_s_offset", "tmem_o_offset", "tmem_total"))
    ]
    capacity = "SM100_TMEM_CAPACITY_COLUMNS = 512"
    assert capacity in text and "q_stage = 2 if seqlen_q_packgqa > m_block_size" in (
        sources.wheel_file("vllm", "0.19.1", "vllm/vllm_flash_attn/cute/interface.py").read_text()
    )
    for size_v in range(8, 513, 8):
        padded = -(-size_v // 16) * 16
        state = type("Kernel", (), {})()
        state.n_block_size, state.q_stage, state.head_dim_v_padded = 128, 2, padded
        try:
            exec("\n".join([capacity, *lines[:3]]), {"self": state})
            exec("assert self.tmem_total <= 512", {"self": state})
            accepts = True
        except AssertionError:
            accepts = False
        assert accepts == fa4_tmem_sm100.holds(FlashAttention(head_size_v=size_v)), size_v

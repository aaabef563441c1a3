"""Bounds that exist only in C++, CUDA or FlashInfer's Python: read from the source by pattern.

Each test fails when the line changes, and compares the rule with the inequality it finds there.
"""

from __future__ import annotations

import ast
import itertools
import re

import pytest
import sources
from test_attention_truth import function

from fixturegen.check.catalogue import catalogue
from fixturegen.check.inputs import Attention, FlashAttention, MLADecode
from fixturegen.check.releases import FLASHINFER, VLLM

HEADS = range(1, 257)


def the_only(pattern: str, text: str) -> re.Match[str]:
    """The match of a pattern; a line that is gone, or that exists in two versions, fails."""
    found = {match[0]: match for match in re.finditer(pattern, text)}
    (match,) = found.values()
    return match


@pytest.mark.parametrize("version", FLASHINFER)
def test_trtllm_gen_tiles_of_heads(version: str) -> None:
    """fmhaKernels.cuh: heads / min(heads, step) whole, with the tiles vLLM's function names."""
    path = "flashinfer/data/include/flashinfer/trtllm/fmha/fmhaKernels.cuh"
    text = sources.wheel_file("flashinfer-python", version, path).read_text()
    the_only(r"\? std::min\(params\.mNumHeadsQPerKv, kernelMeta\.mStepQ\) : 1;", text)
    the_only(r"numCtasForAllHeadsQ = params\.mNumHeadsQ / numHeadsPerCta;", text)
    check = the_only(
        r"FLASHINFER_CHECK\(numHeadsPerCta \* numCtasForAllHeadsQ == params\.mNumHeadsQ,\s*"
        r'"(.*?)"',
        text,
    )
    rule = catalogue()["flashinfer-mla-heads"]
    assert re.search(rule.otherwise.error, check[1])  # type: ignore[union-attr]
    for heads in HEADS:
        step = 8 if heads <= 8 else 16 if heads <= 32 else 64
        per_cta = min(heads, step)
        whole = per_cta * (heads // per_cta) == heads
        assert rule.holds(MLADecode(num_heads=heads)) is whole, heads


@pytest.mark.parametrize("vllm", [v for v in VLLM if v >= "0.28"])
def test_vllms_own_tiles_of_heads(vllm: str) -> None:
    """_trtllm_gen_mla_decode_supports_num_heads, for every head count."""
    path = "vllm/v1/attention/backends/mla/flashinfer_mla.py"
    text = sources.wheel_file("vllm", vllm, path).read_text()
    supports = function(text, "_trtllm_gen_mla_decode_supports_num_heads")
    rule = catalogue()["flashinfer-mla-heads-cute"]
    for heads in HEADS:
        assert rule.holds(MLADecode(num_heads=heads)) is supports(heads), heads


@pytest.mark.parametrize(("vllm", "flashinfer"), VLLM.items())
def test_flashinfer_mla_dims(vllm: str, flashinfer: str) -> None:
    """The latents that FlashInfer's MLA decode lists."""
    newer = vllm >= "0.30"
    rule = catalogue()["flashinfer-mla-dims-nope" if newer else "flashinfer-mla-dims"]
    module = "flashinfer/mla.py" if flashinfer == "0.6.6" else "flashinfer/mla/_core.py"
    tree = ast.parse(sources.wheel_file("flashinfer-python", flashinfer, module).read_text())
    listed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MLAHeadDimensions":
            dims = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
            listed.add((dims["kv_lora_rank"], dims["qk_rope_head_dim"]))
    assert listed
    for rank, rope in itertools.product(range(64, 641, 64), (0, 32, 64, 128)):
        x = MLADecode(kv_lora_rank=rank, qk_rope_head_dim=rope)
        assert rule.holds(x) is ((rank, rope) in listed), (rank, rope)


@pytest.mark.slow
@pytest.mark.parametrize("vllm", [v for v in VLLM if v >= "0.28"])
def test_cpu_mla_decode(vllm: str) -> None:
    """csrc/cpu/mla_decode.cpp dispatches one size and refuses the rest."""
    text = (sources.vllm_source(vllm) / "csrc/cpu/mla_decode.cpp").read_text()
    size = the_only(r"if \(head_dim == (\d+) && v_head_dim == (\d+) && block_size == (\d+)\)", text)
    the_only(r'else\s*TORCH_CHECK\(false, "Unsupported block size: ", block_size\);', text)
    head, latent, block = map(int, size.groups())
    rule = catalogue()["cpu-mla-head-size"]
    for rank, rope, tokens in itertools.product((256, 512, 576), (0, 32, 64), (8, 16, 32)):
        x = MLADecode(kv_lora_rank=rank, qk_rope_head_dim=rope, block_size=tokens)
        same = (rank + rope, rank, tokens) == (head, latent, block)
        assert rule.holds(x) is same, x


@pytest.mark.slow
@pytest.mark.parametrize("vllm", VLLM)
def test_cpu_attention_head_dims(vllm: str) -> None:
    """The head dims that the CPU attention kernel is generated for, and its refusal."""
    text = (sources.vllm_source(vllm) / "csrc/cpu/generate_cpu_attn_dispatch.py").read_text()
    tree = ast.parse(text)
    lists = {
        n.targets[0].id: ast.literal_eval(n.value)
        for n in tree.body
        if isinstance(n, ast.Assign)
        and isinstance(n.targets[0], ast.Name)
        and n.targets[0].id.startswith("HEAD_DIMS")
    }
    sizes = {size for listed in lists.values() for size in listed}
    rule = catalogue()["cpu-attn-head-size-48" if vllm >= "0.24" else "cpu-attn-head-size"]
    assert sizes - {512} == {s for s in range(1, 577) if rule.holds(Attention(head_size=s))}
    assert re.search(rule.otherwise.error, text)  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("vllm", VLLM)
def test_mla_off_pads_v(vllm: str) -> None:
    """DeepseekV2Attention.forward pads V to the query's width and cuts the output back."""
    text = (sources.vllm_source(vllm) / "vllm/model_executor/models/deepseek_v2.py").read_text()
    the_only(r"v, \[0, self\.qk_head_dim - self\.v_head_dim\], value=0", text)
    the_only(r"\.\.\., : self\.v_head_dim\s*\]\.reshape\(", text)


@pytest.mark.slow
@pytest.mark.parametrize("vllm", VLLM)
def test_mla_off_has_no_indexer(vllm: str) -> None:
    """A config with index_topk makes a buffer, which DeepseekV2Attention does not take."""
    text = (sources.vllm_source(vllm) / "vllm/model_executor/models/deepseek_v2.py").read_text()
    the_only(r'self\.is_v32 = hasattr\(config, "index_topk"\)\n +if self\.is_v32:\n', text)
    the_only(r"if self\.is_v32:\s+topk_tokens = [^=]*topk_indices_buffer = torch\.empty\(", text)
    message = the_only(r"assert topk_indices_buffer is None, \(\s*(\"(?:[^\"]|\\\n)*\")\s*\)", text)
    rule = catalogue()["mla-off-indexer"]
    assert re.search(rule.otherwise.error, ast.literal_eval(message[1]))  # type: ignore[union-attr]


def test_cutlass_mla_heads() -> None:
    for vllm in ("0.19.1", "0.33.0"):
        path = "vllm/v1/attention/backends/mla/cutlass_mla.py"
        text = sources.wheel_file("vllm", vllm, path).read_text()
        limit = int(the_only(r"\n        MAX_HEADS = (\d+)\n", text)[1])
        the_only(r"assert H <= MAX_HEADS, f\"H must be <= \{MAX_HEADS\}, but got \{H\}\"", text)
        rule = catalogue()["cutlass-mla-heads"]
        for heads in HEADS:
            assert rule.holds(MLADecode(num_heads=heads)) is (heads <= limit)


@pytest.mark.parametrize("vllm", VLLM)
def test_triton_mla_query_lengths(vllm: str) -> None:
    """Whether the backend declares more than one query token a request in a decode step."""
    path = "vllm/v1/attention/backends/mla/triton_mla.py"
    text = sources.wheel_file("vllm", vllm, path).read_text()
    declares = "query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.UNIFORM" in text
    assert declares is (vllm in ("0.32.0", "0.33.0"))
    expands = text.count("block_table.repeat_interleave(query_len, dim=0)")
    assert expands == (0 if vllm < "0.28" else 1)
    if "0.28" <= vllm < "0.32":  # for blocks that are not causal only
        before = text.partition("block_table.repeat_interleave")[0].rpartition("def ")[2]
        assert "if not attn_metadata.causal:" in before


def test_fa2_limit() -> None:
    """FA2's own C++, from flash-attn's source release; vLLM builds a fork of it."""
    folder = sources.source("flash-attn", "2.8.3")
    text = (folder / "csrc/flash_attn/flash_api.cpp").read_text()
    body = text[text.index("mha_varlen_fwd(at::Tensor") : text.index("mha_bwd(const")]
    limit = the_only(r'TORCH_CHECK\(head_size <= (\d+), "(.*?)"\);', body)
    step = the_only(r"TORCH_CHECK\(head_size % (\d+) == 0, ", body)
    rule = catalogue()["fa2-head-dims"]
    assert re.search(rule.otherwise.error, limit[2])  # type: ignore[union-attr]
    for size in range(1, 600):
        fits = size <= int(limit[1]) and size % int(step[1]) == 0
        assert rule.holds(FlashAttention(version=2, head_size=size, head_size_v=size)) is fits

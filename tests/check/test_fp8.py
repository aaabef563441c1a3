"""FP8 and NVFP4 shapes against vLLM's own validation, for every release read."""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import cpp
import pytest
from python_source import compiled, condition, function
from sources import vllm_source

from fixturegen.check import linears, releases
from fixturegen.check.catalogue import broken, catalogue
from fixturegen.check.inputs import Linear, MoE
from fixturegen.check.rule import Rejected
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig, Quantization

every_vllm = pytest.mark.parametrize("version", releases.VLLM)

LAYERS = "vllm/model_executor/layers"
FP8_UTILS = f"{LAYERS}/quantization/utils/fp8_utils.py"
LINEAR = f"{LAYERS}/linear.py"
FP8 = Quantization(method="fp8", weight_block_size=(128, 128))


def source(version: str, path: str) -> str:
    return (vllm_source(version) / path).read_text()


def configs() -> Iterator[ModelConfig]:
    """FP8 models with sizes on, near and off the 128 grid."""
    draw = random.Random(8)
    sizes = (64, 96, 128, 160, 192, 256, 320, 384, 512, 576, 1536)
    for _ in range(100):
        yield ModelConfig(
            hidden_size=draw.choice(sizes),
            intermediate_size=draw.choice(sizes),
            moe_intermediate_size=draw.choice(sizes),
            num_attention_heads=draw.choice((4, 8, 16)),
            q_lora_rank=draw.choice((None, *sizes)),
            kv_lora_rank=draw.choice((128, 256, 512)),
            qk_nope_head_dim=draw.choice((64, 128)),
            qk_rope_head_dim=draw.choice((32, 64)),
            v_head_dim=draw.choice((32, 64, 128)),
            n_routed_experts=32,
            n_shared_experts=draw.choice((1, 2)),
            quantization=FP8,
        )


def layers(version: str) -> Iterator[tuple[Target, Linear]]:
    for config, tp, off in itertools.product(
        configs(), (1, 2, 4), ((), (("VLLM_MLA_DISABLE", "1"),))
    ):
        target = Target(vllm=version, tp=tp, env=off)
        for x in linears.derive(config, target).inputs:
            assert isinstance(x, Linear)
            yield target, x


@every_vllm
def test_block_shapes(version: str) -> None:
    """vLLM's validate_fp8_block_shape, with what lets merged layers off, on each linear layer."""
    validate = compiled(
        function(source(version, FP8_UTILS), "validate_fp8_block_shape"),
        get_tensor_model_parallel_world_size=lambda: 1,
        logger=SimpleNamespace(debug=lambda *_: None),
    )
    let_off = compiled(
        function(source(version, LINEAR), "_maybe_allow_fp8_block_shape_mismatch"),
        logger=SimpleNamespace(debug=lambda *_: None),
    )
    ids = {"fp8-row-parallel", "fp8-column-parallel"}
    seen = {True: 0, False: 0}
    for target, x in layers(version):
        layer = SimpleNamespace(
            tp_size=x.tp,
            quant_config=SimpleNamespace(weight_block_size=[128, 128]),
            output_partition_sizes=list(x.output_sizes),
            allow_fp8_block_shape_mismatch=False,
        )
        if x.split == "column" or len(x.output_sizes) > 1:
            let_off(layer)
        try:
            validate(
                layer,
                x.full_input_size,
                sum(x.full_output_sizes),
                x.input_size,
                list(x.output_sizes),
                [128, 128],
            )
            text = ""
        except ValueError as error:
            text = str(error)
        ours = [r for r in broken(x, target) if r.id in ids]
        assert bool(text) is bool(ours), (x, text)
        for r in ours:
            assert isinstance(r.otherwise, Rejected) and re.search(r.otherwise.error, text)
        seen[not text] += 1
    assert min(seen.values()) > 50
    print(f"vLLM {version} validate_fp8_block_shape: {sum(seen.values())} agree")


@every_vllm
def test_merged_scales(version: str) -> None:
    """Scales loaded as vLLM's (merged) column layers do: they fit, and each row finds its own."""
    torch = pytest.importorskip("torch")
    adjust = compiled(function(source(version, LINEAR), "adjust_block_scale_shard"))
    rules = catalogue()
    seen = {"right": 0, "wrong": 0, "raises": 0}
    columns = {(x.tp, x.output_sizes): x for _, x in layers(version) if x.split != "row"}
    for x in columns.values():
        outcome = "right"
        for rank in range(x.tp):
            param = torch.full((-(-sum(x.output_sizes) // 128),), -1)
            owner: list[int] = []
            try:
                for shard, (rows, full) in enumerate(
                    zip(x.output_sizes, x.full_output_sizes, strict=True)
                ):
                    size, offset = adjust([128, 128], rows, sum(x.output_sizes[:shard]))
                    loaded = torch.arange(-(-full // 128)) + 1000 * shard
                    loaded = loaded.narrow(0, rank * size, size)
                    param.narrow(0, offset, size).copy_(loaded)
                    first = rank * rows
                    owner += [1000 * shard + (first + r) // 128 for r in range(rows)]
            except RuntimeError as error:
                assert re.search(rules["fp8-merged-scales"].otherwise.error, str(error))
                outcome = "raises"
                break
            if any(param[row // 128] != block for row, block in enumerate(owner)):
                outcome = "wrong"
        fits = rules["fp8-merged-scales"].holds(x)
        straight = rules["fp8-merged-blocks"].holds(x) or outcome == "raises"
        assert fits is (outcome != "raises"), (x, outcome)
        assert straight is (outcome != "wrong"), (x, outcome)
        seen[outcome] += 1
    assert min(seen.values()) > 5, seen
    print(f"vLLM {version} merged FP8 scales: {sum(seen.values())} agree {seen}")


@every_vllm
def test_moe_block_shapes(version: str) -> None:
    """The width check of FP8 experts: a function from 0.30, a part of create_weights before."""
    rule = catalogue()["fp8-moe-blocks"]
    if releases.within(version, "0.30.0", None):
        node = function(source(version, FP8_UTILS), "validate_fp8_block_shape_moe")
        call = compiled(node, get_tensor_model_parallel_world_size=lambda: tp)
    else:
        path = f"{LAYERS}/quantization/fp8.py"
        tree = function(source(version, path), "create_weights", "Fp8MoEMethod")
        tests = [
            (condition(n.test), n.body[0])
            for n in ast.walk(tree)
            if isinstance(n, ast.If) and "intermediate_size_per_partition %" in ast.unparse(n.test)
        ]
        assert len(tests) == 2

        def call(width: int, block: list[int]) -> None:
            names = {"intermediate_size_per_partition": width, "tp_size": tp}
            names |= {"block_n": block[0], "block_k": block[1]}
            for test, body in tests:
                if eval(test, names):
                    exec(compile(ast.Module([body], []), "raise", "exec"), names)

    for tp, width in itertools.product((1, 2), range(16, 600, 8)):
        try:
            call(width, [128, 128])
            text = ""
        except ValueError as error:
            text = str(error)
        x = MoE(intermediate_size=width, tp=tp)
        assert rule.holds(x) is not bool(text)
        if text:
            assert isinstance(rule.otherwise, Rejected) and re.search(rule.otherwise.error, text)


@every_vllm
def test_activation_groups(version: str) -> None:
    """The assert at the top of per_token_group_quant_fp8, evaluated."""
    node = function(source(version, FP8_UTILS), "per_token_group_quant_fp8")
    test = next(n for n in node.body if isinstance(n, ast.Assert))
    assert test.msg is not None
    code, message = condition(test.test), condition(test.msg)
    for rule, x in (
        (catalogue()["fp8-activation-groups"], Linear),
        (catalogue()["fp8-moe-hidden"], MoE),
    ):
        assert isinstance(rule.otherwise, Rejected)
        for size in range(64, 1100, 8):
            names = {"x": SimpleNamespace(shape=(1, size)), "group_size": 128}
            value = x(input_size=size) if x is Linear else x(hidden_size=size)
            assert rule.holds(value) is bool(eval(code, names))
            assert re.search(rule.otherwise.error, eval(message, names))


@every_vllm
def test_deepgemm(version: str) -> None:
    """DeepGEMM's conditions on linear layers and experts, called."""
    torch = pytest.importorskip("torch")
    node = function(
        source(version, "vllm/utils/deep_gemm.py"), "should_use_deepgemm_for_fp8_linear"
    )
    use = compiled(node, torch=torch, is_deep_gemm_supported=lambda: True)
    rule = catalogue()["fp8-deepgemm-linear"]
    for rows, width in itertools.product(range(32, 400, 16), range(64, 400, 32)):
        shape: Any = (rows, width)
        if version == "0.19.1":
            shape = SimpleNamespace(shape=shape)
        real = bool(use(torch.bfloat16, shape, True))
        assert rule.holds(Linear(output_sizes=(rows,), input_size=width)) is real


@every_vllm
def test_deepgemm_experts(version: str) -> None:
    folder = vllm_source(version) / LAYERS / "fused_moe"
    path = next(p for p in folder.rglob("deep_gemm_moe.py") if p.name == "deep_gemm_moe.py")
    names = {
        "has_deep_gemm": lambda: True,
        "get_mk_alignment_for_contiguous_layout": lambda: (128, 128),
        "logger": SimpleNamespace(debug_once=lambda *_: None, debug=lambda *_: None),
        "torch": SimpleNamespace(float8_e4m3fn="e4m3"),
    }
    text = path.read_text()
    names["_valid_deep_gemm_shape"] = compiled(function(text, "_valid_deep_gemm_shape"), **names)
    valid = compiled(function(text, "_valid_deep_gemm"), **names)
    rules = [catalogue()[f"fp8-moe-deepgemm-{n}"] for n in ("small", "aligned")]
    for width, hidden in itertools.product(range(64, 1100, 32), (64, 128, 192, 256, 7168)):
        weight = SimpleNamespace(
            size=lambda w=width, h=hidden: (8, h, w), dtype="e4m3", is_contiguous=lambda: True
        )
        states = SimpleNamespace(size=lambda _: 4096, is_contiguous=lambda: True)
        x = MoE(backend="DEEPGEMM", intermediate_size=width, hidden_size=hidden)
        assert bool(valid(states, weight, weight)) is all(r.holds(x) for r in rules), x


@every_vllm
def test_nvfp4_groups(version: str) -> None:
    """The size check of modelopt's NVFP4 linear layers, found in the source and evaluated."""
    tree = ast.parse(source(version, f"{LAYERS}/quantization/modelopt.py"))
    checks = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.If)
        and "input_size_per_partition % 16 != 0" in ast.unparse(n.test)
        and isinstance(n.body[0], ast.Raise)
    ]
    assert checks
    rule = catalogue()["nvfp4-groups"]
    assert isinstance(rule.otherwise, Rejected)
    for check in checks:
        assert re.search(rule.otherwise.error, ast.unparse(check.body[0]))
        code = condition(check.test)
        for size in range(8, 300, 4):
            names = {"input_size_per_partition": size}
            names["shapes"] = SimpleNamespace(**names)
            assert rule.holds(Linear(scheme="nvfp4", input_size=size)) is not eval(code, names)


@every_vllm
def test_nvfp4_expert_widths(version: str) -> None:
    """How far vLLM pads NVFP4 experts for FLASHINFER_TRTLLM, which shuffles rows of 128."""
    node = function(
        source(version, f"{LAYERS}/quantization/utils/flashinfer_fp4_moe.py"),
        "prepare_nvfp4_moe_layer_for_fi_or_cutlass",
    )
    (alignment,) = [
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "min_alignment"
    ]
    padded_to = eval(condition(alignment), {"is_gated": True})
    target = Target(vllm=version)
    for width in range(8, 300):
        padded = -(-width // padded_to) * padded_to
        x = MoE(scheme="nvfp4", intermediate_size=width)
        ours = [r.id for r in broken(x, target) if r.id == "nvfp4-trtllm-width"]
        assert bool(ours) is (2 * padded % 128 != 0), (version, width)


@every_vllm
def test_marlin_tiles(version: str) -> None:
    """The repacking kernel's checks, run from its source, and whether vLLM pads before it."""
    root = vllm_source(version)
    path = next(iter(sorted((root / "csrc").rglob("gptq_marlin_repack.cu"))))
    header = path.with_name("marlin.cuh").read_text()
    assert "tile_k_size = tile_size;" in header and "tile_n_size = tile_k_size * 4;" in header
    tile = cpp.constants(header)["tile_size"]
    checks = cpp.function(path.read_text(), r"\bTensor gptq_marlin_repack\([^{;]*\) \{")
    utils = (root / f"{LAYERS}/quantization/utils/marlin_utils_fp8.py").read_text()
    padded = "marlin_padded_nk" in ast.unparse(function(utils, "prepare_fp8_layer_for_marlin"))
    target = Target(vllm=version, gpu="sm80")

    def refused(rows: int, width: int) -> bool:
        values = {"size_n": rows, "size_k": width, "tile_k_size": tile, "tile_n_size": 4 * tile}
        met = cpp.walk(checks, values)
        tiles = [c for c in met.passed + met.failed if "tile_" in c]
        assert sorted(tiles) == ["size_k % tile_k_size == 0", "size_n % tile_n_size == 0"]
        return any("tile_" in c for c in met.failed)

    for rows, width in itertools.product(range(16, 200, 8), range(8, 200, 8)):
        x = Linear(output_sizes=(rows,), input_size=width)
        ours = [r.id for r in broken(x, target) if r.id == "fp8-marlin-linear"]
        assert bool(ours) is (refused(rows, width) and not padded), x
    rule = catalogue()["fp8-moe-marlin-hidden"]
    for hidden in range(64, 700, 16):
        assert rule.holds(MoE(backend="MARLIN", hidden_size=hidden)) is not refused(hidden, 512)

"""Verdicts, repairs and coverage of whole configs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixturegen.check import Target, check, check_recipe, matrix
from fixturegen.check.model import load
from fixturegen.check.releases import VLLM
from fixturegen.check.repair import repairs
from fixturegen.config import EAGLE_ARCHITECTURE, ModelConfig, Quantization, RopeScaling
from fixturegen.recipe import list_recipes, load_recipe

DEEPSEEK_V3 = ModelConfig(rope_scaling=RopeScaling(), quantization=Quantization())
MLA_OFF = "env=VLLM_MLA_DISABLE=1"


def verdicts(config: ModelConfig, line: str) -> dict[str, str]:
    report = check(config, Target.parse(line))
    return {f.rule: f.verdict for f in report.findings if f.verdict != "accepted"}


@pytest.mark.parametrize(
    ("vllm", "rule"),
    [
        ("0.19.1", "fa4-tmem-sm100"),
        ("0.20.2", "fa4-head-dims"),
        ("0.22.1", "fa4-head-dims-256"),
        ("0.26.0", "fa4-head-dims-512"),
    ],
)
@pytest.mark.parametrize("attention", ["FLASH_ATTN", "auto"])
@pytest.mark.parametrize("v_head_dim", [128, 192])
def test_eagle_failure_of_the_time(vllm: str, rule: str, attention: str, v_head_dim: int) -> None:
    """Padding makes (192, 192) of production's (192, 128) too, forced or not."""
    config = load_recipe("deepseek-v3-eagle").model
    config = ModelConfig(**{**vars(config), "v_head_dim": v_head_dim})
    line = f"vllm=={vllm},gpu=sm100,attention={attention},{MLA_OFF}"
    report = check(config, Target.parse(line))
    assert report.choices["attention"] == "FLASH_ATTN"
    assert report.choices["flash_attention"] == "FA4"
    assert [f.rule for f in report.rejections] == [rule]


@pytest.mark.parametrize("vllm", ["0.28.0", "0.30.0", "0.32.0", "0.33.0"])
def test_eagle_failure_today(vllm: str) -> None:
    report = check(DEEPSEEK_V3, Target.parse(f"vllm=={vllm},gpu=sm100,{MLA_OFF}"))
    assert report.choices["flash_attention"] == "FA2"
    assert not report.rejections and report.verdict == "falls back"


def test_what_makes_mla_off_legal_on_sm100() -> None:
    """Query dims of at most 128; or MLA on, with production's dims: in every release."""
    small = ModelConfig(**{**vars(DEEPSEEK_V3), "qk_nope_head_dim": 64})
    for vllm in VLLM:
        assert not check(small, Target.parse(f"vllm=={vllm},gpu=sm100,{MLA_OFF}")).rejections
        assert not check(DEEPSEEK_V3, Target.parse(f"vllm=={vllm},gpu=sm100")).rejections


@pytest.mark.parametrize("vllm", VLLM)
def test_mtp_failure(vllm: str) -> None:
    """FlashInfer's router: 4 < 4 * 8 / 8 is false, at the time and today."""
    model = load("top-4-of-4")
    line = f"vllm=={vllm},gpu=sm100,moe=flashinfer_trtllm"
    found = verdicts(model.config, line)
    assert found["moe-trtllm-topk-strict"] == "rejected"
    assert found["moe-routing-group-score"] in ("rejected", "silently wrong")


def test_mtp_failure_came_before_the_attention_one() -> None:
    """With MLA off both bounds are broken at 0.20: the MoE one alone would not have sufficed."""
    model = load("top-4-of-4")
    found = verdicts(model.config, f"vllm==0.20.2,gpu=sm100,moe=flashinfer_trtllm,{MLA_OFF}")
    assert {"moe-trtllm-topk-strict", "fa4-head-dims"} <= set(found)


def test_smallest_changes_for_four_of_four() -> None:
    model = load("top-4-of-4")
    found = [str(r) for r in repairs(model.config, Target.parse(model.claims[1]))]
    both = "moe-routing-group-score, moe-trtllm-topk-strict"
    assert f"n_routed_experts 8 -> 16 clears {both}" in found
    assert "num_experts_per_tok 4 -> 3 clears moe-trtllm-topk-strict only" in found
    assert [r for r in found if "num_experts_per_tok" in r] == [
        "num_experts_per_tok 4 -> 3 clears moe-trtllm-topk-strict only"
    ]


def test_repairs_hold() -> None:
    """Each repair, applied, clears what it says and breaks nothing else."""
    model = load("v-as-wide-as-k")
    target = Target.parse(model.claims[1])
    before = {f.rule for f in check(model.config, target, model.draft).rejections}
    found = repairs(model.config, target, model.draft)
    assert found and any("vllm 0.20.2 -> 0.28.0" in str(r) for r in found)
    for repair in found:
        (change,) = repair.changes
        name, _, value = change.partition(" ")
        if not hasattr(model.config, name):
            continue
        value = value.rpartition(" ")[2]
        config = ModelConfig(**{**vars(model.config), name: int(value)})
        assert model.draft is not None
        draft = ModelConfig(**{**vars(model.draft), name: int(value)})
        after = {f.rule for f in check(config, target, draft).rejections}
        assert after == before - set(repair.clears) == set(repair.leaves)


@pytest.mark.parametrize("name", [n for n in list_recipes() if n != "deepseek-v3-671b"])
def test_recipes_hold_what_they_claim(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.targets, "a recipe says where it runs"
    assert check_recipe(recipe) == []


@pytest.mark.parametrize("name", ["v-as-wide-as-k", "top-4-of-4"])
def test_broken_recipes_are_broken(name: str) -> None:
    recipe = load_recipe(name)
    lines = check_recipe(recipe)
    for target in recipe.targets:
        assert any(str(Target.parse(target)) in line for line in lines)


@pytest.mark.parametrize("vllm", ["0.18.0", "0.33.1", "0.34.0", "1.0.0"])
def test_releases_outside_are_unknown(vllm: str) -> None:
    report = check(DEEPSEEK_V3, Target.parse(f"vllm=={vllm}"))
    assert report.verdict == "unknown" and not report.findings and report.unknown


def test_release_between_is_answered_where_both_ends_agree() -> None:
    report = check(DEEPSEEK_V3, Target.parse(f"vllm==0.27.0,gpu=sm100,{MLA_OFF}"))
    found = {f.rule: f for f in report.findings}
    assert found["tp-heads"].verdict == "accepted"
    assert found["fa4-head-dims-512"].verdict == "unknown"  # rejected at 0.26, not reached at 0.28
    assert "0.26.0: rejected" in found["fa4-head-dims-512"].consequence
    assert report.choices["attention"] == "FLASH_ATTN"
    assert report.choices["flash_attention"] == "unknown"
    assert not report.rejections
    # where nothing differs, nothing is unknown
    assert check(DEEPSEEK_V3, Target.parse("vllm==0.32.1,gpu=sm90")).verdict == "accepted"


def test_gpu_outside_is_unknown() -> None:
    assert check(DEEPSEEK_V3, Target.parse("gpu=sm75")).verdict == "unknown"


def test_unknown_backends_are_unknown() -> None:
    for line in ("attention=MY_ATTN", f"attention=MY_ATTN,{MLA_OFF}", "moe=my_moe"):
        report = check(DEEPSEEK_V3, Target.parse(line))
        assert "unknown" in report.choices.values() and report.verdict == "unknown"


def test_variables_that_nobody_read_are_unknown() -> None:
    for line in (
        "env=VLLM_ATTENTION_BACKEND=FLASHMLA",
        "vllm==0.19.1,env=VLLM_BATCH_INVARIANT=1",
    ):
        report = check(DEEPSEEK_V3, Target.parse(line))
        assert report.verdict == "unknown" and "is not covered" in report.unknown[0]


def test_variables_are_listed() -> None:
    """Every variable that a derivation or rule reads is known, and no other."""
    from fixturegen.check.loading import VARIABLES

    package = Path(sys.modules["fixturegen.check"].__file__ or "").parent
    text = "".join(p.read_text() for p in package.rglob("*.py"))
    assert set(re.findall(r'"(VLLM_[A-Z0-9_]+)"', text)) - {"VLLM_CUTLASS"} == VARIABLES


def test_eagle_draft_is_checked_beside_its_target() -> None:
    model = load("deepseek-v3-eagle")
    assert model.draft is not None
    wide = ModelConfig(**{**vars(model.draft), "v_head_dim": 256})
    target = Target.parse("gpu=sm90,speculation=eagle:3")
    assert not check(model.config, target, model.draft).rejections
    report = check(model.config, target, wide)
    assert {f.part for f in report.rejections} == {"draft"}


def test_eagle_draft_of_another_width() -> None:
    model = load("deepseek-v3-eagle")
    assert model.draft is not None
    narrow = ModelConfig(**{**vars(model.draft), "hidden_size": 128})
    report = check(model.config, Target.parse("speculation=eagle:1"), narrow)
    assert "eagle-hidden-size" in {f.rule for f in report.rejections}


def test_eagle3_draft_has_no_experts() -> None:
    """A DeepSeek Eagle3 draft: its attention is checked, its MLP is dense."""
    target = load("deepseek-v3-mtp").config
    draft = ModelConfig.from_dict(
        target.to_dict() | {"architectures": ["Eagle3DeepseekV3ForCausalLM"]}
    )
    report = check(target, Target.parse("gpu=sm90,speculation=eagle3:3"), draft)
    assert report.choices["draft decode"] == "FLASH_ATTN_MLA"
    assert "draft moe" not in report.choices and not report.rejections
    assert not [f for f in report.findings if f.part == "draft" and f.rule.startswith("moe-")]


def test_mtp_layers_that_are_not_there() -> None:
    found = verdicts(
        ModelConfig(**{**vars(DEEPSEEK_V3), "num_nextn_predict_layers": 0}), "speculation=mtp:1"
    )
    assert found["mtp-layers"] == "rejected"


def test_tensor_names_of_a_checkpoint() -> None:
    recipe = load_recipe("deepseek-v3-mtp-random")
    names = {t.name for plan in recipe.checkpoints for t in plan.tensors}
    bias = {n for n in names if n.endswith("e_score_correction_bias")}
    mtp = {n for n in names if n.startswith("model.layers.3.")}

    def rejected(names: set[str], vllm: str = "0.33.0", **config: object) -> set[str]:
        target = Target(vllm=vllm, speculation="mtp:1")
        model = ModelConfig(**{**vars(recipe.model), **config})  # type: ignore[arg-type]
        return {f.rule for f in check(model, target, names=names).rejections}

    assert bias and mtp
    assert rejected(names) == set()
    assert rejected(names - bias, "0.20.2") == {"gate-bias-missing"}
    assert rejected(names - bias) == {"gate-bias-missing-unseen"}
    assert rejected(names - bias, quantization=Quantization()) == {"gate-bias-missing-quantised"}
    assert "gate-bias-unexpected" in rejected(names, topk_method=None)
    assert rejected(names - mtp) == {"mtp-weights"}
    norm, projection = "model.norm.weight", "model.layers.0.self_attn.o_proj.weight"
    assert rejected(names - {norm, projection}, "0.20.2") == {"tensors-missing"}
    assert rejected(names - {norm}) == {"norms-missing"}
    assert rejected(names - {projection}) == {"tensors-missing-unseen"}
    assert rejected(names | {"model.extra.weight"}) == {"tensors-unexpected"}
    # an MTP layer's own loader: its plain parameters, and what it may share with the target
    projection, head = "model.layers.3.eh_proj.weight", "model.layers.3.shared_head.head.weight"
    assert {projection, head} <= names
    assert rejected(names - {projection}) == {"norms-missing"}
    assert rejected(names - {head}) == set()
    assert rejected(names - {head}, "0.20.2") == {"tensors-missing"}
    assert rejected(names - {head}, "0.20.2", quantization=Quantization()) == set()
    assert rejected(names | {"model.layers.3.rot.weight"}) == {"tensors-unexpected"}
    assert rejected(names | {"model.layers.²." + "9" * 5000}) == {"tensors-unexpected"}


def test_tensor_names_of_an_eagle_draft() -> None:
    """vLLM's loader is not told what an Eagle draft loaded, and so misses nothing."""
    recipe = load_recipe("deepseek-v3-eagle-random")
    target, draft = (plan.config for plan in recipe.checkpoints)
    names = {t.name for t in recipe.checkpoints[1].tensors}

    def verdicts(names: set[str], vllm: str) -> dict[str, str]:
        at = Target(vllm=vllm, speculation="eagle:1")
        return {f.rule: f.verdict for f in check(target, at, draft, draft_names=names).rejections}

    for vllm in ("0.19.1", "0.33.0"):
        assert verdicts(names, vllm) == {}
        wrong = {"tensors-missing-quantised": "silently wrong"}
        assert verdicts(names - {"fc.weight"}, vllm) == wrong
        assert verdicts(names - {"norm.weight"}, vllm) == wrong


def test_mtp_layers_beside_the_target() -> None:
    """A checkpoint of its own for the MTP layers counts instead of the target's."""
    at = Target(speculation="mtp:2", gpu="sm90")
    bare = ModelConfig(**{**vars(DEEPSEEK_V3), "num_nextn_predict_layers": 0})
    assert {f.rule for f in check(bare, at).rejections} == {"mtp-layers"}
    assert not check(bare, at, DEEPSEEK_V3).rejections
    assert {f.rule for f in check(DEEPSEEK_V3, at, bare).rejections} == {"mtp-layers"}


def test_tensor_parallel_shares_of_a_draft_and_of_dense_layers() -> None:
    def rejected(target: ModelConfig, line: str, draft: ModelConfig | None = None) -> set[str]:
        return {f.rule for f in check(target, Target.parse(line), draft).rejections}

    dense = ModelConfig(n_routed_experts=None, num_attention_heads=15, num_key_value_heads=15)
    assert rejected(dense, "gpu=sm90,tp=5") == {"tp-widths"}
    narrow = ModelConfig(
        architectures=(EAGLE_ARCHITECTURE,), num_attention_heads=12, num_key_value_heads=12
    )
    assert rejected(DEEPSEEK_V3, "gpu=sm90,tp=8") == set()
    assert rejected(DEEPSEEK_V3, "gpu=sm90,tp=8", narrow) == {"tp-heads"}


def test_eagle3_draft_keeps_mla() -> None:
    changed = {"architectures": ("Eagle3DeepseekV3ForCausalLM",)}
    draft = ModelConfig(**{**vars(DEEPSEEK_V3), **changed})
    on = check(DEEPSEEK_V3, Target.parse("gpu=sm90,speculation=eagle3:2"), draft)
    off = check(
        DEEPSEEK_V3, Target.parse("gpu=sm90,speculation=eagle3:2,env=VLLM_MLA_DISABLE=1"), draft
    )
    assert on.verdict == "accepted" and "draft moe" not in on.choices
    assert off.choices["attention"] == "FLASH_ATTN"
    assert off.choices["draft decode"] == on.choices["draft decode"] == "FLASH_ATTN_MLA"
    assert off.verdict == "unknown" and "keeps MLA" in off.unknown[0]


def test_sparse_attention_of_v32() -> None:
    config = ModelConfig(**{**vars(DEEPSEEK_V3), "index_topk": 2048})
    for gpu, backend in (("sm90", "FLASH_ATTN_MLA_SPARSE"), ("sm100", "FLASHMLA_SPARSE")):
        assert check(config, Target.parse(f"gpu={gpu}")).choices["decode"] == backend
    assert check(config, Target.parse("gpu=sm120")).verdict == "unknown"
    off = check(config, Target.parse("gpu=sm90,env=VLLM_MLA_DISABLE=1"))
    assert {f.rule for f in off.rejections} == {"mla-off-indexer"}


def test_triton_mla_with_drafts() -> None:
    line = "gpu=sm90,attention=TRITON_MLA,speculation=mtp:1,vllm=="
    assert verdicts(DEEPSEEK_V3, line + "0.26.0")["triton-mla-spec"] == "silently wrong"
    assert verdicts(DEEPSEEK_V3, line + "0.30.0")["triton-mla-spec-unproven"] == "unknown"
    assert not check(DEEPSEEK_V3, Target.parse(line + "0.32.0")).rejections


MATRIX_ON_ONE_CONFIG = """
import json, sys, time
start = time.perf_counter()
from fixturegen.check import check, matrix
from fixturegen.check.model import load
model = load(sys.argv[1])
reports = [check(model.config, target) for target in matrix()]
heavy = {"torch", "vllm", "transformers", "huggingface_hub", "flashinfer"} & set(sys.modules)
print(json.dumps([len(reports), time.perf_counter() - start, sorted(heavy)]))
"""


def test_matrix_takes_less_than_a_second(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(DEEPSEEK_V3.to_dict()))
    start = time.process_time()
    done = subprocess.run(
        [sys.executable, "-c", MATRIX_ON_ONE_CONFIG, str(config)],
        capture_output=True,
        text=True,
        check=True,
    )
    count, seconds, heavy = json.loads(done.stdout)
    assert count == len(list(matrix())) == len(VLLM) * 6 * 4
    assert heavy == []
    assert seconds < 1 or time.process_time() - start < 1, seconds


def test_target_lines() -> None:
    line = (
        "vllm==0.33.0,gpu=sm100,tp=4,attention=FLASH_ATTN,moe=auto,"
        "env=VLLM_MLA_DISABLE=1,kv_cache_dtype=auto"
    )
    assert str(Target.parse(line)) == line
    for other in matrix():
        assert Target.parse(str(other)) == other
    full = Target.parse(
        "gpu=sm90,env=A=1,env=B=x=y,ep=2,speculation=mtp:3,prefill=FLASH_ATTN,"
        "flash_attn_version=2,block_size=64,flashinfer==0.7.4"
    )
    assert Target.parse(str(full)) == full
    assert full.env == (("A", "1"), ("B", "x=y"))

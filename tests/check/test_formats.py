"""What ``fixturegen check`` prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from fixturegen.cli import cli
from fixturegen.config import ModelConfig

GOOD = ("deepseek-v3-mtp", "--target", "gpu=sm90")
BAD = ("top-4-of-4", "--target", "vllm==0.33.0,gpu=sm100,moe=flashinfer_trtllm")
BACK = ("deepseek-v3-mtp", "--target", "gpu=sm100,env=VLLM_MLA_DISABLE=1")
UNKNOWN = ("deepseek-v3-mtp", "--target", "vllm==0.99.0")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["check", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (GOOD, 0),
        (BACK, 0),
        (BAD, 1),
        (UNKNOWN, 0),
        ((*UNKNOWN, "--strict"), 3),
        ((*BAD, "--target", "vllm==0.99.0", "--strict"), 1),
        (("deepseek-v3-mtp", "--format", "yaml"), 2),
        ((), 2),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int) -> None:
    assert run(*arguments)[0] == code


def test_text() -> None:
    _, output = run(*BAD)
    lines = output.splitlines()
    assert lines[0] == "top-4-of-4"
    assert lines[2].startswith("REJECTED  vllm==0.33.0,gpu=sm100")
    assert "moe FLASHINFER_TRTLLM" in lines[3]
    (row,) = (line for line in lines if "moe-trtllm-topk-strict" in line and "clears" not in line)
    assert "top_k must be less than total number of experts in selected groups" in row
    assert "num_experts_per_tok=4 topk_group=4 n_routed_experts=8 n_group=8" in row
    assert "\x1b" not in output


def test_explain_shows_what_kernels_receive() -> None:
    _, output = run(*BACK, "--explain")
    assert "FlashAttention: version=2 head_size=192 head_size_v=192" in output
    assert "passed over FLASHINFER: flashinfer-head-size-512" in output
    assert "accepted" in output and "mla-off-pads-v" in output
    _, split = run("deepseek-v3-mtp-fp8", "--explain", "--target", "tp=4")
    assert "num_heads=4" in split and "intermediate_size=128" in split


def test_colour_on_a_terminal_only() -> None:
    import click

    from fixturegen.check import Target, check, formats
    from fixturegen.check.model import load

    config = load("top-4-of-4").config
    report = check(config, Target.parse(BAD[2]))
    drawn = formats.text("x", [report], {}, style=click.style)
    assert "\x1b[31m" in drawn and click.unstyle(drawn) == formats.text("x", [report], {})
    grid = formats.matrix_text("x", [report], {}, style=click.style)
    assert "\x1b[31m" in grid and click.unstyle(grid) == formats.matrix_text("x", [report], {})


def test_matrix() -> None:
    code, output = run("deepseek-v3-mtp", "--matrix")
    assert code == 1  # FLASH_ATTN_MLA off SM90, and (192, 192) on SM10x before 0.28
    head, *rows = output.split("\n\n")[1].splitlines()
    assert head.split() == ["attention", "gpu", *head.split()[2:]] and len(rows) == 24
    (row,) = (r for r in rows if r.startswith("MLA off  auto") and " sm100 " in r)
    assert row.split()[4:] == ["NO"] * 5 + ["back"] * 4


def test_json() -> None:
    code, output = run(*BAD, "--format", "json")
    document = json.loads(output)
    assert code == 1 and document["version"] == 1 and document["model"] == "top-4-of-4"
    (target,) = document["targets"]
    assert target["verdict"] == "rejected" and target["choices"]["moe"] == "FLASHINFER_TRTLLM"
    (finding,) = (f for f in target["findings"] if f["rule"] == "moe-trtllm-topk-strict")
    assert finding["verdict"] == "rejected" and finding["error"]
    assert set(finding) == {
        "rule",
        "verdict",
        "title",
        "kernel",
        "part",
        "inputs",
        "consequence",
        "error",
    }
    assert {"part", "kernel"} <= set(target["kernels"][0])
    assert target["repairs"][0]["changes"] == ["n_routed_experts 8 -> 16"]
    assert target["repairs"][0]["leaves"] == []


def test_github() -> None:
    _, output = run(*BAD, "--target", BACK[2], "--target", UNKNOWN[2], "--format", "github")
    levels = {line.split(" ")[0] for line in output.splitlines()}
    assert levels == {"::error", "::notice", "::warning"}
    title = "::error title=top-4-of-4%3A moe-trtllm-topk-strict::"
    lines = [line for line in output.splitlines() if line.startswith(title)]
    assert len(lines) == 2 and "moe=flashinfer_trtllm" in lines[0]  # forced, and chosen by auto
    assert run(*GOOD, "--format", "github")[1] == ""


def test_junit() -> None:
    _, output = run(*BAD, "--target", UNKNOWN[2], "--format", "junit")
    root = ElementTree.fromstring(output)
    bad, unknown = root.findall("testsuite")
    assert int(bad.attrib["failures"]) == len(bad.findall("testcase/failure")) >= 1
    assert int(bad.attrib["tests"]) == len(bad.findall("testcase"))
    assert "n_routed_experts 8 -> 16" in (bad.findtext("testcase/failure") or "")
    assert unknown.attrib["skipped"] == "1" and unknown.find("testcase/skipped") is not None


def test_matrix_says_why_something_is_unknown(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(ModelConfig(index_topk=2048).to_dict()))
    code, output = run(str(config), "--matrix")
    assert code == 1 and "\nunknown  MLA decode backend " in output


def test_junit_of_a_strange_name(tmp_path: Path) -> None:
    config = tmp_path / "a\x01b.json"
    config.write_text(json.dumps(ModelConfig().to_dict()))
    root = ElementTree.fromstring(run(str(config), "--format", "junit")[1])
    assert root.attrib["name"].endswith("a?b.json")


def test_recipe_without_targets_is_checked_on_its_claims() -> None:
    code, output = run("deepseek-v3-mtp")
    assert code == 0
    assert "vllm==0.19.1,gpu=sm90" in output and "vllm==0.33.0,gpu=sm100" in output

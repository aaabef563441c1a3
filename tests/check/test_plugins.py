"""Rules and hardware that other packages bring through entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = '''
from fixturegen.check.inputs import Derived, KernelInput, MLADecode
from fixturegen.check.rule import Rejected, Source, Where, cases, rule


@rule(
    id="acme-heads",
    title="ACME takes 16 or 128 heads",
    where=Where(gpus=("acme1",)),
    otherwise=Rejected("ACME: heads"),
    source=Source("acme", "acme/kernel.py", "launch"),
    cases=cases(MLADecode(), breaks=[{"num_heads": 32}]),
)
def acme_heads(x: MLADecode) -> bool:
    """ACME's kernel is compiled for two head counts."""
    return x.num_heads in (16, 128)


def derive(config, target):
    heads = config.num_attention_heads // target.tp
    return Derived(choices={"decode": "ACME"}, inputs=(MLADecode(backend="ACME", num_heads=heads),))
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """An installed distribution, as pip leaves it in a folder of sys.path."""
    (tmp_path / "acme.py").write_text(PLUGIN)
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: acme\\nVersion: 1.0\\n")
    (info / "entry_points.txt").write_text(
        "[fixturegen.rules]\nacme = acme\n[fixturegen.targets]\nacme1 = acme:derive\n"
    )
    return tmp_path


def fixturegen(plugin: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(plugin)!r}); from fixturegen.cli import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )


def test_rule_of_a_plugin_is_listed(plugin: Path) -> None:
    assert "ACME takes 16 or 128 heads" in fixturegen(plugin, "rules").stdout
    assert "ACME's kernel is compiled" in fixturegen(plugin, "rules", "acme-heads").stdout


def test_hardware_of_a_plugin(plugin: Path) -> None:
    good = fixturegen(plugin, "check", "deepseek-v3-mtp", "--target", "gpu=acme1")
    assert good.returncode == 0 and "decode ACME" in good.stdout, good.stderr
    bad = fixturegen(plugin, "check", "deepseek-v3-mtp", "--target", "gpu=acme1,tp=2")
    assert bad.returncode == 1 and "acme-heads" in bad.stdout
    assert "num_attention_heads 16 -> 32" in bad.stdout
    missing = fixturegen(plugin, "check", "deepseek-v3-mtp", "--target", "gpu=acme2")
    assert missing.returncode == 2 and "acme1" in missing.stderr


def test_two_rules_with_one_id(plugin: Path) -> None:
    (plugin / "acme.py").write_text(PLUGIN.replace("acme-heads", "tp-heads"))
    done = fixturegen(plugin, "rules")
    assert done.returncode == 2 and "two rules have the id 'tp-heads'" in done.stderr

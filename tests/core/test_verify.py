"""verify: every kind of damage is named by file and tensor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from fixturegen import build, load_recipe, verify
from fixturegen.cli import cli
from fixturegen.errors import CheckpointError
from fixturegen.manifest import MANIFEST
from fixturegen.shards import INDEX, read_header
from tests.conftest import TINY

SHARD = "model-00001-of-00001.safetensors"
Q_A = "model.layers.1.self_attn.q_a_proj.weight"


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path) -> Path:
    """A copy of the tiny checkpoint, to be damaged."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))


@pytest.fixture(scope="module")
def fp8_checkpoint(tmp_path_factory) -> Path:
    """A tiny FP8 checkpoint."""
    recipe = load_recipe("deepseek-v3-mtp-fp8-random", TINY)
    return build(recipe, tmp_path_factory.mktemp("fp8") / "x", check=False).path


def found(path: Path, **options: bool) -> list[str]:
    return [str(p) for p in verify(path, **options)]


def rewrite(path: Path, change) -> None:
    """Apply ``change`` to the tensors of the shard and write it with the real library."""
    tensors = load_file(path / SHARD)
    change(tensors)
    save_file(tensors, path / SHARD, {"format": "pt"})
    write_index(path)


def write_index(path: Path) -> None:
    names = dict.fromkeys(read_header(path / SHARD), SHARD)
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def edit_json(path: Path, change) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def forget_origin(path: Path) -> None:
    """Make it a checkpoint of unknown origin."""
    (path / MANIFEST).unlink()


def test_sound(checkpoint, fp8_checkpoint):
    assert found(checkpoint, regenerate=True) == []
    assert found(fp8_checkpoint, regenerate=True) == []
    forget_origin(checkpoint)
    assert found(checkpoint) == []


def test_sound_pair(tmp_path):
    recipe = load_recipe("deepseek-v3-eagle-random", [*TINY[:-3], "tokenizer_vocab_size=512"])
    out = build(recipe, tmp_path / "pair", check=False).path
    assert found(out, regenerate=True) == []
    (out / "draft" / "generation_config.json").unlink()
    assert found(out)[0] == "draft/generation_config.json: missing: the manifest lists it"


def test_truncated(checkpoint):
    file = checkpoint / SHARD
    file.write_bytes(file.read_bytes()[:-1000])
    assert any(line.startswith(f"{SHARD}: truncated: tensors end at") for line in found(checkpoint))
    file.write_bytes(file.read_bytes()[:5])
    assert f"{SHARD}: truncated: 5 bytes, no header" in found(checkpoint)


def test_flipped_byte(checkpoint):
    place = read_header(checkpoint / SHARD)[Q_A]
    data = bytearray((checkpoint / SHARD).read_bytes())
    data[place.start + 10] ^= 1
    (checkpoint / SHARD).write_bytes(data)
    lines = found(checkpoint)
    assert f"{SHARD}: {Q_A}: bytes differ from the manifest's digest" in lines
    assert f"{Q_A}: bytes differ from those the recipe gives" in found(checkpoint, regenerate=True)


def test_header_too_long(checkpoint):
    data = bytearray((checkpoint / SHARD).read_bytes())
    data[:8] = (10**12).to_bytes(8, "little")
    (checkpoint / SHARD).write_bytes(data)
    expected = f"{SHARD}: header too long: {10**12} bytes, allowed: 100000000"
    assert expected in found(checkpoint)


def test_header_not_json(checkpoint):
    data = bytearray((checkpoint / SHARD).read_bytes())
    data[8] = 0
    (checkpoint / SHARD).write_bytes(data)
    assert f"{SHARD}: header is not a safetensors header" in found(checkpoint)


def test_wrong_dtype_and_shape(checkpoint):
    def change(tensors):
        tensors[Q_A] = tensors[Q_A].float()
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()

    rewrite(checkpoint, change)
    lines = found(checkpoint)
    assert f"{SHARD}: {Q_A}: dtype is F32, expected BF16" in lines
    assert f"{SHARD}: model.norm.weight: shape is [127], expected [128]" in lines


def test_missing_and_renamed(checkpoint):
    def change(tensors):
        del tensors["model.layers.2.shared_head.head.weight"]
        tensors["model.layers.1.self_attn.q_a.weight"] = tensors.pop(Q_A)

    rewrite(checkpoint, change)
    lines = found(checkpoint)
    assert "model.layers.2.shared_head.head.weight: missing" in lines
    renamed = "model.layers.1.self_attn.q_a.weight"
    assert f"{Q_A}: missing; renamed to '{renamed}'?" in lines
    assert f"{SHARD}: {renamed}: unexpected: the config has no such tensor" in lines


@pytest.mark.parametrize("with_manifest", [True, False])
def test_mtp_layer_under_a_wrong_index(checkpoint, with_manifest):
    def change(tensors):
        for name in [n for n in tensors if n.startswith("model.layers.2.")]:
            tensors[name.replace(".layers.2.", ".layers.61.")] = tensors.pop(name)

    rewrite(checkpoint, change)
    if not with_manifest:
        forget_origin(checkpoint)
    lines = found(checkpoint)
    assert (
        f"{SHARD}: model.layers.61.eh_proj.weight: MTP layer under index 61; "
        "with num_hidden_layers 2 it belongs at 2"
    ) in lines
    assert not any("layers.2." in line for line in lines)  # one line, not one for each tensor


def test_index_points_nowhere(checkpoint):
    def change(data):
        data["weight_map"][Q_A] = "model-00009-of-00009.safetensors"

    edit_json(checkpoint / INDEX, change)
    expected = f"{INDEX}: {Q_A}: points to model-00009-of-00009.safetensors, which does not exist"
    assert expected in found(checkpoint)


def test_stray_shard_and_missing_index(checkpoint):
    shutil.copy(checkpoint / SHARD, checkpoint / "stray.safetensors")
    assert "stray.safetensors: stray shard: not in the index" in found(checkpoint)
    (checkpoint / "stray.safetensors").unlink()
    (checkpoint / INDEX).unlink()
    assert f"{INDEX}: missing" in found(checkpoint)


def test_not_finite_and_zero_norm(checkpoint):
    def change(tensors):
        tensors[Q_A][0, 0] = float("nan")
        tensors["lm_head.weight"][3, 3] = float("inf")
        tensors["model.norm.weight"].zero_()

    rewrite(checkpoint, change)
    forget_origin(checkpoint)
    lines = found(checkpoint)
    assert f"{SHARD}: {Q_A}: holds a value that is not finite" in lines
    assert f"{SHARD}: lm_head.weight: holds a value that is not finite" in lines
    assert f"{SHARD}: model.norm.weight: is a norm weight of zeros only" in lines


def test_quantised_without_scale(fp8_checkpoint, tmp_path):
    path = Path(shutil.copytree(fp8_checkpoint, tmp_path / "x"))
    rewrite(path, lambda tensors: tensors.pop(Q_A + "_scale_inv"))
    expected = f"{Q_A}_scale_inv: missing: its tensor is quantised and has no scale"
    assert expected in found(path)


def test_config_that_does_not_fit(checkpoint):
    edit_json(checkpoint / "config.json", lambda data: data.update(num_nextn_predict_layers=0))
    forget_origin(checkpoint)
    assert any("model.layers.2.enorm.weight: unexpected" in line for line in found(checkpoint))


def test_tokenizer_that_does_not_fit(checkpoint):
    edit_json(checkpoint / "config.json", lambda data: data.update(bos_token_id=7))
    lines = found(checkpoint)
    assert "config.json: differs from the manifest's sha256" in lines
    assert f"config.json: is not the config of the recipe in {MANIFEST}" in lines
    forget_origin(checkpoint)
    assert any("has id 0, config.json says 7" in line for line in found(checkpoint))


def test_broken_config_and_manifest(checkpoint):
    (checkpoint / "config.json").write_text("{")
    (checkpoint / MANIFEST).write_text("[]")
    lines = found(checkpoint)
    assert any(line.startswith("config.json: not JSON") for line in lines)
    assert any(line.startswith(f"{MANIFEST}: not a manifest") for line in lines)


def test_a_manifest_that_lacks_keys(checkpoint):
    (checkpoint / MANIFEST).write_text("{}")
    assert found(checkpoint)[0].endswith("recipe, role, tensors missing; build it anew")


def test_without_a_manifest_it_is_not_called_sound(checkpoint):
    forget_origin(checkpoint)
    done = CliRunner().invoke(cli, ["verify", str(checkpoint)])
    assert done.exit_code == 0 and "sound" not in done.stdout
    assert f"no {MANIFEST} to compare bytes with" in done.stdout


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        verify(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"no config.json here"):
        verify(tmp_path)


def test_every_byte_counts(checkpoint):
    """A flipped bit anywhere in any file that the manifest lists is seen."""
    rng = np.random.default_rng(0)
    for file in sorted(p for p in checkpoint.iterdir() if p.name != MANIFEST):
        original = file.read_bytes()
        for position in rng.integers(0, len(original), 3):
            data = bytearray(original)
            data[position] ^= 4
            file.write_bytes(data)
            assert found(checkpoint), (file.name, position)
        file.write_bytes(original)
    assert found(checkpoint) == []

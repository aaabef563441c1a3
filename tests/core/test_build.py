"""Building: the same bytes every time, whole or not at all, nothing of others lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

from fixturegen import build, builder, load_recipe
from fixturegen.errors import BuildError, RecipeError
from fixturegen.manifest import Manifest
from fixturegen.shards import stored
from fixturegen.verification import verify
from tests.conftest import TINY

#: content hash of each shipped recipe; a change means that published fixtures change
GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())

BUILD = """
import sys
from fixturegen import build, load_recipe
recipe = load_recipe(sys.argv[1], sys.argv[5:])
result = build(recipe, sys.argv[2], jobs=int(sys.argv[3]), max_shard_size=int(sys.argv[4]))
print(result.content_hash)
"""


def run_build(recipe: str, out: Path, jobs: int, shard: int, *overrides: str) -> str:
    command = [sys.executable, "-c", BUILD, recipe, str(out), str(jobs), str(shard), *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("recipe", ["deepseek-v3-mtp-random", "deepseek-v3-mtp-fp8-random"])
def test_same_bytes_in_any_process_with_any_threads_and_shards(tmp_path, recipe):
    one = run_build(recipe, tmp_path / "a", 1, 10**9)
    two = run_build(recipe, tmp_path / "b", 2, 7 * 10**6)
    assert one == two
    assert len(list((tmp_path / "a").glob("*.safetensors"))) == 1
    assert len(list((tmp_path / "b").glob("*.safetensors"))) > 5


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_hash(tmp_path, name):
    assert build(load_recipe(name), tmp_path / name).content_hash == GOLDEN[name]


def test_seed_and_dims_change_the_hash(tmp_path, tiny_checkpoint):
    base = Manifest.load(tiny_checkpoint).content_hash
    for i, change in enumerate(["seed=1", "routed_scaling_factor=2.0"]):
        recipe = load_recipe("deepseek-v3-mtp-random", (*TINY, change))
        assert build(recipe, tmp_path / str(i), check=False).content_hash != base


def test_safetensors_reads_what_the_layout_says(tiny_recipe, tiny_checkpoint):
    torch = pytest.importorskip("torch")
    (plan,) = tiny_recipe.checkpoints
    (file,) = tiny_checkpoint.glob("*.safetensors")
    with safe_open(file, "pt") as tensors:
        assert list(tensors.keys()) and tensors.metadata() == {"format": "pt"}
        for tensor in plan.tensors:
            for entry in stored(tensor, plan.config):
                value = tensors.get_tensor(entry.name)
                assert tuple(value.shape) == entry.shape
                assert torch.isfinite(value.float()).all()
        copy = tensors.get_tensor("model.layers.2.embed_tokens.weight")
        assert torch.equal(copy, tensors.get_tensor("model.embed_tokens.weight"))


def test_second_build_is_a_no_op(tmp_path, tiny_recipe):
    first = build(tiny_recipe, tmp_path / "x", check=False)
    stamp = (tmp_path / "x" / "config.json").stat().st_mtime_ns
    second = build(tiny_recipe, tmp_path / "x", check=False, max_shard_size=10**5)
    assert (first.was_built, second.was_built) == (True, False)
    assert first.content_hash == second.content_hash
    assert (tmp_path / "x" / "config.json").stat().st_mtime_ns == stamp


def test_damaged_fixture_is_rebuilt(tmp_path, tiny_recipe):
    out = build(tiny_recipe, tmp_path / "x", check=False).path
    next(out.glob("*.safetensors")).unlink()
    assert build(tiny_recipe, out, check=False).was_built
    os.truncate(next(out.glob("*.safetensors")), 5000)
    assert build(tiny_recipe, out, check=False).was_built
    (out / "config.json").write_text("{}")
    assert build(tiny_recipe, out, check=False).was_built
    assert verify(out) == []


def test_force_builds_anew(tmp_path, tiny_recipe):
    out = build(tiny_recipe, tmp_path / "x", check=False).path
    (out / "notes.txt").write_text("")
    shard = next(out.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1  # a build that looks at sizes only does not see it
    shard.write_bytes(data)
    assert not build(tiny_recipe, out, check=False).was_built
    assert build(tiny_recipe, out, check=False, force=True).was_built
    assert verify(out) == [] and not (out / "notes.txt").exists()


def test_a_link_is_followed(tmp_path, tiny_recipe):
    (tmp_path / "disk").mkdir()
    (tmp_path / "x").symlink_to("disk")
    for _ in range(2):
        build(tiny_recipe, tmp_path / "x", check=False, force=True)
    assert (tmp_path / "x").is_symlink() and verify(tmp_path / "disk") == []
    assert not list(tmp_path.glob(".*.old"))


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "..", "/x"])
def test_a_name_is_no_path(name):
    with pytest.raises(RecipeError, match="is a path; allowed: a folder's name"):
        load_recipe("deepseek-v3-mtp-random", [f"name={name}"])


def test_others_are_not_overwritten(tmp_path, tiny_recipe):
    out = tmp_path / "x"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(BuildError, match="was not built by fixturegen"):
        build(tiny_recipe, out, check=False)
    assert (out / "thesis.txt").read_text() == "years of work"
    assert build(tiny_recipe, out, check=False, force=True).was_built


def test_another_recipe_is_not_overwritten(tmp_path, tiny_recipe):
    out = build(tiny_recipe, tmp_path / "x", check=False).path
    other = load_recipe("deepseek-v3-mtp-random", (*TINY, "seed=9"))
    with pytest.raises(BuildError, match=r"holds another recipe .*seed 0.*--force"):
        build(other, out, check=False)
    assert build(other, out, check=False, force=True).was_built


def test_eagle_pair(tmp_path):
    recipe = load_recipe(
        "deepseek-v3-eagle-random", [o for o in TINY if not o.startswith("num_hidden")]
    )
    result = build(recipe, tmp_path / "pair", check=False)
    assert set(result.content_hashes) == {"target", "draft"}
    for part in ("target", "draft"):
        manifest = Manifest.load(tmp_path / "pair" / part)
        assert manifest.role == part
        assert manifest.load_recipe() == recipe
    assert not build(recipe, tmp_path / "pair", check=False).was_built


def test_path_that_is_a_file(tmp_path, tiny_recipe):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(BuildError, match="is a file"):
        build(tiny_recipe, tmp_path / "x", check=False)
    with pytest.raises(BuildError, match="cannot be written"):
        build(tiny_recipe, tmp_path / "x" / "y", check=False)
    assert (tmp_path / "x").read_text() == "mine"


def test_read_only_target(tiny_recipe):
    with pytest.raises(BuildError, match="cannot be written"):
        build(tiny_recipe, "/proc/fixturegen/x", check=False)


def test_no_room(tmp_path):
    with pytest.raises(BuildError, match=r"68\d.\d GB are needed and .* are free"):
        build(load_recipe("deepseek-v3-671b"), tmp_path / "x", check=False)
    assert not (tmp_path / "x").exists()


def test_disk_full_leaves_nothing(tmp_path, tiny_recipe, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(builder, "_write_tensor", full)
    with pytest.raises(BuildError, match="no space left"):
        build(tiny_recipe, tmp_path / "x", check=False)
    assert [p.name for p in tmp_path.iterdir()] == [".x.lock"]


def test_killed_build_leaves_nothing_that_loads(tmp_path):
    """SIGKILL in the middle of writing; the next build cleans up and succeeds."""
    out = tmp_path / "x"
    command = [sys.executable, "-c", BUILD, "deepseek-v3-671b", str(out), "1", str(10**9)]
    command += ["num_hidden_layers=1", "first_k_dense_replace=1", "num_nextn_predict_layers=0"]
    command += ["draft=none", "targets=[]"]
    process = subprocess.Popen(command)
    partial = tmp_path / ".x.partial"
    for _ in range(600):
        if sum(f.stat().st_size for f in partial.glob("*.safetensors")) > 50_000_000:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert partial.is_dir() and not out.exists()
    assert not (partial / "config.json").exists()
    assert build(load_recipe("deepseek-v3-mtp-random", TINY), out, check=False).was_built
    assert not partial.exists()


def test_two_builds_at_once(tmp_path):
    command = [sys.executable, "-c", BUILD, "deepseek-v3-mtp-random", str(tmp_path / "x")]
    command += ["1", str(10**9)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0] == outputs[1] != ""


def test_interrupted_build_leaves_nothing(tmp_path, tiny_recipe):
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tiny_recipe, tmp_path / "x", check=False, progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == [".x.lock"]

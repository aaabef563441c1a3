"""The cache: one build for all, whole entries only, damage found and mended."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from fixturegen import build
from fixturegen.cache import Cache, CacheReadOnly, build_key, damage
from fixturegen.cli.cache import command
from fixturegen.manifest import Manifest
from fixturegen.recipe import Recipe


class Counting:
    """The real builder, counting."""

    def __init__(self) -> None:
        self.builds = 0

    def __call__(self, recipe: Recipe, folder: Path) -> object:
        self.builds += 1
        return build(recipe, folder, check=False)


def test_second_run_builds_nothing(tmp_path: Path, tiny_recipe: Recipe) -> None:
    builder = Counting()
    first = Cache(tmp_path, run="a", builder=builder).get(tiny_recipe)
    assert Cache(tmp_path, run="b", builder=builder).get(tiny_recipe) == first
    assert builder.builds == 1 and damage(first) is None
    assert first.name == f"{tiny_recipe.name}-{build_key(tiny_recipe)[:16]}"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        first.name,
        f"{first.name}.lock",
        f"{first.name}.seen",
    ]


def test_key_follows_the_recipe(tiny_recipe: Recipe) -> None:
    assert build_key(tiny_recipe) == build_key(dataclasses.replace(tiny_recipe))
    assert build_key(tiny_recipe) != build_key(dataclasses.replace(tiny_recipe, seed=1))


def test_pair_is_one_entry(tmp_path: Path, tiny_pair_recipe: Recipe) -> None:
    entry = Cache(tmp_path).get(tiny_pair_recipe)
    assert {p.name for p in entry.iterdir()} == {"target", "draft"}
    (entry / "draft" / "config.json").write_text("{}")
    assert damage(entry) == "config.json does not have the manifest's sha256"


@pytest.mark.parametrize("harm", ["flip", "truncate", "delete", "no manifest"])
def test_damage_is_reported_and_built_again(tmp_path: Path, tiny_recipe: Recipe, harm: str) -> None:
    entry = Cache(tmp_path, run="a").get(tiny_recipe)
    shard = next(entry.glob("*.safetensors"))
    whole = shard.read_bytes()
    match harm:
        case "flip":
            times = shard.stat()
            shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
        case "truncate":
            shard.write_bytes(whole[:-1])
        case "delete":
            shard.unlink()
        case "no manifest":
            (entry / "fixturegen.json").unlink()
    lines: list[str] = []
    again = Cache(tmp_path, run="b", report=lines.append).get(tiny_recipe)
    assert len(lines) == 1 and "building it again" in lines[0]
    assert next(again.glob("*.safetensors")).read_bytes() == whole


def test_entry_is_hashed_once_in_a_run(
    tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cache(tmp_path, run="a").get(tiny_recipe)
    hashed: list[Path] = []
    monkeypatch.setattr("fixturegen.cache.damage", lambda folder: hashed.append(folder))
    for run in ("a", "b", "b"):
        Cache(tmp_path, run=run).get(tiny_recipe)
    assert len(hashed) == 1


def test_many_askers_one_build(tmp_path: Path, tiny_recipe: Recipe) -> None:
    builder = Counting()
    threads = [
        threading.Thread(target=Cache(tmp_path, run="a", builder=builder).get, args=(tiny_recipe,))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builder.builds == 1


SLOW_BUILD = """
import sys, time
from pathlib import Path
from fixturegen import build
from fixturegen.cache import Cache
from fixturegen.manifest import Manifest

def slow(recipe, folder):
    folder.mkdir(parents=True)
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"half")
    print("half", flush=True)
    time.sleep(60)

Cache(sys.argv[1], builder=slow).get(Manifest.load(Path(sys.argv[2])).load_recipe())
"""


def test_killed_builder_leaves_nothing_and_blocks_nobody(
    tmp_path: Path, tiny_recipe: Recipe, tiny_checkpoint: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_BUILD, tmp_path, tiny_checkpoint], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline() == b"half\n"
        assert not Cache(tmp_path).entries(), "half a model is visible"
        process.send_signal(signal.SIGKILL)
    start = time.monotonic()
    entry = Cache(tmp_path).get(tiny_recipe)
    assert damage(entry) is None and time.monotonic() - start < 20
    assert not list(tmp_path.glob(".*"))


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Nothing below `root` can be written, not even by root, who becomes nobody for a while."""
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755)


def test_read_only_cache_serves_what_it_has(tiny_recipe: Recipe) -> None:
    # Not tmp_path, whose parents only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        full, empty = Path(folder) / "full", Path(folder) / "empty"
        empty.mkdir()
        entry = Cache(full).get(tiny_recipe)
        with read_only(Path(folder)):
            with pytest.raises(PermissionError):
                (full / "probe").touch()
            assert Cache(full, run="b").get(tiny_recipe) == entry
            with pytest.raises(CacheReadOnly, match="set FIXTUREGEN_CACHE"):
                Cache(empty).get(tiny_recipe)


def test_cache_below_a_file(tmp_path: Path, tiny_recipe: Recipe) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheReadOnly, match="cannot be written"):
        Cache(tmp_path / "file" / "cache").get(tiny_recipe)


def test_prune_removes_the_longest_unused(tmp_path: Path, tiny_recipe: Recipe) -> None:
    cache = Cache(tmp_path)
    entries = [cache.get(dataclasses.replace(tiny_recipe, seed=seed)) for seed in range(3)]
    for age, entry in enumerate(entries):
        os.utime(entry.with_name(f"{entry.name}.lock"), (age, age))
    size = cache.entries()[0].nbytes
    removed = cache.prune(2 * size + 1000)
    assert [entry.path for entry in removed] == [entries[0]]
    assert not entries[0].exists() and entries[2].exists()


def test_prune_leaves_what_is_being_built(tmp_path: Path, tiny_recipe: Recipe) -> None:
    cache = Cache(tmp_path)
    entry = cache.get(tiny_recipe)
    with cache._locked(entry):
        thread = threading.Thread(target=Cache(tmp_path).prune, args=(0,))
        thread.start()
        thread.join()
        assert entry.exists()
    assert [e.path for e in Cache(tmp_path).prune(0)] == [entry]


def test_prune_clears_what_killed_processes_left(tmp_path: Path, tiny_recipe: Recipe) -> None:
    cache = Cache(tmp_path)
    entry = cache.get(tiny_recipe)
    for name in (f".{entry.name}", f".{entry.name}.trash"):
        (tmp_path / name / "half").mkdir(parents=True)
    with cache._locked(entry):
        thread = threading.Thread(target=Cache(tmp_path).prune, args=(2**40,))
        thread.start()
        thread.join()
        assert len(list(tmp_path.glob(".*"))) == 2, "somebody is at work there"
    assert Cache(tmp_path).prune(2**40) == [] and entry.is_dir()
    assert not list(tmp_path.glob(".*"))
    (tmp_path / f".{entry.name}.trash" / "half").mkdir(parents=True)
    assert [e.path for e in Cache(tmp_path).prune(0)] == [entry]
    assert not list(tmp_path.glob(".*")) and not entry.exists()


def test_verbs(tmp_path: Path, tiny_recipe: Recipe) -> None:
    entry = Cache(tmp_path).get(tiny_recipe)

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(command, ["--dir", str(tmp_path), *words])
        return result.exit_code, result.output

    code, text = run("list")
    assert code == 0 and entry.name in text and "1 entries" in text
    assert run("verify")[0] == 0
    Manifest.load(entry)
    (entry / "config.json").write_text("{}")
    code, text = run("verify")
    assert code == 1 and "config.json does not have the manifest's sha256" in text
    assert run("prune", "--max-size", "1GB")[0] == 0 and entry.exists()
    assert run("prune", "--max-size", "0")[0] == 0 and not entry.exists()

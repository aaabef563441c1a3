"""Whether a checkpoint is what it says.

Each finding names the file and, where there is one, the tensor.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from fixturegen.config import ModelConfig
from fixturegen.errors import CheckpointError, FixturegenError
from fixturegen.inspection import checkpoint_folders, read_config
from fixturegen.layouts import Tensor, tensors
from fixturegen.manifest import MANIFEST, Manifest, content_hash
from fixturegen.recipe import Plan
from fixturegen.shards import INDEX, Located, Stored, read_header, stored

READ_SIZE = 2**24


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``tensor`` is empty when a whole file is meant."""

    file: str
    tensor: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.tensor, self.message) if part)


def verify(path: str | PathLike[str], *, regenerate: bool = False) -> list[Problem]:
    """Check the checkpoint at ``path`` (or both of a pair); an empty list means it is sound.

    With ``regenerate``, the bytes are computed anew from the manifest's recipe and compared.
    A checkpoint without a manifest is checked for config against tensors.

    Raises CheckpointError when there is no checkpoint at ``path``.
    """
    folders = checkpoint_folders(path)
    problems = []
    for folder in folders:
        place = f"{folder.name}/" if len(folders) > 1 else ""
        for problem in _verify_folder(folder, regenerate):
            problems.append(Problem(place + problem.file, problem.tensor, problem.message))
    return problems


def _verify_folder(folder: Path, regenerate: bool) -> Iterator[Problem]:
    manifest, plan, config = None, None, None
    if (folder / MANIFEST).exists():
        try:
            manifest = Manifest.load(folder)
            recipe = manifest.load_recipe()
            plan = next(p for p in recipe.checkpoints if p.role == manifest.role)
        except FixturegenError as error:
            yield Problem(MANIFEST, "", _without_path(error, folder))
    try:
        config = read_config(folder)
    except FixturegenError as error:
        yield Problem("config.json", "", _without_path(error, folder))
    if plan is not None:
        if config is not None and config != plan.config:
            yield Problem("config.json", "", f"is not the config of the recipe in {MANIFEST}")
        config = plan.config  # the tensors are checked against what they were built from

    shards: dict[str, dict[str, Located]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            shards[file.name] = read_header(file)
        except (CheckpointError, OSError) as error:
            yield Problem(file.name, "", str(error).removeprefix(f"{file.name}: "))
    yield from _check_index(folder, shards)
    if config is not None:
        yield from _check_layout(config, plan, shards)

    digests: dict[str, str] = {}
    file_digests: dict[str, str] = {}
    for name, shard in shards.items():
        yield from _read_shard(folder / name, shard, digests, file_digests)
    if manifest is not None:
        yield from _check_hashes(folder, manifest, shards, digests, file_digests)
    if config is not None:
        yield from _check_tokenizer(folder, config)
    if regenerate:
        yield from _check_values(manifest, plan, digests)


def _without_path(error: Exception, folder: Path) -> str:
    return re.sub(rf"^{re.escape(str(folder))}/[\w.]+: ", "", str(error))


def _check_index(folder: Path, shards: Mapping[str, Mapping[str, Located]]) -> Iterator[Problem]:
    path = folder / INDEX
    present = {p.name for p in folder.glob("*.safetensors")}
    if not present:
        yield Problem("", "", "no safetensors file")
    if not path.exists():
        if present and present != {"model.safetensors"}:
            yield Problem(INDEX, "", "missing")
        return
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        weight_map = dict(data["weight_map"])
    except (OSError, ValueError, KeyError, TypeError):
        yield Problem(INDEX, "", "is not an index: no JSON with a weight_map")
        return
    for file in sorted({str(f) for f in weight_map.values()} - present):
        lost = [name for name, where in weight_map.items() if where == file]
        yield Problem(INDEX, lost[0], f"points to {file}, which does not exist")
    for name, file in weight_map.items():
        if file in shards and name not in shards[file]:
            elsewhere = [f for f, shard in shards.items() if name in shard]
            hint = f"; it is in {elsewhere[0]}" if elsewhere else ""
            yield Problem(INDEX, name, f"points to {file}, which does not hold it{hint}")
    for file in sorted(present - set(weight_map.values())):
        yield Problem(file, "", "stray shard: not in the index")
    for file, shard in shards.items():
        for name in shard:
            if name not in weight_map and file in weight_map.values():
                yield Problem(INDEX, name, f"missing from the index; it is in {file}")
    total = sum(p.entry.nbytes for s in shards.values() for p in s.values() if _known(p.entry))
    told = data.get("metadata", {}).get("total_size", total)
    if told != total and present == set(shards):
        yield Problem(INDEX, "", f"total_size is {told}, tensors have {total} bytes")


def _known(entry: Stored) -> bool:
    from fixturegen.shards import ITEM_SIZE

    return entry.dtype in ITEM_SIZE


def _check_layout(
    config: ModelConfig, plan: Plan | None, shards: Mapping[str, Mapping[str, Located]]
) -> Iterator[Problem]:
    """Expected tensors against those present: names, shapes, dtypes."""
    try:
        layout = plan.tensors if plan else tensors(config)
    except FixturegenError as error:
        yield Problem("config.json", "", str(error))
        return
    files = {name: file for file, shard in shards.items() for name in shard}
    expected: dict[str, tuple[Tensor, Stored]] = {
        entry.name: (tensor, entry) for tensor in layout for entry in stored(tensor, config)
    }
    missing = [
        name
        for name, (tensor, _) in expected.items()
        if name not in files and not (plan is None and tensor.optional)
    ]
    extra = [name for name in files if name not in expected]
    yield from _wrong_index(config, missing, extra, files)
    for name in missing:
        if name.endswith("_scale_inv") and name.removesuffix("_scale_inv") in files:
            yield Problem("", name, "missing: its tensor is quantised and has no scale")
        else:
            yield Problem("", name, f"missing{_renamed(name, extra)}")
    for name in extra:
        yield Problem(files[name], name, "unexpected: the config has no such tensor")
    for name, (_, entry) in expected.items():
        if name not in files:
            continue
        found = shards[files[name]][name].entry
        if found.shape != entry.shape:
            yield Problem(
                files[name], name, f"shape is {list(found.shape)}, expected {list(entry.shape)}"
            )
        # without a manifest, plain weights may be kept in any float dtype
        loose = plan is None and {found.dtype, entry.dtype} <= {"BF16", "F16", "F32"}
        if found.dtype != entry.dtype and not loose:
            yield Problem(files[name], name, f"dtype is {found.dtype}, expected {entry.dtype}")


def _wrong_index(
    config: ModelConfig, missing: list[str], extra: list[str], files: Mapping[str, str]
) -> Iterator[Problem]:
    """An MTP layer that lies under another layer number than config.json says."""
    first = config.num_hidden_layers
    pattern = re.compile(r"model\.layers\.(\d+)\.(enorm|hnorm|eh_proj)\.weight")
    gone = sorted({int(m[1]) for n in missing if (m := pattern.fullmatch(n))})
    found = sorted({int(m[1]) for n in extra if (m := pattern.fullmatch(n))})
    for want, have in zip(gone, found, strict=False):
        name = f"model.layers.{have}.eh_proj.weight"
        file = files.get(name, "")
        yield Problem(
            file,
            name,
            f"MTP layer under index {have}; with num_hidden_layers {first} it belongs at {want}",
        )
        moved = f"model.layers.{have}.", f"model.layers.{want}."
        for n in [n for n in extra if n.startswith(moved[0])]:
            if n.replace(*moved) in missing:
                extra.remove(n)
                missing.remove(n.replace(*moved))


def _renamed(name: str, extra: list[str]) -> str:
    close = difflib.get_close_matches(name, extra, n=1, cutoff=0.9)
    return f"; renamed to {close[0]!r}?" if close else ""


#: mask of a dtype's exponent bits, all ones in infinities and NaNs
_EXPONENTS: dict[str, tuple[str, int]] = {
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F32": ("<u4", 0x7F800000),
    "F8_E4M3": ("u1", 0x7F),  # e4m3fn has NaN only
}


def _read_shard(
    path: Path,
    shard: Mapping[str, Located],
    digests: dict[str, str],
    file_digests: dict[str, str],
) -> Iterator[Problem]:
    """One pass over a file: its sha256, each tensor's blake3, and non-finite values."""
    whole = hashlib.sha256()
    with path.open("rb") as file:
        places = sorted(shard.values(), key=lambda p: p.start)
        whole.update(file.read(places[0].start if places else -1))
        for place in places:
            name, dtype = place.entry.name, place.entry.dtype
            digest = blake3()
            finite, zero, left = True, True, place.stop - place.start
            while left:
                data = file.read(min(left, READ_SIZE))
                if not data:
                    return  # truncated meanwhile; the header check reports that
                left -= len(data)
                whole.update(data)
                digest.update(data)
                if dtype in _EXPONENTS:
                    code, mask = _EXPONENTS[dtype]
                    values = np.frombuffer(data, code)
                    finite = finite and not bool(((values & mask) == mask).any())
                    zero = zero and not values.any()
            digests[name] = digest.hexdigest()
            if not finite:
                yield Problem(path.name, name, "holds a value that is not finite")
            if zero and name.endswith("norm.weight"):
                yield Problem(path.name, name, "is a norm weight of zeros only")
    file_digests[path.name] = whole.hexdigest()


def _check_hashes(
    folder: Path,
    manifest: Manifest,
    shards: Mapping[str, Mapping[str, Located]],
    digests: Mapping[str, str],
    file_digests: Mapping[str, str],
) -> Iterator[Problem]:
    small: dict[str, bytes] = {}
    for name, sha in manifest.files.items():
        path = folder / name
        if not path.is_file():
            yield Problem(name, "", "missing: the manifest lists it")
            continue
        if name.endswith(".safetensors"):
            changed = [
                tensor
                for tensor in shards.get(name, ())
                if tensor in manifest.tensors and digests.get(tensor) != manifest.tensors[tensor]
            ]
            for tensor in changed:
                yield Problem(name, tensor, "bytes differ from the manifest's digest")
            if not changed and name in file_digests and file_digests[name] != sha:
                yield Problem(name, "", "header differs from the manifest's sha256")
            continue
        small[name] = path.read_bytes()
        if hashlib.sha256(small[name]).hexdigest() != sha:
            yield Problem(name, "", "differs from the manifest's sha256")
    small.pop(INDEX, None)
    found = {
        name: (place.entry, digests[name])
        for shard in shards.values()
        for name, place in shard.items()
        if name in digests
    }
    if content_hash(found, small) != manifest.content_hash:
        yield Problem(MANIFEST, "", "content_hash does not match the content")


def _check_tokenizer(folder: Path, config: ModelConfig) -> Iterator[Problem]:
    name = "tokenizer.json"
    if not (folder / name).is_file():
        return
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / name))
        settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    except FileNotFoundError:
        yield Problem("tokenizer_config.json", "", "missing")
        return
    except Exception as error:  # the tokenizers library raises bare Exception
        yield Problem(name, "", f"cannot be loaded: {error}")
        return
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > config.vocab_size:
        yield Problem(name, "", f"has {size} ids, config.json has vocab_size {config.vocab_size}")
    for role in ("bos", "eos", "pad"):
        token, want = settings.get(f"{role}_token"), getattr(config, f"{role}_token_id")
        if isinstance(token, Mapping):
            token = token.get("content")
        if not isinstance(token, str) or want is None:
            continue
        have = tokenizer.token_to_id(token)
        if have != want and not (isinstance(want, tuple) and have in want):
            yield Problem(
                name, "", f"{role} token {token!r} has id {have}, config.json says {want}"
            )


def _check_values(
    manifest: Manifest | None, plan: Plan | None, digests: Mapping[str, str]
) -> Iterator[Problem]:
    if manifest is None or plan is None:
        yield Problem(MANIFEST, "", "cannot regenerate: no usable manifest")
        return
    from fixturegen.builder import tensor_digests
    from fixturegen.values import ALGORITHM_VERSION

    if manifest.algorithm != ALGORITHM_VERSION:
        yield Problem(
            MANIFEST,
            "",
            f"cannot regenerate: built with value algorithm {manifest.algorithm}, "
            f"this version has {ALGORITHM_VERSION}",
        )
        return
    for name, sha in tensor_digests(manifest.load_recipe(), plan).items():
        if name in digests and digests[name] != sha:
            yield Problem("", name, "bytes differ from those the recipe gives")

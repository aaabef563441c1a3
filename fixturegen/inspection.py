"""What a checkpoint folder holds, read from its config, headers and manifest."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from fixturegen.config import ModelConfig
from fixturegen.errors import CheckpointError, FixturegenError
from fixturegen.layouts import Tensor, tensors
from fixturegen.manifest import MANIFEST, Manifest
from fixturegen.shards import Located, read_header, stored


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that are counted together."""

    name: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """One checkpoint: its config, what its shards store, and its manifest if it has one."""

    path: Path
    config: ModelConfig
    shards: Mapping[str, Mapping[str, Located]]
    groups: tuple[Group, ...]
    manifest: Manifest | None

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data."""
        return sum(p.entry.nbytes for shard in self.shards.values() for p in shard.values())

    @property
    def dtypes(self) -> dict[str, int]:
        """Number of stored tensors by safetensors dtype."""
        counts: dict[str, int] = {}
        for shard in self.shards.values():
            for place in shard.values():
                counts[place.entry.dtype] = counts.get(place.entry.dtype, 0) + 1
        return dict(sorted(counts.items()))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        manifest = self.manifest
        return {
            "path": str(self.path),
            "architecture": self.config.architectures[0],
            "config": self.config.to_dict(),
            "bytes": self.nbytes,
            "parameters": sum(g.parameters for g in self.groups),
            "dtypes": self.dtypes,
            "shards": {
                name: {"tensors": len(shard), "bytes": sum(p.entry.nbytes for p in shard.values())}
                for name, shard in self.shards.items()
            },
            "groups": [
                {
                    "name": g.name,
                    "tensors": g.tensors,
                    "parameters": g.parameters,
                    "bytes": g.nbytes,
                }
                for g in self.groups
            ],
            "tensors": {
                name: {"dtype": p.entry.dtype, "shape": list(p.entry.shape), "file": shard_name}
                for shard_name, shard in self.shards.items()
                for name, p in shard.items()
            },
            "recipe": manifest and manifest.recipe.get("name"),
            "seed": manifest and manifest.recipe.get("seed"),
            "algorithm": manifest and manifest.algorithm,
            "content_hash": manifest and manifest.content_hash,
        }


def checkpoint_folders(path: str | PathLike[str]) -> list[Path]:
    """The checkpoints at ``path``: itself, or the target and draft of a pair.

    Raises CheckpointError when there is none.
    """
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder")
    if (path / "config.json").is_file() or (path / MANIFEST).is_file():
        return [path]
    pair = [path / part for part in ("target", "draft") if (path / part / "config.json").is_file()]
    if not pair:
        raise CheckpointError(f"{path}: no config.json here, nor in target/ or draft/ below it")
    return pair


def read_config(folder: Path) -> ModelConfig:
    """A folder's config.json; raises CheckpointError or ConfigError."""
    path = folder / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    return ModelConfig.from_dict(data, str(path))


def _layout(config: ModelConfig, manifest: Manifest | None) -> Iterable[Tensor]:
    """The tensors of the recipe that was built, else of the architecture."""
    if manifest is not None:
        with contextlib.suppress(FixturegenError, StopIteration):
            plans = manifest.load_recipe().checkpoints
            return next(p.tensors for p in plans if p.role == manifest.role)
    return tensors(config)


def groups(layout: Iterable[Tensor], config: ModelConfig) -> tuple[Group, ...]:
    """Count tensors by group, in the layout's order."""
    found: dict[str, list[int]] = {}
    for tensor in layout:
        entries = stored(tensor, config)
        count = found.setdefault(tensor.group, [0, 0, 0])
        count[0] += len(entries)
        count[1] += tensor.numel
        count[2] += sum(e.nbytes for e in entries)
    return tuple(Group(name, *count) for name, count in found.items())


def inspect(path: str | PathLike[str]) -> list[Inspection]:
    """Read each checkpoint at ``path`` (a pair has two): config, headers and manifest only.

    Raises CheckpointError or ConfigError for a folder that cannot be read.
    """
    result = []
    for folder in checkpoint_folders(path):
        config = read_config(folder)
        shards = {p.name: read_header(p) for p in sorted(folder.glob("*.safetensors"))}
        names = {name for shard in shards.values() for name in shard}
        try:
            manifest = Manifest.load(folder)
        except FixturegenError:
            manifest = None
        present = [t for t in _layout(config, manifest) if t.name in names]
        result.append(
            Inspection(
                path=folder,
                config=config,
                shards=shards,
                groups=groups(present, config),
                manifest=manifest,
            )
        )
    return result

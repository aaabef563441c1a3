"""``fixturegen.json``: what a checkpoint is and how to make it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fixturegen import __version__
from fixturegen.errors import CheckpointError
from fixturegen.recipe import Recipe
from fixturegen.shards import Stored
from fixturegen.values import ALGORITHM_VERSION

MANIFEST = "fixturegen.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of one checkpoint folder.

    ``files`` maps file names to sha256 hex digests, ``tensors`` maps tensor names to blake3 hex
    digests of their bytes (as strong, and four times as fast). ``content_hash`` is a digest of all
    tensors, the config and the tokenizer that does not depend on shard size or order.
    """

    recipe: Mapping[str, Any]
    role: str
    content_hash: str
    files: Mapping[str, str]
    tensors: Mapping[str, str]
    format: int = FORMAT
    algorithm: int = ALGORITHM_VERSION
    fixturegen: str = __version__

    def to_bytes(self) -> bytes:
        """The file's content."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    def load_recipe(self, where: str = MANIFEST) -> Recipe:
        """The recipe as resolved when the checkpoint was built."""
        return Recipe.from_dict(self.recipe, f"{where}: recipe")

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read a folder's manifest; raises CheckpointError when it is absent or malformed."""
        path = folder / MANIFEST
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            keys = {f.name for f in fields(cls) if f.default is MISSING}
            if not isinstance(data, dict) or not keys <= data.keys():
                missing = ", ".join(sorted(keys - set(data)))
                raise ValueError(f"{missing} missing; build it anew")
            manifest = cls(**data)
            if manifest.format != FORMAT:
                raise CheckpointError(
                    f"{path}: format {manifest.format} is not supported; allowed: {FORMAT}"
                )
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no manifest: not built by fixturegen") from None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{path}: not a manifest: {error}") from None
        return manifest


def content_hash(tensors: Mapping[str, tuple[Stored, str]], files: Mapping[str, bytes]) -> str:
    """Digest of a checkpoint's content.

    sha256 over one line for each tensor, sorted by name (``name dtype shape blake3``), then one for
    each file of ``files`` (config, tokenizer, ...), sorted by name (``name sha256``).
    """
    digest = hashlib.sha256()
    for name, (entry, tensor_digest) in sorted(tensors.items()):
        shape = "x".join(map(str, entry.shape))
        digest.update(f"{name} {entry.dtype} {shape} {tensor_digest}\n".encode())
    for name, data in sorted(files.items()):
        digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
    return digest.hexdigest()

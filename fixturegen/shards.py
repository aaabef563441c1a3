"""Safetensors files: what is stored, in which shard, and the header and index that say so.

The format (https://github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON
header padded with spaces, then the tensors' bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixturegen.config import ModelConfig
from fixturegen.errors import CheckpointError
from fixturegen.layouts import Tensor

INDEX = "model.safetensors.index.json"

#: safetensors dtype code -> bytes per element
ITEM_SIZE = {"F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4}
CODES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}

#: The longest header that the safetensors library accepts.
MAX_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class Stored:
    """One entry of a safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the data."""
        return math.prod(self.shape) * ITEM_SIZE[self.dtype]


def stored(tensor: Tensor, config: ModelConfig) -> tuple[Stored, ...]:
    """How ``tensor`` is stored: itself, or FP8 codes and their ``_scale_inv``."""
    quantization = config.quantization
    if not (tensor.quantized and quantization and quantization.weight_block_size):
        return (Stored(tensor.name, CODES[tensor.dtype or config.dtype], tensor.shape),)
    blocks = tuple(
        -(-size // block)
        for size, block in zip(tensor.shape, quantization.weight_block_size, strict=True)
    )
    return (
        Stored(tensor.name, "F8_E4M3", tensor.shape),
        Stored(tensor.name + "_scale_inv", "F32", blocks),
    )


def split(
    tensors: Iterable[Tensor], config: ModelConfig, max_shard_size: int
) -> list[list[Tensor]]:
    """Distribute tensors over shards of at most ``max_shard_size`` bytes, in order.

    A tensor larger than that gets a shard of its own.
    """
    shards: list[list[Tensor]] = []
    room = -1
    for tensor in tensors:
        size = sum(s.nbytes for s in stored(tensor, config))
        if size > room:
            shards.append([])
            room = max_shard_size
        shards[-1].append(tensor)
        room -= size
    return shards


def shard_name(number: int, count: int) -> str:
    """File name of shard ``number`` (from 0) of ``count``."""
    return f"model-{number + 1:05}-of-{count:05}.safetensors"


def header(entries: Iterable[Stored]) -> bytes:
    """Length and JSON header of a file that holds ``entries`` one after another."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in entries:
        end = offset + entry.nbytes
        table[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def index(shards: Sequence[Sequence[Stored]]) -> bytes:
    """Content of ``model.safetensors.index.json``."""
    weight_map = {
        entry.name: shard_name(i, len(shards)) for i, part in enumerate(shards) for entry in part
    }
    total = sum(entry.nbytes for part in shards for entry in part)
    data = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(data, indent=2).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Located:
    """A stored tensor and where its bytes lie in its file."""

    entry: Stored
    start: int
    stop: int


def read_header(path: Path) -> dict[str, Located]:
    """The tensors of one safetensors file by name, offsets counted from the file's start.

    Raises CheckpointError for a file that is truncated, whose header is too long or not JSON, or
    whose offsets do not cover the file exactly.
    """
    try:
        size = os.path.getsize(path)
        file = path.open("rb")
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read: {error.strerror}") from None
    with file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise CheckpointError(f"{path.name}: truncated: {size} bytes, no header")
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER:
            raise CheckpointError(
                f"{path.name}: header too long: {length} bytes, allowed: {MAX_HEADER}"
            )
        if 8 + length > size:
            raise CheckpointError(
                f"{path.name}: truncated: header says {length} bytes, file has {size - 8} after it"
            )
        text = file.read(length)
    try:
        table = json.loads(text)
        table.pop("__metadata__", None)
        located = {}
        for name, value in table.items():
            start, stop = value["data_offsets"]
            if not isinstance(value["dtype"], str):
                raise TypeError
            entry = Stored(name, value["dtype"], tuple(value["shape"]))
            located[name] = Located(entry, 8 + length + start, 8 + length + stop)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{path.name}: header is not a safetensors header") from None
    end = 8 + length
    for place in sorted(located.values(), key=lambda p: p.start):
        known = place.entry.dtype in ITEM_SIZE
        if place.start != end or (known and place.stop - place.start != place.entry.nbytes):
            raise CheckpointError(
                f"{path.name}: {place.entry.name}: offsets {place.start}..{place.stop} do not fit "
                f"{place.entry.dtype} {list(place.entry.shape)}"
            )
        end = place.stop
    if end != size:
        raise CheckpointError(
            f"{path.name}: {'truncated' if size < end else 'too long'}: "
            f"tensors end at {end}, file has {size} bytes"
        )
    return located

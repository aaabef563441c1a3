"""Random bits with random access: one PCG64 stream for each (seed, tensor name).

The raw output of PCG64 (PCG XSL RR 128/64) is fixed by its definition; NumPy keeps it stable, and
``advance`` jumps to any word, so a value depends on its index alone.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def bits16(seed: int, name: str, start: int, count: int) -> npt.NDArray[np.uint16]:
    """``count`` numbers of 16 bits from index ``start`` of the stream of ``(seed, name)``.

    Index ``i`` is bits ``16 * (i % 4)`` and up of 64-bit word ``i // 4``.
    """
    generator = np.random.PCG64(0)
    digest = hashlib.sha256(f"fixturegen:{seed}:{name}".encode()).digest()
    generator.state = {
        "bit_generator": "PCG64",
        "state": {
            "state": int.from_bytes(digest[:16], "little"),
            "inc": int.from_bytes(digest[16:], "little") | 1,
        },
        "has_uint32": 0,
        "uinteger": 0,
    }
    word, skip = divmod(start, 4)
    generator.advance(word)
    words = generator.random_raw(-(-(skip + count) // 4))
    return words.astype("<u8", copy=False).view("<u2")[skip : skip + count]

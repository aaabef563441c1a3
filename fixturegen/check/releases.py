"""The releases the catalogue was read from, as data.

A fact is known at the releases listed here and nowhere else. A version between two of them is
answered only where both neighbours give the same answer; outside them nothing is known.
"""

from __future__ import annotations

import functools
import re

#: vLLM releases read, oldest first, with the FlashInfer each pins (requirements/cuda.txt).
VLLM: dict[str, str] = {
    "0.19.1": "0.6.6",
    "0.20.2": "0.6.8.post1",
    "0.22.1": "0.6.11.post2",
    "0.24.0": "0.6.12",
    "0.26.0": "0.6.14",
    "0.28.0": "0.6.16.post3",
    "0.30.0": "0.6.18.post1",
    "0.32.0": "0.7.0.post1",
    "0.33.0": "0.7.2.post1",
}

#: FlashInfer releases read, oldest first.
FLASHINFER: tuple[str, ...] = ("0.6.6", "0.6.7", *list(VLLM.values())[1:], "0.7.4")

#: The releases of each engine whose versions rules may name.
RELEASES: dict[str, tuple[str, ...]] = {"vllm": tuple(VLLM), "flashinfer": FLASHINFER}

VERSION = re.compile(r"[0-9]+(\.[0-9]+)*(\.post[0-9]+)?")


@functools.lru_cache(maxsize=1024)
def key(version: str) -> tuple[int, ...]:
    """Sort key of a release such as ``0.6.8.post1``; trailing zeros do not count."""
    numbers, _, post = version.partition(".post")
    parts = [int(n) for n in numbers.split(".")]
    parts += [0] * (4 - len(parts))
    return (*parts, int(post or 0))


def within(version: str, since: str | None, until: str | None) -> bool:
    """Whether ``since <= version <= until``; None leaves that end open."""
    at = key(version)
    return (since is None or key(since) <= at) and (until is None or at <= key(until))


def neighbours(engine: str, version: str) -> tuple[str, ...]:
    """The releases read that answer for ``version``.

    One when the version itself was read, the two around it when it lies between, none when it
    lies outside.
    """
    releases = RELEASES[engine]
    same = [r for r in releases if key(r) == key(version)]  # 0.33 is 0.33.0
    if same:
        return (same[0],)
    older = [r for r in releases if key(r) < key(version)]
    newer = [r for r in releases if key(r) > key(version)]
    return (older[-1], newer[0]) if older and newer else ()

"""The smallest change of a config or target that clears a rejection, by search over the rules.

Every candidate is a whole check: a change counts only when it clears at least one rejection and
brings no new one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fixturegen.check import releases
from fixturegen.check.report import rejected
from fixturegen.check.target import Target
from fixturegen.config import ModelConfig
from fixturegen.errors import ConfigError

#: Config keys that may change, in the order in which repairs are listed.
KNOBS = (
    "n_routed_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "q_lora_rank",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_nextn_predict_layers",
)

#: Sizes worth trying: every small number, then ever coarser multiples.
SIZES = sorted(
    {*range(1, 33), *range(32, 257, 8), *range(256, 1025, 64), *range(1024, 8193, 512)}
    | {2**n for n in range(13, 17)}
)


@dataclass(frozen=True, slots=True)
class Repair:
    """A change, and what it does."""

    #: One or more ``key old -> new``.
    changes: tuple[str, ...]
    clears: tuple[str, ...]
    #: Rejections that stay.
    leaves: tuple[str, ...]

    def __str__(self) -> str:
        rest = "" if not self.leaves else " only"
        return f"{' and '.join(self.changes)} clears {', '.join(self.clears)}{rest}"


def repairs(
    config: ModelConfig, target: Target, draft: ModelConfig | None = None
) -> tuple[Repair, ...]:
    """The smallest changes of each key, down and up, that clear something, then of the target.

    When no single key clears everything, pairs of keys that together do are added.
    """
    seen = rejected(config, target, draft)
    before = frozenset(seen)
    if not before:
        return ()
    found: list[Repair] = []
    useful: list[tuple[str, int]] = []
    for knob in KNOBS:
        for values in directions(knob, getattr(config, knob)):
            if not _matters(knob, values, config, target, draft, seen):
                continue
            reached: frozenset[str] = frozenset()
            for value in values:
                cleared = before - _after({knob: value}, config, target, draft, before)
                if cleared > reached:
                    reached = cleared
                    useful.append((knob, value))
                    found.append(_repair({knob: value}, config, before, cleared))
                if reached == before:
                    break
    if not any(not repair.leaves for repair in found):
        found += _pairs(useful, config, target, draft, before)
    return (*found, *_targets(config, target, draft, before))


def _matters(
    knob: str,
    values: Sequence[int],
    config: ModelConfig,
    target: Target,
    draft: ModelConfig | None,
    seen: dict[str, str],
) -> bool:
    """Whether a key changes anything that the rejecting rules look at."""
    for order in (values, values[::-1]):  # a small step may vanish in a rounding, a large one not
        for value in order:
            try:
                changed = apply({knob: value}, config, draft)
            except ConfigError:
                continue
            if rejected(changed[0], target, changed[1]) != seen:
                return True
            break
    return False


def apply(
    changes: Mapping[str, int], config: ModelConfig, draft: ModelConfig | None
) -> tuple[ModelConfig, ModelConfig | None]:
    """The config with other values, and the draft too where it had the same ones.

    Raises ConfigError when the values contradict each other.
    """
    if "num_attention_heads" in changes:
        changes = {**changes, "num_key_value_heads": changes["num_attention_heads"]}
    shared = {k: v for k, v in changes.items() if getattr(draft, k, None) == getattr(config, k)}
    config = dataclasses.replace(config, **changes)  # type: ignore[arg-type]
    config.validate()
    if draft is not None and shared:
        draft = dataclasses.replace(draft, **shared)  # type: ignore[arg-type]
        draft.validate()
    return config, draft


def _after(
    changes: dict[str, int],
    config: ModelConfig,
    target: Target,
    draft: ModelConfig | None,
    before: frozenset[str],
) -> frozenset[str]:
    """The rejections that remain; all of ``before`` when the change is no improvement."""
    try:
        config, draft = apply(changes, config, draft)
    except ConfigError:
        return before
    after = frozenset(rejected(config, target, draft))
    return after if after < before else before


def directions(knob: str, now: int | None) -> tuple[list[int], list[int]]:
    """Values to try instead of ``now``, nearest first: smaller and larger ones, within 16 times."""
    if now is None:
        return [], []
    smaller = [v for v in reversed(SIZES) if now // 16 <= v < now]
    if knob == "num_nextn_predict_layers" and now:
        smaller.append(0)
    return smaller, [v for v in SIZES if now < v <= max(now, 1) * 16]


def _repair(
    changes: dict[str, int], config: ModelConfig, before: frozenset[str], cleared: frozenset[str]
) -> Repair:
    return Repair(
        tuple(f"{knob} {getattr(config, knob)} -> {value}" for knob, value in changes.items()),
        tuple(sorted(cleared)),
        tuple(sorted(before - cleared)),
    )


def _pairs(
    useful: list[tuple[str, int]],
    config: ModelConfig,
    target: Target,
    draft: ModelConfig | None,
    before: frozenset[str],
) -> list[Repair]:
    pairs = []
    for (one, first), (other, second) in itertools.combinations(useful, 2):
        changes = {one: first, other: second}
        if one != other and not _after(changes, config, target, draft, before):
            pairs.append(_repair(changes, config, before, before))
    return pairs


def _targets(
    config: ModelConfig, target: Target, draft: ModelConfig | None, before: frozenset[str]
) -> Iterator[Repair]:
    """Changes of how the engine is run that clear something."""
    options: list[tuple[str, Target]] = []
    for variable, value in target.env:
        rest = tuple(e for e in target.env if e[0] != variable)
        options.append((f"{variable}={value} unset", dataclasses.replace(target, env=rest)))
    defaults = Target()
    for name in ("attention", "prefill", "moe", "kv_cache_dtype", "block_size", "tp", "ep"):
        old, new = getattr(target, name), getattr(defaults, name)
        if old != new:
            changed = dataclasses.replace(target, **{name: new})
            options.append((f"{name}={old} -> {name}={new}", changed))
    for text, changed in options:
        after = frozenset(rejected(config, changed, draft))
        if after < before:
            yield Repair((text,), tuple(sorted(before - after)), tuple(sorted(after)))
    for version in releases.VLLM:
        newer = dataclasses.replace(target, vllm=version, flashinfer="")
        if releases.key(version) > releases.key(target.vllm) and not rejected(config, newer, draft):
            yield Repair((f"vllm {target.vllm} -> {version}",), tuple(sorted(before)), ())
            return

"""What one engine is asked: prompts of many lengths, batch sizes, repeats and temperatures.

All scenarios of a case run in one engine, one after another, so that a later one also meets what
the earlier ones left behind (KV blocks, prefix cache).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Engine limits of every case. The token budget is below the longest prompt: prefill is chunked.
MAX_MODEL_LEN = 2048
MAX_NUM_BATCHED_TOKENS = 1024
MAX_NUM_SEQS = 128

#: Tokens generated per prompt: vLLM's tests compare texts of 10 tokens.
PLANTED_TOKENS = 32
RANDOM_TOKENS = 10

#: At this temperature a margin of 4 logits leaves another token a chance below 1e-13 x vocabulary,
#: so that the random rejection sampler has one right answer.
TEMPERATURE = 0.12


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One call, or one call per batch, of ``LLM.generate``."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    #: Prompts per call; 0 for all at once.
    batch: int = 0
    temperature: float = 0.0
    #: Whether the engine must take part of the prompts from its prefix cache.
    cached: bool = False
    #: Whether the drafts are cut by max_model_len, so that counters have no prediction.
    clipped: bool = False


def scenarios(
    *, bos: int, tokens: int, planted: bool, k: int, quick: bool = False
) -> list[Scenario]:
    """The scenarios of one case.

    ``tokens``: ids 3 up to this one may stand in a prompt (0, 1 and 2 are bos, eos and pad).
    ``k``: draft tokens per step. ``quick`` takes a quarter of the prompts and leaves out those
    near max_model_len.
    """
    draw = random.Random(0)

    def prompt(length: int) -> tuple[int, ...]:
        return (bos, *(3 + int(draw.random() * (tokens - 3)) for _ in range(length - 1)))

    def prompts(count: int, shortest: int, longest: int) -> tuple[tuple[int, ...], ...]:
        spread = longest - shortest + 1
        return tuple(prompt(shortest + int(draw.random() * spread)) for _ in range(count))

    new = PLANTED_TOKENS if planted else RANDOM_TOKENS
    # The last step may overshoot by k accepted tokens, and k more are drafted behind them.
    room = MAX_MODEL_LEN - new - 2 * k - 1
    short = prompts(25 if quick else 100, 2, 60)
    long = prompts(4, 300, 900)
    if not quick:
        long += (*prompts(3, 900, 1900), prompt(room))
    heads = tuple(p[: 256 + 16 * i] for i, p in enumerate(long[:4]))
    tails = tuple((*head, *prompt(24)[1:]) for head in heads)
    found = [
        Scenario(
            name="batch of 100" if not quick else "batch of 25", prompts=short, max_tokens=new
        ),
        Scenario(
            name="batches of 7", prompts=short[: 14 if quick else 28], max_tokens=new, batch=7
        ),
        Scenario(name="one by one", prompts=short[: 3 if quick else 8], max_tokens=new, batch=1),
        Scenario(name="long, chunked prefill", prompts=(*long, *short[:8]), max_tokens=new),
        Scenario(name="prefix cache", prompts=(*long, *tails), max_tokens=new, cached=True),
    ]
    if not quick:
        full = (prompt(MAX_MODEL_LEN - 8), prompt(MAX_MODEL_LEN - 5))
        found.append(
            Scenario(name="up to max_model_len", prompts=full, max_tokens=new, clipped=True)
        )
    if planted:
        found.append(
            Scenario(
                name=f"temperature {TEMPERATURE}",
                prompts=short[: 10 if quick else 30],
                max_tokens=new,
                batch=10,  # no chunked prefill: vLLM's CPU build cannot rewind a seeded generator
                temperature=TEMPERATURE,
            )
        )
    return found

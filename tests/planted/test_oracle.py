"""The oracle against the definition of the planted function, written out plainly."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fixturegen import load_recipe
from fixturegen.planted import Oracle, Speculation
from fixturegen.planted.function import Function
from fixturegen.planted.knobs import PlantedKnobs
from fixturegen.planted.oracle import total
from tests.planted.conftest import random_prompts

K = 16
NULL = 16


def oracle(**knobs) -> Oracle:
    return Oracle(Function(PlantedKnobs(**knobs), 0, 4096, 4096), 1.0)


def next_token(f: Function, history: list[int], bad=None) -> int:
    """docs/planted.md, line by line; ``bad`` makes it a draft."""
    t, knobs, p = f.tables, f.knobs, len(history) - 1

    def c(j):
        return NULL if j < 1 else int(f.classes[history[j]])

    def pair(j):
        return NULL if j < 1 else int(t.pair[c(j)][c(j - 1)])

    if p == 0 and bad is None:
        return int(f.id_of_digits[tuple(f.first)])
    c0, y = c(p), c(p - knobs.offset_y)
    far = c(p - knobs.offset_y_far)
    if far != NULL and t.match[c0][far] == 1 and t.match[c0][y] == -1:
        y = far
    arguments = [c(p - 1), pair(p - knobs.offset_q), y, c(p - 2)]
    digits = [int(t.digit[s][c0][t.middle[s][c0][x]]) for s, x in enumerate(arguments)]
    z = p - knobs.offset_z
    digits.append(int(t.digit5[8 if z < 1 else t.middle5[c(z)]][c(p - knobs.offset_w)]))
    if bad is not None and bad[c0][c(p - 1)]:
        digits[0] = (digits[0] + 1) % 4
    return int(f.id_of_digits[tuple(digits)])


def test_continuation_is_the_function_applied_again_and_again():
    o = oracle()
    prompts = random_prompts([1, 2, 3, 6, 7, 8, 18, 34, 35, 69, 70, 300])
    for prompt, output in zip(prompts, o.continuation(prompts, 20), strict=True):
        history = list(prompt)
        for _ in range(20):
            history.append(next_token(o.function, history))
        assert output == history[len(prompt) :]


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, (0.9, 0.5, 0.2), 1.0])
def test_counters_are_those_of_a_draft_and_verify_loop(k, acceptance):
    o = oracle(acceptance=acceptance)
    f = o.function
    prompts = random_prompts([1, 2, 5, 40, 100])
    for prompt, counted in zip(prompts, o.speculate(prompts, 30, k), strict=True):
        (truth,) = o.continuation([prompt], 30 + k + 1)
        out, drafts, per_position = 1, 0, [0] * k
        while out < 30:
            chain = prompt + truth[:out]
            for step in range(k):
                wrong = step == 0 and len(chain) == 2  # nothing to go by after a lone bos
                chain.append(3 if wrong else next_token(f, chain, f.bad(step)))
            assert len(prompt) > 1 or truth[1] != 3
            drafted = chain[len(prompt) + out :]
            right = 0
            while right < k and drafted[right] == truth[out + right]:
                per_position[right] += 1
                right += 1
            drafts, out = drafts + 1, out + right + 1
        accepted = sum(per_position)
        assert counted == Speculation(drafts, drafts * k, accepted, tuple(per_position))


def test_acceptance_follows_the_knob():
    prompts = random_prompts([30] * 50)

    def rates(acceptance, k=3):
        c = total(oracle(acceptance=acceptance).speculate(prompts, 64, k), k)
        return [n / c.drafts for n in c.accepted_per_position]

    assert rates(0.0) == [0, 0, 0]
    assert rates(1.0) == [1, 1, 1]
    for rate in (0.3, 0.7):
        assert np.allclose(rates(rate), [rate, rate**2, rate**3], atol=0.08)
    first, second, _ = rates((0.9, 0.5))
    assert abs(first - 0.9) < 0.08 and abs(second / first - 0.5) < 0.12


def test_output_depends_on_exactly_the_offsets():
    o = oracle()
    knobs = o.function.knobs
    rng = np.random.default_rng(1)
    history = np.array(random_prompts([200] * 300))
    p = np.full(len(history), history.shape[1] - 1)
    before = o.function.target_digits(history, p)
    changed = {}
    for offset in range(130):
        other = history.copy()
        other[:, -1 - offset] = rng.integers(3, 4096, len(history))
        changed[offset] = float((o.function.target_digits(other, p) != before).any(1).mean())
    q = knobs.offset_q
    read = {0, 1, 2, q, q + 1, knobs.offset_y, knobs.offset_y_far, knobs.offset_z, knobs.offset_w}
    assert {offset for offset, rate in changed.items() if rate > 0} == read
    assert min(changed[offset] for offset in read) > 0.2


@pytest.mark.parametrize("block", [16, 32, 64])
def test_a_default_offset_reaches_into_another_kv_block_from_every_position(block):
    knobs = PlantedKnobs()
    assert max(knobs.offset_y_far, knobs.offset_w, knobs.offset_q) > block


def test_outputs_are_long_walks_not_cycles():
    outputs = oracle().continuation(random_prompts([20] * 100), 64)
    assert len({t for output in outputs for t in output}) > 1000
    assert all(len({*output}) > 50 for output in outputs)


def test_guarantee_says_where_it_ends():
    o = oracle(context=256)
    assert o.guaranteed([0, 5, 6], 32, 6) == ""
    assert o.guaranteed([0], 32, 3) == ""
    assert "must start with bos" in o.guaranteed([5, 6])
    assert "must start with bos" in o.guaranteed([])
    assert "at the start only" in o.guaranteed([0, 0, 5])
    assert "ids must be 0 to 4095" in o.guaranteed([0, 4096])
    assert "first 256 tokens" in o.guaranteed([0, *[5] * 250], 10)
    assert "6 speculative tokens" in o.guaranteed([0, 5], 10, 7)
    assert "FP8 activations" in o.guaranteed([0, 5], 10, fp8_activations=True)
    assert "3 speculative tokens" in oracle(offset_z=3).guaranteed([0, 5], 10, 4)


def test_a_hundred_prompts_of_64_tokens_take_well_under_a_second():
    o, prompts = oracle(), random_prompts([50] * 100)
    o.continuation(prompts[:1], 1)  # draws the tables
    start = time.process_time()
    o.continuation(prompts, 64)
    o.speculate(prompts, 64, 3)
    assert time.process_time() - start < 0.5


def test_answers_do_not_depend_on_the_rest_of_the_batch():
    o, prompts = oracle(), random_prompts([1, 2, 9, 60, 2])
    assert o.continuation(prompts, 12) == [o.continuation([p], 12)[0] for p in prompts]
    assert o.speculate(prompts, 12, 3) == [o.speculate([p], 12, 3)[0] for p in prompts]


def test_seeds_give_different_functions():
    recipe = load_recipe("deepseek-v3-mtp")
    one = Function(recipe.planted, 0, 4096, 4096)
    two = Function(recipe.planted, 1, 4096, 4096)
    prompts = random_prompts([30])
    assert Oracle(one, 1.0).continuation(prompts, 8) != Oracle(two, 1.0).continuation(prompts, 8)

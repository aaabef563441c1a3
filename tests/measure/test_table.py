"""The fault table of the default recipe: a sample of it, and every fault that it is known to miss.

The whole table takes minutes and is a command: ``fixturegen measure fixtures/deepseek-v3-mtp``
exits with 1 when a fault is missed that should not be.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict

import pytest

from fixturegen import load_recipe
from fixturegen.measure.faults import Fault
from fixturegen.measure.report import REQUIRED
from fixturegen.measure.subject import Subject, random_prompts
from fixturegen.measure.table import faults, measure_false_alarms, measure_faults

pytestmark = pytest.mark.slow

#: What the planted checkpoint does not show; docs/measure.md says why.
MISSED = {
    "softmax scale x1.22",
    "rope: theta x1.1",
    "rope: YaRN left out",
    "KV 32 back of another request, while there",
    "layer 2: input_layernorm without its division",
    "one expert too many",
    "lm_head: one column lost",
    "silu: gelu",
    "draft: mask excludes the token itself",
    "draft: one expert too many",
    "draft: weights from biased scores",
    "draft: equal weights",
}


@pytest.fixture(scope="module")
def whole(checkpoints) -> Subject:
    """The checkpoint with the prompts of the command's defaults."""
    prompts = random_prompts(load_recipe("deepseek-v3-mtp"), 24, seed=0)
    return Subject.load(checkpoints("deepseek-v3-mtp"), prompts, 16, 3)


def sample(table: list[Fault]) -> list[Fault]:
    """Two faults of each class, more of large ones, in an order that no one chose."""
    classes = defaultdict(list)
    for fault in sorted(table, key=lambda f: hashlib.sha256(f.name.encode()).digest()):
        classes[fault.name.startswith("draft: "), fault.kind].append(fault)
    return [f for members in classes.values() for f in members[: max(2, len(members) // 16)]]


def test_a_sample_of_every_class_is_found(whole):
    table = faults(whole)
    chosen = [fault for fault in sample(table) if fault.name not in MISSED]
    assert len(chosen) >= 60
    assert {f.kind for f in chosen} == {f.kind for f in table}
    assert [row.name for row in measure_faults(whole, chosen) if not row.found] == []


def test_what_is_missed_is_known_and_little(whole):
    table = faults(whole)
    missed = [fault for fault in table if fault.name in MISSED]
    assert len(missed) == len(MISSED) <= (1 - REQUIRED) * len(table)
    assert all(fault.limit for fault in missed)
    rows = list(measure_faults(whole, missed))
    assert {row.name for row in rows if not row.found} == MISSED


def test_harmless_changes_raise_no_alarm(checkpoints, subject):
    rows = measure_false_alarms(checkpoints("deepseek-v3-mtp"), subject, lambda name: None)
    assert len(rows) == 10
    assert [row.name for row in rows if row.found or row.equal < row.of] == []

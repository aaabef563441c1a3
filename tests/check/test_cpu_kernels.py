"""CPU rules against vLLM's CPU build itself: both sides of each bound, really called."""

from __future__ import annotations

import re

import pytest

from fixturegen.check.catalogue import catalogue
from fixturegen.check.rule import Rejected

RULE = catalogue()["cpu-mla-head-size"]
CASES = [c for c in RULE.cases if c.x.block_size % 8 == 0]  # type: ignore[attr-defined]


@pytest.mark.vllm
@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c.changes))
def test_mla_decode_kernel(case) -> None:  # type: ignore[no-untyped-def]
    """mla_decode_kvcache_cpu of the installed build, one request with three cached tokens."""
    torch = pytest.importorskip("torch")
    ops = pytest.importorskip("vllm._custom_ops")
    if not hasattr(torch.ops._C, "mla_decode_kvcache"):
        pytest.skip("this vLLM is no CPU build")
    x = case.x
    width, block = x.head_size, x.block_size or 16
    out = torch.empty(1, 2, x.kv_lora_rank, dtype=torch.bfloat16)
    query = torch.zeros(1, 2, width, dtype=torch.bfloat16)
    cache = torch.zeros(4, block, width, dtype=torch.bfloat16)
    tables = torch.zeros(1, 4, dtype=torch.int32)
    lengths = torch.tensor([3], dtype=torch.int32)
    message = ""
    try:
        ops.mla_decode_kvcache_cpu(out, query, cache, 0.1, tables, lengths)
    except RuntimeError as error:
        message = str(error)
    assert (message == "") is case.holds, message
    if message:
        assert isinstance(RULE.otherwise, Rejected) and re.search(RULE.otherwise.error, message)

"""What attention with MLA off asks of the checkpoint, whichever backend runs it."""

from fixturegen.check.inputs import Attention
from fixturegen.check.rule import Rejected, Source, Where, cases, rule


@rule(
    id="mla-off-pads-v",
    title="With MLA off, V is padded to the query's head dim and must not be wider",
    where=Where(),
    otherwise=Rejected(r"shape '\[.*\]' is invalid for input of size|mat1 and mat2 shapes"),
    source=Source(
        "vllm", "vllm/model_executor/models/deepseek_v2.py", "DeepseekV2Attention.forward"
    ),
    cases=cases(
        Attention(),
        holds=[{"v_head_dim": 64}],
        breaks=[{"v_head_dim": 256}],
        at_limit=[{"v_head_dim": 192}],
        past_limit=[{"v_head_dim": 193}],
    ),
)
def mla_off_pads_v(x: Attention) -> bool:
    """`VLLM_MLA_DISABLE=1` runs DeepSeek models through plain multi-head attention.

    The layer zero-pads V from `v_head_dim` to `qk_nope_head_dim + qk_rope_head_dim`, so with
    128 + 64 the kernel receives (192, 192) whatever `v_head_dim` says: production-accurate
    (192, 128) checkpoints are hit as much as test fixtures. On SM10x that pair kills FA4 in vLLM
    up to 0.26.0; from 0.28.0 the engine falls back to FA2. Dims that stay legal everywhere with
    MLA off are those with `qk_nope_head_dim + qk_rope_head_dim <= 128`.
    """
    return x.v_head_dim <= x.head_size

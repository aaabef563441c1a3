"""The suite's worker with a fault put into vLLM first.

Each fault is one plausible slip in vLLM's own code, made by wrapping the function it would be in.
The engine runs in this process.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from fixturegen.suite import worker


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by a function that gets the original as its first argument."""
    original = getattr(owner, name)
    static = isinstance(vars(owner).get(name) if isinstance(owner, type) else None, staticmethod)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, staticmethod(wrapped) if static else wrapped)


def softmax_scale() -> None:
    """Attention logits 0.7 times what they should be."""
    from vllm.model_executor.layers.attention import Attention, MLAAttention

    def around(original: Any, self: Any, num_heads: int, *args: Any, **kwargs: Any) -> None:
        if "scale" in kwargs:
            kwargs["scale"] *= 0.7
        else:
            head_size, scale, *rest = args
            args = (head_size, scale * 0.7, *rest)
        original(self, num_heads, *args, **kwargs)

    wrap(MLAAttention, "__init__", around)
    wrap(Attention, "__init__", around)


def routed_scale() -> None:
    """routed_scaling_factor is not applied."""
    from vllm.model_executor.models.deepseek_v2 import DeepseekV2MoE

    def around(original: Any, self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        config.routed_scaling_factor = 1.0
        original(self, config, *args, **kwargs)

    wrap(DeepseekV2MoE, "__init__", around)


def kv_slot() -> None:
    """Keys and values are written one slot too far."""
    from vllm.v1.worker.block_table import BlockTable

    def around(original: Any, self: Any, num_reqs: int, starts: Any, positions: Any) -> None:
        original(self, num_reqs, starts, positions)
        self.slot_mapping.gpu[: positions.shape[0]] += 1

    wrap(BlockTable, "compute_slot_mapping", around)


def stale_kv() -> None:
    """A slot that a rejected draft wrote in the step before keeps what it holds."""
    from vllm.v1.worker.block_table import BlockTable

    written: dict[int, set[int]] = {}

    def around(original: Any, self: Any, num_reqs: int, starts: Any, positions: Any) -> None:
        original(self, num_reqs, starts, positions)
        slots = self.slot_mapping.gpu[: positions.shape[0]]
        now = slots.tolist()
        before = written.get(id(self), set())
        for i, slot in enumerate(now):
            if slot in before:
                slots[i] = -1  # vLLM's padding: nothing is written
        written[id(self)] = set(now)

    wrap(BlockTable, "compute_slot_mapping", around)


def position() -> None:
    """Tokens that follow the prompt get a rotary position one too high."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def around(original: Any, self: Any, scheduler_output: Any, counts: Any) -> Any:
        prepared = original(self, scheduler_output, counts)
        start = 0
        for i, count in enumerate(counts):
            if self.input_batch.num_computed_tokens_cpu[i] > 0:
                self.positions[start : start + count] += 1
            start += count
        return prepared

    wrap(GPUModelRunner, "_prepare_inputs", around)


def accepted_count() -> None:
    """The last accepted draft token is not counted: it is lost, the token after it is kept."""
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        outputs, logprobs = original(*args, **kwargs)
        return [o if len(o) < 2 else [*o[:-2], o[-1]] for o in outputs], logprobs

    wrap(RejectionSampler, "parse_output", around)


def bonus_token() -> None:
    """The token after a fully accepted draft is another one."""
    import torch
    from vllm.v1.sample import rejection_sampler

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        values = list(args)
        drafted = torch.tensor(values[1]).unsqueeze(1) > 0
        values[6] = torch.where(drafted, 3 + (values[6] + 4) % 1000, values[6])
        return original(*values, **kwargs)

    wrap(rejection_sampler, "rejection_sample", around)


def draft_hidden() -> None:
    """The draft gets the hidden state of the token before."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    def around(original: Any, self: Any, **kwargs: Any) -> Any:
        kwargs["target_hidden_states"] = kwargs["target_hidden_states"].roll(1, dims=0)
        return original(self, **kwargs)

    wrap(SpecDecodeBaseProposer, "set_inputs_first_pass", around)


def draft_token() -> None:
    """The draft gets the embedding of the token that it already has the hidden state of."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    def around(original: Any, self: Any, **kwargs: Any) -> Any:
        result = original(self, **kwargs)
        tokens = kwargs["target_token_ids"]
        self.input_ids[: tokens.shape[0]] = tokens
        return result

    wrap(SpecDecodeBaseProposer, "set_inputs_first_pass", around)


def draft_position() -> None:
    """The position stands still from one draft step to the next."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    def around(original: Any, self: Any, positions: Any, metadata: Any, size: int, *rest: Any):
        updated = original(self, positions, metadata, size, *rest)
        updated -= 1
        return updated

    wrap(SpecDecodeBaseProposer, "_update_positions_dependent_metadata", around)


FAULTS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        softmax_scale,
        routed_scale,
        kv_slot,
        stale_kv,
        position,
        accepted_count,
        bonus_token,
        draft_hidden,
        draft_token,
        draft_position,
    )
}


def main(fault: str, env: dict[str, str], case: str, log: str) -> None:
    """Run a case in this process, with what it prints in ``log``; exits with the worker's code."""
    os.environ.update(env)
    with open(log, "wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    FAULTS[fault]()
    sys.exit(worker.main([case]))

"""The models as transformers computes them, and drafting as vLLM does it.

The target is transformers' own ``DeepseekV3ForCausalLM``. transformers has neither the MTP layer
nor the Eagle draft; both are put together here from its ``DeepseekV3DecoderLayer`` after vLLM's
``deepseek_mtp.py`` and ``deepseek_eagle.py``:

* slot ``i`` (position ``i``) holds the embedding of token ``i + 1`` and the target's normed hidden
  state of token ``i``, each under a norm of its own, joined in that order and projected;
* the MTP layer blanks the embedding at position 0, Eagle does not;
* later steps of a chain take the draft's own normed output as hidden state
  (``v1/spec_decode/llm_base_proposer.py``), at the following position.

Slots of tokens that the target has seen are always computed from the target's hidden states: vLLM
writes them anew after each verification. What is drafted at a position therefore depends on the
tokens before it alone, and all positions of a text can be drafted at once (:func:`propose`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as modeling

from fixturegen.config import ModelConfig
from fixturegen.errors import CheckpointError
from fixturegen.inspection import checkpoint_folders, read_config
from fixturegen.load import dequantized, transformers_model
from fixturegen.planted.oracle import Speculation

Ids = Sequence[int]
Function = TypeVar("Function", bound=Callable[..., Any])


def _without_gradients(function: Function) -> Function:
    return torch.inference_mode()(function)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Batch:
    """Texts of different lengths, padded on the left so that all prompts end in one column.

    ``ids`` is ``[texts, columns]``, ``padding`` ``[texts]`` counts each row's padding, ``prompt``
    counts the columns of the prompts; generated tokens follow.
    """

    ids: Any
    padding: Any
    prompt: int

    @classmethod
    def of(cls, prompts: Sequence[Ids], continuations: Sequence[Ids] = ()) -> Batch:
        """A batch of prompts, each followed by its continuation (all of one length)."""
        width = max(map(len, prompts))
        rows = [
            [0] * (width - len(p)) + list(p) + list(c)
            for p, c in zip(prompts, continuations or [()] * len(prompts), strict=True)
        ]
        padding = torch.tensor([width - len(p) for p in prompts])
        return cls(torch.tensor(rows), padding, width)

    @cached_property
    def positions(self) -> Any:
        """``[texts, columns]``; 0 in the padding, which no query sees."""
        return positions(self.padding, 0, self.ids.shape[1])

    @cached_property
    def visible(self) -> Any:
        """``[texts, columns, columns]``: whether a query (rows) sees a key: causal, no padding."""
        columns = torch.arange(self.ids.shape[1])
        return (columns[:, None] >= columns) & (columns >= self.padding[:, None])[:, None]


def positions(padding: Any, start: int, stop: int) -> Any:
    """Positions ``[texts, stop - start]`` of the columns ``start`` to ``stop``."""
    return (torch.arange(start, stop) - padding[:, None]).clamp(min=0)


def additive(visible: Any, dtype: Any) -> Any:
    """A mask of booleans ``[texts, queries, keys]`` in the form transformers adds to scores."""
    mask = torch.zeros(visible.shape, dtype=dtype)
    return mask.masked_fill(~visible, torch.finfo(dtype).min)[:, None]


@dataclass(frozen=True)
class Target:
    """The target model. ``layers``, ``norm``, ``head``, ``embed`` and ``rotary`` are its parts."""

    model: Any

    @property
    def config(self) -> Any:
        """transformers' configuration."""
        return self.model.config

    @property
    def layers(self) -> Sequence[Any]:
        """Decoder layers."""
        return self.model.model.layers  # type: ignore[no-any-return]

    @property
    def norm(self) -> Any:
        """Final norm."""
        return self.model.model.norm

    @property
    def head(self) -> Any:
        """Output projection."""
        return self.model.lm_head

    @property
    def embed(self) -> Any:
        """Embedding."""
        return self.model.model.embed_tokens

    @property
    def rotary(self) -> Any:
        """Rotary embedding."""
        return self.model.model.rotary_emb

    def hidden(
        self, ids: Any, positions: Any, visible: Any, key_positions: Any, cache: Any = None
    ) -> Any:
        """Normed hidden states ``[texts, columns, hidden_size]``."""
        return self.model.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=additive(visible, self.model.dtype),
            past_key_values=cache,
            use_cache=cache is not None,
            key_positions=key_positions,  # read by the injected attention faults
        ).last_hidden_state


@dataclass(frozen=True)
class Draft:
    """An MTP layer or an Eagle draft; ``join`` is ``eh_proj`` or ``fc``."""

    config: Any
    layers: Sequence[Any]
    norm: Any
    head: Any
    embed: Any
    rotary: Any
    enorm: Any
    hnorm: Any
    join: Any
    blanks_position_0: bool

    def embedded(self, ids: Any, positions: Any) -> Any:
        """Embeddings, blank at position 0 in an MTP layer."""
        embedded = self.embed(ids)
        if self.blanks_position_0:
            return torch.where(positions[..., None] == 0, 0, embedded)
        return embedded

    def inputs(self, ids: Any, positions: Any, hidden: Any) -> Any:
        """What enters the decoder layer, from the embedding and the hidden state."""
        embedded = self.enorm(self.embedded(ids, positions))
        return self.join(torch.cat([embedded, self.hnorm(hidden)], -1))

    def output(self, x: Any) -> tuple[Any, Any]:
        """What the head reads and what the next step of a chain takes: both normed once."""
        normed = self.norm(x)
        return normed, normed

    def run(
        self,
        ids: Any,
        positions: Any,
        hidden: Any,
        visible: Any,
        key_positions: Any,
        cache: Any,
    ) -> tuple[Any, Any]:
        """What the head reads and what is recycled, each ``[texts, columns, hidden_size]``."""
        x = self.inputs(ids, positions, hidden)
        embeddings = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(
                x,
                attention_mask=additive(visible, x.dtype),
                position_ids=positions,
                position_embeddings=embeddings,
                past_key_values=cache,
                use_cache=True,
                key_positions=key_positions,
            )
        return self.output(x)

    def extend(self, step: int, *args: Any) -> tuple[Any, Any]:
        """As :meth:`run`, for step ``step`` (from 1) of chains instead of the text."""
        return self.run(*args)


@dataclass(frozen=True)
class Reference:
    """A target and its draft, if it has one."""

    target: Target
    draft: Draft | None

    @classmethod
    def load(cls, path: str | Path, dtype: str | None = None) -> Reference:
        """Load a checkpoint folder, or the folder of a target and its Eagle draft.

        ``dtype`` defaults to the config's. FP8 weights are dequantised. Raises EngineError or
        CheckpointError when weights are missing, of another shape or left over.
        """
        folder, *draft = checkpoint_folders(path)
        target = Target(transformers_model(folder, dtype))
        target.model.set_attn_implementation("eager")
        config = read_config(folder)
        if draft:
            return cls(target, _eagle(draft[0], target))
        if config.num_nextn_predict_layers:
            return cls(target, _mtp(folder, config, target))
        return cls(target, None)

    def set_attention(self, implementation: str) -> None:
        """Choose transformers' ``"eager"`` or ``"sdpa"`` attention."""
        self.target.model.set_attn_implementation(implementation)
        if self.draft:
            self.draft.config._attn_implementation = implementation


def _mtp(folder: Path, config: ModelConfig, target: Target) -> Draft:
    """The first MTP layer: vLLM drafts every step of a chain with it."""
    index = config.num_hidden_layers
    prefix = f"model.layers.{index}."
    tensors = {
        name.removeprefix(prefix): tensor
        for name, tensor in _tensors(folder, config, target).items()
        if name.startswith(prefix)
    }
    named = {
        "eh_proj.weight": "fc.weight",
        "shared_head.norm.weight": "norm.weight",
        "shared_head.head.weight": "lm_head.weight",
    }
    tensors = {named.get(n, n): t for n, t in tensors.items()}
    block = {n: tensors.pop(n) for n in list(tensors) if n.startswith(("self_attn.", "mlp."))}
    for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
        block[norm] = tensors.pop(norm)
    tensors |= {f"layers.0.{n}": t for n, t in block.items()}
    settings = copy.deepcopy(target.config)
    return _draft(folder, settings, tensors, target, first_layer=index, blanks_position_0=True)


def _eagle(folder: Path, target: Target) -> Draft:
    config = read_config(folder)
    settings = transformers.DeepseekV3Config(**config.to_dict()["model"])
    settings._attn_implementation = "eager"
    settings._experts_implementation = target.config._experts_implementation
    tensors = _tensors(folder, config, target)
    return _draft(folder, settings, tensors, target, first_layer=0, blanks_position_0=False)


def _tensors(folder: Path, config: ModelConfig, target: Target) -> dict[str, Any]:
    dtype = target.model.dtype
    return {
        name: tensor if name.endswith("e_score_correction_bias") else tensor.to(dtype)
        for name, tensor in dequantized(folder, config, dtype).items()
    }


def _draft(
    folder: Path,
    config: Any,
    tensors: dict[str, Any],
    target: Target,
    *,
    first_layer: int,
    blanks_position_0: bool,
) -> Draft:
    """Put a draft together from tensors in the Eagle layout."""
    hidden, eps = config.hidden_size, config.rms_norm_eps
    count = 1 + max(int(n.split(".")[1]) for n in tensors if n.startswith("layers."))
    with torch.device("meta"):
        modules: dict[str, Any] = {
            "fc": torch.nn.Linear(2 * hidden, hidden, bias=False),
            **{n: modeling.DeepseekV3RMSNorm(hidden, eps) for n in ("enorm", "hnorm", "norm")},
            **{
                f"layers.{i}": modeling.DeepseekV3DecoderLayer(config, first_layer + i)
                for i in range(count)
            },
            "embed_tokens": torch.nn.Embedding(config.vocab_size, hidden),
            "lm_head": torch.nn.Linear(hidden, config.vocab_size, bias=False),
        }
    shared = {"embed_tokens.weight": target.embed.weight, "lm_head.weight": target.head.weight}
    left = {**shared, **tensors}
    for name, module in modules.items():
        state = {
            n.removeprefix(f"{name}."): left.pop(n) for n in list(left) if n.startswith(f"{name}.")
        }
        try:
            module.load_state_dict(_stacked(state), assign=True)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{folder}: the draft's {name}: {reason[:300]}") from None
        module.requires_grad_(False).eval()
    if left:
        raise CheckpointError(f"{folder}: the draft has no place for {', '.join(sorted(left)[:5])}")
    layers = [modules[f"layers.{i}"] for i in range(count)]
    for i, layer in enumerate(layers):
        layer.self_attn.layer_idx = i  # its place in the draft's own cache
    return Draft(
        config=config,
        layers=layers,
        norm=modules["norm"],
        head=modules["lm_head"],
        embed=modules["embed_tokens"],
        rotary=modeling.DeepseekV3RotaryEmbedding(config),
        enorm=modules["enorm"],
        hnorm=modules["hnorm"],
        join=modules["fc"],
        blanks_position_0=blanks_position_0,
    )


def _stacked(state: Mapping[str, Any]) -> dict[str, Any]:
    """One layer's weights with its experts stacked, as transformers holds them."""
    first = "mlp.experts.0.up_proj.weight"
    if first not in state:
        return dict(state)
    experts = sum(n.endswith("up_proj.weight") and ".experts." in n for n in state)
    gate, up, down = (
        [state[f"mlp.experts.{e}.{part}_proj.weight"] for e in range(experts)]
        for part in ("gate", "up", "down")
    )
    rest = {n: t for n, t in state.items() if not n.startswith("mlp.experts.")}
    rest["mlp.experts.gate_up_proj"] = torch.cat([torch.stack(gate), torch.stack(up)], 1)
    rest["mlp.experts.down_proj"] = torch.stack(down)
    return rest


@_without_gradients
def greedy(target: Target, prompts: Sequence[Ids], tokens: int, chunk: int = 0) -> list[list[int]]:
    """Greedy continuations of ``tokens`` tokens, generated one by one over a KV cache.

    ``chunk`` splits the prefill into pieces of so many columns; 0 does not.
    """
    batch = Batch.of(prompts)
    cache = transformers.DynamicCache()
    ids = batch.ids
    done, step = 0, chunk or batch.prompt
    for _ in range(-(-batch.prompt // step) + tokens - 1):
        stop = min(done + step, ids.shape[1])
        now = Batch(ids[:, :stop], batch.padding, batch.prompt)
        hidden = target.hidden(
            now.ids[:, done:],
            now.positions[:, done:],
            now.visible[:, done:],
            now.positions,
            cache,
        )
        done = stop
        if done == ids.shape[1]:
            ids = torch.cat([ids, target.head(hidden[:, -1]).argmax(-1)[:, None]], 1)
    return ids[:, batch.prompt :].tolist()  # type: ignore[no-any-return]


@_without_gradients
def hidden_states(target: Target, batch: Batch) -> Any:
    """Normed hidden states ``[texts, columns, hidden_size]`` of whole texts."""
    return target.hidden(batch.ids, batch.positions, batch.visible, batch.positions)


@_without_gradients
def next_logits(target: Target, batch: Batch) -> Any:
    """Logits ``[texts, tokens, vocab_size]`` from which each generated token was chosen.

    The texts are given whole: the first token that differs from the argmax here is the first that
    generation would get differently.
    """
    return target.head(hidden_states(target, batch)[:, batch.prompt - 1 : -1])


@_without_gradients
def propose(draft: Draft, batch: Batch, hidden: Any, steps: int) -> Any:
    """Draft a chain of ``steps`` tokens after every generated token of ``batch``.

    ``hidden`` ``[texts, columns, hidden_size]`` are the target's normed hidden states. Returns ids
    ``[texts, tokens, steps]``: entry ``[:, g]`` proposes what follows generated token ``g``.

    All chains share one cache: behind the slots of the text come one slot of each chain and step,
    and the mask lets a chain see the text up to its start and itself.
    """
    slots = batch.ids.shape[1] - 1
    chains = torch.arange(batch.prompt - 1, slots)
    text = Batch(batch.ids[:, :-1], batch.padding, batch.prompt)
    cache = transformers.DynamicCache()
    read, recycled = draft.run(
        batch.ids[:, 1:], text.positions, hidden[:, :-1], text.visible, text.positions, cache
    )
    read, recycled = read[:, chains], recycled[:, chains]
    own = torch.eye(len(chains), dtype=torch.bool).expand(len(batch.ids), -1, -1)
    visible, keys, at = text.visible[:, chains], text.positions, text.positions[:, chains]
    proposed = [draft.head(read).argmax(-1)]
    for step in range(1, steps):
        at = at + 1
        visible, keys = torch.cat([visible, own], -1), torch.cat([keys, at], 1)
        read, recycled = draft.extend(step, proposed[-1], at, recycled, visible, keys, cache)
        proposed.append(draft.head(read).argmax(-1))
    return torch.stack(proposed, -1)


def count(
    generated: Sequence[Ids], proposed: Sequence[Sequence[Ids]], max_tokens: int
) -> Speculation:
    """vLLM's counters over greedy requests of ``max_tokens`` tokens that meet no end token.

    ``generated`` holds each request's tokens, at least ``max_tokens + steps - 1`` of them: a last
    step may overshoot ``max_tokens`` and still counts whole. ``proposed[r][g]`` is the chain that
    follows token ``g`` of request ``r``.
    """
    steps = len(proposed[0][0])
    accepted = [
        length
        for tokens, chains in zip(generated, proposed, strict=True)
        for length in _accepted(tokens, chains, max_tokens)
    ]
    per_position = tuple(sum(length > i for length in accepted) for i in range(steps))
    return Speculation(len(accepted), len(accepted) * steps, sum(accepted), per_position)


def _accepted(tokens: Ids, chains: Sequence[Ids], max_tokens: int) -> Iterator[int]:
    """Length of the accepted part of each draft of a request."""
    out = 1
    while out < max_tokens:
        length = 0
        for drafted, right in zip(chains[out - 1], tokens[out:], strict=False):
            if drafted != right:
                break
            length += 1
        yield length
        out += length + 1

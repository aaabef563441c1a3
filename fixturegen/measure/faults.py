"""Single faults of an engine, injected into the real model code.

A fault is a name, a class and a context manager that breaks the model while it is open. Four kinds
of hooks are enough: what attention is called with, how rotary embedding is applied, how the router
chooses, and a module's weights or output. Everything else is a line in one of the two tables,
:func:`target_faults` and :func:`draft_faults`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as modeling

from fixturegen.measure.reference import Draft, Target

Model = Target | Draft
Injection = Callable[[Any], AbstractContextManager[Any]]
#: From a model to one of its modules or tensors, or a list of them.
Find = Callable[[Any], Any]
Edit = Callable[[Any], Any]


@dataclass(frozen=True)
class Fault:
    """One thing that an engine gets wrong.

    ``inject(model)`` returns a context manager. ``limit`` says why a planted checkpoint may be
    blind to it, where that is known.
    """

    name: str
    kind: str
    inject: Injection
    limit: str = ""


# --- attention -----------------------------------------------------------------------------------


@dataclass
class Call:
    """What attention is called with.

    ``query`` and ``key`` are ``[texts, heads, slots, qk_head_dim]``, ``value`` ends in
    ``v_head_dim``; ``visible`` (which keys a query sees), ``distance`` (query position minus key
    position) and ``foreign`` (keys read from the next text, or as zeros if ``unwritten``) are
    ``[texts, queries, keys]``.
    """

    query: Any
    key: Any
    value: Any
    visible: Any
    distance: Any
    key_positions: Any
    scaling: float
    foreign: Any = None
    unwritten: bool = False


def attention(change: Callable[[Call], None]) -> Injection:
    """Attention whose arguments ``change`` has edited."""
    right = modeling.eager_attention_forward

    def faulty(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **kwargs: Any
    ) -> Any:
        at = kwargs["key_positions"]
        distance = kwargs["position_ids"][:, :, None] - at[:, None]
        call = Call(query, key, value, mask[:, 0] == 0, distance, at, scaling)
        change(call)
        mask = torch.zeros_like(mask).masked_fill(~call.visible[:, None], mask.min())
        if call.foreign is not None:
            return _mixed(call, mask)
        return right(module, call.query, call.key, call.value, mask, call.scaling, **kwargs)

    return lambda model: patch.object(modeling, "eager_attention_forward", faulty)


def _mixed(call: Call, mask: Any) -> tuple[Any, Any]:
    """Attention that reads some slots from the next text: of the same position, or its last."""
    foreign = call.foreign[:, None]
    at, other = call.key_positions, call.key_positions.roll(1, 0)
    slot = torch.searchsorted(other, at).clamp(max=at.shape[1] - 1)[:, None, :, None]
    key, value = (
        t.roll(1, 0).gather(2, slot.expand(-1, t.shape[1], -1, t.shape[3]))
        for t in (call.key, call.value)
    )
    if call.unwritten:
        key, value = torch.zeros_like(key), torch.zeros_like(value)
    own, others = (call.query @ k.transpose(2, 3) * call.scaling for k in (call.key, key))
    weights = (torch.where(foreign, others, own) + mask).softmax(-1)
    mixed = weights.masked_fill(foreign, 0) @ call.value + weights.masked_fill(~foreign, 0) @ value
    return mixed.transpose(1, 2).contiguous(), weights


def scale(factor: float) -> Injection:
    """A softmax scale wrong by a factor."""

    def change(call: Call) -> None:
        call.scaling *= factor

    return attention(change)


def hide(hidden: Callable[[Call], Any]) -> Injection:
    """Keys that queries do not see."""

    def change(call: Call) -> None:
        call.visible = call.visible & ~hidden(call)

    return attention(change)


def window(size: int, keep_first: bool = False) -> Injection:
    """A sliding window of ``size`` tokens."""
    return hide(lambda c: (c.distance >= size) & ~(keep_first & (c.key_positions == 0)[:, None]))


def reveal(prompt: int, ahead: int) -> Injection:
    """Queries of the prompt (``prompt`` columns) that see up to ``ahead`` tokens of its future."""

    def change(call: Call) -> None:
        n = min(prompt, call.visible.shape[1])
        future = (call.distance < 0) & (call.distance >= -ahead)
        real = call.visible[:, prompt - 1, :n]  # the prompt's last token sees no padding
        call.visible = call.visible.clone()
        call.visible[:, :n, :n] |= future[:, :n, :n] & real[:, None]

    return attention(change)


def foreign(chosen: Callable[[Call], Any]) -> Injection:
    """Chosen slots ``[texts, queries, keys]`` are read from another request."""
    return attention(lambda call: setattr(call, "foreign", chosen(call)))


def unwritten(chosen: Callable[[Call], Any]) -> Injection:
    """Chosen slots ``[texts, queries, keys]`` hold zeros."""

    def change(call: Call) -> None:
        call.foreign, call.unwritten = chosen(call), True

    return attention(change)


def columns(part: str, lost: slice) -> Injection:
    """Columns of keys, queries or values that are read as zero."""

    def change(call: Call) -> None:
        tensor = getattr(call, part).clone()
        tensor[..., lost] = 0
        setattr(call, part, tensor)

    return attention(change)


def edited(part: str, edit: Callable[[Any, Call], Any]) -> Injection:
    """Keys, queries or values replaced by a function of them."""
    return attention(lambda call: setattr(call, part, edit(getattr(call, part), call)))


def block(size: int, reads: int, instead_of: int) -> Injection:
    """A wrong entry of the block table: one block of ``size`` slots is read in place of another."""

    def change(call: Call) -> None:
        padding = (call.key_positions == 0).sum(1) - 1
        call.key, call.value = call.key.clone(), call.value.clone()
        for row, start in enumerate(padding.tolist()):
            right, wrong = start + size * instead_of, start + size * reads
            length = min(size, call.key.shape[2] - max(right, wrong))
            for tensor in (call.key, call.value):
                if length > 0:
                    tensor[row, :, right : right + length] = tensor[
                        row, :, wrong : wrong + length
                    ].clone()

    return attention(change)


# --- rotary embedding ----------------------------------------------------------------------------


def rope(change: Callable[..., tuple[Any, Any]]) -> Injection:
    """Rotary embedding as ``change(right, query, key, cos, sin)`` applies it."""

    def inject(model: Model) -> AbstractContextManager[Any]:
        right = modeling.apply_rotary_pos_emb_interleave
        faulty = functools.partial(change, right)
        return patch.object(modeling, "apply_rotary_pos_emb_interleave", faulty)

    return inject


def shifted(query_by: int, key_by: int = 0) -> Injection:
    """Rotary positions of queries or keys off by a number of tokens."""

    def inject(model: Model) -> AbstractContextManager[Any]:
        def change(right: Any, q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
            more_q, more_k = (model.rotary(q, torch.tensor([[by]])) for by in (query_by, key_by))
            turned = right(q, q, *more_q)[0], right(k, k, *more_k)[0]
            return right(*turned, cos, sin)  # type: ignore[no-any-return]

        return rope(change)(model)

    return inject


def rotary(**settings: Any) -> Injection:
    """Rotary frequencies of other parameters than the config's."""

    def inject(model: Model) -> AbstractContextManager[Any]:
        config = copy.deepcopy(model.config)
        config.rope_parameters = {**config.rope_parameters, **settings}
        wrong = modeling.DeepseekV3RotaryEmbedding(config)
        return patch.object(model.rotary, "forward", wrong.forward)

    return inject


# --- router --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Routing:
    """Choices that a router makes; the defaults are DeepSeek-V3's. None takes the config's."""

    scores: Callable[[Any], Any] = torch.sigmoid
    biased: bool = True
    bias_sign: int = 1
    topk_group_more: int = 0
    grouped: bool = True
    group_score: str = "top2"
    top_k_more: int = 0
    weights_biased: bool = False
    equal_weights: bool = False
    normalised: bool = True
    factor: float | None = None

    def __call__(self, gate: Any, hidden: Any) -> tuple[Any, Any, Any]:
        """Logits, weights and indices as ``DeepseekV3TopkRouter.forward`` returns them."""
        hidden = hidden.view(-1, gate.hidden_dim).float()
        logits = hidden @ gate.weight.float().T
        scores = self.scores(logits)
        ranked = scores + self.bias_sign * gate.e_score_correction_bias if self.biased else scores
        choice = ranked
        if self.grouped:
            groups = ranked.view(len(hidden), gate.num_group, -1)
            best = groups.topk(1 if self.group_score == "max" else 2, -1).values.sum(-1)
            kept = best.topk(gate.topk_group + self.topk_group_more, -1).indices
            mask = torch.zeros_like(best, dtype=torch.bool).scatter(1, kept, True)
            choice = groups.masked_fill(~mask[..., None], -math.inf).view_as(ranked)
        indices = choice.topk(gate.top_k + self.top_k_more, -1).indices
        weights = (ranked if self.weights_biased else scores).gather(1, indices)
        if self.equal_weights:
            weights = torch.ones_like(weights)
        if self.normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        factor = gate.routed_scaling_factor if self.factor is None else self.factor
        return logits, weights * factor, indices


def routed(**choices: Any) -> Injection:
    """All routers decide by other :class:`Routing` choices."""

    def inject(model: Model) -> AbstractContextManager[Any]:
        routing = Routing(**choices)
        return patch.object(
            modeling.DeepseekV3TopkRouter, "forward", lambda gate, hidden: routing(gate, hidden)
        )

    return inject


# --- weights and module outputs ------------------------------------------------------------------


def part(layer: int, path: str) -> Find:
    """The finder of a part of a decoder layer, such as ``"self_attn.o_proj"``."""
    return lambda model: operator.attrgetter(path)(model.layers[layer])


def everywhere(path: str) -> Find:
    """The finder of that part of all decoder layers."""
    return lambda model: [operator.attrgetter(path)(layer) for layer in model.layers]


def _several(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def weight(find: Find, edit: Edit) -> Injection:
    """Weights replaced by ``edit`` of them."""

    @contextlib.contextmanager
    def inject(model: Model) -> Iterator[None]:
        tensors = _several(find(model))
        kept = [t.detach().clone() for t in tensors]
        try:
            with torch.no_grad():
                for tensor, values in zip(tensors, kept, strict=True):
                    tensor.copy_(edit(values.clone()))
            yield
        finally:
            with torch.no_grad():
                for tensor, values in zip(tensors, kept, strict=True):
                    tensor.copy_(values)

    return inject


def output(find: Find, edit: Callable[[Any, Any], Any]) -> Injection:
    """Modules whose output is ``edit(output, input)``."""

    @contextlib.contextmanager
    def inject(model: Model) -> Iterator[None]:
        handles = [
            module.register_forward_hook(lambda _, args, out: edit(out, args[0]))
            for module in _several(find(model))
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    return inject


def entering(find: Find, edit: Edit) -> Injection:
    """Modules whose input is ``edit(input)``."""

    @contextlib.contextmanager
    def inject(model: Model) -> Iterator[None]:
        handles = [
            module.register_forward_pre_hook(lambda _, args: (edit(args[0]), *args[1:]))
            for module in _several(find(model))
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    return inject


def zeros(out: Any, given: Any) -> Any:
    """Nothing comes out."""
    return torch.zeros_like(out)


def unchanged(out: Any, given: Any) -> Any:
    """What went in comes out."""
    return given


def lose(part: slice) -> Callable[[Any], Any]:
    """Columns of a tensor set to zero."""

    def edit(tensor: Any) -> Any:
        tensor = tensor.clone()
        tensor[..., part] = 0
        return tensor

    return edit


def lost_output(find: Find, columns: slice) -> Injection:
    """Modules whose output lacks columns."""
    return output(find, lambda out, given: lose(columns)(out))


def undivided(find: Find) -> Injection:
    """Norms that multiply with their weight and divide by nothing."""

    @contextlib.contextmanager
    def inject(model: Model) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for norm in _several(find(model)):
                faulty = functools.partial(torch.mul, norm.weight)
                stack.enter_context(patch.object(norm, "forward", faulty))
            yield

    return inject


# --- tables --------------------------------------------------------------------------------------


def _spread(count: int, most: int) -> list[int]:
    """``most`` numbers below ``count``, evenly spaced; all of them where they are fewer."""
    return sorted({round(i * (count - 1) / max(most - 1, 1)) for i in range(min(count, most))})


NOBODY = "no head reads at this distance"
INSIDE = "the dimmed heads keep 0.6 of their amplitude, which the neurons' window still takes for 1"
UNDONE = "the norms of the latents divide again; only the rotary key, read at its peak, is weaker"
SATURATED = "neurons are either well above or well below zero, where these activations agree"
SPREAD = "a random rotation spreads every code over the width: one column carries 1/hidden_size"
SHORT = "it turns the angles at the offsets that the heads read at by less than they resolve"
AFTER_BOS = "only the draft after bos alone reads the embedding there, and it proposes a decoy"
AT_0 = "the draft has no head at distance 0: its fields come from the hidden state"
EVEN = "the chosen weights differ too little for the draft's single MoE layer to lose a digit"
FAINT = "the scores past the chosen experts are planted near zero, so the extra weight is too"


def _attention_faults(config: Any) -> Iterator[Fault]:
    """Faults of attention, the same for a target and a draft."""
    rank, wide = config.kv_lora_rank, config.v_head_dim
    for factor in (0.577, 0.7, 0.85, 1.22, 1.4):
        limit = INSIDE if factor == 1.22 else ""
        yield Fault(f"softmax scale x{factor}", "softmax", scale(factor), limit)
    yield Fault("mask excludes the token itself", "mask", hide(lambda c: c.distance == 0))
    for size in (16, 32):
        yield Fault(f"sliding window of {size}", "mask", window(size))
        yield Fault(f"sliding window of {size}, slot 0 kept", "mask", window(size, True))

    def pairs(right: Any, q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        turned: tuple[Any, Any] = right(q.flip(-1), k.flip(-1), cos, sin)
        return turned

    def halves(right: Any, q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        turned: tuple[Any, Any] = modeling.apply_rotary_pos_emb(q, k, cos, sin)
        return turned

    yield Fault("rope: dimensions in reverse order", "rope", rope(pairs))
    yield Fault("rope: halves instead of interleaved pairs", "rope", rope(halves))
    yield Fault(
        "rope: turned the other way", "rope", rope(lambda r, q, k, cos, sin: r(q, k, cos, -sin))
    )
    yield Fault("rope: none", "rope", rope(lambda r, q, k, cos, sin: (q, k)))
    yield Fault(
        "rope: none on keys", "rope", rope(lambda r, q, k, cos, sin: (r(q, k, cos, sin)[0], k))
    )
    yield Fault(
        "rope: on head 0 only",
        "rope",
        rope(
            lambda r, q, k, cos, sin: (
                torch.cat([r(q, k, cos, sin)[0][:, :1], q[:, 1:]], 1),
                r(q, k, cos, sin)[1],
            )
        ),
    )
    yield Fault("rope: query position + 1", "rope", shifted(1))
    yield Fault("rope: key position + 1", "rope", shifted(0, 1))
    theta = config.rope_parameters["rope_theta"]
    for factor in (100, 5):
        yield Fault(f"rope: theta x{factor}", "rope", rotary(rope_theta=theta * factor))
    yield Fault("rope: theta x1.1", "rope", rotary(rope_theta=theta * 1.1), SHORT)
    if config.rope_parameters["rope_type"] == "yarn":
        yield Fault("rope: YaRN left out", "rope", rotary(rope_type="default"), SHORT)
        mscale = modeling.yarn_get_mscale(config.rope_parameters["factor"], 1)
        yield Fault("rope: YaRN's mscale left out", "softmax", scale(1 / mscale**2))
    for lost in range(0, wide, wide // 8):
        gone = slice(lost, lost + wide // 8)
        yield Fault(f"V columns {lost}..{gone.stop - 1} lost", "values", columns("value", gone))
    yield Fault("V last half lost", "values", columns("value", slice(wide // 2, wide)))
    yield Fault(
        "V turned by half its width", "values", edited("value", lambda v, c: v.roll(wide // 2, -1))
    )
    for lost in range(0, rank, rank // 8):
        gone = slice(lost, lost + rank // 8)
        yield Fault(
            f"latent columns {lost}..{gone.stop - 1} lost",
            "latent",
            lost_output(everywhere("self_attn.kv_a_layernorm"), gone),
        )
    nope = config.qk_nope_head_dim

    def next_head(k: Any, call: Call) -> Any:
        return torch.cat([k[..., :nope].roll(1, 1), k[..., nope:]], -1)

    yield Fault("q_nope is zero", "heads", columns("query", slice(0, nope)))
    yield Fault("k_nope is zero", "heads", columns("key", slice(0, nope)))
    yield Fault("k_nope of the next head", "heads", edited("key", next_head))


def at(distance: int) -> Callable[[Call], Any]:
    """The keys at one distance back."""
    return lambda call: call.distance == distance


def damaged(slot: int, prompt: int) -> Callable[[Call], Any]:
    """A column of the prompt, as queries after the prompt see it."""

    def chosen(call: Call) -> Any:
        _, queries, keys = call.visible.shape
        late = torch.arange(queries) >= prompt
        return (late[:, None] & (torch.arange(keys) == slot)).expand_as(call.visible)

    return chosen


def _kv_faults(offsets: Sequence[int], prompt: int) -> Iterator[Fault]:
    """Damaged KV slots; ``offsets`` are those that the checkpoint's heads read at."""
    for offset in offsets:
        yield Fault(f"KV {offset} back not seen", "kv", hide(at(offset)))
    for offset in sorted({*offsets, 3, 7, 16, 32}):
        yield Fault(
            f"KV {offset} back of another request, while there",
            "kv",
            foreign(at(offset)),
            "" if offset in offsets else NOBODY,
        )
        yield Fault(
            f"KV {offset} back stale (zeros), while there",
            "kv",
            unwritten(at(offset)),
            "" if offset in offsets else NOBODY,
        )
    for back in (1, 5, 8, 12, 16, 20, 24, 32):
        yield Fault(
            f"KV {back} before the prompt's end of another request, for good",
            "kv",
            foreign(damaged(prompt - 1 - back, prompt)),
        )
        yield Fault(
            f"KV {back} before the prompt's end stale (zeros), for good",
            "kv",
            unwritten(damaged(prompt - 1 - back, prompt)),
        )
    for size in (16, 32):
        yield Fault(f"block table: block 0 of {size} read as block 1", "kv", block(size, 0, 1))
    yield Fault("block table: block 2 of 16 read as block 3", "kv", block(16, 2, 3))


def _router_faults(config: Any) -> Iterator[Fault]:
    if config.norm_topk_prob:
        yield Fault("weights not normalised", "router", routed(normalised=False))
    factor = config.routed_scaling_factor
    yield Fault("routed_scaling_factor left out", "router", routed(factor=1.0))
    yield Fault("routed_scaling_factor applied twice", "router", routed(factor=factor**2))
    yield Fault("one expert too few", "router", routed(top_k_more=-1))
    yield Fault("one expert too many", "router", routed(top_k_more=1), FAINT)
    yield Fault("group limit ignored", "router", routed(grouped=False))
    yield Fault("one group too few", "router", routed(topk_group_more=-1))
    yield Fault("one group too many", "router", routed(topk_group_more=1))
    yield Fault("groups ranked by their best expert", "router", routed(group_score="max"))
    yield Fault("correction bias ignored", "router", routed(biased=False))
    yield Fault("correction bias of the wrong sign", "router", routed(bias_sign=-1))
    yield Fault("weights from biased scores", "router", routed(weights_biased=True))
    yield Fault("equal weights", "router", routed(equal_weights=True))
    yield Fault("softmax scores", "router", routed(scores=functools.partial(torch.softmax, dim=-1)))


def _scale_left_out(find: Find) -> Injection:
    """The FP8 scale of one 128 x 128 block left out, so that its largest value is 448."""

    def edit(values: Any) -> Any:
        flat = values.view(-1, *values.shape[-2:])  # of stacked experts, the first
        flat[0, :128, :128] *= 448 / flat[0, :128, :128].abs().max()
        return values

    return weight(find, edit)


def target_faults(model: Target, offsets: Sequence[int], prompt: int) -> list[Fault]:
    """Faults of the target. ``prompt`` is the number of prompt columns of the batch measured."""
    return list(_target_faults(model, offsets, prompt))


def _target_faults(model: Target, offsets: Sequence[int], prompt: int) -> Iterator[Fault]:
    config = model.config
    yield from _attention_faults(config)
    yield Fault("no causal mask in the prefill", "mask", reveal(prompt, prompt))
    yield Fault("mask shows one token of the future", "mask", reveal(prompt, 4))
    yield from _kv_faults(offsets, prompt)
    for i in range(len(model.layers)):
        yield from _layer_faults(model, i)
    yield from _router_faults(config)
    yield Fault("final norm left out", "norms", output(lambda m: m.norm, unchanged))
    yield Fault(
        "final norm without its weight", "norms", weight(lambda m: m.norm.weight, torch.ones_like)
    )
    vocab, wide = config.vocab_size, config.hidden_size
    yield Fault("lm_head: rows off by one", "head", output(lambda m: m.head, _rolled))
    yield Fault(
        "lm_head: second half of the rows lost (vocabulary shard)",
        "head",
        lost_output(lambda m: m.head, slice(vocab // 2, None)),
    )
    yield Fault(
        "lm_head: second half of the columns lost",
        "head",
        entering(lambda m: m.head, lose(slice(wide // 2, None))),
    )
    yield Fault(
        "lm_head: 1 of 8 of the columns lost",
        "head",
        entering(lambda m: m.head, lose(slice(0, wide // 8))),
        SPREAD,
    )
    yield Fault(
        "lm_head: one column lost", "head", entering(lambda m: m.head, lose(slice(0, 1))), SPREAD
    )
    yield Fault(
        "embedding: rows off by one",
        "embedding",
        weight(lambda m: m.embed.weight, lambda w: w.roll(1, 0)),
    )
    yield Fault(
        "embedding: second half of the columns lost",
        "embedding",
        lost_output(lambda m: m.embed, slice(wide // 2, None)),
    )
    yield Fault(
        "embedding scaled by the root of hidden_size",
        "embedding",
        output(lambda m: m.embed, lambda out, given: out * wide**0.5),
    )
    for act, what in ((torch.nn.GELU(), "gelu"), (torch.nn.Identity(), "left out")):
        yield Fault(f"silu: {what}", "mlp", _activation(act), SATURATED if what == "gelu" else "")


def _layer_faults(model: Model, i: int) -> Iterator[Fault]:
    """Faults of one decoder layer."""
    config = model.config
    for h in _spread(config.num_attention_heads, 16):
        yield Fault(f"layer {i}: head {h} dropped", "heads", _dropped(i, config, h))
    for h in _spread(config.num_attention_heads - 1, 15):
        yield Fault(
            f"layer {i}: heads {h} and {h + 1} swapped",
            "heads",
            _by_head(i, config, _swapper(-2, h)),
        )
    yield Fault(
        f"layer {i}: attention skipped", "layers", output(part(i, "self_attn.o_proj"), zeros)
    )
    low_rank = config.q_lora_rank is not None
    norms = ["input_layernorm", "post_attention_layernorm", "self_attn.kv_a_layernorm"]
    for path in [*norms, "self_attn.q_a_layernorm"] if low_rank else norms:
        name = f"layer {i}: {path.split('.')[-1]}"
        yield Fault(
            f"{name} without its weight",
            "norms",
            weight(part(i, f"{path}.weight"), torch.ones_like),
        )
        yield Fault(
            f"{name} without its division",
            "norms",
            undivided(part(i, path)),
            UNDONE if path == "input_layernorm" else "",
        )
    queries = ("q_a_proj", "q_b_proj") if low_rank else ("q_proj",)
    for name in (*queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
        yield Fault(
            f"layer {i}: FP8 scale of {name}'s first block left out",
            "fp8",
            _scale_left_out(part(i, f"self_attn.{name}.weight")),
        )
    yield from _mlp_faults(model.layers[i].mlp, i)


def _by_head(i: int, config: Any, edit: Edit) -> Injection:
    """Layer ``i``'s attention output edited as ``[..., heads, v_head_dim]``."""
    heads = config.num_attention_heads
    return entering(
        part(i, "self_attn.o_proj"),
        lambda x: edit(x.view(*x.shape[:-1], heads, -1)).reshape(x.shape),
    )


def _dropped(i: int, config: Any, head: int) -> Injection:
    def edit(x: Any) -> Any:
        x = x.clone()
        x[..., head, :] = 0
        return x

    return _by_head(i, config, edit)


def _swapper(axis: int, first: int) -> Edit:
    """Swaps two neighbours along an axis."""

    def edit(x: Any) -> Any:
        order = list(range(x.shape[axis]))
        order[first], order[first + 1] = order[first + 1], order[first]
        return x.index_select(axis, torch.tensor(order))

    return edit


def _rolled(out: Any, given: Any) -> Any:
    return out.roll(1, -1)


def _activation(act: Any) -> Injection:
    @contextlib.contextmanager
    def inject(model: Model) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for layer in model.layers:
                for module in layer.modules():
                    if hasattr(module, "act_fn"):
                        stack.enter_context(patch.object(module, "act_fn", act))
            yield

    return inject


def _mlp_faults(mlp: Any, i: int) -> Iterator[Fault]:
    """Faults of layer ``i``'s dense or MoE part."""
    if not hasattr(mlp, "experts"):
        yield from _gated_faults(f"layer {i}: dense MLP", part(i, "mlp"))
        return
    yield from _gated_faults(f"layer {i}: shared expert", part(i, "mlp.shared_experts"))
    yield Fault(
        f"layer {i}: routed experts skipped", "experts", output(part(i, "mlp.experts"), zeros)
    )
    down, gate_up = part(i, "mlp.experts.down_proj"), part(i, "mlp.experts.gate_up_proj")
    count, wide = mlp.experts.num_experts, mlp.experts.intermediate_dim
    for e in _spread(count, 32):
        yield Fault(
            f"layer {i}: expert {e} dropped", "experts", weight(down, _nothing_of_expert(e))
        )
    for e in _spread(count - 1, 31):
        yield Fault(
            f"layer {i}: experts {e} and {e + 1} swapped",
            "experts",
            weight(lambda m: [down(m), gate_up(m)], _swapper(0, e)),
        )
    yield Fault(
        f"layer {i}: experts' gate and up swapped",
        "experts",
        weight(gate_up, lambda w: w.roll(wide, 1)),
    )
    yield Fault(
        f"layer {i}: second half of the experts' intermediate lost",
        "experts",
        weight(down, lose(slice(wide // 2, None))),
    )
    for name, find in (("down_proj", down), ("gate_up_proj", gate_up)):
        yield Fault(
            f"layer {i}: FP8 scale of expert 0's {name}'s first block left out",
            "fp8",
            _scale_left_out(find),
        )


def _nothing_of_expert(expert: int) -> Edit:
    def edit(stacked: Any) -> Any:
        stacked[expert] = 0
        return stacked

    return edit


def _gated_faults(name: str, find: Find) -> Iterator[Fault]:
    """Faults of a gated MLP."""

    @contextlib.contextmanager
    def swapped(model: Model) -> Iterator[None]:
        mlp = find(model)
        gate, up = mlp.gate_proj, mlp.up_proj
        with patch.object(mlp, "gate_proj", up), patch.object(mlp, "up_proj", gate):
            yield

    def weight_of(linear: str) -> Find:
        return lambda model: getattr(find(model), linear).weight

    yield Fault(f"{name} skipped", "mlp", output(find, zeros))
    yield Fault(f"{name}: gate and up swapped", "mlp", swapped)
    yield Fault(
        f"{name}: second half of the intermediate lost",
        "mlp",
        weight(weight_of("down_proj"), lambda w: lose(slice(w.shape[1] // 2, None))(w)),
    )
    for linear in ("gate_proj", "up_proj", "down_proj"):
        yield Fault(
            f"{name}: FP8 scale of {linear}'s first block left out",
            "fp8",
            _scale_left_out(weight_of(linear)),
        )


def draft_faults(model: Draft, offsets: Sequence[int]) -> list[Fault]:
    """Faults of an MTP layer or an Eagle draft, found by the counters of speculation alone."""
    faults = [*_draft_faults(model, offsets)]
    return [dataclasses.replace(f, name=f"draft: {f.name}") for f in faults]


def method(name: str, faulty: Callable[..., Any]) -> Injection:
    """A method of the draft replaced by ``faulty(right, draft, *args)``."""
    right = getattr(Draft, name)
    return lambda model: patch.object(Draft, name, lambda draft, *args: faulty(right, draft, *args))


def _draft_faults(model: Draft, offsets: Sequence[int]) -> Iterator[Fault]:
    yield from _wiring_faults(model)
    yield from _chain_faults()
    for name in ("enorm", "hnorm"):
        norm = operator.attrgetter(name)
        yield Fault(f"{name} left out", "norms", output(norm, unchanged))
    for name in ("enorm", "hnorm", "norm"):
        of_weight = operator.attrgetter(f"{name}.weight")
        yield Fault(f"{name} without its weight", "norms", weight(of_weight, torch.ones_like))
    for fault in _attention_faults(model.config):
        if fault.limit != SHORT:  # as blind as in the target, and counted there
            yield _limited(fault, {"mask excludes the token itself": AT_0})
    for offset in sorted({max(o - 1, 1) for o in offsets}):  # slot i holds token i + 1
        yield Fault(f"KV {offset} back not seen", "kv", hide(at(offset)))
        yield Fault(f"KV {offset} back of another request, while there", "kv", foreign(at(offset)))
    for fault in _router_faults(model.config):
        yield _limited(fault, dict.fromkeys(("weights from biased scores", "equal weights"), EVEN))
    for i in range(len(model.layers)):
        yield from _layer_faults(model, i)
    yield Fault("lm_head: rows off by one", "head", output(lambda m: m.head, _rolled))


def _limited(fault: Fault, limits: Mapping[str, str]) -> Fault:
    """The fault with the draft's own reason, where there is one."""
    return dataclasses.replace(fault, limit=limits.get(fault.name, fault.limit))


def _wiring_faults(model: Draft) -> Iterator[Fault]:
    """What enters the draft's decoder layer."""
    wide = model.config.hidden_size
    named = {
        "hidden state of token i - 1": lambda r, d, ids, at, h: r(d, ids, at, h.roll(1, 1)),
        "hidden state of token i + 1": lambda r, d, ids, at, h: r(d, ids, at, h.roll(-1, 1)),
        "embedding of token i": lambda r, d, ids, at, h: r(d, ids.roll(1, 1), at, h),
        "enorm and hnorm exchanged": lambda r, d, *args: r(
            dataclasses.replace(d, enorm=d.hnorm, hnorm=d.enorm), *args
        ),
    }
    for name, faulty in named.items():
        yield Fault(name, "wiring", method("inputs", faulty))
    join = operator.attrgetter("join")
    exchanged = entering(join, lambda x: x.roll(wide, -1))
    yield Fault("embedding and hidden state exchanged", "wiring", exchanged)
    yield Fault("embedding left out", "wiring", entering(join, lose(slice(0, wide))))
    yield Fault("hidden state left out", "wiring", entering(join, lose(slice(wide, None))))
    if model.blanks_position_0:
        never = method("embedded", lambda r, d, ids, at: r(d, ids, at + 1))
        yield Fault("position 0 not blanked", "wiring", never)
    else:
        blanked = method("embedded", lambda r, d, ids, at: r(d, ids, at) * (at != 0)[..., None])
        yield Fault("position 0 blanked", "wiring", blanked, AFTER_BOS)


def _chain_faults() -> Iterator[Fault]:
    """What is carried from one drafted token to the next."""

    def raw(right: Any, draft: Draft, x: Any) -> Any:
        return right(draft, x)[0], x

    def nothing(right: Any, draft: Draft, x: Any) -> Any:
        return right(draft, x)[0], torch.zeros_like(x)

    def behind(right: Any, draft: Draft, step: int, ids: Any, at: Any, *rest: Any) -> Any:
        return right(draft, step, ids, at - 1, *rest)

    def unseen(
        right: Any,
        draft: Draft,
        step: int,
        ids: Any,
        at: Any,
        hidden: Any,
        visible: Any,
        keys: Any,
        cache: Any,
    ) -> Any:
        distance = at[:, :, None] - keys[:, None]
        drafted = (distance > 0) & (distance < step)
        return right(draft, step, ids, at, hidden, visible & ~drafted, keys, cache)

    yield Fault("hidden state recycled before the norm", "chain", method("output", raw))
    yield Fault("no hidden state recycled", "chain", method("output", nothing))
    yield Fault("position one behind while drafting", "chain", method("extend", behind))
    yield Fault("KV of drafted tokens not seen", "chain", method("extend", unseen))

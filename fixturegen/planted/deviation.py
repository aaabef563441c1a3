"""How far codes may deviate from their planned amplitudes, followed through the layers.

The errors of weights and of rounding are independent. The worst case is the worst combination of
them that is no less likely than one error at :data:`SIGMAS` standard deviations: a point on a ball
of that radius. Amplitudes are in units of a code's own. docs/planted.md has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fixturegen.planted.attention import KEY, LATENT_RMS, Attention, Role
from fixturegen.planted.fields import Floats
from fixturegen.planted.function import DIGITS
from fixturegen.planted.kernels import frequencies, softmax_scale
from fixturegen.planted.layers import ARGUMENTS, COUNTER, LEAD
from fixturegen.planted.neurons import FIRED, GAIN, THRESHOLD
from fixturegen.planted.weights import PlantedWeights

if TYPE_CHECKING:
    from fixturegen.recipe import Plan, Recipe

#: Radius of the ball of errors, in standard deviations.
SIGMAS = 5.0
#: Mantissa bits, the leading one included.
BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float8_e4m3fn": 4}
#: A window's output is 1 - CURVATURE * x^2 when its argument's amplitude is off by x.
CURVATURE = 1.43 / 0.7
#: Fields that attention copies from fields that were computed before.
COPIES = {"S": "M1", "Z": "M5", "Q17": "Q"}


@dataclass(frozen=True)
class Errors:
    """Rms errors: noise relative to a matrix's rms, rounding relative to each element."""

    noise: float
    stored: float  # weights in the checkpoint's dtype
    stored_small: float  # weights that FP8 recipes quantise
    computed: float  # activations
    computed_small: float  # activations that FP8 engines quantise

    @classmethod
    def of(cls, recipe: Recipe, computing: bool) -> Errors:
        """Errors of a recipe's weights alone, or of an engine that computes with them too."""

        def rms(dtype: str) -> float:
            # half a last place, evenly spread, of significands 1..2 that are evenly so in log
            return 2.0 ** -BITS[dtype] * math.sqrt((1 - 2.0**-2) / (6 * math.log(2)))

        large = rms(recipe.model.dtype)
        small = rms("float8_e4m3fn") if recipe.model.quantization else large
        return cls(recipe.planted.noise, large, small, large * computing, small * computing)


def plus(*errors: float) -> float:
    """Rms of a sum of independent errors."""
    return math.sqrt(sum(e * e for e in errors))


def worst(squared: float, *linear: float) -> float:
    """Worst sum on the ball, of one term that grows as a square and of independent linear ones.

    Each is given at its own worst; the largest of ``squared cos^2 t + linear sin t`` over t.
    """
    line = plus(*linear)
    return line if line >= 2 * squared else squared + line * line / (4 * squared)


def lengths(rows: Floats) -> Floats:
    """Length of each row."""
    result: Floats = np.sqrt(np.square(rows).sum(axis=1))
    return result


def typical(rows: Floats) -> float:
    """Rms of the lengths of rows."""
    return math.sqrt(float(np.square(rows).sum(axis=1).mean()))


class Deviations:
    """Follows one path: the layers of a target, or of a draft."""

    def __init__(self, weights: PlantedWeights, plan: Plan, errors: Errors) -> None:
        self.weights, self.errors = weights, errors
        self.knobs, self.config, self.norms = weights.knobs, weights.config, weights.norms
        self.tensors = {weights.place(t.name): t for t in plan.tensors}
        self.hidden = self.config.hidden_size
        self.stream = 0.0  # rms error of each coordinate of the stream
        self.off: dict[str, float] = {}  # worst deviation of each field
        self.decoy = 0.0  # worst deviation of decoys
        self.digits: list[tuple[float, ...]] = []  # arguments of worst() for each digit

    def lost(self, path: tuple[str, ...]) -> float:
        """Logits that errors can take from the margin."""
        weights, e, lam = self.weights, self.errors, self.knobs.logit_scale
        coordinate = math.sqrt(self.norms.embedding / self.hidden)
        self.stream = coordinate * plus(e.noise / self.knobs.kappa, e.stored)
        if path == ("draft",):
            part = "eh_proj.weight" if ("draft", "eh_proj.weight") in self.tensors else "fc.weight"
            joined, rms = self.design("draft", part)
            join = self.read(rms, typical(joined), joined.shape[1] // 2, small=False)
            self.stream = plus(self.stream, join, join)  # the embedding's half, the hidden state's
        for layer in path:
            self.attend(layer)
            self.think(layer)
        head = self.read(
            weights.head_rms, weights.head_gain * math.sqrt(DIGITS), self.hidden, small=False
        )
        rounded = e.computed * DIGITS * lam  # logits are rounded as well
        logit = SIGMAS * math.sqrt(2) * plus(self.stream, head / lam, rounded / lam)
        return lam * max(worst(*digit, self.decoy, logit) for digit in self.digits)

    def design(self, layer: str, part: str) -> tuple[Floats, float]:
        """A matrix and its rms."""
        tensor = self.tensors[layer, part]
        return self.weights.design(tensor.name, tensor.shape)

    def read(self, rms: float, length: float, width: int, small: bool = True) -> float:
        """Rms error of the product of a row of ``length`` with an input of ``width``, rms 1."""
        e = self.errors
        rounding = (e.stored_small, e.computed_small) if small else (e.stored, e.computed)
        return plus(e.noise * rms * math.sqrt(width), *(r * length for r in rounding))

    def write(self, layer: str, part: str, size: float) -> float:
        """Rms error that a matrix adds to each coordinate, for an input of length ``size``."""
        e = self.errors
        _, rms = self.design(layer, part)
        rounding = plus(e.stored_small, e.computed_small) / math.sqrt(self.hidden)
        return plus(e.noise * rms * size, rounding)

    # -- attention -------------------------------------------------------------------------------

    def attend(self, layer: str) -> None:
        """Deviations of the fields that a layer's attention writes."""
        c, attention = self.config, self.weights.layers[layer].attention
        heads, rank = c.num_attention_heads, c.kv_lora_rank
        kv_a, kv_a_rms = self.design(layer, "self_attn.kv_a_proj_with_mqa.weight")
        q_a, q_a_rms = self.design(layer, "self_attn.q_a_proj.weight")
        q_b, q_b_rms = self.design(layer, "self_attn.q_b_proj.weight")
        kv_b, kv_b_rms = self.design(layer, "self_attn.kv_b_proj.weight")
        # of each latent dim, for latents of rms 1 after their norm
        latent = plus(
            self.read(kv_a_rms, typical(kv_a[:rank]), self.hidden) / LATENT_RMS, self.stream
        )
        query = plus(self.read(q_a_rms, typical(q_a), self.hidden) / LATENT_RMS, self.stream)
        rope_key = self.read(kv_a_rms, typical(kv_a[rank:]), self.hidden)

        def made(rows: Floats, rms: float, source: float) -> float:
            length = typical(rows)
            return plus(self.read(rms, length, rows.shape[1]), source * length)

        queries = q_b.reshape(heads, -1, q_b.shape[1])
        keys_values = kv_b.reshape(heads, -1, rank)
        written: dict[str, float] = {}
        nope = c.qk_nope_head_dim
        first = {role.name: head for head, (role, _) in reversed(list(enumerate(attention.heads)))}
        for head in first.values():  # heads of a role differ in the codes that they carry alone
            role, q, kv = attention.heads[head][0], queries[head], keys_values[head]
            logit = self.logit(
                role,
                attention,
                q_nope=made(q[:nope], q_b_rms, query),
                q_rope=made(q[nope:], q_b_rms, query),
                k_nope=made(kv[:nope], kv_b_rms, latent),
                k_rope=rope_key,
            )
            value = made(kv[nope:], kv_b_rms, latent) / math.sqrt(c.v_head_dim)
            written[role.target] = self.fetched(role, attention, logit, value)
        for target, off in written.items():
            self.off[target] = plus(self.off.get(COPIES.get(target, ""), 0.0), off)
        after = self.norms.draft_mlp if layer == "draft" else self.norms.mlp[int(layer)]
        size = math.sqrt(len(written) * c.v_head_dim)
        self.stream = plus(
            self.stream,
            self.write(layer, "self_attn.o_proj.weight", size),
            self.errors.computed * math.sqrt(after / self.hidden),
        )

    def logit(
        self,
        role: Role,
        attention: Attention,
        *,
        q_nope: float,
        q_rope: float,
        k_nope: float,
        k_rope: float,
    ) -> float:
        """Rms error of a logit against the sink's, from rms errors of query and key elements."""
        scale = softmax_scale(self.config)
        kernel = float(np.sqrt(np.square(attention.kernel(role)).sum()))
        key = KEY * math.sqrt(self.config.qk_rope_head_dim / 2)
        likes = 8.0 * math.sqrt(self.knobs.num_classes) if role.content else 0.0
        return plus(
            scale * key * q_rope,
            kernel / KEY * k_rope,
            kernel * math.sqrt(2) * self.errors.computed,  # query and key after rotation
            scale * KEY * q_nope,
            math.sqrt(2)
            * plus(role.kernel.sink, likes)
            / KEY
            * k_nope,  # the sink's key, the other's
        )

    def fetched(self, role: Role, attention: Attention, logit: float, value: float) -> float:
        """Worst deviation of what a head fetches."""
        others, shift = self.others(role, attention), math.exp(SIGMAS * logit)
        if role.dimmed:
            sink = math.exp(role.kernel.sink)
            gain = 1 + sink
            # the wanted logit too high, and all others' tokens adding to it
            return others + plus(gain / (1 + sink / shift) - 1, SIGMAS * gain * value)
        if role.content:  # the chosen of two is at 0 or above, the other and the sink 8 lower
            rivals = 2 * math.exp(-8.0) + others * math.exp(8.0)
        else:
            ((_, peak),) = role.kernel.peaks
            rivals = (others + math.exp(role.kernel.sink)) / math.exp(peak)
        return plus(2 * rivals * shift, SIGMAS * value)

    def others(self, role: Role, attention: Attention) -> float:
        """Sum of exp(logit) over all distances within the context that a role does not want."""
        d = np.setdiff1d(np.arange(self.knobs.context), [p for p, _ in role.kernel.peaks])
        angle = np.outer(d, frequencies(self.config))
        a, b = attention.kernel(role)
        return float(np.exp(np.cos(angle) @ a + np.sin(angle) @ b).sum())

    # -- MLPs ------------------------------------------------------------------------------------

    def think(self, layer: str) -> None:
        """Deviations of the fields that a layer's MLP or experts write."""
        norm = self.norms.draft_mlp if layer == "draft" else self.norms.mlp[int(layer)]
        # codes that are off move the norm, which scales a neuron's gate and its up alike
        common = 2 * plus(*self.off.values()) / norm
        if layer == "0":
            usual, longest = self.fired(layer, "mlp.")
            self.off["Q"] = max(worst(self.window("C1"), usual, common), plus(longest, common))
            self.spread(layer, {"mlp.": FIRED})
            return
        own, own_longest = self.fired(layer, "mlp.shared_experts.")
        usual, longest = self.fired(layer, "mlp.experts.0.")
        mixing = SIGMAS * self.mixing(layer)
        routed, routed_longest = plus(usual, mixing), plus(longest, mixing)
        members = self.weights.lookups.experts_per_slot
        if layer == "1":
            gain = plus(LEAD, COUNTER) if members == 2 else 1.0
            for s, argument in enumerate(ARGUMENTS):
                self.off[f"M{s + 1}"] = max(
                    worst(self.window(argument), gain * routed, common),
                    plus(gain * routed_longest, common),
                )
            self.off["M5"] = plus(own, common)
        else:
            arguments = ARGUMENTS if layer == "draft" else ("S", "M2", "M3", "M4")
            self.digits = [(self.window(argument), routed, common) for argument in arguments]
            exact = self.off["W"] / (2 - THRESHOLD)
            self.digits.append((self.window("Z"), exact, own, common))
            self.digits += [(0.0, routed_longest, common), (0.0, exact, own_longest, common)]
            self.decoy = self.knobs.decoy * plus(members * own, (members - 1) * routed)
        k, factor = self.config.num_experts_per_tok or 1, self.config.routed_scaling_factor
        self.spread(
            layer,
            {
                "mlp.shared_experts.": math.sqrt(2) * FIRED,
                "mlp.experts.0.": math.sqrt(2 / k) * factor * FIRED,
            },
        )

    def window(self, field: str) -> float:
        """What a window loses of a code whose argument is ``field``."""
        return CURVATURE * self.off.get(field, SIGMAS * self.stream) ** 2

    def fired(self, layer: str, prefix: str) -> tuple[float, float]:
        """Worst relative error of the output of a neuron that fires: a usual one, the longest.

        Neurons that wait for an empty field read all of its codes, so their rows are longest.
        """
        gate, gate_rms = self.design(layer, f"{prefix}gate_proj.weight")
        up, up_rms = self.design(layer, f"{prefix}up_proj.weight")

        def error(gate_length: float, up_length: float) -> float:
            reads = self.read(gate_rms, gate_length, self.hidden) / GAIN
            return SIGMAS * plus(
                plus(reads, math.sqrt(3) * self.stream) / (2 - THRESHOLD),
                self.read(up_rms, up_length, self.hidden),
                self.stream,
                2 * self.errors.computed,
            )

        used = lengths(gate) > 0
        gates, ups = lengths(gate)[used], lengths(up)[used]
        return error(float(np.median(gates)), float(np.median(ups))), error(gates.max(), ups.max())

    def mixing(self, layer: str) -> float:
        """Relative rms error of the weight of an expert."""
        router = self.weights.layers[layer].router
        matrix, rms = self.design(layer, "mlp.gate.weight")
        logits = np.take_along_axis(router.logits, router.chosen, axis=1)
        scores = np.take_along_axis(router.scores, router.chosen, axis=1)
        error = plus(
            self.read(rms, typical(matrix), self.hidden, small=False),
            float(np.abs(logits).max()) * self.stream,
        )
        return float((1 - scores).max()) * error

    def spread(self, layer: str, sizes: dict[str, float]) -> None:
        """Add what down projections do to the rest of the stream; ``sizes`` of their inputs."""
        after = (
            self.norms.final if layer in ("2", "draft") else self.norms.attention[int(layer) + 1]
        )
        self.stream = plus(
            self.stream,
            *(self.write(layer, f"{prefix}down_proj.weight", n) for prefix, n in sizes.items()),
            self.errors.computed * math.sqrt(after / self.hidden),
        )

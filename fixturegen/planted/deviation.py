"""How far codes may deviate from their planned amplitudes, followed through the layers.

The errors of weights and of rounding are independent. The worst case is the worst combination of
them that is no less likely than one error at :data:`SIGMAS` standard deviations: a point on a ball
of that radius. Amplitudes are in units of a code's own. docs/planted.md has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fixturegen.errors import RecipeError
from fixturegen.planted.attention import KEY, LATENT_RMS, Attention, Role
from fixturegen.planted.fields import Floats
from fixturegen.planted.function import DIGITS, MIDDLE
from fixturegen.planted.kernels import frequencies, softmax_scale, waves
from fixturegen.planted.layers import ARGUMENTS, COUNTER, LEAD
from fixturegen.planted.neurons import FIRED, GAIN, THRESHOLD
from fixturegen.planted.weights import PlantedWeights

if TYPE_CHECKING:
    from fixturegen.recipe import Plan, Recipe

#: Radius of the ball of errors in standard deviations; less with FP8, whose rounding leaves less.
SIGMAS, SIGMAS_FP8 = 5.0, 4.0
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
    computed_small: float  # inputs of the matrices that FP8 recipes quantise
    sigmas: float  # how many of them are taken

    @classmethod
    def of(cls, recipe: Recipe, computing: bool) -> Errors:
        """Errors of a recipe's weights alone, or of an engine that computes with them too."""

        def rms(dtype: str) -> float:
            # half a last place, evenly spread, of significands 1..2 that are evenly so in log
            return 2.0 ** -BITS[dtype] * math.sqrt((1 - 2.0**-2) / (6 * math.log(2)))

        large = rms(recipe.model.dtype)
        small = rms("float8_e4m3fn") if recipe.model.quantization else large
        sigmas = SIGMAS_FP8 if recipe.model.quantization else SIGMAS
        return cls(recipe.planted.noise, large, small, large * computing, large * computing, sigmas)


def plus(*errors: float) -> float:
    """Rms of a sum of independent errors."""
    return math.sqrt(sum(e * e for e in errors))


def worst(squared: float, *linear: float) -> float:
    """Worst sum on the ball, of one term that grows as a square and of independent linear ones.

    Each is given at its own worst; the largest of ``squared cos^2 t + linear sin t`` over t.
    """
    line = plus(*linear)
    return line if line >= 2 * squared else squared + line * line / (4 * squared)


@dataclass(frozen=True)
class Matrix:
    """What counts of a matrix: the length of each row, the rms of all, the width of its input."""

    lengths: Floats
    rms: float
    width: int

    def __getitem__(self, rows: slice) -> Matrix:
        return Matrix(self.lengths[rows], self.rms, self.width)

    @property
    def typical(self) -> float:
        """Rms length of its rows."""
        return math.sqrt(float(np.square(self.lengths).mean()))


class Deviations:
    """Follows a path: the layers of a target, or of a draft."""

    errors: Errors

    def __init__(self, weights: PlantedWeights, plan: Plan) -> None:
        self.weights = weights
        self.knobs, self.config, self.norms = weights.knobs, weights.config, weights.norms
        self.tensors = {weights.place(t.name): t for t in plan.tensors}
        self.hidden = self.config.hidden_size
        self.matrix = cache(self._matrix)
        self.others = cache(self._others)

    def _start(self, errors: Errors) -> None:
        self.errors = errors
        self.stream = 0.0  # rms error of each coordinate of the stream
        self.off: dict[str, float] = {}  # worst deviation of each field
        self.leak: dict[str, float] = {}  # worst sum of what is in a field that should be empty
        self.decoy = 0.0  # worst deviation of decoys
        self.digits: list[tuple[float, ...]] = []  # arguments of worst() for each digit

    def lost(self, path: tuple[str, ...], errors: Errors) -> float:
        """Logits that ``errors`` can take from the margin."""
        self._start(errors)
        weights, e, lam = self.weights, errors, self.knobs.logit_scale
        coordinate = math.sqrt(self.norms.embedding / self.hidden)
        self.stream = coordinate * plus(e.noise / self.knobs.kappa, e.stored)
        if path == ("draft",):
            part = "eh_proj.weight" if ("draft", "eh_proj.weight") in self.tensors else "fc.weight"
            join = self.read(self.matrix("draft", part), small=False)
            self.stream = plus(self.stream, join)
        for layer in path:
            self.attend(layer)
            self.think(layer)
        row = np.full(1, weights.head_gain * math.sqrt(DIGITS))
        head = self.read(Matrix(row, weights.head_rms, self.hidden), small=False)
        rounded = e.computed * DIGITS * lam  # logits are rounded as well
        logit = self.errors.sigmas * math.sqrt(2) * plus(self.stream, head / lam, rounded / lam)
        return lam * max(worst(*digit, self.decoy, logit) for digit in self.digits)

    def _matrix(self, layer: str, part: str) -> Matrix:
        tensor = self.tensors[layer, part]
        design = self.weights.design(tensor.name, tensor.shape)
        lengths = np.sqrt(np.square(design.values).sum(axis=1))
        return Matrix(lengths, design.rms, tensor.shape[1])

    def read(self, rows: Matrix, length: float | None = None, small: bool = True) -> float:
        """Rms error of the product of a row with an input of rms 1.

        The row has the typical length of ``rows`` unless ``length`` is given.
        """
        e, size = self.errors, rows.typical if length is None else length
        rounding = (e.stored_small, e.computed_small) if small else (e.stored, e.computed)
        return plus(e.noise * rows.rms * math.sqrt(rows.width), *(r * size for r in rounding))

    def write(self, layer: str, part: str, size: float) -> float:
        """Rms error that a matrix adds to each coordinate, for an input of length ``size``."""
        e = self.errors
        rms = self.matrix(layer, part).rms
        rounding = plus(e.stored_small, e.computed_small) / math.sqrt(self.hidden)
        return plus(e.noise * rms * size, rounding)

    # -- attention -------------------------------------------------------------------------------

    def attend(self, layer: str) -> None:
        """Deviations of the fields that a layer's attention writes."""
        c, attention = self.config, self.weights.layers[layer].attention
        rank = c.kv_lora_rank
        kv_a = self.matrix(layer, "self_attn.kv_a_proj_with_mqa.weight")
        q_b = self.matrix(layer, "self_attn.q_b_proj.weight")
        kv_b = self.matrix(layer, "self_attn.kv_b_proj.weight")
        # of each latent dim, for latents of rms 1 after their norm
        latent = plus(self.read(kv_a[:rank]) / LATENT_RMS, self.stream)
        query = plus(
            self.read(self.matrix(layer, "self_attn.q_a_proj.weight")) / LATENT_RMS, self.stream
        )
        rope_key = self.read(kv_a[rank:])

        def made(rows: Matrix, source: float) -> float:
            return plus(self.read(rows), source * rows.typical)

        written: dict[str, float] = {}
        first = {role.name: head for head, (role, _) in reversed(list(enumerate(attention.heads)))}
        for head in first.values():  # heads of a role differ in the codes that they carry alone
            role = attention.heads[head][0]
            q, kv = head * c.qk_head_dim, head * (c.qk_nope_head_dim + c.v_head_dim)
            k, v = kv + c.qk_nope_head_dim, kv + c.qk_nope_head_dim + c.v_head_dim
            logit = self.logit(
                role,
                attention,
                q_nope=made(q_b[q : q + c.qk_nope_head_dim], query),
                q_rope=made(q_b[q + c.qk_nope_head_dim : q + c.qk_head_dim], query),
                k_nope=made(kv_b[kv:k], latent),
                k_rope=rope_key,
            )
            value = made(kv_b[k:v], latent) / math.sqrt(c.v_head_dim)
            written[role.target] = self.fetched(role, layer, logit, value)
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

    def fetched(self, role: Role, layer: str, logit: float, value: float) -> float:
        """Worst deviation of what a head fetches."""
        others, shift = self.others(role, layer), math.exp(self.errors.sigmas * logit)
        if role.dimmed:
            sink = math.exp(role.kernel.sink)
            gain = 1 + sink
            # the wanted logit too high, and all others' tokens adding to it
            self.leak[role.target] = others + self.errors.sigmas * gain * value * math.sqrt(
                role.codes
            )
            return others + plus(gain / (1 + sink / shift) - 1, self.errors.sigmas * gain * value)
        if role.content:  # the chosen of two is at 0 or above, the other and the sink 8 lower
            rivals = 2 * math.exp(-8.0) + others * math.exp(8.0)
        else:
            ((_, peak),) = role.kernel.peaks
            rivals = (others + math.exp(role.kernel.sink)) / math.exp(peak)
        return plus(2 * rivals * shift, self.errors.sigmas * value)

    def _others(self, role: Role, layer: str) -> float:
        # sum of exp(logit) over all distances within the context that a role does not want
        table = waves(tuple(frequencies(self.config)), self.knobs.context)
        logits = table @ self.weights.layers[layer].attention.kernel(role).ravel()
        return float(np.exp(np.delete(logits, [p for p, _ in role.kernel.peaks])).sum())

    # -- MLPs ------------------------------------------------------------------------------------

    def think(self, layer: str) -> None:
        """Deviations of the fields that a layer's MLP or experts write."""
        norm = self.norms.draft_mlp if layer == "draft" else self.norms.mlp[int(layer)]
        # codes that are off move the norm, which scales a neuron's gate and its up alike
        common = 2 * plus(*self.off.values()) / norm
        if layer == "0":
            usual = self.fired(layer, "mlp.")
            waiting = self.fired(layer, "mlp.", self.knobs.num_classes)
            self.off["Q"] = max(
                worst(self.window("C1"), usual, common), worst(self.empty("C1"), waiting, common)
            )
            self.spread(layer, {"mlp.": FIRED})
            return
        mixing, k = self.errors.sigmas * self.mixing(layer), self.knobs.num_classes
        own = self.fired(layer, "mlp.shared_experts.")
        own_waiting = self.fired(layer, "mlp.shared_experts.", MIDDLE)
        routed = plus(self.fired(layer, "mlp.experts.0."), mixing)
        routed_waiting = plus(self.fired(layer, "mlp.experts.0.", k), mixing)
        members = self.weights.lookups.experts_per_slot
        if layer == "1":
            gain = plus(LEAD, COUNTER) if members == 2 else 1.0
            for s, argument in enumerate(ARGUMENTS):
                self.off[f"M{s + 1}"] = max(
                    worst(self.window(argument), gain * routed, common),
                    worst(self.empty("C2"), gain * routed_waiting, common),
                )
            self.off["M5"] = plus(own, common)
        else:
            arguments = ARGUMENTS if layer == "draft" else ("S", "M2", "M3", "M4")
            self.digits = [(self.window(argument), routed, common) for argument in arguments]
            exact = self.off["W"] / (2 - THRESHOLD)
            self.digits.append((self.window("Z"), exact, own, common))
            self.digits.append((self.empty("Z"), exact, own_waiting, common))
            if layer == "draft":
                self.digits.append((self.empty("C2"), routed_waiting, common))
            self.decoy = self.knobs.decoy * plus(members * own, (members - 1) * routed)
        factor = self.config.routed_scaling_factor
        self.spread(
            layer,
            {
                "mlp.shared_experts.": math.sqrt(2) * FIRED,
                "mlp.experts.0.": math.sqrt(2 / (self.config.num_experts_per_tok or 1))
                * factor
                * FIRED,
            },
        )

    def window(self, field: str) -> float:
        """What a window loses of a code whose argument is ``field``."""
        return CURVATURE * self.off.get(field, self.errors.sigmas * self.stream) ** 2

    def empty(self, field: str) -> float:
        """What the window of a neuron that waits for an empty field loses to leaks."""
        return CURVATURE * self.leak[field] ** 2

    def fired(self, layer: str, prefix: str, waits_for: int = 0) -> float:
        """Worst relative error of the output of a neuron that fires.

        One that waits for an empty field of ``waits_for`` codes reads them all. What an input has
        too much of one lowers the gate and raises ``up`` alike, so errors of inputs cancel there.
        """
        gate = self.matrix(layer, f"{prefix}gate_proj.weight")
        up = self.matrix(layer, f"{prefix}up_proj.weight")
        used = gate.lengths > 0
        gate_length = float(np.median(gate.lengths[used]))
        up_length = float(np.median(up.lengths[used]))
        waits = math.sqrt(waits_for / 2) * gate_length / GAIN  # a usual neuron reads two codes
        reads = self.read(gate, gate_length) / GAIN
        waiting = self.errors.stored_small * waits / (2 - THRESHOLD)
        return self.errors.sigmas * plus(
            plus(reads, math.sqrt(3) * self.stream) / (2 - THRESHOLD),
            self.read(up, up_length),
            math.sqrt(2) * waiting,  # of the gate and of up
            self.stream,
            2 * self.errors.computed,
        )

    def mixing(self, layer: str) -> float:
        """Relative rms error of the weight of an expert.

        Raises RecipeError when errors may change the choice of experts.
        """
        router = self.weights.layers[layer].router
        logits = np.take_along_axis(router.logits, router.chosen, axis=1)
        scores = np.take_along_axis(router.scores, router.chosen, axis=1)
        error = plus(
            self.read(self.matrix(layer, "mlp.gate.weight"), small=False),
            float(np.abs(logits).max()) * self.stream,
        )
        # the slope of a sigmoid is 1/4 at most; a choice compares two scores
        if self.errors.sigmas * math.sqrt(2) * error / 4 >= router.margin():
            recipe = self.weights.recipe
            raise RecipeError(
                f"{recipe.name}: no margin can be guaranteed: errors may change the choice of "
                f"experts in layer {layer}; lower planted.noise ({recipe.planted.noise:g})"
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

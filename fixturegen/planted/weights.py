"""Planted weights: each tensor from the designs of the other modules, rotated, plus noise."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property, lru_cache, partial
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from fixturegen.errors import RecipeError
from fixturegen.layouts import Tensor
from fixturegen.planted.attention import Attention
from fixturegen.planted.draws import Draws, dyadic
from fixturegen.planted.fields import (
    FILLER,
    STEPS,
    Basis,
    Design,
    Floats,
    Norms,
    Rotation,
    norm_weight,
    rms_of,
)
from fixturegen.planted.function import DECOY, DIGITS, SLOTS, Function
from fixturegen.planted.layers import Lookups
from fixturegen.planted.neurons import Neurons, Row
from fixturegen.planted.router import Router
from fixturegen.recipe import Plan, Recipe
from fixturegen.values.initializers import NUMPY_DTYPES
from fixturegen.values.normal import normal, quantiles
from fixturegen.values.stream import bits16

R = TypeVar("R")

FINAL_NORM = "model.norm.weight"
#: Noise of a role relative to the recipe's, where it is not 1.
NOISE = {"norm": 0.1, "router_bias": 0.0}


class PlantedWeights:
    """The weights of one checkpoint of a planted recipe (a :class:`fixturegen.values.Weights`)."""

    def __init__(self, recipe: Recipe, plan: Plan) -> None:
        self.recipe, self.config = recipe, plan.config
        self.knobs = recipe.planted
        self.is_draft = plan.config.is_eagle_draft
        self.function = planted_function(recipe)
        self.draws = Draws(recipe.seed)
        self.basis = Basis(self.config.hidden_size, self.knobs.num_classes)
        self.rotate = Rotation(self.config.hidden_size, self.draws, "rotation")
        self.norms = Norms(self.knobs.kappa, self.knobs.decoy)
        assert self.config.num_experts_per_tok is not None
        self.lookups = Lookups(self.function, self.basis, self.config.num_experts_per_tok // SLOTS)
        self.layers = {
            name: _Layer(self, name) for name in (("draft",) if self.is_draft else LAYER_NAMES)
        }
        self.design = Once(self._make_design, keep=8)

    def rows(self, tensor: Tensor, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows of a tensor: the design plus seeded noise, added in float32."""
        name = tensor.copy_of or tensor.name
        knob = self.knobs.noise
        scale: float | Floats
        if tensor.role == "embedding":
            design = self._embedding(start, stop)
            scale = np.full((stop - start, 1), self._embedding_rms * knob / self.knobs.kappa)
            if start == 0:
                scale[0] /= 10  # bos is read through every dimmed head
        elif tensor.role == "head":
            design = self._head(start, stop)
            scale = knob * self.head_rms
        else:
            if tensor.role == "norm" and self.place(tensor.name)[1] in FINAL_NORMS:
                name = FINAL_NORM  # a draft's final norm is the target's, noise and all
            whole = self.design(tensor.name, tensor.shape)
            scale = knob * whole.rms * NOISE.get(tensor.role, 1.0)
            if whole.at is not None:
                return self._mostly_noise(tensor, start, stop, whole, scale)
            design = whole.values[start:stop]
        width = math.prod(tensor.shape[1:])
        values = normal(self.recipe.seed, name, start * width, (stop - start) * width)
        values = values.reshape(design.shape)
        values *= np.asarray(scale, np.float32)
        values += design
        return values

    def _mostly_noise(
        self, tensor: Tensor, start: int, stop: int, design: Design, scale: float
    ) -> npt.NDArray[Any]:
        """The same sum, in the dtype that is stored: most of it is noise and needs no adding."""
        quantized = tensor.quantized and self.config.quantization
        dtype = "float32" if quantized else tensor.dtype or self.config.dtype
        noise, stored = _noise_values(scale, dtype)
        width = tensor.shape[1]
        bits = bits16(self.recipe.seed, tensor.name, start * width, (stop - start) * width)
        index = bits.astype(np.intp).reshape(stop - start, width)
        values = stored.take(index)
        assert design.at is not None
        if design.columns:
            values[:, design.at] = noise.take(index[:, design.at]) + design.values[start:stop]
        else:
            here = (design.at >= start) & (design.at < stop)
            at = design.at[here] - start
            values[at] = noise.take(index[at]) + design.values[here]
        return values

    def place(self, name: str) -> tuple[str, str]:
        """Layer name (``"0"``, ``"1"``, ``"2"``, ``"draft"`` or none) and the rest of a name."""
        match = re.fullmatch(r"(?:model\.)?layers\.(\d+)\.(.+)", name)
        if not match:
            return ("draft" if self.is_draft else ""), name
        layer = int(match[1])
        if self.is_draft or layer == self.config.num_hidden_layers:
            return "draft", match[2]
        return str(layer), match[2]

    def _make_design(self, name: str, shape: tuple[int, ...]) -> Design:
        layer, part = self.place(name)
        if part in FINAL_NORMS:
            design = Design.of(self.final_norm)
        elif part in ("eh_proj.weight", "fc.weight"):
            design = Design.of(self._join(blank_first=part == "eh_proj.weight"))
        else:
            design = self.layers[layer].tensor(part)
        assert design.at is not None or design.values.shape == shape, (name, shape)
        return design

    @cached_property
    def axes(self) -> Floats:
        """Where the rotation takes the coordinates of the fields, ``[coordinates, hidden]``."""
        return self.rotate(np.eye(self.basis.used, self.basis.size))

    @cached_property
    def final_norm(self) -> Floats:
        """Weights of the final norm."""
        return norm_weight(self.draws, "final", self.config.hidden_size, final=True)

    def turn(self, rows: list[Row], amplitude: float = 1.0) -> Floats:
        """Rotate sparse rows, none of them empty, after a division by ``amplitude``."""
        at = np.array([i for row in rows for i in row])
        entries = dyadic(np.array([x for row in rows for x in row.values()]) / amplitude)
        starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
        turned: Floats = np.add.reduceat(self.axes[at] * entries[:, None], starts)
        return turned

    # -- embedding and head ----------------------------------------------------------------------

    def _embedding(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        rows = self._embedded.take(self.function.classes[start:stop], axis=0)
        if start == 0:
            rows[0] = self._embedded[-1]
        return rows

    @cached_property
    def _embedded(self) -> npt.NDArray[np.float32]:
        """The embedding of each class and, last, of bos."""
        null, kappa = self.knobs.num_classes, self.knobs.kappa
        rows = [self.basis.vector(("u", 0, kappa), ("C0", c, 1.0)) for c in range(null + 1)]
        first = [(f"D{s + 1}", int(d), 1.0) for s, d in enumerate(self.function.first)]
        rows.append(
            self.basis.vector(("u_bos", 0, kappa), ("C0", null, 1.0), ("Q", null, 1.0), *first)
        )
        return self.rotate(dyadic(rows)).astype(np.float32)

    @property
    def _embedding_rms(self) -> float:
        return math.sqrt(self.norms.embedding / self.basis.size)

    @property
    def head_gain(self) -> float:
        """Entry of lm_head for a right digit, in the basis."""
        return self.knobs.logit_scale / math.sqrt(self.basis.size / self.norms.final)

    @property
    def head_rms(self) -> float:
        """Rms of lm_head."""
        return self.head_gain * math.sqrt(DIGITS / self.basis.size)

    def _head(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        digits = self.function.digits[start:stop]
        (known,) = np.nonzero(digits[:, 0] >= 0)
        gain = dyadic(self.head_gain)
        rows = np.zeros((stop - start, self.basis.size), np.float32)
        codes = (self.basis.at(f"D{s + 1}") + digits[known, s] for s in range(DIGITS))
        rows[known] = sum(self.axes[code] for code in codes) * gain / self.final_norm
        return rows

    # -- draft -----------------------------------------------------------------------------------

    def _join(self, blank_first: bool) -> Floats:
        """``eh_proj`` or ``fc``, ``[hidden, 2 * hidden]``: columns [embedding, hidden state].

        An MTP layer blanks the embedding at position 0, so half of the constant can come from it;
        an Eagle draft does not, so all of it comes from the hidden state, where bos has none.
        """
        b, kappa = self.basis, self.knobs.kappa
        size = b.size
        from_e, from_h = np.zeros((size, size)), np.zeros((size, size))

        def move(matrix: Floats, source: str, target: str, factor: float) -> None:
            s, t = b[source], b[target]
            matrix[np.arange(t.start, t.stop), np.arange(s.start, s.stop)] = factor

        half = 0.5 if blank_first else 0.0
        move(from_e, "C0", "C0", 1.0)
        move(from_e, "u", "u", half)
        move(from_h, "u", "u", 1.0 - half)
        move(from_h, "u_bos", "u_bos", 1.0)
        move(from_h, "C0", "C1", 1.0)
        move(from_h, "Q", "Q", 1.0)
        move(from_h, "M5", "M5", 1.0)
        from_h[b.at("F"), [b.at("u"), b.at("u_bos")]] = FILLER / kappa
        # P counts draft steps: the target's state has no filler, a draft's own has, and its step
        from_h[b.at("P"), [b.at("u"), b.at("u_bos")]] = 1 / kappa
        from_h[b.at("P"), b.at("F")] = -1 / FILLER
        for step in range(1, STEPS):
            from_h[b.at("P", step), b.at("P", step - 1)] = 1.0
        from_h[b.at("P", STEPS - 1), b.at("P", STEPS - 1)] = 1.0
        for s in range(DIGITS):  # after a lone bos nothing right can be drafted: never a right id
            from_h[b.at(f"D{s + 1}", DECOY), b.at("u_bos")] = 1 / kappa
        from_e /= math.sqrt(size / self.norms.embedding)
        from_h /= math.sqrt(size / self.norms.final)
        enorm, hnorm = (norm_weight(self.draws, n, size) for n in ("enorm", "hnorm"))
        parts = []
        for matrix, norm in ((from_e, enorm), (from_h, hnorm * np.sign(self.final_norm))):
            turned = self.rotate(self.rotate(dyadic(matrix)).T).T
            parts.append(turned / norm)
        return np.concatenate(parts, axis=1)


class Once(Generic[R]):
    """Calls ``function`` once for each key, from whatever thread, and keeps the last results."""

    def __init__(self, function: Callable[..., R], keep: int) -> None:
        self.function, self.keep = function, keep
        self.results: OrderedDict[Any, Future[R]] = OrderedDict()
        self.lock = Lock()

    def __call__(self, *key: Any) -> R:
        """The result for ``key``; waits for another thread that is at it."""
        with self.lock:
            result = self.results.get(key)
            mine = result is None
            if result is None:
                result = self.results[key] = Future()
                while len(self.results) > self.keep:
                    self.results.popitem(last=False)
            else:
                self.results.move_to_end(key)
        if mine:
            try:
                result.set_result(self.function(*key))
            except BaseException as error:
                result.set_exception(error)
        return result.result()


LAYER_NAMES = ("0", "1", "2", "draft")
FINAL_NORMS = (FINAL_NORM, "shared_head.norm.weight", "norm.weight")


class _Layer:
    """The tensors of one decoder layer by the last part of their names."""

    def __init__(self, weights: PlantedWeights, name: str) -> None:
        self.weights, self.name = weights, name
        self.config = weights.config
        self._turned = Once(self._turned_of, keep=4)

    def _norm(self, label: str, size: int) -> Floats:
        return norm_weight(self.weights.draws, f"{self.name}:{label}", size)

    @cached_property
    def input_norm(self) -> Floats:
        """Weights of the norm before attention."""
        return self._norm("input", self.config.hidden_size)

    @cached_property
    def mlp_norm(self) -> Floats:
        """Weights of the norm before the MLP."""
        return self._norm("mlp", self.config.hidden_size)

    @cached_property
    def q_norm(self) -> Floats:
        """Weights of the query latent's norm."""
        assert self.config.q_lora_rank is not None
        return self._norm("q", self.config.q_lora_rank)

    @cached_property
    def kv_norm(self) -> Floats:
        """Weights of the key/value latent's norm."""
        return self._norm("kv", self.config.kv_lora_rank)

    @cached_property
    def attention(self) -> Attention:
        """The layer's attention."""
        w = self.weights
        draft = self.name == "draft"
        norm = w.norms.draft_attention if draft else w.norms.attention[int(self.name)]
        return Attention(
            self.config,
            w.knobs,
            w.basis,
            w.draws,
            self.name,
            norm,
            self.q_norm,
            self.kv_norm,
            w.function.tables.match,
        )

    @cached_property
    def mlp_amplitude(self) -> float:
        """Amplitude of a unit code after the norm before the MLP."""
        w = self.weights
        norm = w.norms.draft_mlp if self.name == "draft" else w.norms.mlp[int(self.name)]
        return math.sqrt(w.basis.size / norm)

    @cached_property
    def router(self) -> Router:
        """The layer's router."""
        w = self.weights
        return Router(self.config, w.knobs.num_classes, w.draws, self.name)

    def _neurons(self, expert: int | None) -> Neurons:
        lookups = self.weights.lookups
        if expert is None:
            return lookups.dense() if self.name == "0" else lookups.shared(self.name)
        chosen = self.router.chosen
        if expert not in chosen:  # more experts than places: idle ones repeat others
            expert = int(chosen.flat[expert % chosen.size])
        return lookups.expert(self.name, self.router, expert)

    def _turned_of(self, expert: int | None) -> dict[str, Floats]:
        """Gate, up and down vectors of the neurons of an expert, or of what all tokens pass."""
        neurons = self._neurons(expert)
        gate, up = (
            self.weights.turn(rows, self.mlp_amplitude) / self.mlp_norm
            for rows in (neurons.gate, neurons.up)
        )
        return {"gate": gate, "up": up, "down": self.weights.turn(neurons.down)}

    def tensor(self, part: str) -> Design:
        """The design of one tensor, as stored."""
        w, a = self.weights, self.attention
        rotate = w.rotate
        large: dict[str, Callable[[], Design]] = {
            "self_attn.q_b_proj.weight": a.q_b,
            "self_attn.kv_b_proj.weight": a.kv_b,
            "self_attn.o_proj.weight": partial(a.o, w.axes),
        }
        if part in large:
            return large[part]()
        simple: dict[str, Callable[[], Floats]] = {
            "input_layernorm.weight": lambda: self.input_norm,
            "post_attention_layernorm.weight": lambda: self.mlp_norm,
            "enorm.weight": lambda: norm_weight(w.draws, "enorm", w.basis.size),
            "hnorm.weight": lambda: norm_weight(w.draws, "hnorm", w.basis.size),
            "self_attn.q_a_layernorm.weight": lambda: self.q_norm,
            "self_attn.kv_a_layernorm.weight": lambda: self.kv_norm,
            "self_attn.q_a_proj.weight": lambda: rotate(a.q_a()) / self.input_norm,
            "self_attn.kv_a_proj_with_mqa.weight": lambda: a.kv_a(w.axes) / self.input_norm,
            "mlp.gate.weight": self._router_matrix,
            "mlp.gate.e_score_correction_bias": lambda: self.router.bias,
        }
        if part in simple:
            return Design.of(simple[part]())
        match = re.fullmatch(
            r"mlp\.(?:experts\.(\d+)\.|(shared_experts)\.)?(gate|up|down)_proj\.weight", part
        )
        assert match, part
        width = self.config.moe_intermediate_size
        if match[2]:
            width *= self.config.n_shared_experts or 0
        elif not match[1]:
            width = self.config.intermediate_size
        rows = self._turned(int(match[1]) if match[1] else None)[match[3]]
        return self._spread(rows, match[3] == "down", width, part[: match.start(3)])

    def _spread(self, rows: Floats, down: bool, width: int, label: str) -> Design:
        """The vectors of neurons at their places among ``width``: rows, or columns if ``down``."""
        w = self.weights
        if len(rows) > width:
            raise RecipeError(
                f"{w.recipe.name}: planted weights need room for {len(rows)} neurons in "
                f"layer {self.name}, {label}* has {width}; raise moe_intermediate_size"
            )
        places = w.draws.permutation(f"width:{self.name}:{label}", width)[: len(rows)]
        rms = rms_of(float(np.square(rows).sum()), width * w.basis.size)
        values = (rows.T if down else rows).astype(np.float32)
        return Design(values, rms, places, columns=down)

    def _router_matrix(self) -> Floats:
        w = self.weights
        read = np.zeros((self.router.experts, w.basis.size))
        field = w.basis["C0"]
        read[:, field.start : field.start + w.knobs.num_classes] = self.router.logits.T
        return w.rotate(dyadic(read / self.mlp_amplitude)) / self.mlp_norm


@lru_cache(maxsize=16)
def _noise_values(scale: float, dtype: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
    """The 65,536 values of noise, in float32 and as stored in ``dtype``."""
    noise = quantiles() * np.float32(scale)
    return noise, noise.astype(NUMPY_DTYPES[dtype])


@lru_cache(maxsize=8)
def planted_function(recipe: Recipe) -> Function:
    """The function of a recipe."""
    from fixturegen.tokenizer import train

    return Function(
        knobs=recipe.planted,
        seed=recipe.seed,
        vocab_size=recipe.model.vocab_size,
        tokens=train(recipe.tokenizer_vocab_size).get_vocab_size(),
    )

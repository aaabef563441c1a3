"""Planted weights: each tensor from the designs of the other modules, rotated, plus noise."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cached_property, lru_cache

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
    Floats,
    Norms,
    Rotation,
    norm_weight,
)
from fixturegen.planted.function import DECOY, DIGITS, SLOTS, Function
from fixturegen.planted.layers import Lookups
from fixturegen.planted.neurons import Neurons
from fixturegen.planted.router import Router
from fixturegen.recipe import Plan, Recipe
from fixturegen.values.normal import normal

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
        self.design = lru_cache(maxsize=8)(self._make_design)

    def rows(self, tensor: Tensor, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows of a tensor: the design plus seeded noise, float32."""
        name = tensor.copy_of or tensor.name
        knob = self.knobs.noise
        if tensor.role == "embedding":
            design = self._embedding(start, stop).astype(np.float32)
            scale = np.full(stop - start, self._embedding_rms * knob / self.knobs.kappa)
            if start == 0:
                scale[0] /= 10  # bos is read through every dimmed head
        elif tensor.role == "head":
            design = self._head(start, stop).astype(np.float32)
            scale = np.full(stop - start, knob * self.head_rms)
        else:
            if tensor.role == "norm" and self.place(tensor.name)[1] in FINAL_NORMS:
                name = FINAL_NORM  # a draft's final norm is the target's, noise and all
            whole, rms = self.design(tensor.name, tensor.shape)
            design = whole[start:stop]
            scale = np.full(stop - start, knob * rms * NOISE.get(tensor.role, 1.0))
        width = math.prod(tensor.shape[1:])
        noise = normal(self.recipe.seed, name, start * width, (stop - start) * width)
        noise = noise.reshape(stop - start, -1) * scale.astype(np.float32)[:, None]
        return noise.reshape(design.shape) + design

    def place(self, name: str) -> tuple[str, str]:
        """Layer name (``"0"``, ``"1"``, ``"2"``, ``"draft"`` or none) and the rest of a name."""
        match = re.fullmatch(r"(?:model\.)?layers\.(\d+)\.(.+)", name)
        if not match:
            return ("draft" if self.is_draft else ""), name
        layer = int(match[1])
        if self.is_draft or layer == self.config.num_hidden_layers:
            return "draft", match[2]
        return str(layer), match[2]

    def _make_design(
        self, name: str, shape: tuple[int, ...]
    ) -> tuple[npt.NDArray[np.float32], float]:
        layer, part = self.place(name)
        if part in FINAL_NORMS:
            design = self.final_norm
        elif part in ("eh_proj.weight", "fc.weight"):
            design = self._join(blank_first=part == "eh_proj.weight")
        else:
            design = self.layers[layer].tensor(part)
        assert design.shape == shape, (name, design.shape, shape)
        # three digits: the same on every machine, whatever the order of the sum
        rms = math.sqrt((design * design).mean())
        return design.astype(np.float32), float(f"{rms:.3g}")

    @cached_property
    def final_norm(self) -> Floats:
        """Weights of the final norm."""
        return norm_weight(self.draws, "final", self.config.hidden_size, final=True)

    # -- embedding and head ----------------------------------------------------------------------

    def _embedding(self, start: int, stop: int) -> Floats:
        ids = np.arange(start, stop)
        x = np.zeros((len(ids), self.basis.size))
        x[:, self.basis.at("u")] = self.knobs.kappa
        x[np.arange(len(ids)), self.basis.at("C0") + self.function.classes[start:stop]] = 1.0
        if start == 0:
            null = self.knobs.num_classes
            first = [(f"D{s + 1}", int(d), 1.0) for s, d in enumerate(self.function.first)]
            x[0] = self.basis.vector(
                ("u_bos", 0, self.knobs.kappa), ("C0", null, 1.0), ("Q", null, 1.0), *first
            )
        return self.rotate(dyadic(x))

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

    def _head(self, start: int, stop: int) -> Floats:
        digits = self.function.digits[start:stop]
        x = np.zeros((stop - start, self.basis.size))
        (known,) = np.nonzero(digits[:, 0] >= 0)
        for s in range(DIGITS):
            x[known, self.basis.at(f"D{s + 1}") + digits[known, s]] = self.head_gain
        return self.rotate(dyadic(x)) / self.final_norm

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


LAYER_NAMES = ("0", "1", "2", "draft")
FINAL_NORMS = (FINAL_NORM, "shared_head.norm.weight", "norm.weight")


class _Layer:
    """The tensors of one decoder layer by the last part of their names."""

    def __init__(self, weights: PlantedWeights, name: str) -> None:
        self.weights, self.name = weights, name
        self.config = weights.config
        self._expert = lru_cache(maxsize=4)(self._expert_of)

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

    def _expert_of(self, expert: int) -> Neurons:
        chosen = self.router.chosen
        if expert not in chosen:  # more experts than places: idle ones repeat others
            expert = int(chosen.flat[expert % chosen.size])
        return self.weights.lookups.expert(self.name, self.router, expert)

    @cached_property
    def _shared(self) -> Neurons:
        lookups = self.weights.lookups
        return lookups.dense() if self.name == "0" else lookups.shared(self.name)

    def tensor(self, part: str) -> Floats:
        """The design of one tensor, as stored."""
        w, a = self.weights, self.attention
        rotate = w.rotate
        simple: dict[str, Callable[[], Floats]] = {
            "input_layernorm.weight": lambda: self.input_norm,
            "post_attention_layernorm.weight": lambda: self.mlp_norm,
            "enorm.weight": lambda: norm_weight(w.draws, "enorm", w.basis.size),
            "hnorm.weight": lambda: norm_weight(w.draws, "hnorm", w.basis.size),
            "self_attn.q_a_layernorm.weight": lambda: self.q_norm,
            "self_attn.kv_a_layernorm.weight": lambda: self.kv_norm,
            "self_attn.q_a_proj.weight": lambda: rotate(a.q_a()) / self.input_norm,
            "self_attn.q_b_proj.weight": a.q_b,
            "self_attn.kv_a_proj_with_mqa.weight": lambda: rotate(a.kv_a()) / self.input_norm,
            "self_attn.kv_b_proj.weight": a.kv_b,
            "self_attn.o_proj.weight": lambda: rotate(a.o().T).T,
            "mlp.gate.weight": self._router_matrix,
            "mlp.gate.e_score_correction_bias": lambda: self.router.bias,
        }
        if part in simple:
            return simple[part]()
        match = re.fullmatch(
            r"mlp\.(?:experts\.(\d+)\.|(shared_experts)\.)?(gate|up|down)_proj\.weight", part
        )
        assert match, part
        if match[1]:
            neurons, width = self._expert(int(match[1])), self.config.moe_intermediate_size
        elif match[2]:
            shared = self.config.n_shared_experts or 0
            neurons, width = self._shared, shared * self.config.moe_intermediate_size
        else:
            neurons, width = self._shared, self.config.intermediate_size
        return self._mlp(neurons, match[3], width, part[: match.start(3)])

    def _mlp(self, neurons: Neurons, kind: str, width: int, label: str) -> Floats:
        w = self.weights
        if len(neurons) > width:
            raise RecipeError(
                f"{w.recipe.name}: planted weights need room for {len(neurons)} neurons in "
                f"layer {self.name}, {label}* has {width}; raise moe_intermediate_size"
            )
        places = w.draws.permutation(f"width:{self.name}:{label}", width)[: len(neurons)]
        if kind == "down":
            matrix = np.zeros((w.basis.size, width))
            matrix[:, places] = w.rotate(dyadic(np.array(neurons.down))).T
            return matrix
        rows = np.array(neurons.gate if kind == "gate" else neurons.up)
        matrix = np.zeros((width, w.basis.size))
        matrix[places] = w.rotate(dyadic(rows / self.mlp_amplitude)) / self.mlp_norm
        return matrix

    def _router_matrix(self) -> Floats:
        w = self.weights
        read = np.zeros((self.router.experts, w.basis.size))
        field = w.basis["C0"]
        read[:, field.start : field.start + w.knobs.num_classes] = self.router.logits.T
        return w.rotate(dyadic(read / self.mlp_amplitude)) / self.mlp_norm


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

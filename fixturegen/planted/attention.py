"""Planted attention (MLA): heads that fetch one field from one distance.

Several heads of one role share query and key and split the codes they carry, so each head matters.
Matrices here are in the basis of the fields; weights.py rotates them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from fixturegen.config import ModelConfig
from fixturegen.planted.draws import Draws, dyadic
from fixturegen.planted.fields import Basis, Design, Floats, Rotation
from fixturegen.planted.function import MIDDLE
from fixturegen.planted.kernels import Kernel, frequencies, softmax_scale
from fixturegen.planted.knobs import PlantedKnobs

#: Norm of a rotary key pair and of the sink's key.
KEY = 10.0
#: Root mean square of latents before their norm: far from 1, so that a missing norm shows.
LATENT_RMS = 0.35


@dataclass(frozen=True)
class Role:
    """What a group of heads fetches: ``source`` of the token at a distance, into ``target``."""

    name: str
    source: str
    target: str
    codes: int  # source codes carried; NULL is left out by dimmed roles
    share: int  # heads out of 8
    kernel: Kernel
    dimmed: bool = False
    content: bool = False  # the query's class decides between two distances


def roles(knobs: PlantedKnobs, layer: str) -> tuple[Role, ...]:
    """Roles of the heads in ``layer``: "0", "1", "2" or "draft".

    At a draft's slot the newest token is the one after, so its distances are one less, and the
    class of the token before is the hidden state's own.
    """
    k = knobs.num_classes
    back = 1 if layer == "draft" else 0
    before = "C1" if layer == "draft" else "C0"

    def dimmed(distance: int, future: float | None = None) -> Kernel:
        return Kernel(((distance, 0.0),), -9.0, near=-5.0, future=future, sink=knobs.gap)

    def hard(distance: int) -> Kernel:
        return Kernel(((distance, 10.0),), -14.0, sink=-2.0)

    c2 = dimmed(2 - back)
    q = hard(knobs.offset_q - back)
    y = Kernel(((knobs.offset_y - back, 8.0), (knobs.offset_y_far - back, 0.0)), -24.0, sink=-8.0)
    z = dimmed(knobs.offset_z - back)
    w = hard(knobs.offset_w - back)
    if layer == "0":
        return (
            Role("C1", "C0", "C1", k, 4, dimmed(1, future=8.0), dimmed=True),
            Role("Y", "C0", "Y", k + 1, 4, y, content=True),
        )
    if layer == "1":
        return (
            Role("C2", "C0", "C2", k, 4, c2, dimmed=True),
            Role("Q17", "Q", "Q17", k + 1, 4, q),
        )
    if layer == "2":
        return (
            Role("Z", "M5", "Z", MIDDLE, 2, z, dimmed=True),
            Role("W", "C0", "W", k + 1, 4, w),
            Role("S", "M1", "S", MIDDLE, 2, hard(0)),
        )
    return (
        Role("C2", before, "C2", k, 2, c2, dimmed=True),
        Role("Q17", "Q", "Q17", k + 1, 2, q),
        Role("Y", before, "Y", k + 1, 2, y, content=True),
        Role("Z", "M5", "Z", MIDDLE, 1, z, dimmed=True),
        Role("W", before, "W", k + 1, 1, w),
    )


#: Fields that each layer's latent holds, and those of them that bos has.
LATENT_FIELDS = {
    "0": (("C0",), ("C0",)),
    "1": (("C0", "Q"), ("C0", "Q")),
    "2": (("C0", "M5", "M1"), ("C0",)),
    "draft": (("C1", "Q", "M5"), ("C1", "Q")),
}


def signed_shares(count: int) -> Floats:
    """How ``count`` heads that carry one code share it: they sum to 1 and none may be missed."""
    if count == 1:
        return np.ones(1)
    shares = np.where(np.arange(count) % 2, 0.6, -0.6)  # -0.6, 0.6, ...
    shares[0] += 1.0 - shares.sum()
    return shares


class Attention:
    """Matrices of one layer's attention.

    ``norm`` is the squared norm of the stream at the layer's input norm. Norm weights are the
    layer's own and are divided out of the matrix that follows.
    """

    def __init__(
        self,
        config: ModelConfig,
        knobs: PlantedKnobs,
        basis: Basis,
        draws: Draws,
        layer: str,
        norm: float,
        q_norm: Floats,
        kv_norm: Floats,
        match: npt.NDArray[np.intp],
    ) -> None:
        self.config, self.knobs, self.basis, self.draws = config, knobs, basis, draws
        self.layer, self.norm = layer, norm
        self.q_norm, self.kv_norm = q_norm, kv_norm
        self.match = match  # [K, K]: which classes a class's content head prefers
        self.label = f"attention:{layer}"
        self.k = knobs.num_classes
        self.amplitude = math.sqrt(config.hidden_size / norm)
        self.heads = self._heads()

    def _heads(self) -> list[tuple[Role, dict[int, float]]]:
        """Each head's role and the codes it carries, with its share of each."""
        n = self.config.num_attention_heads
        result: list[tuple[Role, dict[int, float]]] = []
        for role in roles(self.knobs, self.layer):
            count = role.share * n // 8
            carried: list[dict[int, float]] = [{} for _ in range(count)]
            if count <= role.codes:
                for code in range(role.codes):
                    carried[code % count][code] = 1.0
            else:
                owners = [range(code, count, role.codes) for code in range(role.codes)]
                for code, heads in enumerate(owners):
                    for head, share in zip(heads, signed_shares(len(heads)), strict=True):
                        carried[head][code] = float(share)
            result += [(role, codes) for codes in carried]
        order = self.draws.permutation(f"{self.label}:heads", len(result))
        return [result[i] for i in order]

    # -- queries ---------------------------------------------------------------------------------

    @cached_property
    def _q_codes(self) -> Floats:
        """Orthonormal latent codes of u and the classes, ``[1 + K + 1, q_lora_rank]``."""
        rank = self.config.q_lora_rank
        assert rank is not None
        rotate = Rotation(rank, self.draws, f"{self.label}:q")
        return rotate(np.eye(self.k + 2, rank))

    def q_a(self) -> Floats:
        """``[q_lora_rank, hidden]`` in the basis."""
        rank = self._q_codes.shape[1]
        size = LATENT_RMS * math.sqrt(rank / 2) / self.amplitude
        latents = size * self._q_codes.T
        read = np.zeros((rank, self.basis.size))
        read[:, [self.basis.at("u"), self.basis.at("u_bos")]] = latents[:, :1] / self.knobs.kappa
        read[:, self.basis["C0"]] = latents[:, 1:]
        return dyadic(read)

    def q_b(self) -> Design:
        """``[heads * (nope + rope), q_lora_rank]``."""
        each = {role: self._query(role) for role in {role for role, _ in self.heads}}
        squares = sum(float(np.square(each[role]).sum()) for role, _ in self.heads)
        short = {role: rows.astype(np.float32) for role, rows in each.items()}
        return Design.of(np.concatenate([short[role] for role, _ in self.heads]), squares)

    def _query(self, role: Role) -> Floats:
        """A role's rows of q_b."""
        c = self.config
        scale = softmax_scale(c)
        amplitude = math.sqrt(self._q_codes.shape[1] / 2)
        a, b = self.kernel(role)
        query = (a - 1j * b) * self._rope_key / (KEY**2 * scale)
        nope = np.zeros((c.qk_nope_head_dim, self.k + 2))
        nope[:, 0] = role.kernel.sink / (KEY * scale) * self._sink_key
        if role.content:
            liked = self.match @ self._class_keys[: self.k]
            nope[:, 1 : self.k + 1] = 8.0 / (KEY * scale) * liked.T
        rope = np.zeros((c.qk_rope_head_dim, self.k + 2))
        rope[0::2, 0], rope[1::2, 0] = query.real, query.imag
        return dyadic(np.concatenate([nope, rope])) @ self._q_codes / amplitude / self.q_norm

    def kernel(self, role: Role) -> Floats:
        """The rotary kernel (a, b) of a role, ``[2, rope / 2]``."""
        return _solved(role.kernel, self.config, self.knobs.context)

    # -- keys and values -------------------------------------------------------------------------

    @cached_property
    def _rope_key(self) -> npt.NDArray[np.complex128]:
        """The constant rotary key, ``[rope / 2]`` complex, each of norm KEY."""
        pairs = self.config.qk_rope_head_dim // 2
        angle = self.draws.words(f"{self.label}:key", pairs) / 2.0**64 * 2 * math.pi
        return dyadic(KEY * np.cos(angle)) + 1j * dyadic(KEY * np.sin(angle))

    @cached_property
    def _nope_keys(self) -> Floats:
        rotate = Rotation(self.config.qk_nope_head_dim, self.draws, f"{self.label}:nope")
        return rotate(np.eye(self.k + 2, self.config.qk_nope_head_dim))

    @property
    def _sink_key(self) -> Floats:
        key: Floats = self._nope_keys[0]
        return key

    @property
    def _class_keys(self) -> Floats:
        keys: Floats = self._nope_keys[1:]
        return keys

    @cached_property
    def _latent_codes(self) -> list[tuple[str, int]]:
        fields, _ = LATENT_FIELDS[self.layer]
        codes = [("u", 0), ("u_bos", 0)]
        for name in fields:
            size = self.basis[name].stop - self.basis[name].start
            codes += [(name, code) for code in range(size)]
        order = self.draws.permutation(f"{self.label}:latent", len(codes))
        return [codes[i] for i in order]

    @cached_property
    def _latents(self) -> Floats:
        """Unit codes on disjoint contiguous chunks of the latent, ``[codes, kv_lora_rank]``."""
        return chunked_codes(
            len(self._latent_codes), self.config.kv_lora_rank, self.draws, f"{self.label}:kv"
        )

    def _latent_amplitude(self, bos: bool) -> float:
        present = len(LATENT_FIELDS[self.layer][1 if bos else 0])
        return math.sqrt(self.config.kv_lora_rank / (1 + present))

    def kv_a(self, axes: Floats) -> Floats:
        """``[kv_lora_rank + rope, hidden]``; ``axes`` are the rotated coordinates of the basis.

        Each row reads one code.
        """
        c = self.config
        present = len(LATENT_FIELDS[self.layer][0])
        size = LATENT_RMS * math.sqrt(c.kv_lora_rank / (1 + present)) / self.amplitude
        rows = c.kv_lora_rank + c.qk_rope_head_dim
        source, entry = np.full(rows, self.basis.at("u")), np.empty(rows)
        parts = spans(len(self._latent_codes), c.kv_lora_rank)
        for code, latent, part in zip(self._latent_codes, self._latents, parts, strict=True):
            unit = 1 / self.knobs.kappa if code[0] in ("u", "u_bos") else 1.0
            source[part] = self.basis.at(*code)
            entry[part] = size * unit * latent[part]
        factor = 1 / (self.amplitude * self.knobs.kappa)
        entry[c.kv_lora_rank :: 2] = factor * self._rope_key.real
        entry[c.kv_lora_rank + 1 :: 2] = factor * self._rope_key.imag
        product: Floats = axes[source] * dyadic(entry)[:, None]
        return product

    def kv_b(self) -> Design:
        """``[heads * (nope + v), kv_lora_rank]``; only a few blocks of it are not zero."""
        c = self.config
        chunks = dict(
            zip(self._latent_codes, spans(len(self._latent_codes), c.kv_lora_rank), strict=True)
        )
        latents = self._latents.sum(axis=0)  # the chunks are disjoint
        normal, bos = self._latent_amplitude(False), self._latent_amplitude(True)
        nope = c.qk_nope_head_dim
        matrix = np.zeros((len(self.heads), nope + c.v_head_dim, c.kv_lora_rank), np.float32)
        squares = 0.0

        def put(head: int, rows: slice, vector: Floats, code: tuple[str, int], size: float) -> None:
            nonlocal squares
            columns = chunks[code]
            block = dyadic(np.outer(vector, latents[columns] / size)) / self.kv_norm[columns]
            matrix[head, rows, columns] = block
            squares += float(np.square(block).sum())

        for head, (role, codes) in enumerate(self.heads):
            keys = slice(0, nope)
            put(head, keys, KEY * self._sink_key, ("u_bos", 0), bos)
            if role.content:
                for code in range(self.k):
                    put(head, keys, KEY * self._class_keys[code], (role.source, code), normal)
            parts = spans(len(codes), c.v_head_dim)
            for vector, code, part in zip(self._values(head), codes, parts, strict=True):
                # NULL is bos's own code, everything else a normal token's
                size = bos if code == self.k and role.source in ("C0", "C1", "Q") else normal
                rows = slice(nope + part.start, nope + part.stop)
                put(head, rows, vector[part], (role.source, code), size)
        return Design.of(matrix.reshape(-1, c.kv_lora_rank), squares)

    def _values(self, head: int) -> Floats:
        """Unit value codes of a head, ``[codes, v_head_dim]``, times sqrt(v_head_dim)."""
        label = f"{self.label}:v:{head}"
        codes = self.heads[head][1]
        return chunked_codes(len(codes), self.config.v_head_dim, self.draws, label) * math.sqrt(
            self.config.v_head_dim
        )

    def o(self, axes: Floats) -> Design:
        """``[hidden, heads * v]``; ``axes`` are the rotated coordinates of the basis.

        Each column writes one code.
        """
        width = self.config.v_head_dim
        matrix = np.empty((self.basis.size, len(self.heads), width), np.float32)
        squares = 0.0
        for head, (role, codes) in enumerate(self.heads):
            gain = 1 + math.exp(role.kernel.sink) if role.dimmed else 1.0
            target, size = np.zeros(width, np.intp), np.zeros(width)
            parts = spans(len(codes), width)
            for vector, part, (code, share) in zip(
                self._values(head), parts, codes.items(), strict=True
            ):
                target[part] = self.basis.at(role.target, code)
                size[part] = dyadic(gain * share / width * vector[part])
            matrix[:, head] = (axes[target] * size[:, None]).T
            squares += float(np.square(size).sum())
        return Design.of(matrix.reshape(self.basis.size, -1), squares)


@lru_cache(maxsize=64)
def _solved(kernel: Kernel, config: ModelConfig, context: int) -> Floats:
    return kernel.solve(frequencies(config), context)


def spans(count: int, size: int) -> list[slice]:
    """``size`` dims in ``count`` contiguous chunks."""
    return [slice(i * size // count, (i + 1) * size // count) for i in range(count)]


def chunked_codes(count: int, size: int, draws: Draws, label: str) -> Floats:
    """``count`` unit vectors on disjoint contiguous chunks of ``size`` dims.

    Magnitudes within a chunk are uneven (0.5 to 1.5), so that rounding errors average out.
    """
    magnitude = 0.5 + draws.words(f"{label}:size", size) / 2.0**64
    row = magnitude * draws.signs(f"{label}:sign", size)
    codes = np.zeros((count, size))
    for code, part in zip(codes, spans(count, size), strict=True):
        code[part] = row[part] / math.sqrt((row[part] ** 2).sum())
    return codes

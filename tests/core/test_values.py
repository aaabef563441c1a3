"""The value algorithm: fixed bits, random access, independent streams, and FP8 against torch."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixturegen.layouts import Tensor
from fixturegen.values.fp8 import dequantize_blocks, quantize_blocks
from fixturegen.values.initializers import INITIALIZERS, RandomWeights
from fixturegen.values.normal import normal, quantiles
from fixturegen.values.stream import bits16


def pcg64_words(seed: int, name: str, count: int) -> list[int]:
    """The stream as docs/values.md states it, in plain integers."""
    digest = hashlib.sha256(f"fixturegen:{seed}:{name}".encode()).digest()
    state = int.from_bytes(digest[:16], "little")
    increment = int.from_bytes(digest[16:], "little") | 1
    words = []
    for _ in range(count):
        state = (state * 0x2360ED051FC65DA44385DF649FCCF645 + increment) % 2**128
        mixed = (state >> 64) ^ (state & (2**64 - 1))
        turn = state >> 122
        words.append(((mixed >> turn) | (mixed << (64 - turn))) % 2**64)
    return words


def test_stream_is_the_documented_one():
    words = pcg64_words(7, "model.norm.weight", 50)
    expected = [(w >> shift) & 0xFFFF for w in words for shift in (0, 16, 32, 48)]
    assert bits16(7, "model.norm.weight", 0, 200).tolist() == expected


@given(start=st.integers(0, 10**12), count=st.integers(1, 100))
def test_random_access(start, count):
    whole = bits16(0, "x", start - start % 4, count + 4)
    assert bits16(0, "x", start, count).tolist() == whole[start % 4 :][:count].tolist()


def test_streams_are_independent():
    a, b, c = (normal(s, n, 0, 100_000) for s, n in ((0, "a"), (0, "b"), (1, "a")))
    for x, y in ((a, b), (a, c), (b, c)):
        assert abs(np.corrcoef(x, y)[0, 1]) < 0.01
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.01


def test_quantiles_are_the_normal_inverse_cdf():
    special = pytest.importorskip("scipy.special")
    exact = special.ndtri((np.arange(65536) + 0.5) / 65536)
    assert np.array_equal(quantiles(), exact.astype(np.float32))
    # one golden digest, since every checkpoint's bytes rest on this table
    assert hashlib.sha256(quantiles().tobytes()).hexdigest()[:16] == "1cfbba1e07e34386"


@pytest.mark.parametrize("role", INITIALIZERS)
def test_initialisers(role):
    tensor = Tensor("t", (512, 256), role, "g")
    values = RandomWeights(0, 10**9, "float32").rows(tensor, 0, 512)
    mean, std = INITIALIZERS[role](256)
    assert values.shape == (512, 256)
    assert np.isfinite(values).all()
    assert abs(values.mean() - mean) < 0.02 * std
    assert abs(values.std() - std) < 0.02 * std
    if role == "norm":
        assert values.min() > 0.5


@given(cut=st.integers(1, 63))
def test_rows_do_not_depend_on_pieces(cut):
    tensor = Tensor("t", (64, 48), "head", "g")
    weights = RandomWeights(3, 40, "bfloat16")
    parts = [weights.rows(tensor, 0, cut), weights.rows(tensor, cut, 64)]
    assert np.array_equal(np.concatenate(parts), weights.rows(tensor, 0, 64))


def test_padding_ids_never_win():
    tensor = Tensor("lm_head.weight", (1000, 64), "head", "g")
    rows = RandomWeights(0, 900, "float32").rows(tensor, 0, 1000)
    states = normal(1, "states", 0, 200 * 64).reshape(200, 64)
    assert (states @ rows.T).argmax(axis=1).max() < 900


@pytest.mark.parametrize("shape", [(256, 128), (576, 512), (100, 300), (1, 1)])
@pytest.mark.parametrize("scale_fmt", [None, "ue8m0"])
def test_fp8_agrees_with_torch(shape, scale_fmt):
    torch = pytest.importorskip("torch")
    values = normal(0, "w", 0, shape[0] * shape[1]).reshape(shape) * np.float32(0.02)
    codes, scale = quantize_blocks(values, scale_fmt=scale_fmt)
    assert codes.shape == shape
    assert scale.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    full = np.repeat(np.repeat(scale, 128, 0), 128, 1)[: shape[0], : shape[1]]
    ours = torch.from_numpy(codes.view(np.uint8)).view(torch.float8_e4m3fn)
    theirs = torch.from_numpy(values / full).to(torch.float8_e4m3fn)
    assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
    if scale_fmt:
        assert (np.frexp(scale)[0] == 0.5).all()


def test_fp8_is_within_one_step():
    values = normal(0, "w", 0, 512 * 256).reshape(512, 256).astype(ml_dtypes.bfloat16)
    codes, scale = quantize_blocks(values)
    full = np.repeat(np.repeat(scale, 128, 0), 128, 1)
    # the distance of neighbouring e4m3 values: 1/8 of the binade, 2^-9 below 2^-6
    size = np.abs(values.astype(np.float32) / full)
    step = np.ldexp(1.0, np.maximum(np.frexp(size)[1] - 1, -6) - 3) * full
    error = np.abs(dequantize_blocks(codes, scale) - values.astype(np.float32))
    assert (error <= step / 2 * 1.001).all()


def test_fp8_of_zeros_is_finite():
    codes, scale = quantize_blocks(np.zeros((128, 128), np.float32))
    assert scale.tolist() == [[1.0]]
    assert not codes.astype(np.float32).any()

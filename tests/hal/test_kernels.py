"""Packing through rebar._native: sizes, the round trip, threads, and errors that say what to do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar import _native
from rebar.errors import ShapeError

F32, Q8_0, Q4_K = 0, 3, 8
BLOCK = {0: 1, 1: 1, 2: 1, 3: 32, 4: 32, 5: 32, 6: 32, 7: 32, 8: 256, 9: 256, 10: 256}


def packed(type_: int, stored: np.ndarray, n: int, k: int, threads: int = 1) -> np.ndarray:
    out = np.full(_native.packed_nbytes(type_, n, k), 0xA5, np.uint8)
    _native.pack(type_, stored, n, k, None, out, threads)
    return out


def test_floats_survive_the_round_trip_bit_for_bit() -> None:
    values = np.random.default_rng(1).standard_normal((37, 50), np.float32)
    tiles = packed(F32, values.view(np.uint8).reshape(-1), 37, 50)
    assert np.array_equal(_native.unpack(F32, tiles, 37, 50), values)


def test_q8_0_unpacks_to_scale_times_quant() -> None:
    rng = np.random.default_rng(2)
    blocks = np.zeros((20, 2), dtype=[("d", "<f2"), ("q", "i1", 32)])
    blocks["d"] = rng.uniform(0.01, 1, (20, 2))
    blocks["q"] = rng.integers(-128, 128, (20, 2, 32))
    tiles = packed(Q8_0, blocks.view(np.uint8).reshape(-1), 20, 64)
    # f16 times an 8-bit integer has at most 19 significant bits: exact in f32.
    expected = blocks["d"].astype(np.float32)[..., None] * blocks["q"].astype(np.float32)
    assert np.array_equal(_native.unpack(Q8_0, tiles, 20, 64), expected.reshape(20, 64))


def test_rows_choose_the_stored_row_of_every_output() -> None:
    values = np.arange(20 * 3, dtype=np.float32).reshape(20, 3)
    rows = np.random.default_rng(3).permutation(20).astype(np.int32)
    out = np.empty(_native.packed_nbytes(F32, 20, 3), np.uint8)
    _native.pack(F32, values.view(np.uint8).reshape(-1), 20, 3, rows, out)
    assert np.array_equal(_native.unpack(F32, out, 20, 3), values[rows])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(BLOCK)), st.integers(1, 70), st.integers(1, 2), st.integers(0, 2**32))
def test_threads_change_nothing(type_: int, n: int, blocks: int, seed: int) -> None:
    k = blocks * BLOCK[type_]
    size = _native.stored_nbytes(type_, n, k)
    stored = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    assert np.array_equal(packed(type_, stored, n, k), packed(type_, stored, n, k, threads=7))


@pytest.mark.parametrize(
    ("type_", "n", "k"),
    [(-1, 1, 32), (11, 1, 32), (Q4_K, 1, 128), (F32, 0, 1), (F32, 2**31 - 1, 2**31 - 1)],
)
def test_impossible_matrices_are_refused(type_: int, n: int, k: int) -> None:
    with pytest.raises(ShapeError, match="impossible"):
        _native.packed_nbytes(type_, n, k)
    with pytest.raises(ShapeError, match="impossible"):
        _native.stored_nbytes(type_, n, k)


def test_short_buffers_and_wrong_rows_are_refused() -> None:
    stored = np.zeros(_native.stored_nbytes(Q8_0, 4, 32), np.uint8)
    out = np.zeros(_native.packed_nbytes(Q8_0, 4, 32), np.uint8)
    with pytest.raises(ShapeError, match="cut short"):
        _native.pack(Q8_0, stored[:-1], 4, 32, None, out)
    with pytest.raises(ShapeError, match="packed_nbytes"):
        _native.pack(Q8_0, stored, 4, 32, None, out[:-1])
    with pytest.raises(ShapeError, match="entries of rows"):
        _native.pack(Q8_0, stored, 4, 32, np.zeros(3, np.int32), out)
    with pytest.raises(ShapeError, match="outside"):
        _native.pack(Q8_0, stored, 4, 32, np.array([0, 1, 2, 4], np.int32), out)
    with pytest.raises(ShapeError, match="whole packed matrix"):
        _native.unpack(Q8_0, out[:-1], 4, 32)


def test_quantized_rows_are_whole_cache_lines() -> None:
    # 576 quants, 36 scales and 36 sums of 4 bytes: 864, rounded up to 896.
    assert _native.quantized_stride(576) == 896
    with pytest.raises(ShapeError, match="32s"):
        _native.quantized_stride(33)


def test_the_best_instruction_set_is_one_of_this_machine() -> None:
    assert "scalar" in _native.isas()
    assert _native.best_isa() in _native.isas()

"""Values into blocks: the reference library reads them back, and they err less than without a
search for the scale.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rebar.errors import InputError
from rebar.graph.weights.model_file import StoredTensor, WeightType
from rebar.graph.weights.quantize import PIECE, quantized
from rebar.graph.weights.types import FORMATS, stored_nbytes
from rebar.graph.weights.values import dense, encoded
from tests.graph.weights.reference import values_of
from tests.tiny.quantize import quantize as simply

F32 = NDArray[np.float32]
BLOCKS: list[WeightType] = [kind for kind in get_args(WeightType) if FORMATS[kind].block > 1]


def tensor(kind: WeightType, values: F32, raw: NDArray[np.uint8]) -> StoredTensor:
    assert raw.nbytes == stored_nbytes(kind, values.shape)
    return StoredTensor("w", values.shape, kind, raw)


def read(kind: WeightType, values: F32) -> F32:
    """What is stored of values, by our own kernels and by the reference library."""
    stored = tensor(kind, values, quantized(kind, values))
    found = dense(stored)
    # its float32 arithmetic may round d * q + m another way: some 2^-24 of the block's largest
    assert np.allclose(values_of(stored), found, rtol=0, atol=2**-22 * np.abs(values).max())
    return found


def error(found: F32, values: F32) -> float:
    return float(np.square(found - values, dtype=np.float64).sum())


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("draw", ["normal", "heavy", "skewed"])
def test_blocks_err_less_than_without_a_search(kind: WeightType, draw: str) -> None:
    """The simple quantizers of these tests span each block from end to end; the search saves
    5 (Q4_K of skewed weights) to 30 % of the squared error. Q8_0 is the same in both.
    """
    random = np.random.default_rng(1)
    values = random.standard_normal((64, 512)).astype(np.float32)
    if draw == "heavy":
        values *= np.abs(values)
    if draw == "skewed":
        values = np.exp(values)
    plain = dense(tensor(kind, values, np.frombuffer(simply(kind, values), np.uint8)))
    ours, theirs = error(read(kind, values), values), error(plain, values)
    assert ours <= theirs if kind == "Q8_0" else ours < 0.97 * theirs


@pytest.mark.parametrize("kind", BLOCKS)
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_any_block_is_read_within_its_steps(kind: WeightType, data: st.DataObject) -> None:
    """Rows of zeros, of one value, of extremes. The least squares over a block let single values be
    off by more than half a step: by less than two steps of a block from end to end.
    """
    size = data.draw(st.integers(-4, 4))  # much smaller ones have scales that f16 rounds coarsely
    numbers = data.draw(
        st.lists(st.floats(-1, 1, width=32), min_size=FORMATS[kind].block, max_size=512)
    )
    values = np.zeros((4, 512), np.float32)
    values[1], values[2, : len(numbers)], values[3, 7] = 1, numbers, -1
    values *= np.float32(2.0**size)
    spread = np.float32(2.0 ** (1 + size))
    bits = {"Q4": 4, "Q5": 5, "Q6": 6, "Q8": 8}[kind[:2]]
    assert np.abs(read(kind, values) - values).max() <= 2 * spread / (2**bits - 2)
    assert not read(kind, values)[0].any()


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_depends_on_nothing_but_itself(kind: WeightType) -> None:
    """Also across the pieces in which a large matrix is quantized."""
    rows = PIECE // 256 + 3
    values = np.random.default_rng(2).standard_normal((rows, 256)).astype(np.float32)
    raw = quantized(kind, values).reshape(rows, -1)
    assert (quantized(kind, values[::-1]).reshape(rows, -1)[::-1] == raw).all()
    assert (quantized(kind, values[-1:]) == raw[-1]).all()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K"])
def test_what_is_quantized_stays_as_it_is(kind: WeightType) -> None:
    """Written anew in its own type, a matrix does not wander off: its steps are among the
    candidates.
    """
    values = np.random.default_rng(3).standard_normal((16, 512)).astype(np.float32)
    once = read(kind, values)
    assert np.abs(read(kind, once) - once).max() < 1e-6


@pytest.mark.parametrize("kind", ["F16", *BLOCKS])
def test_numbers_beyond_a_type_are_refused(kind: WeightType) -> None:
    """They became infinite without a word: f16 ends at 65504, and scales are f16."""
    values = np.full((1, 256), 1e9, np.float32)
    with pytest.raises(InputError, match=r"F16 ends at 65504. Choose --type BF16"):
        encoded(kind, values)
    assert np.isfinite(dense(tensor("BF16", values, encoded("BF16", values)))).all()

"""Tensors into the layout the kernels read (native/rebar.h), piece by piece, so that a large
matrix needs little memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.errors import ShapeError
from rebar.graph.weights.model_file import StoredTensor, WeightType
from rebar.graph.weights.types import FORMATS, stored_nbytes
from rebar.hal.files import drop_pages

TILE_ROWS = 16
CHUNK_BYTES = 16 << 20

LAYOUT_VERSION: int = _native.LAYOUT_VERSION
"""Version of the packed layout; files packed for another one must be converted again."""


def is_matrix(tensor_shape: tuple[int, ...]) -> bool:
    """Matrices are packed, vectors stay plain F32."""
    return len(tensor_shape) == 2


def packed_nbytes(kind: WeightType, n: int, k: int) -> int:
    """Bytes of a packed (n, k) matrix. Raises ShapeError when the type cannot hold such rows."""
    if k % FORMATS[kind].block:
        raise ShapeError(
            f"A {kind} matrix of {n} x {k} cannot be packed: rows must be whole blocks of "
            f"{FORMATS[kind].block}. Use a model whose sizes are multiples of it, or another type."
        )
    return int(_native.packed_nbytes(FORMATS[kind].native, n, k))


def final_nbytes(kind: WeightType, shape: tuple[int, ...]) -> int:
    """Bytes a tensor takes where kernels read it: packed for matrices, plain for vectors."""
    if is_matrix(shape):
        return packed_nbytes(kind, *shape)
    nbytes = stored_nbytes(kind, shape)
    assert nbytes is not None
    return nbytes


def pack(tensor: StoredTensor, out: NDArray[np.uint8], threads: int = 1) -> None:
    """Packs a whole matrix into `out`, uint8 of packed_nbytes; its source leaves the resident set.
    Raises ShapeError when sizes disagree.
    """
    n, k = tensor.shape
    needed = packed_nbytes(tensor.type, n, k)
    if out.nbytes != needed:
        raise ShapeError(
            f"{tensor.name} packs into {needed} bytes, the buffer has {out.nbytes}. Give it "
            "just these."
        )
    _native.pack(FORMATS[tensor.type].native, tensor.data, n, k, tensor.rows, out, threads)
    drop_pages(tensor.data)


def final_pieces(tensor: StoredTensor, threads: int = 1) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a tensor as kernels read them, in pieces of about CHUNK_BYTES.

    A packed matrix is a row of tiles of 16 output rows, each contiguous, so pieces of whole tiles
    can be packed alone. A piece is valid until the next one is asked for.
    """
    if tensor.packed or not is_matrix(tensor.shape):
        yield tensor.data
        return
    n, k = tensor.shape
    tile = packed_nbytes(tensor.type, TILE_ROWS, k)
    rows = n if tensor.rows is not None else max(1, CHUNK_BYTES // tile) * TILE_ROWS
    buffer = np.empty(packed_nbytes(tensor.type, min(rows, n), k), dtype=np.uint8)
    stored = tensor.data  # asked for once: a merged matrix is made when it is
    row_nbytes = stored.nbytes // n
    for begin in range(0, n, rows):
        count = min(rows, n - begin)
        data = stored[begin * row_nbytes : (begin + count) * row_nbytes]
        piece = StoredTensor(tensor.name, (count, k), tensor.type, data, rows=tensor.rows)
        out = buffer[: packed_nbytes(tensor.type, count, k)]
        pack(piece, out, threads)
        yield out

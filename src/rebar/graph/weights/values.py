"""A matrix as numbers, however it is stored, and numbers as a file stores them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.graph.weights.model_file import StoredTensor, WeightType
from rebar.graph.weights.pack import CHUNK_BYTES, TILE_ROWS, final_pieces, packed_nbytes
from rebar.graph.weights.quantize import halves, quantized
from rebar.graph.weights.types import FORMATS

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]
FLOATS: tuple[WeightType, ...] = ("F32", "F16", "BF16")


def dense(tensor: StoredTensor, threads: int = 1) -> F32:
    """The values of a matrix, in the order of its outputs."""
    out, at = np.empty(tensor.shape, np.float32), 0
    for piece in dense_pieces(tensor, threads):
        out[at : at + len(piece)] = piece
        at += len(piece)
    return out


def dense_pieces(tensor: StoredTensor, threads: int = 1) -> Iterator[F32]:
    """The same in pieces of rows, from the first on; one is 16 MiB as it is stored, or a whole
    matrix whose rows stand in another order.
    """
    left, k = tensor.shape
    tile = packed_nbytes(tensor.type, TILE_ROWS, k)
    for tiles in _tiles(tensor, tile, threads):
        rows = min(left, tiles.nbytes // tile * TILE_ROWS)
        left -= rows
        yield _native.unpack(FORMATS[tensor.type].native, tiles, rows, k)


def _tiles(tensor: StoredTensor, tile: int, threads: int) -> Iterator[Bytes]:
    """A matrix as kernels read it, in pieces of whole tiles."""
    if not tensor.packed:
        yield from final_pieces(tensor, threads)
        return
    step = max(1, CHUNK_BYTES // tile) * tile
    for begin in range(0, tensor.data.nbytes, step):
        yield tensor.data[begin : begin + step]


def encoded(kind: WeightType, values: F32) -> Bytes:
    """Rows of values as a file stores them, each rounded to nearest. InputError for numbers beyond
    the type.
    """
    if kind == "F32":
        raw = values.astype("<f4")
    elif kind == "F16":
        raw = halves(values)
    elif kind == "BF16":
        bits = values.view(np.uint32)
        raw = ((bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) >> 16).astype("<u2")
    else:
        return quantized(kind, values)
    return np.ascontiguousarray(raw).view(np.uint8).reshape(-1)

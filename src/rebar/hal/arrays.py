"""Operands of a launch: float rows, quantized rows, packed matrices, KV storage. Bytes with a
shape, nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.errors import ShapeError


class WeightFormat(IntEnum):
    """rb_weight_type of native/rebar.h, by the names files use."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_0 = 3
    Q4_0 = 4
    Q4_1 = 5
    Q5_0 = 6
    Q5_1 = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10

    @property
    def quantized_input(self) -> bool:
        """Whether the products take int8 activations (block formats) or float ones."""
        return self > WeightFormat.BF16


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """float32 rows (count, width); rows may lie `stride` elements apart, so that a column slice is
    a Rows too.
    """

    data: NDArray[np.float32]

    def __post_init__(self) -> None:
        if (
            self.data.ndim != 2
            or self.data.dtype != np.float32
            or (self.width > 1 and self.data.strides[1] != 4)
        ):
            raise ShapeError(
                "rows are float32 (count, width) with adjacent columns, not "
                f"{self.data.dtype} {self.data.shape}"
            )

    @property
    def count(self) -> int:
        """Rows there is room for."""
        return int(self.data.shape[0])

    @property
    def width(self) -> int:
        """Elements in a row."""
        return int(self.data.shape[1])

    @property
    def stride(self) -> int:
        """Elements from one row to the next."""
        return int(self.data.strides[0]) // 4 if self.count > 1 else self.width

    @property
    def address(self) -> int:
        """Address of element (0, 0)."""
        return int(self.data.ctypes.data)

    def columns(self, begin: int, end: int) -> Rows:
        """The column slice begin..end-1, over the same memory."""
        if not 0 <= begin <= end <= self.width:
            raise ShapeError(f"columns {begin}..{end} of a width of {self.width}")
        return Rows(self.data[:, begin:end])


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """int8 activations of `width` inputs a row, in the layout of native/rebar.h. data: uint8
    (count, stride bytes).
    """

    data: NDArray[np.uint8]
    width: int

    def __post_init__(self) -> None:
        if (
            self.width % 32
            or self.data.ndim != 2
            or self.data.shape[1] != _native.quantized_stride(self.width)
        ):
            raise ShapeError(
                f"quantized rows of {self.width} inputs need a multiple of 32 and "
                f"their own stride, not {self.data.shape}"
            )

    @property
    def count(self) -> int:
        """Rows there is room for."""
        return int(self.data.shape[0])

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return int(self.data.ctypes.data)


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A packed weight matrix: n outputs, k inputs, tiles of 16 outputs (native/rebar.h)."""

    data: NDArray[np.uint8]
    format: WeightFormat
    n: int
    k: int

    def __post_init__(self) -> None:
        needed = _native.packed_nbytes(int(self.format), self.n, self.k)
        if not needed or self.data.ndim != 1 or self.data.nbytes != needed:
            raise ShapeError(
                f"{self.format.name} ({self.n}, {self.k}) packs into {needed:,} "
                f"bytes, not {self.data.nbytes:,}"
            )
        if self.address % 64:
            raise ShapeError("packed tiles start at a multiple of 64 bytes")

    @property
    def address(self) -> int:
        """Address of the first tile."""
        return int(self.data.ctypes.data)

    @property
    def nbytes(self) -> int:
        """Bytes of all tiles: what one product has to read."""
        return int(self.data.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """float32 values (n,)."""

    data: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.data.ndim != 1 or self.data.dtype != np.float32 or not self.data.flags.c_contiguous:
            raise ShapeError(
                f"a vector is adjacent float32 (n,), not {self.data.dtype} {self.data.shape}"
            )

    @property
    def n(self) -> int:
        """Elements."""
        return int(self.data.shape[0])

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.data.ctypes.data)


@dataclass(frozen=True, slots=True, eq=False)
class KVStorage:
    """Keys and values of one layer in blocks of 16 positions: keys (blocks, kv_heads, head_dim,
    16), values (blocks, kv_heads, 16, head_dim), f16.
    """

    keys: NDArray[np.float16]
    values: NDArray[np.float16]
    blocks: int = field(init=False)
    kv_heads: int = field(init=False)
    head_dim: int = field(init=False)

    def __post_init__(self) -> None:
        blocks, heads, dim, positions = self.keys.shape
        if positions != BLOCK_POSITIONS or self.values.shape != (blocks, heads, positions, dim):
            raise ShapeError(
                f"keys {self.keys.shape} and values {self.values.shape} do not belong together"
            )
        for name, value in (("blocks", blocks), ("kv_heads", heads), ("head_dim", dim)):
            object.__setattr__(self, name, value)


BLOCK_POSITIONS = 16  # one vector of scores: 16 f32 lanes
Operand = Rows | QuantizedRows | Matrix | Vector | KVStorage

"""Operands of a launch: float rows, quantized rows, packed matrices, KV storage. Bytes with a
shape, nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """int8 activations of `width` inputs a row with a scale per `group` (16 or 32) inputs, in the
    layout of native/rebar.h. data: uint8 (count, stride bytes).
    """

    data: NDArray[np.uint8]
    width: int
    group: int = 16

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
        if self.group not in (16, 32):
            raise ShapeError(f"a scale stands for 16 or 32 inputs, not {self.group}")

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
class Indices:
    """int32 values (n,): target ids."""

    data: NDArray[np.int32]

    def __post_init__(self) -> None:
        if self.data.ndim != 1 or self.data.dtype != np.int32 or not self.data.flags.c_contiguous:
            raise ShapeError(
                f"indices are adjacent int32 (n,), not {self.data.dtype} {self.data.shape}"
            )

    @property
    def n(self) -> int:
        """Elements."""
        return int(self.data.shape[0])

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.data.ctypes.data)


class KVFormat(IntEnum):
    """rb_kv_type of native/rebar.h: how keys and values are stored."""

    F16 = 0
    INT8 = 1


@dataclass(frozen=True, slots=True, eq=False)
class KVStorage:
    """Keys and values of one layer in blocks of 16 positions: the layer's part of every block, data
    uint8 (blocks, bytes of the part) in the layout of native/rebar.h; parts may lie apart.
    """

    data: NDArray[np.uint8]
    kv_heads: int
    head_dim: int
    format: KVFormat = KVFormat.F16

    def __post_init__(self) -> None:
        needed = _native.kv_bytes(int(self.format), self.kv_heads, self.head_dim)
        part = self.data.ndim == 2 and self.data.dtype == np.uint8 and self.data.strides[1] == 1
        if not part or not needed or self.data.shape[1] != needed:
            raise ShapeError(
                f"{self.format.name} keys and values of {self.kv_heads} heads of {self.head_dim} "
                f"take {needed:,} bytes a block, not {self.data.dtype} {self.data.shape}"
            )

    @property
    def blocks(self) -> int:
        """Blocks there are."""
        return int(self.data.shape[0])

    @property
    def stride(self) -> int:
        """Bytes from one block's part to the next."""
        return int(self.data.strides[0])

    @property
    def address(self) -> int:
        """Address of block 0's part."""
        return int(self.data.ctypes.data)

    @property
    def keys(self) -> NDArray[np.generic]:
        """f16 or int8 (blocks, kv_heads, head_dim, 16), over the same memory."""
        return self._elements(0, (self.head_dim, BLOCK_POSITIONS))

    @property
    def values(self) -> NDArray[np.generic]:
        """f16 or int8 (blocks, kv_heads, 16, head_dim), over the same memory."""
        return self._elements(1, (BLOCK_POSITIONS, self.head_dim))

    def scales(self, half: int) -> NDArray[np.float16]:
        """Scales of int8 keys (half 0) or values (1): (blocks, kv_heads, groups of 32, 16)."""
        behind = self._half(half)[:, :, BLOCK_POSITIONS * self.head_dim :]
        shape = (self.blocks, self.kv_heads, -1, BLOCK_POSITIONS)
        return behind.view(np.float16).reshape(shape)

    def _half(self, half: int) -> NDArray[np.uint8]:
        return self.data.reshape(self.blocks, 2, self.kv_heads, -1)[:, half]

    def _elements(self, half: int, shape: tuple[int, int]) -> NDArray[np.generic]:
        kind = np.dtype(np.float16 if self.format is KVFormat.F16 else np.int8)
        nbytes = BLOCK_POSITIONS * self.head_dim * kind.itemsize
        elements = self._half(half)[:, :, :nbytes].view(kind)
        return elements.reshape(self.blocks, self.kv_heads, *shape)


BLOCK_POSITIONS = 16  # one vector of scores: 16 f32 lanes
Operand = Rows | QuantizedRows | Matrix | Vector | Indices | KVStorage

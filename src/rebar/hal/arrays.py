"""Operands of a launch: float rows, quantized rows, packed matrices, KV storage. Bytes with a
shape, nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

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


class _Flat:
    """What Vector and Indices share: adjacent values (n,) of the type KIND, named in errors."""

    __slots__ = ()
    KIND: ClassVar[type[np.generic]]
    THESE_ARE: ClassVar[str]
    data: NDArray[Any]

    def __post_init__(self) -> None:
        data, kind = self.data, np.dtype(self.KIND)
        if data.ndim != 1 or data.dtype != kind or not data.flags.c_contiguous:
            raise ShapeError(
                f"{self.THESE_ARE} adjacent {kind} (n,), not {data.dtype} {data.shape}"
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
class Vector(_Flat):
    """float32 values (n,)."""

    KIND = np.float32
    THESE_ARE = "a vector is"
    data: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Indices(_Flat):
    """int32 values (n,): target ids."""

    KIND = np.int32
    THESE_ARE = "indices are"
    data: NDArray[np.int32]


class KVFormat(IntEnum):
    """rb_kv_type of native/rebar.h: how keys and values are stored."""

    F16 = 0
    INT8 = 1
    F32 = 2


_KV_ELEMENTS = {KVFormat.F16: np.float16, KVFormat.INT8: np.int8, KVFormat.F32: np.float32}


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
        """f16, f32 or int8 (blocks, kv_heads, head_dim, 16), over the same memory."""
        return self._elements(0, (self.head_dim, BLOCK_POSITIONS))

    @property
    def values(self) -> NDArray[np.generic]:
        """f16, f32 or int8 (blocks, kv_heads, 16, head_dim), over the same memory."""
        return self._elements(1, (BLOCK_POSITIONS, self.head_dim))

    def scales(self, half: int) -> NDArray[np.float16]:
        """Scales of int8 keys (half 0) or values (1): (blocks, kv_heads, groups of 32, 16)."""
        behind = self._half(half)[:, :, BLOCK_POSITIONS * self.head_dim :]
        shape = (self.blocks, self.kv_heads, -1, BLOCK_POSITIONS)
        return behind.view(np.float16).reshape(shape)

    def _half(self, half: int) -> NDArray[np.uint8]:
        return self.data.reshape(self.blocks, 2, self.kv_heads, -1)[:, half]

    def _elements(self, half: int, shape: tuple[int, int]) -> NDArray[np.generic]:
        kind = np.dtype(_KV_ELEMENTS[self.format])
        nbytes = BLOCK_POSITIONS * self.head_dim * kind.itemsize
        elements = self._half(half)[:, :, :nbytes].view(kind)
        return elements.reshape(self.blocks, self.kv_heads, *shape)


@dataclass(frozen=True, slots=True)
class LoraPair:
    """What an adapter adds to a product, or a part of one: scale * b a; a (rank, k), b (n, rank),
    both F32.
    """

    a: Matrix
    b: Matrix
    scale: float

    def __post_init__(self) -> None:
        if self.a.n != self.b.k or {self.a.format, self.b.format} != {WeightFormat.F32}:
            raise ShapeError(
                f"an adapter's matrices are F32 (rank, k) and (n, rank), not {self.a.format.name} "
                f"({self.a.n}, {self.a.k}) and {self.b.format.name} ({self.b.n}, {self.b.k})"
            )

    @property
    def rank(self) -> int:
        """Inputs of b, outputs of a."""
        return self.a.n


_LORA_SLOT = np.dtype(
    [("a", np.uint64), ("b", np.uint64), ("rank", np.int32), ("scale", np.float32)]
)


class LoraTable:
    """Which adapters there are for one product of k inputs, whose outputs are split into parts of
    `widths` columns: rb_lora_slot [slot][part]. Launches read it when they run; whoever changes it
    does so between steps. rank: of the largest pair that can be put in.
    """

    def __init__(self, slots: int, k: int, widths: tuple[int, ...], rank: int) -> None:
        if slots < 1 or rank < 1 or not 1 <= len(widths) <= LORA_PARTS:
            raise ShapeError(
                f"{slots} adapters of rank {rank} for a product of {len(widths)} parts"
            )
        self.k, self.widths, self.rank = k, widths, rank
        self._pairs: list[list[LoraPair | None]] = [[None] * len(widths) for _ in range(slots)]
        self._data = np.zeros((slots, len(widths)), dtype=_LORA_SLOT)

    @property
    def slots(self) -> int:
        """Adapters there is room for."""
        return len(self._pairs)

    @property
    def address(self) -> int:
        """Address of the first entry."""
        return int(self._data.ctypes.data)

    def pair(self, slot: int, part: int) -> LoraPair | None:
        """What the slot holds for a part."""
        return self._pairs[slot][part]

    def put(self, slot: int, part: int, pair: LoraPair | None) -> None:
        """Changes an entry; ShapeError for a pair of another size."""
        if pair is None:
            self._data[slot, part] = (0, 0, 0, 0.0)
        else:
            sizes = pair.a.k, pair.b.n
            if sizes != (self.k, self.widths[part]) or pair.rank > self.rank:
                raise ShapeError(
                    f"an adapter of rank {pair.rank} for {sizes[0]} inputs and {sizes[1]} outputs; "
                    f"here are {self.k} and {self.widths[part]}, rank {self.rank} at most"
                )
            self._data[slot, part] = pair.a.address, pair.b.address, pair.rank, pair.scale
        self._pairs[slot][part] = pair


LORA_PARTS = 3  # RB_LORA_PARTS of native/rebar.h
BLOCK_POSITIONS = 16  # one vector of scores: 16 f32 lanes
Operand = Rows | QuantizedRows | Matrix | Vector | Indices | KVStorage | LoraTable

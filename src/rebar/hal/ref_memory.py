"""What the rules of the reference back end read and write: operands as float64 values.

The law: a rule computes in float64 from what it reads here and stores once. `Memory` rounds what is
stored to the operand's own type. `WideMemory` rounds nothing: it keeps float64 beside the float32
that it also writes, and answers with them as long as nobody else has changed the float32. Int8
activations and the cache are not rounded either, so that what runs on it is the function whose
gradient the way back computes; central differences are taken on it.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from rebar.hal import ref_attention
from rebar.hal.arrays import KVStorage, Matrix, QuantizedRows, Rows, Vector, WeightFormat
from rebar.hal.ref_attention import Where
from rebar.hal.ref_formats import pack_f32, unpack

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class Memory:
    """Operands as they lie."""

    def __init__(self) -> None:
        self._dense: dict[int, F64] = {}

    def rows(self, x: Rows, count: int) -> F64:
        """The first `count` rows, a copy."""
        return x.data[:count].astype(np.float64)

    def put(self, y: Rows, values: F64) -> None:
        """Stores the first rows of y."""
        y.data[: len(values)] = values.astype(np.float32)

    def add(self, y: Rows, values: F64) -> None:
        """y += values: one rounding of the sum."""
        self.put(y, self.rows(y, len(values)) + values)

    def vector(self, x: Vector) -> F64:
        """All values, a copy."""
        return x.data.astype(np.float64)

    def put_vector(self, y: Vector, values: F64) -> None:
        """Stores all values."""
        y.data[:] = values.astype(np.float32)

    def matrix(self, w: Matrix) -> F64:
        """(n, k). Formats that nobody trains are unpacked once."""
        if w.format is WeightFormat.F32:
            return unpack(w).astype(np.float64)
        if w.address not in self._dense:
            self._dense[w.address] = unpack(w).astype(np.float64)
        return self._dense[w.address]

    def add_matrix(self, w: Matrix, values: F64) -> None:
        """w += values (n, k), w F32."""
        pack_f32(w, (self.matrix(w) + values).astype(np.float32))

    def quantize(self, xq: QuantizedRows, y: Rows, count: int) -> None:
        """xq = int8 of the first rows of y."""
        store(xq, np.ascontiguousarray(y.data[:count]))

    def quantized(self, xq: QuantizedRows, count: int) -> F64:
        """The values that quantized rows stand for."""
        return load(xq, count)

    def append(self, storage: KVStorage, block: int, slot: int, k: F64, v: F64) -> None:
        """Stores one position's k and v (kv_heads, head_dim)."""
        ref_attention.write(storage, block, slot, k.astype(np.float32), v.astype(np.float32))

    def cached(self, storage: KVStorage, where: Where) -> tuple[F64, F64]:
        """Keys and values of positions, each (position, kv head, head_dim)."""
        return ref_attention.read(storage, where)


class WideMemory(Memory):
    """Float64 beside every operand."""

    def __init__(self) -> None:
        super().__init__()
        self._beside: dict[int, tuple[NDArray[np.generic], F64]] = {}
        self._activations: dict[tuple[int, int], F64] = {}
        self._cache: dict[int, tuple[KVStorage, F64]] = {}

    def wide(self, x: F32) -> F64:
        """The float64 of x, to read. x: any view of float32 in any buffer."""
        root: NDArray[np.generic] = x
        while isinstance(root.base, np.ndarray):
            root = root.base
        address = root.ctypes.data
        if address not in self._beside:
            self._beside[address] = root, np.zeros(-(-root.nbytes // 4))
        flat = self._beside[address][1][(x.ctypes.data - address) // 4 :]
        beside = as_strided(flat, x.shape, tuple(2 * s for s in x.strides))
        with np.errstate(over="ignore"):
            rounded = beside.astype(np.float32)
        changed = (rounded != x) & ~(np.isnan(rounded) & np.isnan(x))
        beside[changed] = x[changed]
        return beside

    def change(self, x: F32, values: F64) -> None:
        """Stores values in x, beyond float32."""
        x[:] = values.astype(np.float32)
        self.wide(x)[:] = values

    def rows(self, x: Rows, count: int) -> F64:
        """The first `count` rows, a copy."""
        return self.wide(x.data[:count]).copy()

    def put(self, y: Rows, values: F64) -> None:
        """Stores the first rows of y."""
        self.change(y.data[: len(values)], values)

    def vector(self, x: Vector) -> F64:
        """All values, a copy."""
        return self.wide(x.data).copy()

    def put_vector(self, y: Vector, values: F64) -> None:
        """Stores all values."""
        self.change(y.data, values)

    def matrix(self, w: Matrix) -> F64:
        """(n, k)."""
        if w.format is not WeightFormat.F32:
            return super().matrix(w)
        return self.wide(dense_view(w)).transpose(0, 2, 1).reshape(-1, w.k)[: w.n]

    def add_matrix(self, w: Matrix, values: F64) -> None:
        """w += values (n, k), w F32."""
        total = self.matrix(w) + values
        rows = np.zeros((-(-w.n // 16) * 16, w.k))
        rows[: w.n] = total
        self.change(dense_view(w), rows.reshape(-1, 16, w.k).transpose(0, 2, 1))

    def quantize(self, xq: QuantizedRows, y: Rows, count: int) -> None:
        """Keeps the values as they are."""
        self._activations[xq.address, xq.width] = self.rows(y, count)

    def quantized(self, xq: QuantizedRows, count: int) -> F64:
        """The values, not rounded."""
        return self._activations[xq.address, xq.width][:count]

    def append(self, storage: KVStorage, block: int, slot: int, k: F64, v: F64) -> None:
        """Keeps one position's k and v as they are."""
        if storage.address not in self._cache:
            shape = (storage.blocks, 16, 2, storage.kv_heads, storage.head_dim)
            self._cache[storage.address] = storage, np.full(shape, np.nan)
        self._cache[storage.address][1][block, slot] = np.stack([k, v])

    def cached(self, storage: KVStorage, where: Where) -> tuple[F64, F64]:
        """Keys and values of positions."""
        kept = self._cache[storage.address][1]
        pairs = np.stack([kept[block, slot] for block, slot in where])
        return pairs[:, 0], pairs[:, 1]


def dense_view(w: Matrix) -> F32:
    """The tiles of an F32 matrix, (tiles, k, 16)."""
    return w.data.view(np.float32).reshape(-1, w.k, 16)


def quantize(x: F32, group: int = 16) -> tuple[NDArray[np.int32], F32]:
    """x (rows, k) -> q (rows, k/group, group) and d (rows, k/group): d = max|x|/127 of a group, q =
    round(x * (1/d)).
    """
    groups = x.reshape(x.shape[0], -1, group)
    d = (np.abs(groups).max(axis=-1) / np.float32(127.0)).astype(np.float32)
    if group == 32:
        d = (d.view(np.int32) & ~3).view(np.float32)  # 22 bits: native/cpu/matmul.h, kUnit
    inverse = np.divide(np.float32(1.0), d, out=np.zeros_like(d), where=d != 0)
    with np.errstate(invalid="ignore"):
        q = np.rint(groups * inverse[..., None])
    return np.nan_to_num(q).astype(np.int32), d


def store(xq: QuantizedRows, x: F32) -> None:
    """Writes the quantized rows of x in the layout of native/rebar.h."""
    q, d = quantize(x, xq.group)
    count, k = x.shape
    d = np.repeat(d, xq.group // 16, axis=1)
    xq.data[:count, :k] = q.reshape(count, k).astype(np.int8).view(np.uint8)
    xq.data[:count, k : k + k // 4] = d.view(np.uint8)
    sums = q.reshape(count, k // 16, 16).sum(axis=-1, dtype=np.int32)
    xq.data[:count, k + k // 4 : k + k // 2] = sums.view(np.uint8)


def load(xq: QuantizedRows, count: int) -> F64:
    """The values that quantized rows stand for, (count, k)."""
    k = xq.width
    q = xq.data[:count, :k].view(np.int8).reshape(count, k // 16, 16).astype(np.float64)
    d = np.ascontiguousarray(xq.data[:count, k : k + k // 4]).view(np.float32)
    return (q * d[..., None]).reshape(count, k)

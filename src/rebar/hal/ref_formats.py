"""The packed weight formats of native/rebar.h, read by NumPy: the specification in another
language.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar.hal.arrays import Matrix, WeightFormat

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Ints = NDArray[np.integer[Any]]


def unpack(matrix: Matrix) -> F32:
    """Packed tiles -> float32 (n, k)."""
    tiles = -(-matrix.n // 16)
    raw = matrix.data.reshape(tiles, -1)
    if matrix.format in _FLOATS:
        dense = _FLOATS[matrix.format](raw).reshape(tiles, matrix.k, 16).transpose(0, 2, 1)
    elif matrix.format in _K_BYTES:
        dense = _k_format(matrix.format, raw, matrix.k)
    else:
        dense = _block_format(matrix.format, raw, matrix.k)
    return np.ascontiguousarray(dense.reshape(tiles * 16, matrix.k)[: matrix.n])


def pack_f32(matrix: Matrix, values: F32) -> None:
    """float32 (n, k) -> the tiles of an F32 matrix; rows that fill up the last tile are zero."""
    rows = np.zeros((-(-matrix.n // 16) * 16, matrix.k), np.float32)
    rows[: matrix.n] = values
    tiles = rows.reshape(-1, 16, matrix.k).transpose(0, 2, 1)
    matrix.data.view(np.float32).reshape(tiles.shape)[:] = tiles


def _bf16(raw: U8) -> F32:
    return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


_FLOATS = {
    WeightFormat.F32: lambda raw: np.ascontiguousarray(raw).view(np.float32),
    WeightFormat.F16: lambda raw: np.ascontiguousarray(raw).view(np.float16).astype(np.float32),
    WeightFormat.BF16: _bf16,
}


def _steps(quants: Ints) -> NDArray[np.int32]:
    """(..., 8 steps, 16 rows, 4 inputs) -> (..., 16 rows, 32 inputs)."""
    moved = np.moveaxis(quants, -3, -2)  # rows, steps, inputs
    return moved.reshape(*moved.shape[:-2], 32).astype(np.int32)


def _nibbles(raw: U8) -> Ints:
    """(..., 256 bytes) -> (..., 8 steps, 16 rows, 4 inputs): low halves are steps 0..3, high halves
    4..7.
    """
    by_step = raw.reshape(*raw.shape[:-1], 4, 16, 4)
    return np.concatenate([by_step & 15, by_step >> 4], axis=-3)


def _fifth_bits(raw: U8) -> Ints:
    """(..., 64 bytes) -> (..., 8 steps, 16 rows, 4 inputs): bit (4 row + input) of a step."""
    bits = np.unpackbits(raw.reshape(*raw.shape[:-1], 8, 8), axis=-1, bitorder="little")
    return bits.reshape(*bits.shape[:-1], 16, 4)


def _halves(raw: U8) -> F32:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


_GROUP_BYTES = {
    WeightFormat.Q8_0: 544,
    WeightFormat.Q4_0: 288,
    WeightFormat.Q4_1: 320,
    WeightFormat.Q5_0: 352,
    WeightFormat.Q5_1: 384,
}
_OFFSET = {WeightFormat.Q8_0: 128, WeightFormat.Q4_0: 8, WeightFormat.Q5_0: 16}


def _block_format(kind: WeightFormat, raw: U8, k: int) -> F32:
    groups = raw.reshape(raw.shape[0], k // 32, _GROUP_BYTES[kind])
    quants: Ints
    if kind is WeightFormat.Q8_0:
        quants, rest = groups[..., :512].reshape(*groups.shape[:-1], 8, 16, 4), groups[..., 512:]
    else:
        quants, rest = _nibbles(groups[..., :256]), groups[..., 256:]
        if kind in (WeightFormat.Q5_0, WeightFormat.Q5_1):
            quants, rest = quants | _fifth_bits(rest[..., :64]) << 4, rest[..., 64:]
    q = _steps(quants)
    scale = _halves(rest[..., :32])[..., None]
    if kind in _OFFSET:
        values = (q - _OFFSET[kind]).astype(np.float32) * scale
    else:
        values = q.astype(np.float32) * scale + _halves(rest[..., 32:])[..., None]
    return _dense(values)


_K_BYTES = {
    WeightFormat.Q4_K: (64, 288),
    WeightFormat.Q5_K: (64, 352),
    WeightFormat.Q6_K: (32, 416),
}  # header, a group


def _k_format(kind: WeightFormat, raw: U8, k: int) -> F32:
    header, group = _K_BYTES[kind]
    supers = raw.reshape(raw.shape[0], k // 256, header + 8 * group)
    d = _halves(supers[..., :32])[..., None, :, None]  # tile, super, 1, row, 1
    groups = supers[..., header:].reshape(*supers.shape[:-1], 8, group)
    quants = _nibbles(groups[..., :256])
    if kind is WeightFormat.Q6_K:
        upper = groups[..., 256:384].reshape(*groups.shape[:-1], 2, 16, 4)
        pairs = np.stack(
            [upper[..., step % 2, :, :] >> (2 * (step // 2)) & 3 for step in range(8)], axis=-3
        )
        q = _steps(quants | pairs << 4) - 32
        scales = (
            groups[..., 384:].view(np.int8).reshape(*groups.shape[:-1], 2, 16).astype(np.float32)
        )
        by_input = np.repeat(np.moveaxis(scales, -2, -1), 16, axis=-1)  # row, input
        values = q.astype(np.float32) * (d * by_input)
    else:
        rest = groups[..., 256:]
        if kind is WeightFormat.Q5_K:
            quants, rest = quants | _fifth_bits(rest[..., :64]) << 4, rest[..., 64:]
        minimum = _halves(supers[..., 32:64])[..., None, :, None]
        scale, low = (rest[..., i : i + 16].astype(np.float32)[..., None] for i in (0, 16))
        values = _steps(quants).astype(np.float32) * (d * scale) - minimum * low
    return _dense(values.reshape(values.shape[0], -1, 16, 32))


def _dense(values: NDArray[np.floating]) -> F32:
    """(tiles, groups, 16, 32) -> (tiles, 16, k)."""
    return np.moveaxis(values, 1, 2).reshape(values.shape[0], 16, -1).astype(np.float32)

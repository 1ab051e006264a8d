"""Simple quantizers for test models: values -> the blocks of GGUF files (layouts: ggml's block
structs).

They round to the nearest step between a block's smallest and largest value; real tools search for
better scales, but what is tested is reading, and any sound block will do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rebar.graph.weights.model_file import WeightType

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def quantize(kind: WeightType, values: F32) -> bytes:
    """Row-major blocks of `values` (n, k); k is a whole number of blocks."""
    return _QUANTIZERS[kind](np.ascontiguousarray(values, dtype=np.float32)).tobytes()


def _bf16(values: F32) -> Bytes:
    bits = values.view(np.uint32)
    nearest_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + nearest_even) >> np.uint32(16)).astype("<u2").view(np.uint8)


def _halves(values: F32) -> Bytes:
    """(blocks,) scales as f16 bytes, (blocks, 2)."""
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def _inverse(scales: F32) -> F32:
    """1 / scale as the f16 that is stored, 0 for 0."""
    stored = scales.astype(np.float16).astype(np.float32)
    return np.divide(1.0, stored, out=np.zeros_like(stored), where=stored != 0)


def _symmetric(values: F32, block: int, half: int) -> tuple[Bytes, F32, Bytes]:
    """q in 0..2 half - 1 with w = d (q - half): (f16 d, d, q)."""
    rows = values.reshape(-1, block)
    scale = np.abs(rows).max(axis=1) / (half - 1)
    q = np.rint(rows * _inverse(scale)[:, None]) + half
    return _halves(scale), scale, np.clip(q, 0, 2 * half - 1).astype(np.uint8)


def _affine(values: F32, steps: int) -> tuple[Bytes, Bytes, Bytes]:
    """q in 0..steps with w = d q + m, 32 a block: (f16 d, f16 m, q)."""
    rows = values.reshape(-1, 32)
    low = rows.min(axis=1).astype(np.float16).astype(np.float32)
    scale = (rows.max(axis=1) - low) / steps
    q = np.rint((rows - low[:, None]) * _inverse(scale)[:, None])
    return _halves(scale), _halves(low), np.clip(q, 0, steps).astype(np.uint8)


def _halves_of(low: Bytes, high: Bytes) -> Bytes:
    """Two nibbles to a byte."""
    return np.asarray((low & 15) | (high & 15) << 4, dtype=np.uint8)


def _nibbles(q: Bytes) -> Bytes:
    """Inputs 0..15 in the low halves, 16..31 in the high halves."""
    return _halves_of(q[:, :16], q[:, 16:])


def _fifth(q: Bytes) -> Bytes:
    """Bit i of a little-endian u32 is bit 4 of input i."""
    return np.packbits((q >> 4 & 1).astype(np.uint8), axis=1, bitorder="little")


def _q8_0(values: F32) -> Bytes:
    d, _, q = _symmetric(values, 32, 128)
    return np.hstack([d, (q.astype(np.int16) - 128).astype(np.int8).view(np.uint8)])


def _q4_0(values: F32) -> Bytes:
    d, _, q = _symmetric(values, 32, 8)
    return np.hstack([d, _nibbles(q)])


def _q4_1(values: F32) -> Bytes:
    d, m, q = _affine(values, 15)
    return np.hstack([d, m, _nibbles(q)])


def _q5_0(values: F32) -> Bytes:
    d, _, q = _symmetric(values, 32, 16)
    return np.hstack([d, _fifth(q), _nibbles(q)])


def _q5_1(values: F32) -> Bytes:
    d, m, q = _affine(values, 31)
    return np.hstack([d, m, _fifth(q), _nibbles(q)])


def _k_parts(values: F32, steps: int) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Eight groups of 32: w = d sc q - dmin mn, sc and mn of 6 bits: (f16 d, f16 dmin, 12
    bytes sc and mn, q (b, 8, 32)).
    """
    rows = values.reshape(-1, 8, 32)
    low = np.minimum(rows.min(axis=2), 0.0)
    scale = (rows.max(axis=2) - low) / steps
    d, dmin = scale.max(axis=1) / 63, -low.min(axis=1) / 63
    sc = np.clip(np.rint(scale * _inverse(d)[:, None]), 0, 63).astype(np.uint8)
    mn = np.clip(np.rint(-low * _inverse(dmin)[:, None]), 0, 63).astype(np.uint8)
    step = d.astype(np.float16).astype(np.float32)[:, None] * sc
    offset = dmin.astype(np.float16).astype(np.float32)[:, None] * mn
    inverse = np.divide(1.0, step, out=np.zeros_like(step), where=step != 0)
    q = np.clip(np.rint((rows + offset[:, :, None]) * inverse[:, :, None]), 0, steps)
    return _halves(d), _halves(dmin), _six_bits(sc, mn), q.astype(np.uint8)


def _six_bits(sc: Bytes, mn: Bytes) -> Bytes:
    """ggml's packing of eight 6-bit scales and minima into 12 bytes."""
    first = np.hstack([sc[:, :4] | (sc[:, 4:] >> 4) << 6, mn[:, :4] | (mn[:, 4:] >> 4) << 6])
    return np.hstack([first, (sc[:, 4:] & 15) | (mn[:, 4:] & 15) << 4])


def _k_nibbles(q: Bytes) -> Bytes:
    """Groups 2j and 2j + 1 share 32 bytes: low and high halves."""
    return _halves_of(q[:, 0::2], q[:, 1::2]).reshape(len(q), 128)


def _q4_k(values: F32) -> Bytes:
    d, dmin, scales, q = _k_parts(values, 15)
    return np.hstack([d, dmin, scales, _k_nibbles(q)])


def _q5_k(values: F32) -> Bytes:
    """Byte l of the fifth bits holds bit g of group g's input l."""
    d, dmin, scales, q = _k_parts(values, 31)
    high = np.zeros((len(q), 32), dtype=np.uint8)
    for group in range(8):
        high |= (q[:, group] >> 4 & 1) << group
    return np.hstack([d, dmin, scales, high, _k_nibbles(q)])


def _q6_k(values: F32) -> Bytes:
    """Sixteen groups of 16: w = d sc (q - 32)."""
    rows = values.reshape(-1, 16, 16)
    scale = np.abs(rows).max(axis=2) / 31
    d = scale.max(axis=1) / 127
    sc = np.clip(np.rint(scale * _inverse(d)[:, None]), -128, 127)
    step = d.astype(np.float16).astype(np.float32)[:, None] * sc
    inverse = np.divide(1.0, step, out=np.zeros_like(step), where=step != 0)
    q = np.clip(np.rint(rows * inverse[:, :, None]) + 32, 0, 63).astype(np.uint8)
    q = q.reshape(-1, 2, 4, 32)  # halves of 128 inputs, quarters of 32
    low = _halves_of(q[:, :, 0:2], q[:, :, 2:4])
    high = sum(((q[:, :, part] >> 4) << (2 * part) for part in range(1, 4)), q[:, :, 0] >> 4)
    packed = [low.reshape(-1, 128), np.asarray(high, dtype=np.uint8).reshape(-1, 64)]
    return np.hstack([*packed, sc.astype(np.int8).view(np.uint8), _halves(d)])


_QUANTIZERS: dict[WeightType, Callable[[F32], Bytes]] = {
    "F32": lambda values: values.astype("<f4").view(np.uint8),
    "F16": lambda values: values.astype("<f2").view(np.uint8),
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}

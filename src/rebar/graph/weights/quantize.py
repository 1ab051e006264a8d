"""Values into the blocks of the quantized types (layouts: ggml's block structs).

The law: what is stored is the nearest step to each value at the scale that is stored, and that
scale is the one, of some candidates around the usual, whose squared error over its group is least.
A function of each block alone: no neighbour, no thread changes a bit.

A candidate fixes the steps that values round to; the scale (and minimum) that then err least follow
by least squares, as in ggml's make_qx_quants and make_qkx2_quants.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError
from rebar.graph.weights.model_file import WeightType

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]
PIECE = 1 << 18  # values at a time: some arrays of a megabyte, which stay in the cache
_OFFSETS = np.arange(-9, 10, dtype=np.float32) / np.float32(10)  # candidates, in steps


def quantized(kind: WeightType, values: F32) -> Bytes:
    """Rows of whole blocks as a file stores them. InputError for values beyond the type."""
    block, pack = _PACKERS[kind]
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, block)
    step = max(1, PIECE // block)
    pieces = [pack(blocks[i : i + step]) for i in range(0, len(blocks), step)]
    return np.concatenate(pieces).reshape(-1)


def halves(values: F32) -> NDArray[np.float16]:
    """Values as f16, to nearest. InputError beyond its range."""
    with np.errstate(over="ignore"):
        raw = values.astype("<f2")
    if not np.isfinite(raw).all():
        raise InputError(
            f"{np.abs(values).max():g} stands among the weights or their scales, and F16 ends at "
            "65504. Choose --type BF16 or F32.",
            param="type",
        )
    return raw


def _stored(values: F32) -> tuple[Bytes, F32]:
    """(bytes (b, 2), the values that they say)."""
    raw = halves(values)
    return raw.reshape(-1, 1).view(np.uint8), raw.astype(np.float32)


def _over(values: F32, by: F32) -> F32:
    """values / by, 0 where by is 0, or so small that an f16 scale has no word for it."""
    return np.divide(values, by, out=np.zeros_like(values), where=np.abs(by) > 2.0**-60)


def _scales(x: F32, half: int) -> F32:
    """x (b, w): d (b,) of w ~ d q with q in -half .. half - 1. The largest value is the first to
    take the longer side, so d may be negative.
    """
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    best, best_gain = np.zeros_like(largest), np.full_like(largest, -1)
    for offset in _OFFSETS:
        inverse = _over(np.full_like(largest, -(half + offset)), largest)
        q = np.clip(np.rint(x * inverse[:, None]), -half, half - 1)
        xq, qq = np.einsum("bw,bw->b", x, q), np.einsum("bw,bw->b", q, q)
        scale = _over(xq, qq)
        gain = xq * scale  # the squares that are explained
        better = gain > best_gain
        best, best_gain = np.where(better, scale, best), np.where(better, gain, best_gain)
    return best


def _lines(x: F32, steps: int, *, below: bool) -> tuple[F32, F32]:
    """x (b, w): d and m (b,) of w ~ d q + m with q in 0 .. steps. below: m is at most 0."""
    low, high = x.min(axis=1), x.max(axis=1)
    low = np.minimum(low, 0) if below else low
    n, sx = np.float32(x.shape[1]), x.sum(axis=1)
    d, m = (high - low) / steps, low
    least = _error(x, d, m, steps)
    for offset in _OFFSETS:
        inverse = _over(np.full_like(low, steps + offset), high - low)
        q = np.clip(np.rint((x - low[:, None]) * inverse[:, None]), 0, steps)
        sq, qq = q.sum(axis=1), np.einsum("bw,bw->b", q, q)
        xq = np.einsum("bw,bw->b", x, q)
        over = n * qq - sq * sq
        scale, least_m = _over(n * xq - sq * sx, over), _over(qq * sx - sq * xq, over)
        if below:
            scale = np.where(least_m > 0, _over(xq, qq), scale)
            least_m = np.minimum(least_m, 0)
        error = np.where(over > 0, _error(x, scale, least_m, steps), np.inf)
        better = error < least
        d, m = np.where(better, scale, d), np.where(better, least_m, m)
        least = np.where(better, error, least)
    return d, m


def _error(x: F32, d: F32, m: F32, steps: int) -> F32:
    left = x - (d[:, None] * _steps(x, d, m, steps) + m[:, None])
    squares: F32 = np.einsum("bw,bw->b", left, left)
    return squares


def _steps(x: F32, d: F32, m: F32, steps: int) -> F32:
    """The nearest q in 0 .. steps."""
    q: F32 = np.rint(_over(x - m[:, None], np.broadcast_to(d[:, None], x.shape)))
    return np.clip(q, 0, steps)


def _q8_0(x: F32) -> Bytes:
    """An f16 scale max|x| / 127 and 32 signed bytes: 8 bits gain nothing by a search."""
    d, scale = _stored(np.abs(x).max(axis=1) / np.float32(127))
    q = np.clip(np.rint(_over(x, np.broadcast_to(scale[:, None], x.shape))), -127, 127)
    return np.hstack([d, q.astype(np.int8).view(np.uint8)])


def _symmetric(x: F32, half: int) -> tuple[Bytes, Bytes]:
    """(f16 d, q + half)."""
    d, scale = _stored(_scales(x, half))
    q = np.rint(_over(x, np.broadcast_to(scale[:, None], x.shape))) + half
    return d, np.clip(q, 0, 2 * half - 1).astype(np.uint8)


def _affine(x: F32, steps: int) -> tuple[Bytes, Bytes, Bytes]:
    """(f16 d, f16 m, q)."""
    scale, low = _lines(x, steps, below=False)
    (d, scale), (m, low) = _stored(scale), _stored(low)
    return d, m, _steps(x, scale, low, steps).astype(np.uint8)


def _pairs(low: Bytes, high: Bytes) -> Bytes:
    """Two nibbles to a byte."""
    return np.asarray((low & 15) | (high & 15) << 4, np.uint8)


def _nibbles(q: Bytes) -> Bytes:
    """Inputs 0..15 in the low halves, 16..31 in the high ones."""
    return _pairs(q[:, :16], q[:, 16:])


def _fifths(q: Bytes) -> Bytes:
    """Bit i of a little-endian u32 is bit 4 of input i."""
    return np.packbits(q >> 4 & 1, axis=1, bitorder="little")


def _q4_0(x: F32) -> Bytes:
    d, q = _symmetric(x, 8)
    return np.hstack([d, _nibbles(q)])


def _q5_0(x: F32) -> Bytes:
    d, q = _symmetric(x, 16)
    return np.hstack([d, _fifths(q), _nibbles(q)])


def _q4_1(x: F32) -> Bytes:
    d, m, q = _affine(x, 15)
    return np.hstack([d, m, _nibbles(q)])


def _q5_1(x: F32) -> Bytes:
    d, m, q = _affine(x, 31)
    return np.hstack([d, m, _fifths(q), _nibbles(q)])


def _eighths(x: F32, steps: int) -> tuple[list[Bytes], Bytes]:
    """256 values as eight groups w = d sc q - dmin mn, sc and mn of 6 bits: (the parts before q,
    q (b, 8, 32)).
    """
    groups = x.reshape(-1, 32)
    scales, lows = (v.reshape(-1, 8) for v in _lines(groups, steps, below=True))
    (d, d_said), (dmin, dmin_said) = (
        _stored(v.max(axis=1) / np.float32(63)) for v in (scales, -lows)
    )
    sc, mn = (
        np.clip(np.rint(_over(v, np.broadcast_to(said[:, None], v.shape))), 0, 63)
        for v, said in ((scales, d_said), (-lows, dmin_said))
    )
    step, low = (d_said[:, None] * sc).reshape(-1), -(dmin_said[:, None] * mn).reshape(-1)
    q = _steps(groups, step, low, steps).astype(np.uint8).reshape(-1, 8, 32)
    return [d, dmin, _six_bits(sc.astype(np.uint8), mn.astype(np.uint8))], q


def _six_bits(sc: Bytes, mn: Bytes) -> Bytes:
    """Eight scales and eight minima of 6 bits in 12 bytes."""
    first = np.hstack([v[:, :4] | (v[:, 4:] >> 4) << 6 for v in (sc, mn)])
    return np.hstack([first, _pairs(sc[:, 4:], mn[:, 4:])])


def _group_pairs(q: Bytes) -> Bytes:
    """Groups 2j and 2j + 1 share 32 bytes: low and high halves."""
    return _pairs(q[:, 0::2], q[:, 1::2]).reshape(-1, 128)


def _q4_k(x: F32) -> Bytes:
    parts, q = _eighths(x, 15)
    return np.hstack([*parts, _group_pairs(q)])


def _q5_k(x: F32) -> Bytes:
    """Byte l of the fifth bits holds bit g of group g's input l."""
    parts, q = _eighths(x, 31)
    fifth = np.packbits(q >> 4 & 1, axis=1, bitorder="little").reshape(-1, 32)
    return np.hstack([*parts, fifth, _group_pairs(q)])


def _q6_k(x: F32) -> Bytes:
    """Sixteen groups of 16, w = d sc (q - 32): low nibbles, high pairs of bits, int8 sc, f16 d."""
    groups = x.reshape(-1, 16)
    scales = _scales(groups, 32).reshape(-1, 16)
    d, said = _stored(np.abs(scales).max(axis=1) / np.float32(127))
    sc = np.clip(np.rint(_over(scales, np.broadcast_to(said[:, None], scales.shape))), -127, 127)
    step = (said[:, None] * sc).reshape(-1, 1)
    q = np.clip(np.rint(_over(groups, np.broadcast_to(step, groups.shape))) + 32, 0, 63)
    q = q.astype(np.uint8).reshape(-1, 2, 4, 32)  # halves of 128 inputs, quarters of 32
    low = _pairs(q[:, :, :2], q[:, :, 2:]).reshape(-1, 128)
    high = sum(((q[:, :, part] >> 4) << 2 * part for part in range(1, 4)), q[:, :, 0] >> 4)
    tail = [np.asarray(high, np.uint8).reshape(-1, 64), sc.astype(np.int8).view(np.uint8), d]
    return np.hstack([low, *tail])


_PACKERS: dict[WeightType, tuple[int, Callable[[F32], Bytes]]] = {
    "Q8_0": (32, _q8_0),
    "Q4_0": (32, _q4_0),
    "Q4_1": (32, _q4_1),
    "Q5_0": (32, _q5_0),
    "Q5_1": (32, _q5_1),
    "Q4_K": (256, _q4_k),
    "Q5_K": (256, _q5_k),
    "Q6_K": (256, _q6_k),
}

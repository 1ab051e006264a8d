"""The reference back end's cache and attention: the formulas of native/rebar.h in float64.

What is stored is exact: int8 keys and values equal the kernels' to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rebar.hal.arrays import KVFormat, KVStorage
from rebar.hal.launches import Attention

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Where = list[tuple[int, int]]  # block and slot of each position
Cached = Callable[[KVStorage, Where], tuple[F64, F64]]
Float = TypeVar("Float", np.float32, np.float64)
CHUNK = 256  # RB_ATTENTION_CHUNK of native/rebar.h
GROUP = 32  # RB_KV_GROUP


def hadamard(x: NDArray[Float]) -> NDArray[Float]:
    """x (..., head_dim) times a Hadamard matrix, by butterflies over the largest power of two that
    divides head_dim, halves first; in x's own precision.
    """
    dim = x.shape[-1]
    half = (dim & -dim) // 2
    while half:
        pairs = x.reshape(*x.shape[:-1], -1, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        half //= 2
    return x


def quantize(x: F32) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """x (heads, head_dim) -> int8 of the same shape and scales (heads, groups of 32)."""
    heads, dim = x.shape
    padded = np.zeros((heads, -(-dim // GROUP), GROUP), np.float32)
    padded.reshape(heads, -1)[:, :dim] = x
    finite = np.asarray(np.isfinite(padded).all(axis=-1, keepdims=True))
    largest = np.where(finite, np.abs(padded).max(axis=-1, keepdims=True), np.float32(0))
    with np.errstate(over="ignore"):  # beyond f16's range the scale is infinite, as in the kernel
        d = np.where(finite, largest / np.float32(127), np.float32("nan")).astype(np.float16)
    wide = d.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=finite & (wide > 0))
    sane = np.where(finite, padded, np.float32(0))
    q = np.rint(np.clip(sane * inverse, -127, 127)).astype(np.int8)
    return q.reshape(heads, -1)[:, :dim], d[..., 0]


def write(storage: KVStorage, block: int, slot: int, k: F32, v: F32) -> None:
    """Stores one position's k and v (kv_heads, head_dim)."""
    keys, values = storage.keys, storage.values
    if storage.format is not KVFormat.INT8:
        with np.errstate(over="ignore"):  # beyond f16's range is infinite, as in the kernel
            keys[block, :, :, slot] = k
            values[block, :, slot, :] = v
        return
    with np.errstate(invalid="ignore", over="ignore"):  # a sum of infinities
        turned = hadamard(k)
    keys[block, :, :, slot], storage.scales(0)[block, :, :, slot] = quantize(turned)
    values[block, :, slot, :], storage.scales(1)[block, :, :, slot] = quantize(v)


def read(storage: KVStorage, where: Where) -> tuple[F64, F64]:
    """Keys and values of positions, each (position, kv head, head_dim), as they were stored."""
    keys, values = storage.keys, storage.values
    k = np.stack([keys[b, :, :, s] for b, s in where]).astype(np.float64)
    v = np.stack([values[b, :, s, :] for b, s in where]).astype(np.float64)
    if storage.format is not KVFormat.INT8:
        return k, v
    turned = k * _scales(storage, 0, where)
    size = storage.head_dim & -storage.head_dim
    return hadamard(turned) / size, v * _scales(storage, 1, where)


def _scales(storage: KVStorage, half: int, where: Where) -> F64:
    scales = storage.scales(half)
    of_groups = np.stack([scales[b, :, :, s] for b, s in where]).astype(np.float64)
    return np.repeat(of_groups, GROUP, axis=-1)[..., : storage.head_dim]


def chunks(op: Attention, first: int, where: Where, cached: Cached) -> Iterator[tuple[F64, F64]]:
    """Keys and values of the positions from `first` on, chunk by chunk at absolute positions."""
    begin, end = first, first + len(where)
    while begin < end:
        stop = min((begin // CHUNK + 1) * CHUNK, end)
        yield cached(op.storage, where[begin - first : stop - first])
        begin = stop


def attend(op: Attention, q: F64, kv: Iterable[tuple[F64, F64]]) -> F64:
    """One row's q (heads * head_dim) over chunks of keys and values -> (kv head, head of it,
    head_dim), merged in ascending order.
    """
    queries = q.reshape(op.storage.kv_heads, -1, op.storage.head_dim)
    top, total, out = -np.inf, np.float64(0), np.zeros_like(queries)
    for k, v in kv:
        scores = np.einsum("hgd,phd->hgp", queries, k) * op.scale
        if op.softcap:
            scores = op.softcap * np.tanh(scores / op.softcap)
        largest = np.maximum(top, scores.max(axis=-1, keepdims=True))
        p, old = np.exp(scores - largest), np.exp(top - largest)
        total = total * old + p.sum(axis=-1, keepdims=True)
        out = out * old + np.einsum("hgp,phd->hgd", p, v)
        top = largest
    return out / total

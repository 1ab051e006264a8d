"""The launches over images in NumPy: the specification of launches_image.py. Rules of the same
`run` as those of the way back.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rebar.hal import launches_image as li
from rebar.hal.backend import Step
from rebar.hal.ref_backward import run as run
from rebar.hal.ref_memory import Memory

F64 = NDArray[np.float64]
U32 = NDArray[np.uint32]


def images(x: F64, window: li.Window) -> F64:
    """Rows as (images, height, width, channels)."""
    return x.reshape(len(x), window.height, window.width, window.channels)


def taps(window: li.Window) -> Iterator[tuple[int, int, slice, slice]]:
    """Each (ky, kx), ascending, with the rows and columns of the padded image that it meets."""
    down = window.stride * (window.out_height - 1) + 1
    right = window.stride * (window.out_width - 1) + 1
    for ky in range(window.kernel_height):
        for kx in range(window.kernel_width):
            yield (
                ky,
                kx,
                slice(ky, ky + down, window.stride),
                slice(kx, kx + right, window.stride),
            )


def padded(x: F64, window: li.Window, fill: float = 0.0) -> F64:
    """Images with `fill` around them."""
    p = window.padding
    return np.pad(images(x, window), ((0, 0), (p, p), (p, p), (0, 0)), constant_values=fill)


def unpadded(x: F64, window: li.Window) -> F64:
    """Rows of padded images without their padding."""
    p = window.padding
    return x[:, p : p + window.height, p : p + window.width].reshape(len(x), -1)


def patches(x: F64, window: li.Window) -> F64:
    """(images, positions, inputs): what lies under the window at each position."""
    wide = padded(x, window)
    under = [wide[:, rows, columns] for _, _, rows, columns in taps(window)]
    return np.concatenate(under, axis=-1).reshape(len(x), window.positions, window.inputs)


@run.register
def _(op: li.Conv, memory: Memory, step: Step) -> None:
    y = patches(memory.rows(op.x, step.rows), op.window) @ memory.matrix(op.w).T
    if op.bias is not None:
        y = y + memory.vector(op.bias)
    memory.put(op.y, y.reshape(step.rows, -1))


@run.register
def _(op: li.ConvInputGradient, memory: Memory, step: Step) -> None:
    window, count = op.window, step.rows
    dy = memory.rows(op.dy, count).reshape(count, window.positions, -1)
    shape = (count, window.out_height, window.out_width, -1, window.channels)
    under = (dy @ memory.matrix(op.w)).reshape(shape)
    dx = padded(np.zeros((count, window.values)), window)
    for ky, kx, rows, columns in taps(window):
        dx[:, rows, columns] += under[:, :, :, ky * window.kernel_width + kx]
    memory.add(op.dx, unpadded(dx, window))


@run.register
def _(op: li.ConvWeightGradient, memory: Memory, step: Step) -> None:
    x = patches(memory.rows(op.x, step.rows), op.window)
    dy = memory.rows(op.dy, step.rows).reshape(step.rows, op.window.positions, -1)
    memory.add_matrix(op.dw, np.einsum("rpn,rpk->nk", dy, x))


@run.register
def _(op: li.ChannelSums, memory: Memory, step: Step) -> None:
    dy = memory.rows(op.dy, step.rows).reshape(-1, op.db.n)
    memory.put_vector(op.db, memory.vector(op.db) + dy.sum(axis=0))


@run.register
def _(op: li.Pool, memory: Memory, step: Step) -> None:
    x = memory.rows(op.x, step.rows)
    if op.kind is li.PoolKind.MEAN:
        wide = padded(x, op.window)
        under = np.stack([wide[:, rows, columns] for _, _, rows, columns in taps(op.window)])
        y = _mean_share(op.window) * under.sum(axis=0)
    else:
        wide = padded(x, op.window, fill=-np.inf)
        under = np.stack([wide[:, rows, columns] for _, _, rows, columns in taps(op.window)])
        strange = ~np.isfinite(padded(x, op.window))
        meets = sum(strange[:, rows, columns] for _, _, rows, columns in taps(op.window))
        y = np.where(meets, np.nan, under.max(axis=0))
    memory.put(op.y, y.reshape(step.rows, -1))


@run.register
def _(op: li.PoolGradient, memory: Memory, step: Step) -> None:
    window = op.window
    shape = (step.rows, window.out_height, window.out_width, window.channels)
    left = memory.rows(op.dy, step.rows).reshape(shape)
    dx = padded(np.zeros((step.rows, window.values)), window)
    if op.x is None or op.y is None:
        for _, _, rows, columns in taps(window):
            dx[:, rows, columns] += left * _mean_share(window)
    else:
        x = padded(memory.rows(op.x, step.rows), window, fill=-np.inf)
        y = memory.rows(op.y, step.rows).reshape(shape)
        for _, _, rows, columns in taps(window):
            below = x[:, rows, columns] < y
            dx[:, rows, columns] += np.where(below, 0.0, left)
            left = np.where(below, left, 0.0)
    memory.add(op.dx, unpadded(dx, window))


def _mean_share(window: li.Window) -> float:
    return 1.0 / (window.kernel_height * window.kernel_width)


def grouped(x: F64, channels: int, groups: int) -> F64:
    """Rows as (images, positions, groups, channels of a group)."""
    return x.reshape(len(x), -1, groups, channels // groups)


def over_group(x: F64) -> F64:
    """Means over positions and a group's channels, shaped to meet x again."""
    mean: F64 = x.mean(axis=(1, 3), keepdims=True)
    return mean


def normalized(op: li.GroupNormGradient | li.GroupNormWeightGradient, x: F64, stats: F64) -> F64:
    """(x - mean) s from the statistics of the forward."""
    half = stats.reshape(len(x), 2, 1, op.groups, 1)
    return (x - half[:, 0]) * half[:, 1]


@run.register
def _(op: li.GroupNorm, memory: Memory, step: Step) -> None:
    n = op.weight.n
    x = grouped(memory.rows(op.x, step.rows), n, op.groups)
    mean = over_group(x)
    scale = 1.0 / np.sqrt(over_group((x - mean) ** 2) + op.eps)
    weight, bias = (memory.vector(v).reshape(op.groups, -1) for v in (op.weight, op.bias))
    memory.put(op.y, ((x - mean) * scale * weight + bias).reshape(step.rows, -1))
    memory.put(op.stats, np.concatenate([mean, scale], axis=1).reshape(step.rows, -1))


@run.register
def _(op: li.GroupNormGradient, memory: Memory, step: Step) -> None:
    n, count = op.weight.n, step.rows
    stats = memory.rows(op.stats, count)
    h = normalized(op, grouped(memory.rows(op.x, count), n, op.groups), stats)
    g = grouped(memory.rows(op.dy, count), n, op.groups) * memory.vector(op.weight).reshape(
        op.groups, -1
    )
    scale = stats[:, op.groups :].reshape(count, 1, op.groups, 1)
    memory.add(op.dx, (scale * (g - over_group(g) - h * over_group(g * h))).reshape(count, -1))


@run.register
def _(op: li.GroupNormWeightGradient, memory: Memory, step: Step) -> None:
    n, count = op.dweight.n, step.rows
    dy = grouped(memory.rows(op.dy, count), n, op.groups)
    x = grouped(memory.rows(op.x, count), n, op.groups)
    h = normalized(op, x, memory.rows(op.stats, count))
    for gradient, terms in ((op.dweight, dy * h), (op.dbias, dy)):
        memory.put_vector(gradient, memory.vector(gradient) + terms.sum(axis=(0, 1)).reshape(-1))


@run.register
def _(op: li.Relu, memory: Memory, step: Step) -> None:
    x = memory.rows(op.x, step.rows)
    memory.put(op.y, np.where(x < 0.0, 0.0, x))


@run.register
def _(op: li.ReluGradient, memory: Memory, step: Step) -> None:
    on = memory.rows(op.y, step.rows) > 0.0
    memory.add(op.dx, np.where(on, memory.rows(op.dy, step.rows), 0.0))


def mixed(x: U32) -> U32:
    """Wellons, "Prospecting for hash functions", lowbias32."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def kept(op: li.Dropout, step: Step) -> NDArray[np.bool_]:
    """(rows, width): the elements that stay."""
    salt = np.uint32(op.salt)
    row = np.broadcast_to(mixed(np.array([op.salt + 1], np.uint32)), (step.rows,)).copy()
    positions = np.asarray(step.positions[: step.rows]).astype(np.uint32)
    seed, number = op.key.data.view(np.uint32)
    for part in (seed, number, positions):
        row = mixed(row ^ mixed(part + row))
    elements = np.arange(op.x.width, dtype=np.uint32)
    hashes = mixed(mixed(elements + row[:, None]) + mixed(row + salt)[:, None])
    return hashes >= np.uint32(op.threshold)


@run.register
def _(op: li.Dropout, memory: Memory, step: Step) -> None:
    scale = float(np.float32(op.scale))
    values = np.where(kept(op, step), memory.rows(op.x, step.rows) * scale, 0.0)
    if op.add:
        memory.add(op.y, values)
    else:
        memory.put(op.y, values)

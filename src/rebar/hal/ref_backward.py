"""The launches of the way back in NumPy: the specification of launches_backward.py.

Each rule adds to what stands in the gradients it names, in float64, and rounds once.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from rebar.errors import DeviceError
from rebar.hal import launches_backward as lb
from rebar.hal.backend import Step
from rebar.hal.launches import Activation
from rebar.hal.ref_memory import Memory
from rebar.hal.ref_rules import (
    gelu_tanh,
    gelu_tanh_slope,
    rotated,
    seen,
    silu,
    silu_slope,
)

F64 = NDArray[np.float64]
PIECE = 65536  # values a sum of squares


@singledispatch
def run(launch: object, memory: Memory, step: Step) -> None:
    """Interprets one launch."""
    raise DeviceError(f"the ref back end has no rule for {type(launch).__name__}")


@run.register
def _(op: lb.MatmulInputGradient, memory: Memory, step: Step) -> None:
    dy = memory.rows(op.dy, op.domain.rows(step))
    memory.add(op.dx, op.scale * dy @ memory.matrix(op.w))


@run.register
def _(op: lb.MatmulWeightGradient, memory: Memory, step: Step) -> None:
    count = op.domain.rows(step)
    memory.add_matrix(op.dw, op.scale * memory.rows(op.dy, count).T @ memory.rows(op.x, count))


@run.register
def _(op: lb.SumRows, memory: Memory, step: Step) -> None:
    dy = memory.rows(op.dy, op.domain.rows(step))
    memory.put_vector(op.db, memory.vector(op.db) + dy.sum(axis=0))


@run.register
def _(op: lb.AddInto, memory: Memory, step: Step) -> None:
    memory.add(op.y, op.scale * memory.rows(op.x, op.domain.rows(step)))


@run.register
def _(op: lb.Zero, memory: Memory, step: Step) -> None:
    memory.put(op.y, np.zeros((op.domain.rows(step), op.y.width)))


@run.register
def _(op: lb.EmbedGradient, memory: Memory, step: Step) -> None:
    dw = np.zeros((op.dw.n, op.dw.k))
    np.add.at(dw, step.ids[: step.rows], op.scale * memory.rows(op.dy, step.rows))
    memory.add_matrix(op.dw, dw)


@run.register
def _(op: lb.RmsNormGradient, memory: Memory, step: Step) -> None:
    count = op.domain.rows(step)
    shape = (count, op.groups, op.weight.n)
    x, dy = memory.rows(op.x, count).reshape(shape), memory.rows(op.dy, count).reshape(shape)
    s = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + op.eps)
    if op.dx is not None:
        u = dy * memory.vector(op.weight)
        dx = s * (u - x * s * s * (u * x).mean(axis=-1, keepdims=True))
        memory.add(op.dx, dx.reshape(count, -1))
    if op.dweight is not None:
        total = memory.vector(op.dweight) + (dy * x * s).sum(axis=(0, 1))
        memory.put_vector(op.dweight, total)


@run.register
def _(op: lb.RopeGradient, memory: Memory, step: Step) -> None:
    angles = memory.rows(op.table, op.table.count)[step.positions[: step.rows]]
    memory.add(op.dx, rotated(memory.rows(op.dy, step.rows), angles, op.heads, back=-1.0))


@run.register
def _(op: lb.AttentionGradient, memory: Memory, step: Step) -> None:
    count = step.rows
    heads = (count, op.storage.kv_heads, -1, op.storage.head_dim)
    q, out, dout = (memory.rows(x, count).reshape(heads) for x in (op.q, op.out, op.dout))
    dq = np.zeros_like(q)
    dk, dv = (np.zeros((count, *heads[1::2])) for _ in range(2))
    for r in range(count):
        _, where = seen(step, r, op.window)
        k, v = memory.cached(op.storage, where)
        p, slope = _probabilities(op, q[r], k)
        d = (out[r] * dout[r]).sum(axis=-1, keepdims=True)
        ds = op.scale * slope * p * (np.einsum("hgd,phd->hgp", dout[r], v) - d)
        dq[r] = np.einsum("hgp,phd->hgd", ds, k)
        those = slice(r + 1 - len(where), r + 1)  # the rows of a sequence are its positions
        dk[those] += np.einsum("hgp,hgd->phd", ds, q[r])
        dv[those] += np.einsum("hgp,hgd->phd", p, dout[r])
    for gradient, values in ((op.dq, dq), (op.dk, dk), (op.dv, dv)):
        memory.add(gradient, values.reshape(count, -1))


@run.register
def _(op: lb.AttentionGradientMerge, memory: Memory, step: Step) -> None:
    """Nothing: all rows of a sequence add up as they come."""


def _probabilities(op: lb.AttentionGradient, q: F64, k: F64) -> tuple[F64, F64]:
    """softmax of a row's scores, (kv head, head of it, position), and the slope of the softcap."""
    scores = np.einsum("hgd,phd->hgp", q, k) * op.scale
    slope = np.ones_like(scores)
    if op.softcap:
        turned = np.tanh(scores / op.softcap)
        scores, slope = op.softcap * turned, 1.0 - turned * turned
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True), slope


@run.register
def _(op: lb.GatedGradient, memory: Memory, step: Step) -> None:
    count = op.domain.rows(step)
    x, dy = memory.rows(op.x, count), memory.rows(op.dy, count)
    a, b = x[:, : op.dy.width], x[:, op.dy.width :]
    of = (silu, silu_slope) if op.activation is Activation.SILU else (gelu_tanh, gelu_tanh_slope)
    with np.errstate(over="ignore"):
        act, slope = (f(a) for f in of)
    memory.add(op.dx, np.concatenate([dy * b * slope, dy * act], axis=1))


@run.register
def _(op: lb.SelectGradient, memory: Memory, step: Step) -> None:
    dx = np.zeros((step.rows, op.dx.width))
    dx[step.logit_index[: step.logit_rows]] = memory.rows(op.dy, step.logit_rows)
    memory.add(op.dx, dx)


@run.register
def _(op: lb.SoftcapGradient, memory: Memory, step: Step) -> None:
    count = op.domain.rows(step)
    y = memory.rows(op.y, count) / op.cap
    memory.add(op.dx, memory.rows(op.dy, count) * (1.0 - y * y))


@run.register
def _(op: lb.CrossEntropy, memory: Memory, step: Step) -> None:
    count = op.domain.rows(step)
    logits, targets = memory.rows(op.logits, count), op.targets.data[:count]
    m = logits.max(axis=-1)
    chosen = logits[np.arange(count), np.maximum(targets, 0)]
    loss = np.log(np.exp(logits - m[:, None]).sum(axis=-1)) + (m - chosen)
    memory.put(op.loss, np.where(targets < 0, 0.0, loss)[:, None])


@run.register
def _(op: lb.CrossEntropyGradient, memory: Memory, step: Step) -> None:
    count = op.domain.rows(step)
    logits, targets = memory.rows(op.logits, count), op.targets.data[:count]
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    p[np.arange(count), np.maximum(targets, 0)] -= 1.0
    asked = (targets >= 0)[:, None]
    memory.add(op.dlogits, np.where(asked, memory.rows(op.dloss, count) * p, 0.0))


@run.register
def _(op: lb.SquareSums, memory: Memory, step: Step) -> None:
    x = memory.vector(op.x)
    memory.put_vector(op.sums, np.add.reduceat(x * x, np.arange(0, op.x.n, PIECE)))


@run.register
def _(op: lb.AdamW, memory: Memory, step: Step) -> None:
    clip, rate, decay, beta1, beta2, eps, bias1, bias2 = memory.vector(op.hyper)
    g = clip * memory.vector(op.gradient)
    m = beta1 * memory.vector(op.m) + (1.0 - beta1) * g
    v = beta2 * memory.vector(op.v) + (1.0 - beta2) * g * g
    x = memory.vector(op.x)
    x = x - rate * decay * x - rate * (m / bias1) / (np.sqrt(v / bias2) + eps)
    for target, values in ((op.m, m), (op.v, v), (op.x, x)):
        memory.put_vector(target, values)


@run.register
def _(op: lb.Sgd, memory: Memory, step: Step) -> None:
    clip, rate, decay, momentum = memory.vector(op.hyper)
    x = memory.vector(op.x)
    m = momentum * memory.vector(op.m) + (clip * memory.vector(op.gradient) + decay * x)
    memory.put_vector(op.m, m)
    memory.put_vector(op.x, x - rate * m)

"""The reference back end: every launch in NumPy, sums in float64, one rounding at the end. Slow,
short, the specification.

Integer parts (quantized activations, dot products) are exact and equal the kernels' to the bit;
float results differ from theirs by rounding only.
"""

from __future__ import annotations

import math
import time
from functools import singledispatchmethod

import numpy as np
from numpy.typing import NDArray

from rebar.errors import DeviceError
from rebar.hal import launches as la
from rebar.hal import launches_lora, ref_attention, ref_lora
from rebar.hal.arrays import KVStorage, Matrix, QuantizedRows, Rows
from rebar.hal.backend import Limits, Program, Step, check
from rebar.hal.ref_formats import unpack

F64 = NDArray[np.float64]


class RefBackend:
    """NumPy on one thread."""

    name = "ref"

    def __init__(self, threads: int = 1, isa: str | None = None) -> None:
        self.threads = threads
        self.pool = None

    def describe(self) -> str:
        """One line about this device."""
        return "ref, NumPy, the specification (slow)"

    def program(self, limits: Limits) -> Program:
        """An empty program."""
        return RefProgram(limits)


def quantize(
    x: NDArray[np.float32], group: int = 16
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
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


def store(xq: QuantizedRows, x: NDArray[np.float32]) -> None:
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


class RefProgram:
    """Launches kept as they came, interpreted one by one."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._launches: list[la.Launch] = []
        self._dense: dict[int, F64] = {}

    def add(self, launch: la.Launch) -> None:
        """Checks and appends a launch."""
        check(launch, self.limits)
        self._launches.append(launch)

    def __len__(self) -> int:
        return len(self._launches)

    def name(self, index: int) -> str:
        """Kernel name of a launch."""
        return type(self._launches[index]).__name__.lower()

    def run(self, step: Step, begin: int = 0, end: int | None = None) -> None:
        """Interprets the launches."""
        for launch in self._launches[begin:end]:
            if rows(step, _domain(launch)):
                self._run(launch, step)

    def run_timed(self, step: Step) -> list[int]:
        """All launches, nanoseconds of each."""
        times = [time.perf_counter_ns()]
        for launch in self._launches:
            self._run(launch, step)
            times.append(time.perf_counter_ns())
        return np.diff(times).tolist()

    def _weights(self, w: Matrix) -> F64:
        if w.address not in self._dense:
            self._dense[w.address] = unpack(w).astype(np.float64)
        return self._dense[w.address]

    @singledispatchmethod
    def _run(self, launch: la.Launch, step: Step) -> None:
        raise DeviceError(f"the ref back end has no rule for {type(launch).__name__}")

    @_run.register
    def _(self, op: la.Embed, step: Step) -> None:
        values = unpack_rows(self._weights(op.w), step)
        op.out.data[: step.rows] = values.astype(np.float32) * np.float32(op.scale)

    @_run.register
    def _(self, op: la.RmsNorm, step: Step) -> None:
        count = rows(step, op.domain)
        x = op.x.data[:count].astype(np.float64).reshape(count, op.groups, op.weight.n)
        scale = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + op.eps)
        put(op.y, (x * scale * op.weight.data).reshape(count, -1), op.quantized)

    @_run.register
    def _(self, op: la.Quantize, step: Step) -> None:
        store(op.xq, op.x.data[: rows(step, op.domain)])

    @_run.register
    def _(self, op: la.Matmul, step: Step) -> None:
        count = rows(step, op.domain)
        x = (
            load(op.x, count)
            if isinstance(op.x, QuantizedRows)
            else op.x.data[:count].astype(np.float64)
        )
        y = x @ self._weights(op.w).T
        if op.bias is not None:
            y = y + op.bias.data
        if op.residual is not None:
            y = y + op.residual.data[:count]
        put(op.y, y)

    @_run.register
    def _(self, op: la.Rope, step: Step) -> None:
        put(op.y, rotated(op.x, op.table, op.heads, step))

    @_run.register
    def _(self, op: la.Append, step: Step) -> None:
        self._append(op.k.data[: step.rows], op.v, op.storage, step)

    @_run.register
    def _(self, op: la.RopeAppend, step: Step) -> None:
        put(op.out, rotated(op.q, op.table, op.heads, step))
        k = rotated(op.k, op.table, op.storage.kv_heads, step).astype(np.float32)
        self._append(k, op.v, op.storage, step)

    def _append(self, k: NDArray[np.float32], v: Rows, storage: KVStorage, step: Step) -> None:
        heads = (storage.kv_heads, storage.head_dim)
        for r in range(step.rows):
            block, slot = place(step, r, int(step.positions[r]))
            pair = k[r].reshape(heads), v.data[r].reshape(heads)
            ref_attention.write(storage, block, slot, *pair)

    @_run.register
    def _(self, op: la.Attention, step: Step) -> None:
        out = np.zeros((step.rows, op.out.width))
        for r in range(step.rows):
            last = int(step.positions[r])
            first = max(0, last - op.window + 1) if op.window else 0
            where = [place(step, r, p) for p in range(first, last + 1)]
            out[r] = ref_attention.attend(op, op.q.data[r], first, where).reshape(-1)
        put(op.out, out, op.quantized)

    @_run.register
    def _(self, op: la.AttentionMerge, step: Step) -> None:
        """Nothing: a row's chunks are merged as they come."""

    @_run.register
    def _(self, op: la.Gated, step: Step) -> None:
        x = op.x.data[: rows(step, op.domain)].astype(np.float64)
        gate, up = x[:, : op.y.width], x[:, op.y.width :]
        with np.errstate(over="ignore"):
            act = silu(gate) if op.activation is la.Activation.SILU else gelu_tanh(gate)
        put(op.y, act * up, op.quantized)

    @_run.register
    def _(self, op: la.Add, step: Step) -> None:
        count = rows(step, op.domain)
        op.y.data[:count] = op.a.data[:count] + op.b.data[:count]

    @_run.register
    def _(self, op: la.Select, step: Step) -> None:
        op.y.data[: step.logit_rows] = op.x.data[step.logit_index[: step.logit_rows]]

    @_run.register
    def _(self, op: la.Softcap, step: Step) -> None:
        put(op.y, op.cap * np.tanh(op.x.data[: rows(step, op.domain)].astype(np.float64) / op.cap))

    @_run.register
    def _(self, op: launches_lora.LoraDown, step: Step) -> None:
        ref_lora.down(op, step)

    @_run.register
    def _(self, op: launches_lora.LoraUp, step: Step) -> None:
        ref_lora.up(op, step)


def rows(step: Step, domain: la.Domain) -> int:
    """Rows that a launch covers in this step."""
    return step.rows if domain is la.Domain.ROWS else step.logit_rows


def _domain(launch: la.Launch) -> la.Domain:
    if isinstance(launch, la.Select):
        return la.Domain.LOGIT_ROWS
    return getattr(launch, "domain", la.Domain.ROWS)


def unpack_rows(weights: F64, step: Step) -> F64:
    """Rows of the embedding for the step's ids."""
    return weights[step.ids[: step.rows]]


def rotated(x: Rows, table: Rows, heads: int, step: Step) -> F64:
    """The step's rows of x with the pairs of each head turned by their position."""
    count, dim = step.rows, table.width
    values = x.data[:count].astype(np.float64).reshape(count, heads, -1)
    angles = table.data[step.positions[:count]].astype(np.float64)[:, None, :]
    cos, sin = angles[..., : dim // 2], angles[..., dim // 2 :]
    a, b = values[..., : dim // 2], values[..., dim // 2 : dim]
    y = np.concatenate([a * cos - b * sin, b * cos + a * sin, values[..., dim:]], axis=-1)
    return y.reshape(count, -1)


def place(step: Step, row: int, position: int) -> tuple[int, int]:
    """Block and slot of a position of the row's sequence."""
    return int(step.tables[step.sequences[row], position // 16]), position % 16


def put(y: Rows, values: F64, quantized: QuantizedRows | None = None) -> None:
    """Rounds once to float32 and stores; also quantized when asked."""
    y.data[: len(values)] = values.astype(np.float32)
    if quantized is not None:
        store(quantized, np.ascontiguousarray(y.data[: len(values)]))


def silu(x: F64) -> F64:
    """x sigmoid(x)."""
    return x / (1.0 + np.exp(-x))


def gelu_tanh(x: F64) -> F64:
    """The tanh form (Hendrycks & Gimpel, arXiv:1606.08415)."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1.0 + np.tanh(inner))

"""The reference back end: every launch in NumPy, sums in float64, one rounding at the end. Slow,
short, the specification.

Integer parts (quantized activations, dot products) are exact and equal the kernels' to the bit;
float results differ from theirs by rounding only.
"""

from __future__ import annotations

import time
from functools import singledispatchmethod

import numpy as np
from numpy.typing import NDArray

from rebar.hal import launches as la
from rebar.hal import launches_lora, ref_attention, ref_image, ref_lora
from rebar.hal.arrays import KVStorage, QuantizedRows, Rows
from rebar.hal.backend import Limits, Program, Step, check
from rebar.hal.launches_backward import FlatLaunch, SelectGradient
from rebar.hal.ref_memory import Memory, WideMemory
from rebar.hal.ref_rules import gelu_tanh, place, rotated, seen, silu

F64 = NDArray[np.float64]


class RefBackend:
    """NumPy on one thread."""

    name = "ref"

    def __init__(self, threads: int = 1, isa: str | None = None) -> None:
        self.threads = threads
        self.pool = None
        self.memory = Memory()

    def describe(self) -> str:
        """One line about this device."""
        return "ref, NumPy, the specification (slow)"

    def program(self, limits: Limits) -> Program:
        """An empty program."""
        return RefProgram(limits, self.memory)


class WideBackend(RefBackend):
    """The same rules, nothing rounded: for central differences. `memory` reads (wide) and changes
    values beyond float32.
    """

    name = "ref64"

    def __init__(self, threads: int = 1, isa: str | None = None) -> None:
        super().__init__(threads, isa)
        self.memory: WideMemory = WideMemory()

    def describe(self) -> str:
        """One line about this device."""
        return "ref64, NumPy in float64 throughout, for gradient checks (slower)"


class RefProgram:
    """Launches kept as they came, interpreted one by one over what `memory` holds."""

    def __init__(self, limits: Limits, memory: Memory) -> None:
        self.limits = limits
        self._launches: list[la.Launch] = []
        self._memory = memory

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
            if isinstance(launch, FlatLaunch) or _domain(launch).rows(step):
                self._run(launch, step)

    def run_timed(self, step: Step) -> list[int]:
        """All launches, nanoseconds of each."""
        times = [time.perf_counter_ns()]
        for launch in self._launches:
            self._run(launch, step)
            times.append(time.perf_counter_ns())
        return np.diff(times).tolist()

    @singledispatchmethod
    def _run(self, launch: la.Launch, step: Step) -> None:
        ref_image.run(launch, self._memory, step)

    def _put(self, y: Rows, values: F64, quantized: QuantizedRows | None = None) -> None:
        """Stores; also quantized when asked."""
        self._memory.put(y, values)
        if quantized is not None:
            self._memory.quantize(quantized, y, len(values))

    @_run.register
    def _(self, op: la.Embed, step: Step) -> None:
        values = self._memory.matrix(op.w)[step.ids[: step.rows]]
        self._put(op.out, values * float(np.float32(op.scale)))

    @_run.register
    def _(self, op: la.RmsNorm, step: Step) -> None:
        count = op.domain.rows(step)
        x = self._memory.rows(op.x, count).reshape(count, op.groups, op.weight.n)
        scale = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + op.eps)
        y = x * scale * self._memory.vector(op.weight)
        self._put(op.y, y.reshape(count, -1), op.quantized)

    @_run.register
    def _(self, op: la.Quantize, step: Step) -> None:
        self._memory.quantize(op.xq, op.x, op.domain.rows(step))

    @_run.register
    def _(self, op: la.Matmul, step: Step) -> None:
        count, memory = op.domain.rows(step), self._memory
        if isinstance(op.x, QuantizedRows):
            x = memory.quantized(op.x, count)
        else:
            x = memory.rows(op.x, count)
        y = x @ memory.matrix(op.w).T
        if op.bias is not None:
            y = y + memory.vector(op.bias)
        if op.residual is not None:
            y = y + memory.rows(op.residual, count)
        self._put(op.y, y)

    @_run.register
    def _(self, op: la.Rope, step: Step) -> None:
        self._put(op.y, self._rotated(op.x, op.table, op.heads, step))

    def _rotated(self, x: Rows, table: Rows, heads: int, step: Step) -> F64:
        angles = self._memory.rows(table, table.count)[step.positions[: step.rows]]
        return rotated(self._memory.rows(x, step.rows), angles, heads)

    @_run.register
    def _(self, op: la.Append, step: Step) -> None:
        self._append(self._memory.rows(op.k, step.rows), op.v, op.storage, step)

    @_run.register
    def _(self, op: la.RopeAppend, step: Step) -> None:
        self._put(op.out, self._rotated(op.q, op.table, op.heads, step))
        k = self._rotated(op.k, op.table, op.storage.kv_heads, step)
        self._append(k, op.v, op.storage, step)

    def _append(self, k: F64, v: Rows, storage: KVStorage, step: Step) -> None:
        heads = (-1, storage.kv_heads, storage.head_dim)
        pairs = zip(k.reshape(heads), self._memory.rows(v, step.rows).reshape(heads), strict=True)
        for r, pair in enumerate(pairs):
            block, slot = place(step, r, int(step.positions[r]))
            self._memory.append(storage, block, slot, *pair)

    @_run.register
    def _(self, op: la.Attention, step: Step) -> None:
        q = self._memory.rows(op.q, step.rows)
        out = np.zeros((step.rows, op.out.width))
        for r in range(step.rows):
            first, where = seen(step, r, op.window)
            chunks = ref_attention.chunks(op, first, where, self._memory.cached)
            out[r] = ref_attention.attend(op, q[r], chunks).reshape(-1)
        self._put(op.out, out, op.quantized)

    @_run.register
    def _(self, op: la.AttentionMerge, step: Step) -> None:
        """Nothing: a row's chunks are merged as they come."""

    @_run.register
    def _(self, op: la.Gated, step: Step) -> None:
        x = self._memory.rows(op.x, op.domain.rows(step))
        gate, up = x[:, : op.y.width], x[:, op.y.width :]
        with np.errstate(over="ignore"):
            act = silu(gate) if op.activation is la.Activation.SILU else gelu_tanh(gate)
        self._put(op.y, act * up, op.quantized)

    @_run.register
    def _(self, op: la.Add, step: Step) -> None:
        count, memory = op.domain.rows(step), self._memory
        self._put(op.y, memory.rows(op.a, count) + memory.rows(op.b, count))

    @_run.register
    def _(self, op: la.Select, step: Step) -> None:
        chosen = step.logit_index[: step.logit_rows]
        self._put(op.y, self._memory.rows(op.x, step.rows)[chosen])

    @_run.register
    def _(self, op: la.Softcap, step: Step) -> None:
        x = self._memory.rows(op.x, op.domain.rows(step))
        self._put(op.y, op.cap * np.tanh(x / op.cap))

    @_run.register
    def _(self, op: launches_lora.LoraDown, step: Step) -> None:
        ref_lora.down(op, self._memory, step)

    @_run.register
    def _(self, op: launches_lora.LoraUp, step: Step) -> None:
        ref_lora.up(op, self._memory, step)


def _domain(launch: la.Launch) -> la.Domain:
    if isinstance(launch, la.Select | SelectGradient):
        return la.Domain.LOGIT_ROWS
    return getattr(launch, "domain", la.Domain.ROWS)

"""Runs one graph on a device with given inputs: the same test drives the specification and every
instruction set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.graph.graph import Graph, Observer
from rebar.graph.node import Values
from rebar.graph.tensor import Tensor
from rebar.hal import (
    DeviceManager,
    KVFormat,
    KVStorage,
    Limits,
    Matrix,
    Operand,
    Rows,
    Step,
    Vector,
    WeightFormat,
)

F32 = NDArray[np.float32]
DEVICES = ["ref", *(f"cpu:{isa}:{threads}" for isa in _native.isas() for threads in (1, 2))]


def open_device(name: str) -> DeviceManager:
    """ref, or cpu:ISA:THREADS."""
    kind, *rest = name.split(":")
    isa, threads = (rest[0], int(rest[1])) if rest else (None, 1)
    return DeviceManager(kind, isa=isa, threads=threads, memory=256 << 20)


def matrix(values: F32, kind: WeightFormat = WeightFormat.F32) -> Matrix:
    """Packs values (n, k); float formats only, quantized ones come from stored blocks."""
    n, k = values.shape
    stored = {
        WeightFormat.F32: values.view(np.uint8).reshape(-1),
        WeightFormat.F16: values.astype(np.float16).view(np.uint8).reshape(-1),
    }[kind]
    return packed(stored, kind, n, k)


def packed(stored: NDArray[np.uint8], kind: WeightFormat, n: int, k: int) -> Matrix:
    """Packs stored blocks."""
    nbytes = _native.packed_nbytes(int(kind), n, k)
    raw = np.zeros(nbytes + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + nbytes]
    _native.pack(int(kind), np.ascontiguousarray(stored), n, k, None, out, 1)
    return Matrix(out, kind, n, k)


def vector(values: Sequence[float] | F32) -> Vector:
    """A float vector."""
    return Vector(np.ascontiguousarray(values, dtype=np.float32))


def storage(blocks: int, kv_heads: int, head_dim: int, kind: KVFormat = KVFormat.F16) -> KVStorage:
    """An empty cache of one layer out of two, full of NaN (int8: NaN scales): what was never
    written must never matter.
    """
    part = _native.kv_bytes(int(kind), kv_heads, head_dim)
    memory = np.full((blocks, 2, part), 0x7F, dtype=np.uint8)
    return KVStorage(memory[:, 1], kv_heads, head_dim, kind)


@dataclass
class Call:
    """Ids, positions and block tables of a step. sequences: (first position, count, blocks)."""

    sequences: list[tuple[int, int, list[int]]] = field(default_factory=lambda: [(0, 4, [0])])
    ids: list[int] | None = None
    logit_index: list[int] = field(default_factory=list)
    adapters: list[int] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of the step."""
        return sum(count for _, count, _ in self.sequences)

    def limits(self, vocab: int = 64, blocks: int = 16, positions: int = 256) -> Limits:
        """Limits that just hold this call."""
        return Limits(
            self.rows,
            max(len(self.logit_index), 1),
            len(self.sequences),
            vocab,
            positions,
            blocks,
            max(self.adapters, default=-1) + 1,
        )

    def step(self, stride: int = 16) -> Step:
        """The step's arrays."""
        step = Step(self.rows, max(len(self.logit_index), 1), len(self.sequences), stride)
        step.rows, step.logit_rows = self.rows, len(self.logit_index)
        step.ids[:] = self.ids if self.ids is not None else np.arange(self.rows)
        at = 0
        for i, (first, count, blocks) in enumerate(self.sequences):
            step.positions[at : at + count] = np.arange(first, first + count)
            step.sequences[at : at + count] = i
            step.tables[i, : len(blocks)] = blocks
            at += count
        step.logit_index[: step.logit_rows] = self.logit_index
        step.adapters[: len(self.adapters)] = self.adapters
        return step


def run(
    graph: Graph,
    device: DeviceManager,
    call: Call,
    bound: Mapping[Tensor, Operand],
    inputs: Mapping[Tensor, F32] | None = None,
    *,
    compiled: bool = True,
    observers: Sequence[Observer] = (),
    reuse: bool = True,
) -> Values:
    """Runs the graph once; inputs are activations that no node writes."""
    limits = call.limits()
    operands: dict[Tensor, Operand] = dict(bound)
    operands.update({t: Rows(np.ascontiguousarray(v)) for t, v in (inputs or {}).items()})
    plan = graph.plan(limits, reuse=reuse)
    pool = device.create_pool(f"arena {len(device.stats().pools)}", plan.nbytes + 4096)
    values = plan.allocate(pool, limits, operands, "test")
    if compiled:
        graph.compile(device, values, limits).program.run(call.step())
    else:
        graph.run(device, call.step(), values, limits, observers)
    return values

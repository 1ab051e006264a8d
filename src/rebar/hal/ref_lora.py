"""The rules of adapters for the reference back end (ref.py)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rebar.hal.arrays import LoraPair, LoraTable
from rebar.hal.backend import Step
from rebar.hal.launch_rules import Domain
from rebar.hal.launches_lora import LoraDown, LoraUp
from rebar.hal.ref_memory import Memory

F64 = NDArray[np.float64]


def slots_of(step: Step, domain: Domain) -> list[int]:
    """The slot of each row's adapter, -1 for none."""
    chosen = step.adapters[: step.rows]
    if domain is Domain.LOGIT_ROWS:
        chosen = chosen[step.logit_index[: step.logit_rows]]
    return [int(slot) for slot in chosen]


def _pair(table: LoraTable, slot: int, part: int) -> LoraPair | None:
    return table.pair(slot, part) if slot >= 0 else None


def down(op: LoraDown, memory: Memory, step: Step) -> None:
    """a = A x."""
    rank, slots = op.adapters.rank, slots_of(step, op.domain)
    x, a = memory.rows(op.x, len(slots)), np.zeros((len(slots), op.a.width))
    for r, slot in enumerate(slots):
        for part in range(len(op.adapters.widths)):
            pair = _pair(op.adapters, slot, part)
            if pair is not None:
                a[r, part * rank : part * rank + pair.rank] = memory.matrix(pair.a) @ x[r]
    memory.put(op.a, a)


def up(op: LoraUp, memory: Memory, step: Step) -> None:
    """y = x + scale B a (+ residual)."""
    rank, slots = op.adapters.rank, slots_of(step, op.domain)
    a, y = memory.rows(op.a, len(slots)), memory.rows(op.x, len(slots))
    for r, slot in enumerate(slots):
        begin = 0
        for part, width in enumerate(op.adapters.widths):
            pair = _pair(op.adapters, slot, part)
            if pair is not None:
                low = a[r, part * rank : part * rank + pair.rank]
                y[r, begin : begin + width] += pair.scale * (memory.matrix(pair.b) @ low)
            begin += width
    if op.residual is not None:
        y = y + memory.rows(op.residual, len(slots))
    memory.put(op.y, y)

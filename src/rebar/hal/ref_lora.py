"""The rules of adapters for the reference back end (ref.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rebar.hal.arrays import LoraPair, LoraTable
from rebar.hal.launch_rules import Domain
from rebar.hal.launches_lora import LoraDown, LoraUp
from rebar.hal.ref_formats import unpack

if TYPE_CHECKING:
    from rebar.hal.backend import Step

F64 = NDArray[np.float64]


def slots_of(step: Step, domain: Domain) -> list[int]:
    """The slot of each row's adapter, -1 for none."""
    chosen = step.adapters[: step.rows]
    if domain is Domain.LOGIT_ROWS:
        chosen = chosen[step.logit_index[: step.logit_rows]]
    return [int(slot) for slot in chosen]


def _pair(table: LoraTable, slot: int, part: int) -> LoraPair | None:
    return table.pair(slot, part) if slot >= 0 else None


def down(op: LoraDown, step: Step) -> None:
    """a = A x."""
    rank = op.adapters.rank
    for r, slot in enumerate(slots_of(step, op.domain)):
        op.a.data[r] = 0.0
        for part in range(len(op.adapters.widths)):
            pair = _pair(op.adapters, slot, part)
            if pair is not None:
                product = unpack(pair.a).astype(np.float64) @ op.x.data[r].astype(np.float64)
                begin = part * rank
                op.a.data[r, begin : begin + pair.rank] = product.astype(np.float32)


def up(op: LoraUp, step: Step) -> None:
    """y = x + scale B a (+ residual)."""
    rank = op.adapters.rank
    for r, slot in enumerate(slots_of(step, op.domain)):
        y = op.x.data[r].astype(np.float64)
        begin = 0
        for part, width in enumerate(op.adapters.widths):
            pair = _pair(op.adapters, slot, part)
            if pair is not None:
                a = op.a.data[r, part * rank : part * rank + pair.rank].astype(np.float64)
                y[begin : begin + width] += pair.scale * (unpack(pair.b).astype(np.float64) @ a)
            begin += width
        if op.residual is not None:
            y = y + op.residual.data[r]
        op.y.data[r] = y.astype(np.float32)

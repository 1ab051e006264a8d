"""What the ranks of a run tell each other between their sums: how a window stands with all of them,
and whether they are one run at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rebar.errors import TrainingError
from rebar.graph.optimizer import Optimizer
from rebar.graph.training_state import first_differences
from rebar.graph.window import Window
from rebar.hal.collective import Collective

Plain = TypeVar("Plain")  # what JSON can say


@dataclass(frozen=True, slots=True)
class Brought:
    """What the ranks bring to a step, all together. ended: the data of every one; stopped: any was
    asked to stop.
    """

    ended: bool
    stopped: bool
    supervised: int
    skipped: int
    tokens: int


def told(ranks: Collective, value: Plain) -> list[Plain]:
    """The plain values of all ranks, in their order."""
    if ranks.size == 1:
        return [value]
    return [json.loads(text) for text in ranks.gather_text(json.dumps(value))]


def brought(ranks: Collective, window: Window[Any] | None, stopped: bool) -> Brought:
    """This rank's window, and those of the others."""
    mine = [window is None, stopped, 0, 0, 0]
    if window is not None:
        mine = [False, stopped, window.supervised, window.skipped, window.tokens]
    ended, stops, *counts = zip(*told(ranks, mine), strict=True)
    return Brought(all(ended), any(stops), *(sum(column) for column in counts))


def check_one_run(
    ranks: Collective, settings: Mapping[str, Any], step: int, optimizer: Optimizer
) -> None:
    """TrainingError, the same on every rank, unless all have these settings and stand at this step
    with the same bits: sums of gradients over ranks that differ would be no gradient of any.
    """
    if ranks.size == 1:
        return
    bits = hashlib.sha256(optimizer.parameters.values.data).hexdigest()
    first, *others = told(ranks, {"settings": settings, "step": step, "parameters' bits": bits})
    for rank, other in enumerate(others, 1):
        if found := first_differences(first, other):
            differ = "; ".join(f"{what} is {a} on rank 0, {b} on {rank}" for what, a, b in found)
            raise TrainingError(
                f"rank {rank} does not train what rank 0 trains: {differ}. Start all ranks by one "
                "command, with the same files and, to --resume, one --out that all see."
            )

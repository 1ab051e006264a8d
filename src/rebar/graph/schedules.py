"""Learning rates as pure functions of the step: a run that goes on after a stop gets the same.

Steps count from 0. The warm-up climbs in `warmup` equal stairs to the full rate, (step + 1) /
warmup of it. What follows goes from the full rate at step `warmup` to `floor` of it at the step
that would come after the last: evenly (linear), along half a cosine (Loshchilov & Hutter,
arXiv:1608.03983), or not at all (constant). So no step is made at rate 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from rebar.errors import InputError

ScheduleName = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """rate: the highest. steps: in all; a constant rate needs none. warmup: steps of the climb.
    floor: share of the rate that is left at the end.
    """

    kind: ScheduleName = "cosine"
    rate: float = 1e-4
    steps: int | None = None
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScheduleName):
            known = ", ".join(get_args(ScheduleName))
            raise InputError(f"no schedule {self.kind!r}; --schedule is one of {known}.")
        if not (0 < self.rate < math.inf) or self.warmup < 0 or not 0 <= self.floor <= 1:
            raise InputError(
                f"a rate of {self.rate:g} with {self.warmup} steps of warm-up and a floor of "
                f"{self.floor:g} is no schedule. Give --rate above 0, --warmup 0 or more.",
                param="rate",
            )
        if self.kind != "constant" and self.steps is None:
            raise InputError(
                f"a {self.kind} schedule has to know its last step. Give --steps, or --schedule "
                "constant.",
                param="steps",
            )

    def at(self, step: int) -> float:
        """The rate of step `step`."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if self.steps is None or self.kind == "constant":
            return self.rate
        behind = self.steps - self.warmup
        progress = min((step - self.warmup) / behind, 1.0) if behind > 0 else 0.0
        left = 1 - progress if self.kind == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.rate * (self.floor + (1 - self.floor) * left)

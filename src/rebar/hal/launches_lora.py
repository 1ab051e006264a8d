"""Launches of low-rank adapters (Hu et al., arXiv:2106.09685), a dataclass each with its shape
rule. Which adapter a row takes is the step's business, what it holds the table's.
"""

from __future__ import annotations

from dataclasses import dataclass

from rebar.hal.arrays import LoraTable, Rows
from rebar.hal.launch_rules import Domain, same


@dataclass(frozen=True, slots=True)
class LoraDown:
    """a (rows, parts * rank): A x for each part of the row's adapter, zeros where it has none."""

    x: Rows
    adapters: LoraTable
    a: Rows
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        adapters = self.adapters
        same("lora_down", "k", self.x.width, adapters.k)
        same("lora_down", "width", self.a.width, len(adapters.widths) * adapters.rank)


@dataclass(frozen=True, slots=True)
class LoraUp:
    """y = x + scale B a (+ residual), part by part; x (+ residual) for a row without an adapter. y
    may be x.
    """

    a: Rows
    adapters: LoraTable
    x: Rows
    y: Rows
    residual: Rows | None = None
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        adapters = self.adapters
        residual = None if self.residual is None else self.residual.width
        same("lora_up", "n", self.x.width, self.y.width, residual, sum(adapters.widths))
        same("lora_up", "width", self.a.width, len(adapters.widths) * adapters.rank)


LoraLaunch = LoraDown | LoraUp

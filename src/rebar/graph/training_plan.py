"""What a training run will take, pool by pool: told before any weight is read, and refused in
numbers where it does not fit.

Of the ways to compute activations again (graph/backward.py) a run takes the first that fits: each
further one takes less memory and more time, and no bit depends on the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rebar.errors import MemoryBudgetError
from rebar.graph.backward import RECOMPUTE, Choice, Recompute
from rebar.graph.kv import block_bytes
from rebar.graph.memory_plan import SLACK, MemoryEntry, plan_lines, rope_bytes
from rebar.graph.models import bind
from rebar.graph.parameters import Parameters, ParameterShape
from rebar.graph.weights.hf_names import namer
from rebar.graph.weights.model_file import ModelFile
from rebar.graph.weights.types import elements
from rebar.hal import DeviceManager, KVFormat, Limits

ARENA = "arena"


class Planned(Protocol):
    """A learner (graph/recorded.py), by what a plan asks of it."""

    device: DeviceManager
    asked: Choice
    recompute: Recompute
    left: int

    def arena_bytes(self) -> dict[Recompute, int]:
        """What activations and gradients would take, by what is computed again."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """entries: every pool with its bytes. recompute: what was taken; arenas: what the arena would
    take with each; left: what the budget had for it, in bytes. chosen: whether nobody asked for it.
    """

    entries: tuple[MemoryEntry, ...]
    recompute: Recompute
    arenas: Mapping[Recompute, int]
    left: int
    budget: int
    chosen: bool

    def lines(self) -> list[str]:
        """A table to print, and the choice with its reason."""
        taken = [entry for entry in self.entries if entry.nbytes]
        return [*plan_lines(taken, self.budget), f"recompute {self._reason()}"]

    def _reason(self) -> str:
        left, takes = f"{self.left / 1e6:,.0f} MB", arena_words(self.arenas)
        if not self.chosen:
            why = f"as asked, of {left} left"
        elif self.recompute == RECOMPUTE[0]:
            why = f"all fits into {left}"
        else:
            why = f"keeping more does not fit into {left}"
        return f"{self.recompute}: {why} ({takes})"


def plan_of(learner: Planned, entries: Sequence[MemoryEntry] = ()) -> TrainingPlan:
    """What a learner takes. entries: its pools but for the arena; else as the device has them."""
    stats = learner.device.stats()
    known = entries or [MemoryEntry(p.name, p.budget, "") for p in stats.pools if p.name != ARENA]
    arenas, recompute = learner.arena_bytes(), learner.recompute
    arena = MemoryEntry(ARENA, arenas[recompute], "activations and gradients of a micro-batch")
    chosen = learner.asked == "auto"
    return TrainingPlan((*known, arena), recompute, arenas, learner.left, stats.budget, chosen)


def arena_words(arenas: Mapping[Recompute, int]) -> str:
    """What activations and gradients take with each way."""
    return ", ".join(f"{r} {nbytes / 1e6:,.0f}" for r, nbytes in arenas.items()) + " MB"


def learner_entries(
    model: ModelFile,
    shapes: Sequence[ParameterShape],
    limits: Limits,
    kind: KVFormat,
    *,
    copied: bool,
) -> tuple[MemoryEntry, ...]:
    """All pools of a language model that learns, but for the arena. shapes: what learns."""
    c, frozen = model.config, frozen_part(model, shapes)
    count = sum(elements(shape.shape) for shape in shapes)
    mapped = 0 if copied else bind.mapped_bytes(frozen)
    pooled = bind.pool_bytes(frozen, copied=copied)
    kv = limits.blocks * block_bytes(c.layers, c.kv_heads, c.head_dim, kind)
    named = kind.name.lower()
    return (
        MemoryEntry("mapped", mapped, "frozen weights, mapped from the file and shared"),
        MemoryEntry("weights", pooled, "frozen weights packed or copied at load"),
        MemoryEntry(
            "parameters",
            Parameters.nbytes(shapes),
            f"{count:,} numbers that learn, and three more for each",
        ),
        MemoryEntry("tables", rope_bytes(c, limits.positions), "rotation tables"),
        MemoryEntry("kv", kv, f"keys and values of {limits.rows:,} positions in {named}"),
    )


def frozen_part(model: ModelFile, shapes: Sequence[ParameterShape]) -> ModelFile:
    """The file without the tensors that learn: these are read once, and not from then on."""
    name_of, learns = namer(model.config), {shape.name for shape in shapes}
    kept = {name: t for name, t in model.tensors.items() if name_of(name) not in learns}
    return replace(model, tensors=kept)


def check_room(entries: Sequence[MemoryEntry], budget: int, rows: int) -> None:
    """MemoryBudgetError where a model does not fit even without its activations."""
    needed = sum(entry.nbytes + SLACK for entry in entries)
    if needed > budget:
        largest = sorted(entries, key=lambda e: -e.nbytes)[:3]
        parts = ", ".join(f"{e.pool} {e.nbytes / 1e6:,.1f} MB" for e in largest)
        raise MemoryBudgetError(
            f"training needs {needed / 1e6:,.1f} MB before its first activation ({parts}), the "
            f"budget is {budget / 1e6:,.1f} MB. Give it more with --memory, compute fewer than "
            f"{rows:,} positions at a time (--batch-tokens), or let fewer weights learn.",
            needed=needed,
            available=budget,
        )


def no_way_fits(
    arenas: Mapping[Recompute, int], asked: Sequence[Recompute], left: int, rows: int
) -> MemoryBudgetError:
    """The error for an arena that is too large in every way that was allowed."""
    needed = min(arenas[r] for r in asked)
    more = f", or compute more again: --recompute ({arena_words(arenas)})"
    if len(asked) == len(RECOMPUTE):
        more = f". With all that can be computed again it takes that much ({arena_words(arenas)})"
    return MemoryBudgetError(
        f"activations and gradients of a step need {needed / 1e6:,.0f} MB, the budget leaves "
        f"{left / 1e6:,.0f} MB. Give it more with --memory, compute fewer than {rows:,} rows at a "
        f"time (--batch-tokens){more}.",
        needed=needed,
        available=left,
    )

"""What all learners are: parameters and a recorded training step that can be watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rebar.errors import ShapeError
from rebar.graph.backward import RECOMPUTE, Choice, Recompute, Scheduler
from rebar.graph.graph import Graph
from rebar.graph.parameters import Parameters
from rebar.graph.tensor import Tensor
from rebar.graph.training import ArenaPlan, Hook, TrainingProgram, plan_arena
from rebar.graph.training_plan import ARENA, no_way_fits
from rebar.hal import DeviceManager

SLACK = 4096


@dataclass(frozen=True, slots=True)
class Loss:
    """total: sum of the losses of supervised tokens, in nats, in float64; tokens: how many."""

    total: float
    tokens: int

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.total + other.total, self.tokens + other.tokens)

    @property
    def mean(self) -> float:
        """A token's loss; 0 where none was supervised."""
        return self.total / self.tokens if self.tokens else 0.0


class RecordedLearner:
    """parameters: what learns. settings: what else decides the bits of a step, in plain values; it
    goes into checkpoints and must be equal where a run goes on. asked: what may be computed again;
    recompute: what is. left: bytes that the budget had for the arena.

    Gradients can be watched, changed and stopped by the name of a node or tensor: `on_gradient`,
    `stop`, or observers of a run.
    """

    def __init__(
        self,
        device: DeviceManager,
        parameters: Parameters,
        scheduler: Scheduler,
        recompute: Choice,
    ) -> None:
        self.settings: Mapping[str, Any] = {}
        self.device = device
        self.parameters = parameters
        self.asked: Choice = recompute
        self._scheduler = scheduler
        self._hooks: dict[Tensor, list[Hook]] = {}
        self._stopped: set[Tensor] = set()
        self._program: TrainingProgram | None = self._record()

    @property
    def graph(self) -> Graph:
        """Nodes in order, the loss the last."""
        return self._scheduler.graph

    @property
    def program(self) -> TrainingProgram:
        """The step as it is recorded now."""
        if self._program is None:
            self._program = self._record()
        return self._program

    def on_gradient(self, name: str, hook: Hook) -> None:
        """Calls hook(gradient), float32 (rows, width), in every run once the gradient of a tensor
        is whole. It may change the array, or give another to take its place. name: of a node or of
        its output. ShapeError for a name that is none, or whose gradient nobody needs.
        """
        tensor = self._tensor(name)
        if self._scheduler.home(tensor) not in self._scheduler.needed:
            raise ShapeError(f"nobody needs the gradient of {name}: what is before it is frozen.")
        self._hooks.setdefault(tensor, []).append(hook)
        self._program = None

    def clamp(self, name: str, limit: float) -> None:
        """Keeps every element of a gradient within -limit .. limit."""
        self.on_gradient(name, lambda gradient: np.clip(gradient, -limit, limit, out=gradient))

    def stop(self, name: str) -> None:
        """No gradient passes through the tensor any more. ShapeError when a parameter would get
        none at all.
        """
        self._rescheduled(self._stopped | {self._tensor(name)})

    def release(self, name: str) -> None:
        """Takes hooks and stops of a tensor back."""
        tensor = self._tensor(name)
        self._hooks.pop(tensor, None)
        self._rescheduled(self._stopped - {tensor})

    def _rescheduled(self, stopped: set[Tensor]) -> None:
        s = self._scheduler
        self._scheduler = Scheduler(
            s.graph, s.loss, s.limits, s.bound, s.parameters, s.head_begin, frozenset(stopped)
        )
        self._stopped, self._program = stopped, None

    def _tensor(self, name: str) -> Tensor:
        """The output of that name, or the first one of the node of that name."""
        named: dict[str, Tensor] = {}
        for node in self.graph.order:
            named.update({t.name: t for t in node.outputs if t.name not in named})
            named.setdefault(node.name, node.outputs[0])
        if name not in named:
            raise ShapeError(
                f"no node or tensor {name!r} in the graph as it runs. Its nodes: learner.graph; "
                "those that were fused come back with fused=False."
            )
        return named[name]

    def _record(self) -> TrainingProgram:
        if any(pool.name == ARENA for pool in self.device.stats().pools):
            self.device.release(ARENA)
        self.left = self.device.unclaimed
        self.recompute, plan = self._fitting()
        pool = self.device.create_pool(ARENA, plan.nbytes + SLACK)
        arena = pool.allocate(plan.nbytes, "activations and gradients")
        return TrainingProgram(self.device, self._scheduler, plan, arena, self._hooks)

    def _fitting(self) -> tuple[Recompute, ArenaPlan]:
        """The first way that was allowed and fits, and the arena with it."""
        asked = RECOMPUTE if self.asked == "auto" else (self.asked,)
        for recompute in asked:
            plan = plan_arena(self._scheduler, recompute)
            if plan.nbytes + SLACK <= self.left:
                return recompute, plan
        raise no_way_fits(self.arena_bytes(), asked, self.left, self._scheduler.limits.rows)

    def arena_bytes(self) -> dict[Recompute, int]:
        """What activations and gradients would take, by what is computed again."""
        return {r: plan_arena(self._scheduler, r).nbytes for r in RECOMPUTE}

    def close(self) -> None:
        """Gives the pools back; the learner must not be used any more."""
        self._program = None
        for pool in self.device.stats().pools:
            self.device.release(pool.name)

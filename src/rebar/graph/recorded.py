"""What all learners are: parameters and a recorded training step that can be watched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rebar.errors import GradientExplosionError, InputError, ShapeError
from rebar.graph.backward import RECOMPUTE, Choice, Recompute, Scheduler
from rebar.graph.explosion import Searched, find_explosion
from rebar.graph.graph import Graph
from rebar.graph.nodes_loss import CrossEntropy
from rebar.graph.parameters import Parameters
from rebar.graph.plan import SLACK
from rebar.graph.tensor import Tensor
from rebar.graph.training import ArenaPlan, GradientObserver, Hook, TrainingProgram, plan_arena
from rebar.graph.training_plan import ARENA, no_way_fits
from rebar.hal import DeviceManager, Step

Batch = TypeVar("Batch")


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


def with_loss(graph: Graph, logits: Tensor) -> tuple[Graph, Tensor, Tensor]:
    """The graph with a loss on its logits: graph, loss and the targets to bind."""
    targets = Tensor("targets", logits.shape[:1], "i32")
    loss = Tensor("loss", CrossEntropy.shape(logits.shape))
    node = CrossEntropy("loss", logits, targets, loss)
    return Graph([*graph.order, node], (*graph.outputs, loss)), loss, targets


class RecordedLearner:
    """parameters: what learns. step: what a run is about, filled by the learner. settings: what
    else decides the bits of a step, in plain values; it goes into checkpoints and must be equal
    where a run goes on. asked: what may be computed again; recompute: what is. left: bytes that the
    budget had for the arena.

    Gradients can be watched, changed and stopped by the name of a node or tensor: `on_gradient`,
    `stop`, or observers of a run.
    """

    def __init__(
        self,
        device: DeviceManager,
        parameters: Parameters,
        scheduler: Scheduler,
        step: Step,
        recompute: Choice,
    ) -> None:
        self.settings: Mapping[str, Any] = {}
        self.device = device
        self.parameters = parameters
        self.step = step
        self.asked: Choice = recompute
        self._scheduler = scheduler
        self._plans: dict[Recompute, ArenaPlan] = {}
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

    def find_explosion(
        self: Searched[Batch],
        batches: Sequence[Batch],
        scale: float,
        step: int,
        limit: float = math.inf,
    ) -> GradientExplosionError:
        """The error that names the node at which a step went wrong: the micro-batches are run again
        node by node, from zero gradients, and leave them zero. limit: a gradient's largest norm.
        """
        return find_explosion(self, batches, scale, step, limit)

    def _learn(self, count: int, scale: float, observers: Sequence[GradientObserver]) -> Loss:
        """The bound step, of `count` rows that all have a loss, both ways."""
        self.program.weights.data[:count] = scale
        self.program.forward(self.step, observers)
        loss = self._losses(count)
        self.program.backward(self.step, observers)
        return loss

    def _losses(self, count: int) -> Loss:
        """The losses of the last way forward."""
        return Loss(float(self.program.losses.data[:count].sum(dtype=np.float64)), count)

    def on_gradient(self, name: str, hook: Hook) -> None:
        """Calls hook(gradient), float32 (rows, width), in every run once the gradient of a tensor
        is whole. It may change the array, or give another to take its place. name: of a node or of
        its output. ShapeError for a name that is none, or whose gradient nobody needs.
        """
        tensor = self._tensor(name)
        self._watchable(self._scheduler, tensor)
        self._hooks.setdefault(tensor, []).append(hook)
        self._program = None

    @staticmethod
    def _watchable(scheduler: Scheduler, tensor: Tensor) -> None:
        home = scheduler.home(tensor)
        if home not in scheduler.needed or home not in scheduler.watched:
            raise ShapeError(
                f"nobody needs the gradient of {tensor.name}: what is before it is frozen, or cut "
                "off by a stop. Watch a tensor behind what learns, or release the stop."
            )

    def clamp(self, name: str, limit: float) -> None:
        """Keeps every element of a gradient within -limit .. limit. InputError below 0."""
        if not limit >= 0:
            raise InputError(f"a gradient cannot be kept within {limit:g}; give 0 or more.")
        self.on_gradient(name, lambda gradient: np.clip(gradient, -limit, limit, out=gradient))

    def stop(self, name: str) -> None:
        """No gradient passes through the tensor any more. ShapeError when a parameter would get
        none at all, or a hook would never be called.
        """
        self._rescheduled(self._stopped | {self._tensor(name)})

    def release(self, name: str) -> None:
        """Takes hooks and stops of a tensor back."""
        tensor = self._tensor(name)
        self._hooks.pop(tensor, None)
        self._rescheduled(self._stopped - {tensor})

    def _rescheduled(self, stopped: set[Tensor]) -> None:
        s = self._scheduler
        made = Scheduler(
            s.graph, s.loss, s.limits, s.bound, s.parameters, s.head_begin, frozenset(stopped)
        )
        for tensor in self._hooks:
            self._watchable(made, tensor)
        self._scheduler = made
        self._stopped, self._program = stopped, None
        self._plans.clear()

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
            plan = self._plan(recompute)
            if plan.nbytes + SLACK <= self.left:
                return recompute, plan
        raise no_way_fits(self.arena_bytes(), asked, self.left, self._scheduler.limits.rows)

    def arena_bytes(self) -> dict[Recompute, int]:
        """What activations and gradients would take, by what is computed again."""
        return {r: self._plan(r).nbytes for r in RECOMPUTE}

    def _plan(self, recompute: Recompute) -> ArenaPlan:
        """The arena, found once for each way: 30 ms for 30 layers."""
        if recompute not in self._plans:
            self._plans[recompute] = plan_arena(self._scheduler, recompute)
        return self._plans[recompute]

    def close(self) -> None:
        """Gives the pools back; the learner must not be used any more."""
        self._program = None
        for pool in self.device.stats().pools:
            self.device.release(pool.name)

"""Learner: a model whose weights can be trained. run(batch, scale) adds gradients; an optimizer
does the rest.

A micro-batch is one step as serving runs it, over whole sequences: same graph, same kernels, same
cache. The rows that are asked for their logits are those with a target; the head and the loss go
over them in pieces, so logits never exist for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar.errors import GradientExplosionError, InputError, ShapeError
from rebar.graph.backward import Recompute, Scheduler
from rebar.graph.batch import Batch
from rebar.graph.explosion import find_explosion
from rebar.graph.graph import Graph
from rebar.graph.models.config import DecoderConfig
from rebar.graph.nodes_lora import NO_ADAPTER, TRAINED
from rebar.graph.parameters import Parameters
from rebar.graph.tensor import Tensor
from rebar.graph.training import GradientObserver, Hook, TrainingProgram, plan_arena
from rebar.hal import BLOCK_POSITIONS, DeviceManager, Indices, Step

ARENA = "arena"


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


class Learner:
    """Made by rebar.graph.learner.open_learner; one thread at a time may call it.

    parameters: what learns. Gradients can be watched, changed and stopped by the name of a node or
    tensor: `on_gradient`, `stop`, or observers of a run.
    """

    def __init__(
        self,
        config: DecoderConfig,
        device: DeviceManager,
        parameters: Parameters,
        scheduler: Scheduler,
        targets: Indices,
        recompute: Recompute,
    ) -> None:
        self.config = config
        self.device = device
        self.parameters = parameters
        self.recompute = recompute
        self._scheduler = scheduler
        self._targets = targets.data
        self._hooks: dict[Tensor, list[Hook]] = {}
        self._stopped: set[Tensor] = set()
        limits = scheduler.limits
        self._stride = -(-limits.positions // BLOCK_POSITIONS)
        self.step = Step(limits.rows, limits.logit_rows, limits.sequences, self._stride)
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

    def run(self, batch: Batch, scale: float, observers: Sequence[GradientObserver] = ()) -> Loss:
        """Adds scale * gradient of the sum of the losses into `parameters.gradients`. A batch
        without a supervised token adds nothing.

        observers: given, the step runs node by node and is watched; same bits. Errors: InputError
        for a batch that the learner was not opened for.
        """
        return self._run(batch, scale, observers, learn=True)

    def evaluate(self, batch: Batch) -> Loss:
        """The loss alone."""
        return self._run(batch, 0.0, (), learn=False)

    def _run(
        self, batch: Batch, scale: float, observers: Sequence[GradientObserver], *, learn: bool
    ) -> Loss:
        index, targets = self._bind(batch)
        if not index.size:
            return Loss(0.0, 0)
        program, step, room = self.program, self.step, self._scheduler.limits.logit_rows
        step.logit_rows = 0  # those of the batch before may lie beyond this one's rows
        program.forward(step, observers)
        total = 0.0
        for begin in range(0, index.size, room):
            piece = index[begin : begin + room]
            step.logit_rows = piece.size
            step.logit_index[: piece.size] = piece
            self._targets[: piece.size] = targets[begin : begin + room]
            program.weights.data[: piece.size] = scale
            program.head(step, observers, learn=learn)
            total += float(program.losses.data[: piece.size].sum(dtype=np.float64))
        if learn:
            program.backward(step, observers)
        return Loss(total, int(index.size))

    def _bind(self, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Fills the step; the rows with a target, and their targets."""
        self._check(batch)
        slot = TRAINED if self._scheduler.limits.adapters else NO_ADAPTER
        slices, block = [], 0
        for ids, _ in batch.sequences:
            blocks = -(-ids.size // BLOCK_POSITIONS)
            slices.append((ids, 0, ids.size, list(range(block, block + blocks)), slot))
            block += blocks
        self.step.bind(slices)
        targets = np.concatenate([t for _, t in batch.sequences] or [np.zeros(0, np.int32)])
        index = np.flatnonzero(targets >= 0)
        return index, targets[index]

    def _check(self, batch: Batch) -> None:
        limits = self._scheduler.limits
        longest = max((ids.size for ids, _ in batch.sequences), default=0)
        asked = {
            "max_rows": (batch.rows, limits.rows),
            "max_sequences": (len(batch.sequences), limits.sequences),
            "max_context": (longest, limits.positions),
        }
        for name, (found, most) in asked.items():
            if found > most:
                raise InputError(
                    f"a batch with {name[4:]} {found}; the learner was opened for {most}. Cut the "
                    f"batch, or give a larger {name}."
                )
        for i, (ids, targets) in enumerate(batch.sequences):
            if ids.min() < 0 or max(ids.max(), targets.max()) >= limits.vocab:
                raise InputError(
                    f"sequence {i} has ids outside the vocabulary of {limits.vocab}. Tokenize it "
                    "with the model's own tokenizer."
                )

    def find_explosion(
        self, batches: Sequence[Batch], scale: float, step: int, limit: float = math.inf
    ) -> GradientExplosionError:
        """The error that names the node at which a step went wrong: the micro-batches are run again
        node by node, from zero gradients, and leave them zero. limit: a gradient's largest norm.
        """
        return find_explosion(self, batches, scale, step, limit)

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
        plan = plan_arena(self._scheduler, self.recompute)
        if any(pool.name == ARENA for pool in self.device.stats().pools):
            self.device.release(ARENA)
        pool = self.device.create_pool(ARENA, plan.nbytes + 4096)
        arena = pool.allocate(plan.nbytes, "activations and gradients")
        return TrainingProgram(self.device, self._scheduler, plan, arena, self._hooks)

    def close(self) -> None:
        """Gives the pools back; the learner must not be used any more."""
        self._program = None
        for pool in self.device.stats().pools:
            self.device.release(pool.name)

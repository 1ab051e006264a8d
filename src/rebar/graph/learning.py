"""Learner: a model whose weights can be trained. run(batch, scale) adds gradients; an optimizer
does the rest.

A micro-batch is one step as serving runs it, over whole sequences: same graph, same kernels, same
cache. The rows that are asked for their logits are those with a target; the head and the loss go
over them in pieces, so logits never exist for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError
from rebar.graph.backward import Choice, Scheduler
from rebar.graph.batch import Batch
from rebar.graph.models.config import DecoderConfig
from rebar.graph.nodes_lora import NO_ADAPTER, TRAINED
from rebar.graph.parameters import Parameters
from rebar.graph.recorded import Loss as Loss
from rebar.graph.recorded import RecordedLearner
from rebar.graph.training import GradientObserver
from rebar.hal import BLOCK_POSITIONS, DeviceManager, Indices, Step


class Learner(RecordedLearner):
    """A language model, made by rebar.graph.learner.open_learner. One thread at a time."""

    def __init__(
        self,
        config: DecoderConfig,
        device: DeviceManager,
        parameters: Parameters,
        scheduler: Scheduler,
        targets: Indices,
        recompute: Choice,
    ) -> None:
        limits = scheduler.limits
        stride = -(-limits.positions // BLOCK_POSITIONS)
        step = Step(limits.rows, limits.logit_rows, limits.sequences, stride)
        super().__init__(device, parameters, scheduler, step, recompute)
        self.config = config
        self._targets = targets.data

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
            total += self._losses(piece.size).total
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

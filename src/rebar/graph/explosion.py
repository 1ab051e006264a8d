"""When a step goes wrong: which node made the first value that is no number or too large, and which
parameters learn nothing.

The check of every step is the norm of all gradients, which the optimizer needs anyway. Only when it
fails is the step run again, node by node; the bits are the same, so the fault is found where it
happened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rebar.errors import GradientExplosionError, TrainingError
from rebar.graph.gradients import Gradients
from rebar.graph.node import Node, Values
from rebar.graph.nodes_attention import Append, RopeAppend
from rebar.graph.parameters import Parameters
from rebar.graph.tensor import Tensor
from rebar.graph.training import GradientObserver
from rebar.hal import BLOCK_POSITIONS, Domain, KVStorage, LoraTable, Step, WeightFormat

F32 = NDArray[np.float32]
B = TypeVar("B", contravariant=True)
QUIET_STEPS = 4
"""Steps in a row in which a parameter may have no gradient. An adapter's A has none while its B is
zero: in the first step, and in a second when the first was made at a rate of zero."""


OF_GRADIENTS = "Give a smaller --rate, or clamp the gradient there (Learner.clamp)."
OF_VALUES = "Give a smaller --rate, or look for the sample that does it (--show-batch)."
OF_CACHE = "Beyond 65,504 an f16 is infinite: train with keys and values in float32 (--kv f32)."


class Searched(Protocol[B]):
    """A learner whose steps can be watched (graph/learning.py, graph/image_learner.py)."""

    parameters: Parameters
    step: Step

    def run(self, batch: B, scale: float, observers: Sequence[GradientObserver], /) -> object:
        """A micro-batch, node by node."""


class Found(Exception):
    """What a search was for: a node, what of it went wrong, and what to do about it."""

    def __init__(self, node: str, what: str, magnitude: float, advice: str) -> None:
        super().__init__(node)
        self.node, self.what, self.magnitude, self.advice = node, what, magnitude, advice


@dataclass(slots=True)
class _Search:
    """Observes a run and leaves it at the first value that is no number, or the first gradient
    whose norm is above the limit. largest: the largest norm met.
    """

    step: Step
    limit: float
    largest: tuple[float, str] = field(default=(-1.0, ""))

    def after_forward(self, node: Node, values: Values) -> None:
        """Looks at the outputs, and at what the node stores in the cache."""
        for tensor in node.outputs:
            if tensor.dtype == "f32" and isinstance(tensor.shape[0], Domain):
                data = self._rows(tensor, values.rows(tensor).data)
                if not math.isfinite(_norm(data)):
                    advice = self._cause(node, values) + OF_VALUES
                    raise Found(node.name, "its output", _norm(data), advice)
        if isinstance(node, Append | RopeAppend):
            for data in stored_at(values.storage(node.cache), self.step):
                if not math.isfinite(_norm(data)):
                    raise Found(node.name, "what it stores", _norm(data), OF_CACHE)

    def _cause(self, node: Node, values: Values) -> str:
        """Names an input that no node made and that is no number already."""
        for tensor in node.inputs:
            if tensor.dtype is WeightFormat.F32:
                data = values.matrix(tensor).data.view(np.float32)
            elif tensor.dtype == "f32" and isinstance(tensor.shape[0], Domain):
                data = self._rows(tensor, values.rows(tensor).data)
            elif tensor.dtype == "f32" and len(tensor.shape) == 1:
                data = values.vector(tensor).data
            else:
                continue
            if not np.isfinite(data).all():
                return f"It reads {tensor.name}, which is no number already. "
        return ""

    def after_backward(self, node: Node, gradients: Gradients) -> None:
        """Looks at the gradients of the inputs."""
        for tensor, gradient in _gradients(node, gradients):
            rows = self._rows(tensor, gradient) if isinstance(tensor.shape[0], Domain) else gradient
            self._look(node, f"the gradient of {tensor.name}", rows)

    def _rows(self, tensor: Tensor, data: F32) -> F32:
        return data[: tensor.domain.rows(self.step)]

    def _look(self, node: Node, what: str, data: F32) -> None:
        norm = _norm(data)
        if not norm <= self.limit or not math.isfinite(norm):
            raise Found(node.name, what, norm, OF_GRADIENTS)
        self.largest = max(self.largest, (norm, node.name))


def _norm(data: NDArray[np.floating]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(float(np.square(data, dtype=np.float64).sum()))


def stored_at(cache: KVStorage, step: Step) -> Iterator[NDArray[np.floating]]:
    """Keys and values of a step's rows as a float cache holds them, (rows, kv heads, head_dim)."""
    positions = step.positions[: step.rows]
    blocks = step.tables[step.sequences[: step.rows], positions // BLOCK_POSITIONS]
    slots = positions % BLOCK_POSITIONS
    yield cast(NDArray[np.floating], cache.keys[blocks, :, :, slots])
    yield cast(NDArray[np.floating], cache.values[blocks, :, slots, :])


def _gradients(node: Node, gradients: Gradients) -> Iterator[tuple[Tensor, F32]]:
    """Gradients of a node's inputs, activations and parameters."""
    for tensor in node.inputs:
        if tensor.dtype == "lora":
            table = gradients.lora(tensor)
            yield from ((tensor, data) for data in _of_table(table)) if table else ()
        elif (matrix := gradients.matrix(tensor)) is not None:
            yield tensor, matrix.data.view(np.float32)
        elif (vector := gradients.vector(tensor)) is not None:
            yield tensor, vector.data
        elif isinstance(tensor.shape[0], Domain) and (rows := gradients.rows(tensor)) is not None:
            yield tensor, rows.data


def _of_table(table: LoraTable) -> Iterator[F32]:
    for part in range(len(table.widths)):
        pair = table.pair(0, part)
        if pair is not None:
            yield pair.a.data.view(np.float32)
            yield pair.b.data.view(np.float32)


def find_explosion(
    learner: Searched[B], batches: Sequence[B], scale: float, step: int, limit: float = math.inf
) -> GradientExplosionError:
    """Runs a step's micro-batches again from zero gradients, node by node; the error names the
    first node that made what is no number, or a gradient with a norm above `limit`; else the one
    with the largest.
    """
    learner.parameters.zero_gradients()
    search = _Search(learner.step, limit)
    try:
        for batch in batches:
            learner.run(batch, scale, [search])
    except Found as found:
        return _error(step, found.node, found.what, found.magnitude, found.advice)
    finally:
        learner.parameters.zero_gradients()
    magnitude, node = search.largest
    return _error(step, node, "the largest of its gradients", magnitude, OF_GRADIENTS)


def _error(
    step: int, node: str, what: str, magnitude: float, advice: str
) -> GradientExplosionError:
    return GradientExplosionError(
        f"step {step}: {what} at node {node} has the norm {magnitude:g}. Nothing was changed. "
        f"{advice}",
        node=node,
        step=step,
        magnitude=magnitude,
    )


class Quiet:
    """Counts the steps in which each parameter had no gradient at all."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}

    def check(self, gradients: Iterable[tuple[str, F32]], step: int) -> tuple[str, ...]:
        """Before a step of the optimizer, with the gradient of each parameter: those that have none
        in this step. TrainingError naming the parameters that have learned nothing for QUIET_STEPS
        in a row: the graph is cut, or the data never reaches them.
        """
        for name, data in gradients:
            quiet = not any(data[i : i + 4096].any() for i in range(0, data.size, 4096))
            self._steps[name] = self._steps.get(name, 0) + 1 if quiet else 0
        silent = [name for name, steps in self._steps.items() if steps >= QUIET_STEPS]
        if silent:
            raise TrainingError(
                f"step {step}: no gradient has reached {', '.join(silent[:5])} for {QUIET_STEPS} "
                "steps. A node on the way gives none, or the data never uses it. Freeze it, or "
                "mend the node."
            )
        return tuple(name for name, steps in self._steps.items() if steps)

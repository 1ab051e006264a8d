"""GraphLearner: any graph over rows that ends in a loss, with weights that learn: for models that
are no decoder, and nodes of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError, ShapeError
from rebar.graph.backward import Choice, Scheduler
from rebar.graph.builder import Builder
from rebar.graph.graph import Graph
from rebar.graph.nodes import Embed
from rebar.graph.nodes_loss import CrossEntropy
from rebar.graph.parameters import Parameters, ParameterShape, fill, view
from rebar.graph.plan import SLACK
from rebar.graph.recorded import Loss, RecordedLearner
from rebar.graph.tensor import DType, Tensor
from rebar.graph.training import GradientObserver
from rebar.hal import (
    DeviceManager,
    Domain,
    Indices,
    Limits,
    Operand,
    Rows,
    Step,
    WeightFormat,
    aligned,
)

IDS = "ids"
"""What a run has to give where the graph has an Embed: int32 (rows,)."""


class GraphBuilder(Builder):
    """A Builder that also makes the inputs and parameters of a graph to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[Tensor, NDArray[np.float32]] = {}
        self.constants: dict[Tensor, NDArray[np.float32]] = {}
        self.inputs: dict[str, Tensor] = {}

    def input(self, name: str, width: int) -> Tensor:
        """Float32 rows (rows, width), given to every run."""
        self.inputs[name] = Tensor(name, (Domain.ROWS, width))
        return self.inputs[name]

    def targets(self, name: str = "targets") -> Tensor:
        """What a loss asks for, int32 (rows,), given to every run."""
        self.inputs[name] = Tensor(name, (Domain.ROWS,), "i32")
        return self.inputs[name]

    def parameter(self, name: str, values: NDArray[np.floating]) -> Tensor:
        """A matrix (n, k) or vector (n,) that learns, and where it begins."""
        return self._weight(name, values, self.values)

    def constant(self, name: str, values: NDArray[np.floating]) -> Tensor:
        """A matrix (n, k) or vector (n,) that stays as it is."""
        return self._weight(name, values, self.constants)

    @staticmethod
    def _weight(
        name: str, values: NDArray[np.floating], kept: dict[Tensor, NDArray[np.float32]]
    ) -> Tensor:
        kind: DType = WeightFormat.F32 if values.ndim == 2 else "f32"
        tensor = Tensor(name, values.shape, kind)
        kept[tensor] = np.asarray(values, np.float32)
        return tensor


class GraphLearner(RecordedLearner):
    """Trains what `g` has built up to `loss`, (rows, 1). max_rows: rows of a run at most. device: a
    back end's name; memory: its budget in bytes. ShapeError for a loss that is none.
    """

    def __init__(
        self,
        g: GraphBuilder,
        loss: Tensor,
        *,
        max_rows: int,
        recompute: Choice = "auto",
        device: str = "cpu",
        threads: int | None = None,
        memory: int | None = None,
    ) -> None:
        if loss.shape != (Domain.ROWS, 1):
            raise ShapeError(f"{loss.name} {loss.shape} is no loss; give one number a row.")
        manager = DeviceManager(device, threads=threads, memory=memory)
        if not g.values:
            raise ShapeError("nothing learns here: give the graph a parameter.")
        parameters, bound = _parameters(manager, g.values), _constants(manager, g.constants)
        self._inputs: dict[str, NDArray[np.float32] | NDArray[np.int32]] = {}
        for name, tensor in g.inputs.items():
            operand = _input(tensor, max_rows)
            bound[tensor], self._inputs[name] = operand, operand.data
        bound.update({t: parameters[t.name].value for t in g.values})
        gradients = {t: parameters[t.name].gradient for t in g.values}
        step = Step(max_rows, 1, 1, max_rows)
        step.positions[:] = np.arange(max_rows)
        graph = g.graph(loss)
        self._least, self._most = _bounds(graph)
        if IDS in self._most:
            self._inputs[IDS] = step.ids
        vocab = self._most.get(IDS, 1)
        limits = Limits(rows=max_rows, vocab=vocab, positions=max_rows, blocks=1)
        scheduler = Scheduler(graph, loss, limits, bound, gradients)
        super().__init__(manager, parameters, scheduler, step, recompute)

    def run(
        self,
        inputs: Mapping[str, NDArray[np.generic]],
        scale: float,
        observers: Sequence[GradientObserver] = (),
    ) -> Loss:
        """Adds scale * gradient of the sum of the losses into `parameters.gradients`."""
        return self._learn(self._bind(inputs), scale, observers)

    def evaluate(self, inputs: Mapping[str, NDArray[np.generic]]) -> Loss:
        """The loss alone."""
        count = self._bind(inputs)
        self.program.forward(self.step)
        return self._losses(count)

    def _bind(self, inputs: Mapping[str, NDArray[np.generic]]) -> int:
        counts = {len(rows) for rows in inputs.values()}
        room = self.step.positions.size
        if set(inputs) != set(self._inputs) or len(counts) != 1 or max(counts) > room:
            raise InputError(
                f"inputs {', '.join(sorted(inputs))} of {sorted(counts)} rows. Give "
                f"{', '.join(sorted(self._inputs))}, equally many rows, {room} at most."
            )
        (count,) = counts
        for name, rows in inputs.items():
            self._input(name, rows)
        self.step.rows = count
        return count

    def _input(self, name: str, rows: NDArray[np.generic]) -> None:
        place = self._inputs[name][: len(rows)]
        if rows.shape != place.shape:
            raise InputError(f"{name} is {rows.shape}; give it as {place.shape}.")
        place[:] = rows
        least, most = self._least.get(name, 0), self._most.get(name)
        if most is not None and (place.min(initial=0) < least or place.max(initial=0) >= most):
            raise InputError(
                f"{name} is from {place.min()} to {place.max()}; {max(least, 0)} to {most - 1} can "
                "be."
            )


def _parameters(device: DeviceManager, values: Mapping[Tensor, NDArray[np.float32]]) -> Parameters:
    """What learns, with the values it begins with."""
    shapes = [ParameterShape(t.name, v.shape, decay=v.ndim == 2) for t, v in values.items()]
    pool = device.create_pool("parameters", Parameters.nbytes(shapes) + SLACK)
    parameters = Parameters(pool, shapes)
    for tensor, numbers in values.items():
        fill(parameters[tensor.name].value, numbers)
    return parameters


def _bounds(graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    """Of the whole numbers that nodes read, by their input: the least, and the first too large."""
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    for node in graph.order:
        if isinstance(node, CrossEntropy):  # a target below 0 is not asked
            least[node.targets.name] = np.iinfo(np.int32).min
            most[node.targets.name] = min(node.logits.width, most.get(node.targets.name, 1 << 31))
        if isinstance(node, Embed):
            least[IDS] = 0
            most[IDS] = min(int(node.w.shape[0]), most.get(IDS, 1 << 31))
    return least, most


def _constants(
    device: DeviceManager, values: Mapping[Tensor, NDArray[np.float32]]
) -> dict[Tensor, Operand]:
    """Memory of what stays as it is."""
    sizes = {t: ParameterShape(t.name, v.shape, decay=False).size for t, v in values.items()}
    pool = device.create_pool(
        "constants", 4 * aligned(sum(sizes.values())) + SLACK * (len(sizes) + 1)
    )
    bound: dict[Tensor, Operand] = {}
    for tensor, numbers in values.items():
        raw = pool.allocate(4 * sizes[tensor], tensor.name).bytes()[: 4 * sizes[tensor]]
        operand = view(raw.view(np.float32), 0, numbers.shape)
        fill(operand, numbers)
        bound[tensor] = operand
    return bound


def _input(tensor: Tensor, rows: int) -> Rows | Indices:
    """Memory of an input."""
    if tensor.dtype == "i32":
        return Indices(np.zeros(rows, np.int32))
    return Rows(np.zeros((rows, tensor.width), np.float32))

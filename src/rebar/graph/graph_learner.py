"""GraphLearner: any graph over rows that ends in a loss, with weights that learn: for models that
are no decoder, and nodes of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError
from rebar.graph.backward import Recompute, Scheduler
from rebar.graph.builder import Builder
from rebar.graph.parameters import Parameters, ParameterShape, fill
from rebar.graph.recorded import Loss, RecordedLearner
from rebar.graph.tensor import DType, Tensor
from rebar.graph.training import GradientObserver
from rebar.hal import DeviceManager, Domain, Indices, Limits, Operand, Rows, Step, WeightFormat

SLACK = 4096


class GraphBuilder(Builder):
    """A Builder that also makes the inputs and parameters of a graph to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[Tensor, NDArray[np.float32]] = {}
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
        kind: DType = WeightFormat.F32 if values.ndim == 2 else "f32"
        tensor = Tensor(name, values.shape, kind)
        self.values[tensor] = np.asarray(values, np.float32)
        return tensor


class GraphLearner(RecordedLearner):
    """Trains what `g` has built up to `loss`, (rows, 1). max_rows: rows of a run at most. device: a
    back end's name; memory: its budget in bytes.
    """

    def __init__(
        self,
        g: GraphBuilder,
        loss: Tensor,
        *,
        max_rows: int,
        recompute: Recompute = "none",
        device: str = "cpu",
        threads: int | None = None,
        memory: int | None = None,
    ) -> None:
        manager = DeviceManager(device, threads=threads, memory=memory)
        shapes = [
            ParameterShape(t.name, values.shape, decay=values.ndim == 2)
            for t, values in g.values.items()
        ]
        pool = manager.create_pool("parameters", Parameters.nbytes(shapes) + SLACK)
        parameters = Parameters(pool, shapes)
        bound: dict[Tensor, Operand] = {}
        self._inputs: dict[str, NDArray[np.float32] | NDArray[np.int32]] = {}
        for name, tensor in g.inputs.items():
            operand = _input(tensor, max_rows)
            bound[tensor], self._inputs[name] = operand, operand.data
        for tensor, values in g.values.items():
            fill(parameters[tensor.name].value, values)
            bound[tensor] = parameters[tensor.name].value
        gradients = {t: parameters[t.name].gradient for t in g.values}
        limits = Limits(rows=max_rows, positions=max_rows, blocks=1)
        step = Step(max_rows, 1, 1, max_rows)
        step.positions[:] = np.arange(max_rows)
        scheduler = Scheduler(g.graph(loss), loss, limits, bound, gradients)
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
            self._inputs[name][:count] = rows
        self.step.rows = count
        return count


def _input(tensor: Tensor, rows: int) -> Rows | Indices:
    """Memory of an input."""
    if tensor.dtype == "i32":
        return Indices(np.zeros(rows, np.int32))
    return Rows(np.zeros((rows, tensor.width), np.float32))

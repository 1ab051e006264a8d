"""Is the way back of a graph the slope of its way forward? By central differences in float64.

The graph's output counts as the loss, weighted by random numbers. Activations that vary come out of
an Embed over ids 0, 1, 2 .., whose matrix is a parameter like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar.graph.backward import Recompute, Scheduler
from rebar.graph.gradients import Trained
from rebar.graph.graph import Graph
from rebar.graph.parameters import Parameters, ParameterShape, fill
from rebar.graph.tensor import Tensor
from rebar.graph.training import TrainingProgram, plan_arena
from rebar.hal import DeviceManager, Domain, LoraPair, LoraTable, Matrix, Operand, Vector
from rebar.hal.ref import WideBackend
from tests.graph.harness import F32, Call, open_device

Tables = Callable[[Parameters], tuple[Mapping[Tensor, LoraTable], Mapping[Tensor, LoraTable]]]
"""Tables of adapters made of parameters, and those of their gradients, by the tensor they are."""


@dataclass
class Opened:
    """A graph that can be run both ways."""

    device: DeviceManager
    program: TrainingProgram
    parameters: Parameters
    call: Call
    stride: int

    def run(self, weights: NDArray[np.floating]) -> F32:
        """Forward and backward with the output's gradient; the parameters' gradients, flat."""
        step = self.call.step(self.stride)
        self.parameters.zero_gradients()
        self.program.weights.data[: len(weights)] = weights
        self.program.forward(step)
        self.program.backward(step)
        return self.parameters.gradients.copy()


def opened(
    graph: Graph,
    out: Tensor,
    trained: Mapping[Tensor, F32],
    frozen: Mapping[Tensor, Operand],
    call: Call,
    device: str,
    recompute: Recompute = "none",
    tables: Tables | None = None,
) -> Opened:
    """Everything `out` needs, placed and recorded. tables: of what is trained as adapters, which no
    node reads by itself.
    """
    manager = open_device(device)
    shapes = [ParameterShape(t.name, v.shape, decay=True) for t, v in trained.items()]
    parameters = Parameters(
        manager.create_pool("parameters", Parameters.nbytes(shapes) + 4096), shapes
    )
    for t, values in trained.items():
        fill(parameters[t.name].value, values)
    bound = dict(frozen) | {t: parameters[t.name].value for t in trained}
    read = {t for node in graph.order for t in node.inputs}
    gradients: dict[Tensor, Trained] = {
        t: parameters[t.name].gradient for t in trained if t in read
    }
    if tables is not None:
        values_of, gradients_of = tables(parameters)
        bound |= values_of
        gradients |= gradients_of
    stride = max(4, *(-(-(first + count) // 16) for first, count, _ in call.sequences))
    blocks = 1 + max(block for *_, those in call.sequences for block in those)
    limits = call.limits(max(64, call.rows), blocks, 16 * stride)
    scheduler = Scheduler(graph, out, limits, bound, gradients)
    plan = plan_arena(scheduler, recompute)
    arena = manager.create_pool("arena", plan.nbytes + 4096).allocate(plan.nbytes, "test")
    arena.bytes()[:] = 0x7F  # what was never written must never matter
    program = TrainingProgram(manager, scheduler, plan, arena, {})
    return Opened(manager, program, parameters, call, stride)


def check(
    graph: Graph,
    out: Tensor,
    trained: Mapping[Tensor, F32],
    frozen: Mapping[Tensor, Operand] | None = None,
    call: Call | None = None,
    seed: int = 0,
    tables: Tables | None = None,
) -> None:
    """Compares, for each trained tensor, along one random direction.

    With a step of 1e-5 the difference errs by 1e-10 of a third derivative and by 2^-53 / 1e-5,
    about 1e-11, of the sum of what is added: 1e-7 of sums that do not cancel, and of 1 where they
    do.
    """
    call = call or Call()
    model = opened(graph, out, trained, frozen or {}, call, "ref64", tables=tables)
    backend = model.device.backend
    assert isinstance(backend, WideBackend)
    memory, random, h = backend.memory, np.random.default_rng(seed), 1e-5
    count = call.rows if out.domain is Domain.ROWS else len(call.logit_index)
    weights = random.standard_normal((count, out.width)).astype(np.float32)
    model.run(weights)
    gradients = {p.name: memory.wide(_flat(p.gradient)).copy() for p in model.parameters}

    def loss() -> float:
        model.program.forward(call.step(model.stride))
        return float((memory.wide(model.program.losses.data[:count]) * weights).sum())

    for parameter in model.parameters:
        values, gradient = _flat(parameter.value), gradients[parameter.name]
        start = memory.wide(values).copy()
        direction = random.standard_normal(start.shape) * (gradient != 0)
        ends = []
        for sign in (1, -1):
            memory.change(values, start + sign * h * direction)
            ends.append(loss())
        memory.change(values, start)
        numeric, analytic = (ends[0] - ends[1]) / (2 * h), float((gradient * direction).sum())
        assert gradient.any(), f"{parameter.name} has no gradient"
        assert abs(numeric - analytic) <= 1e-7 * (1 + abs(analytic)), parameter.name


def _flat(value: Matrix | Vector) -> F32:
    return value.data.view(np.float32) if isinstance(value, Matrix) else value.data


def one_adapter(table: Tensor, parts: Mapping[int, tuple[str, str]], scale: float) -> Tables:
    """Tables whose slot 0 has an A and a B, by name, for some parts of a product."""
    _, rank, k, *widths = (int(size) for size in table.shape)

    def tables(
        parameters: Parameters,
    ) -> tuple[Mapping[Tensor, LoraTable], Mapping[Tensor, LoraTable]]:
        values, gradients = (LoraTable(1, k, tuple(widths), rank) for _ in range(2))
        for part, names in parts.items():
            a, b = (parameters[name] for name in names)
            values.put(0, part, LoraPair(_matrix(a.value), _matrix(b.value), scale))
            gradients.put(0, part, LoraPair(_matrix(a.gradient), _matrix(b.gradient), scale))
        return {table: values}, {table: gradients}

    return tables


def _matrix(value: Matrix | Vector) -> Matrix:
    assert isinstance(value, Matrix)
    return value

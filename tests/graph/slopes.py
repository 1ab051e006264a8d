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
from rebar.hal.ref_memory import WideMemory
from tests.graph.harness import F32, Call, open_device

F64 = NDArray[np.float64]
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
    """Is the gradient of each trained tensor the slope of what `out` is?"""
    call = call or Call()
    model = opened(graph, out, trained, frozen or {}, call, "ref64", tables=tables)
    count = call.rows if out.domain is Domain.ROWS else len(call.logit_index)
    weights = np.random.default_rng(seed).standard_normal((count, out.width)).astype(np.float32)
    model.run(weights)
    memory = wide_memory(model.device)

    def addends() -> F64:
        model.program.forward(call.step(model.stride))
        found: F64 = memory.wide(model.program.losses.data[:count]) * weights
        return found

    check_parameters(memory, model.parameters, addends)


def wide_memory(device: DeviceManager) -> WideMemory:
    """Of a device "ref64"."""
    assert isinstance(device.backend, WideBackend)
    return device.backend.memory


def check_parameters(
    memory: WideMemory, parameters: Parameters, addends: Callable[[], F64], seed: int = 2
) -> None:
    """Compares the gradient that each parameter has now with central differences of the sum of the
    addends, along one random direction. All elements move, so that a gradient that leaves some out
    is told; of those that nothing depends on (ids that do not occur) it is 0 in truth.

    The difference over a step h errs by h^2 / 6 of the third derivative, and that over 2 h by four
    times as much: they are three such errors apart, and that distance is allowed. And by the
    rounding of the loss, over h: 100 roundings of 2^-53 of each addend, since one is itself a sum,
    of terms up to ten times as large together.
    """
    random, h = np.random.default_rng(seed), 1e-5
    gradients = {p.name: memory.wide(flat(p.gradient)).copy() for p in parameters}
    for parameter in parameters:
        values, gradient = flat(parameter.value), gradients[parameter.name]
        start, direction = memory.wide(values).copy(), random.standard_normal(gradient.shape)
        sums, size = {}, 0.0
        for steps in (-2, -1, 1, 2):
            memory.change(values, start + steps * h * direction)
            found = addends()
            sums[steps], size = float(found.sum()), max(size, float(np.abs(found).sum()))
        memory.change(values, start)
        near, far = (sums[1] - sums[-1]) / (2 * h), (sums[2] - sums[-2]) / (4 * h)
        slope = float((gradient * direction).sum())
        allowed = abs(far - near) + 100 * 2.0**-53 * size / h
        assert gradient.any(), f"{parameter.name} has no gradient"
        assert abs(near - slope) <= allowed, (parameter.name, near, slope, allowed)


def flat(value: Matrix | Vector) -> F32:
    """The numbers as they lie."""
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

"""A node written in NumPy, beside the built-in ones: for what has no kernel yet, or needs none.

It is run by Python between native calls, on float32 arrays: (rows, width) for activations, (n, k)
for matrices, (n,) for vectors; and on int32 (rows,) for the targets of a loss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rebar.errors import ShapeError
from rebar.graph.gradients import Gradients
from rebar.graph.node import Cost, HostCall, Node, Record, Values
from rebar.graph.parameters import dense, fill
from rebar.graph.tensor import Shape, Tensor
from rebar.hal import Domain, Indices, Matrix, Rows, Step, Vector, WeightFormat

F32 = NDArray[np.float32]
Place = Rows | Matrix | Vector
Read = Place | Indices


@dataclass(frozen=True, eq=False, slots=True)
class NumPyNode(Node):
    """Subclass it with `compute` and, if it is to learn, `gradient`; Builder.numpy puts it into a
    graph. `reads`: what compute is given. check_slopes compares the two.
    """

    reads: tuple[Tensor, ...]
    out: Tensor

    @staticmethod
    def shape(*reads: Shape) -> Shape:
        """Of out; that of the first input, unless a subclass says otherwise."""
        return reads[0]

    @abstractmethod
    def compute(self, *inputs: F32) -> F32:
        """out, of the inputs."""

    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        """Of each input what the gradient of out means for it, in its shape; None for an input that
        can have none.
        """
        raise ShapeError(
            f"{self.name}: {type(self).__name__} has no gradient. Write it, or freeze what is "
            "trained before it."
        )

    def forward(self, run: Record, values: Values) -> None:
        """One host call."""
        places, out = [_place(values, t) for t in self.reads], values.rows(self.out)
        counts = [_count(t) for t in self.reads]
        rows = _count(self.out)

        def work(step: Step) -> None:
            inputs = [_read(p, count(step)) for p, count in zip(places, counts, strict=True)]
            made = np.asarray(self.compute(*inputs))
            self._same(self.out.name, made, out.data[: rows(step)])
            out.data[: rows(step)] = made

        run(HostCall(self.name, work))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """One host call."""
        places, out = [_place(values, t) for t in self.reads], values.rows(self.out)
        counts, rows = [_count(t) for t in self.reads], _count(self.out)
        dout, into = gradients.of(self.out), [_gradient(gradients, t) for t in self.reads]

        def work(step: Step) -> None:
            inputs = [_read(p, count(step)) for p, count in zip(places, counts, strict=True)]
            of_rows = slice(rows(step))
            made = self.gradient(dout.data[of_rows], out.data[of_rows], *inputs)
            if len(made) != len(self.reads):
                raise ShapeError(
                    f"{self.name}: {len(made)} gradients for {len(self.reads)} inputs. Give one "
                    "for each, None where there is none."
                )
            for tensor, place, gradient, values in zip(self.reads, into, made, inputs, strict=True):
                if place is not None:
                    self._add(tensor, place, gradient, values)

        run(HostCall(f"{self.name} backward", work))

    def _add(self, tensor: Tensor, place: Place, gradient: F32 | None, like: F32) -> None:
        if gradient is None:
            raise ShapeError(
                f"{self.name}: no gradient for {tensor.name}, and something before it learns. "
                "Compute it, or freeze that."
            )
        gradient = np.asarray(gradient)
        self._same(f"the gradient of {tensor.name}", gradient, like)
        if isinstance(place, Rows):
            place.data[: len(gradient)] += gradient
        elif isinstance(place, Vector):
            place.data[:] += gradient
        else:
            fill(place, dense(place) + gradient.astype(np.float32))

    def _same(self, what: str, made: F32, due: F32) -> None:
        if made.shape != due.shape:
            raise ShapeError(f"{self.name}: {what} is {made.shape}, it should be {due.shape}")

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """Bytes in and out; what it computes is unknown."""
        rows_read = [t for t in self.reads if isinstance(t.shape[0], Domain) and t.dtype == "f32"]
        width = sum(t.width for t in rows_read)
        return Cost(0, 4 * rows * width, 4 * rows * self.out.width)


def _place(values: Values, tensor: Tensor) -> Read:
    if tensor.dtype == "i32":
        return values.indices(tensor)
    if isinstance(tensor.dtype, WeightFormat):
        return values.matrix(tensor)
    return values.rows(tensor) if isinstance(tensor.shape[0], Domain) else values.vector(tensor)


def _gradient(gradients: Gradients, tensor: Tensor) -> Place | None:
    if tensor.dtype == "i32":
        return None
    if isinstance(tensor.dtype, WeightFormat):
        return gradients.matrix(tensor)
    of_rows = isinstance(tensor.shape[0], Domain)
    return gradients.rows(tensor) if of_rows else gradients.vector(tensor)


def _count(tensor: Tensor) -> Callable[[Step], int]:
    """How many rows of a tensor a step has."""
    if tensor.shape[0] is Domain.LOGIT_ROWS:
        return lambda step: step.logit_rows
    return lambda step: step.rows


def _read(place: Read, count: int) -> F32:
    """What compute may read, but not change."""
    data: Any = place.data[:count].view() if isinstance(place, Rows | Indices) else dense(place)
    data.flags.writeable = False
    return cast(F32, data)  # but for ids, which whoever reads them knows


def check_slopes(
    node: type[NumPyNode], *inputs: NDArray[np.generic], seed: int = 0, **fields: object
) -> float:
    """How far `gradient` is from the slopes of `compute`, relative to the larger of the two: the
    worst over the inputs, each along one random direction, by central differences in float64.
    Below 1e-6 for a gradient that is right. Integers, and inputs whose gradient is None, stay.
    fields: those of the node's class.
    """
    random, nothing = np.random.default_rng(seed), Tensor("out", (Domain.ROWS, 1))
    made: Any = node("check", (), nothing, **fields)
    compute, gradient = made.compute, made.gradient
    given = [np.asarray(x) for x in inputs]
    wide: list[Any] = [x if x.dtype.kind in "iu" else x.astype(np.float64) for x in given]
    out = compute(*wide)
    upstream = random.standard_normal(out.shape)
    slopes = gradient(upstream, out, *wide)
    worst = 0.0
    for i, slope in enumerate(slopes):
        if slope is None or wide[i].dtype.kind in "iu":
            continue
        direction, h = random.standard_normal(wide[i].shape), 1e-5
        ends = []
        for sign in (1, -1):
            moved = [x + sign * h * direction if j == i else x for j, x in enumerate(wide)]
            ends.append(float((upstream * compute(*moved)).sum()))
        numeric, analytic = (ends[0] - ends[1]) / (2 * h), float((slope * direction).sum())
        size = max(abs(numeric), abs(analytic), 1e-3)
        worst = max(worst, abs(numeric - analytic) / size)
    return worst

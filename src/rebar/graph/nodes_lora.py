"""What a low-rank adapter adds to a product (Hu et al., arXiv:2106.09685), in two nodes: down to
its rank, and up. Formulas and orders of sums: native/rebar.h.

Which adapter a row takes is said by the step, what it is by a table of slots: tensors of type
"lora" with shape (slots, rank, k, columns of each part); rank is that of the largest adapter.

What is trained is the adapter of slot 0, and every row of a training step takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rebar.graph.gradients import Gradients
from rebar.graph.node import Cost, Node, Record, Values
from rebar.graph.tensor import Shape, Tensor, same
from rebar.hal import LoraPair, LoraTable
from rebar.hal import launches_backward as lb
from rebar.hal import launches_lora as la

F32 = 4  # bytes
TRAINED = 0  # the slot
NO_ADAPTER = -1


@dataclass(frozen=True, slots=True)
class Part:
    """An adapter's share in a product: its matrices, their gradients when they learn, its columns
    in a = A x and in the product.
    """

    pair: LoraPair
    gradients: LoraPair | None
    low: tuple[int, int]
    columns: tuple[int, int]


def adapters_shape(slots: int, rank: int, k: int, widths: tuple[int, ...]) -> Shape:
    """The shape of a table of adapters."""
    return slots, rank, k, *widths


def trained(values: LoraTable, gradients: LoraTable | None) -> Iterator[Part]:
    """Each part that slot 0 changes."""
    column = 0
    for part, width in enumerate(values.widths):
        pair = values.pair(TRAINED, part)
        if pair is not None:
            low = part * values.rank
            learns = gradients.pair(TRAINED, part) if gradients is not None else None
            yield Part(pair, learns, (low, low + pair.rank), (column, column + width))
        column += width


def _sizes(adapters: Shape) -> tuple[int, ...]:
    return tuple(int(size) for size in adapters)


@dataclass(frozen=True, eq=False, slots=True)
class LoraDown(Node):
    """out (rows, parts * rank) = A x for each part of the row's adapter, zeros where it has
    none.
    """

    x: Tensor
    adapters: Tensor
    out: Tensor

    @staticmethod
    def shape(x: Shape, adapters: Shape) -> Shape:
        """(rows, k), (slots, rank, k, n1, n2 ..) -> (rows, parts * rank)."""
        _, rank, k, *widths = _sizes(adapters)
        same("k", x[1], k)
        return x[0], rank * len(widths)

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        v = values
        run(la.LoraDown(v.rows(self.x), v.lora(self.adapters), v.rows(self.out), self.x.domain))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """dx += da A, dA += daᵀ x, a part at a time."""
        dout, dx, domain = gradients.of(self.out), gradients.rows(self.x), self.x.domain
        for part in trained(values.lora(self.adapters), gradients.lora(self.adapters)):
            da = dout.columns(*part.low)
            if dx is not None:
                run(lb.MatmulInputGradient(part.pair.a, da, dx, domain=domain))
            if part.gradients is not None:
                x = values.rows(self.x)
                run(lb.MatmulWeightGradient(x, da, part.gradients.a, domain=domain))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """As if all rows took one adapter, of the full rank."""
        k, n = self.x.width, self.out.width
        return Cost(2 * rows * k * n, (k * n + rows * k) * F32, rows * n * F32)


@dataclass(frozen=True, eq=False, slots=True)
class LoraUp(Node):
    """out (rows, n) = x + scale B a (+ residual), part by part; x (+ residual) for a row without an
    adapter.
    """

    a: Tensor
    adapters: Tensor
    x: Tensor
    out: Tensor
    residual: Tensor | None = None

    @staticmethod
    def shape(a: Shape, adapters: Shape, x: Shape) -> Shape:
        """(rows, parts * rank), (slots, rank, k, n1, n2 ..), (rows, n1 + n2 + ..) -> the last."""
        _, rank, _, *widths = _sizes(adapters)
        same("rows", a[0], x[0])
        same("parts * rank", a[1], rank * len(widths))
        same("n", x[1], sum(widths))
        return x

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        v = values
        residual = v.rows(self.residual) if self.residual is not None else None
        adapters, a, x, out = v.lora(self.adapters), v.rows(self.a), v.rows(self.x), self.out
        run(la.LoraUp(a, adapters, x, v.rows(out), residual, out.domain))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """da += scale dy B, dB += scale dyᵀ a, a part at a time; dx += dy, dresidual += dy."""
        dout, da, domain = gradients.of(self.out), gradients.rows(self.a), self.out.domain
        for part in trained(values.lora(self.adapters), gradients.lora(self.adapters)):
            dy, pair = dout.columns(*part.columns), part.pair
            if da is not None:
                low = da.columns(*part.low)
                run(lb.MatmulInputGradient(pair.b, dy, low, pair.scale, domain))
            if part.gradients is not None:
                a, db = values.rows(self.a).columns(*part.low), part.gradients.b
                run(lb.MatmulWeightGradient(a, dy, db, pair.scale, domain))
        for tensor in (self.x, self.residual):
            for launch in gradients.into(dout, tensor) if tensor is not None else ():
                run(launch)

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """As if all rows took one adapter, of the full rank."""
        rank, n = int(self.adapters.shape[1]), self.out.width
        read = (rank * n + rows * (n + self.a.width)) * F32
        return Cost(2 * rows * rank * n, read, rows * n * F32)

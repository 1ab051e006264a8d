"""The operations of a decoder, each on one screen: shape rule, forward, backward, cost. Formulas
and orders of sums: native/rebar.h and hal/launches_backward.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rebar import _native
from rebar.errors import ShapeError
from rebar.graph.gradients import Gradients
from rebar.graph.node import Cost, Node, Record, Values
from rebar.graph.nodes_attention import Append, Attention, Rope
from rebar.graph.nodes_lora import LoraDown, LoraUp
from rebar.graph.nodes_loss import CrossEntropy
from rebar.graph.tensor import Shape, Tensor, same
from rebar.hal import Activation, Domain
from rebar.hal import launches as la
from rebar.hal import launches_backward as lb

F32 = 4  # bytes


def matrix_bytes(w: Tensor) -> int:
    """Bytes of a packed matrix (n, k)."""
    n, k = (int(size) for size in w.shape)
    return int(_native.packed_nbytes(int(w.format), n, k))


@dataclass(frozen=True, eq=False, slots=True)
class Embed(Node):
    """out (rows, k) = rows of w (vocabulary, k) named by the step's ids, times scale."""

    w: Tensor
    out: Tensor
    scale: float = 1.0

    @staticmethod
    def shape(w: Shape) -> Shape:
        """(vocabulary, k) -> (rows, k)."""
        return Domain.ROWS, w[1]

    def forward(self, run: Record, values: Values) -> None:
        """One gather."""
        run(la.Embed(values.matrix(self.w), values.rows(self.out), self.scale))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """dw[ids] += scale dout."""
        if dw := gradients.matrix(self.w):
            run(lb.EmbedGradient(gradients.of(self.out), dw, self.scale))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """One row of weights for each row."""
        row = matrix_bytes(self.w) // int(self.w.shape[0])
        return Cost(rows * self.out.width, rows * row, rows * self.out.width * F32)


@dataclass(frozen=True, eq=False, slots=True)
class RmsNorm(Node):
    """out = x / sqrt(mean(x^2) + eps) * weight over `groups` slices of each row; also int8 of it
    when `quantized` is given.
    """

    CHEAP: ClassVar[bool] = True

    x: Tensor
    weight: Tensor
    out: Tensor
    eps: float
    groups: int = 1
    quantized: Tensor | None = None

    @staticmethod
    def shape(x: Shape, weight: Shape, groups: int) -> Shape:
        """(rows, groups * n), (n,) -> (rows, groups * n)."""
        same("width", x[1], int(weight[0]) * groups)
        return x

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        v, q = values, self.quantized
        xq = v.quantized(q) if q is not None else None
        run(
            la.RmsNorm(
                v.rows(self.x),
                v.vector(self.weight),
                v.rows(self.out),
                self.eps,
                xq,
                self.groups,
                self.x.domain,
            )
        )

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """One launch for dx and dweight."""
        run(
            lb.RmsNormGradient(
                values.rows(self.x),
                values.vector(self.weight),
                gradients.of(self.out),
                gradients.rows(self.x),
                gradients.vector(self.weight),
                self.eps,
                self.groups,
                self.x.domain,
            )
        )

    @property
    def same_gradient(self) -> dict[Tensor, Tensor]:
        """int8 of out stands for out."""
        return {self.quantized: self.out} if self.quantized is not None else {}

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """A square, a sum and two products an element."""
        n = self.x.width
        return Cost(4 * rows * n, (rows * n + n) * F32, rows * n * F32)


@dataclass(frozen=True, eq=False, slots=True)
class Quantize(Node):
    """out = int8 of x, a scale per 16 or 32 inputs by its type: what products with
    block-quantized weights take.
    """

    CHEAP: ClassVar[bool] = True

    x: Tensor
    out: Tensor

    @staticmethod
    def shape(x: Shape) -> Shape:
        """(rows, k) -> (rows, k), k a multiple of 32."""
        same("k modulo 32", int(x[1]) % 32, 0)
        return x

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        run(la.Quantize(values.rows(self.x), values.quantized(self.out), self.x.domain))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """Nothing: the gradient of out is that of x (straight-through)."""

    @property
    def same_gradient(self) -> dict[Tensor, Tensor]:
        """Rounding counts as the identity."""
        return {self.out: self.x}

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """A maximum, a product and a sum an element."""
        return Cost(
            3 * rows * self.x.width,
            rows * self.x.width * F32,
            rows * _native.quantized_stride(self.x.width),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Linear(Node):
    """out (rows, n) = x wᵀ + bias + residual, for weights stacked from parts: n = n1 + n2 + ...

    x: float rows for float parts; xq: the same rows quantized for block-quantized parts. bias: one
    vector a part, or none.
    """

    w: tuple[Tensor, ...]
    out: Tensor
    x: Tensor | None = None
    xq: Tensor | None = None
    bias: tuple[Tensor, ...] = ()
    residual: Tensor | None = None

    @staticmethod
    def shape(
        x: Shape, *w: Shape, bias: tuple[Shape, ...] = (), residual: Shape | None = None
    ) -> Shape:
        """(rows, k), (n1, k), (n2, k) ... -> (rows, n1 + n2 + ...)."""
        same("k", x[1], *(part[1] for part in w))
        n = sum(int(part[0]) for part in w)
        for part, b in zip(w, bias, strict=bool(bias)):
            same("n of bias", part[0], b[0])
        if residual is not None:
            same("n of residual", n, residual[1])
        return x[0], n

    def forward(self, run: Record, values: Values) -> None:
        """One product a part, each into its columns."""
        out = values.rows(self.out)
        residual = values.rows(self.residual) if self.residual is not None else None
        begin = 0
        for i, w in enumerate(self.w):
            end = begin + int(w.shape[0])
            matrix = values.matrix(w)
            x = (
                values.quantized(self._input(w))
                if matrix.format.quantized_input
                else values.rows(self._input(w))
            )
            bias = values.vector(self.bias[i]) if self.bias else None
            part = residual.columns(begin, end) if residual is not None else None
            run(la.Matmul(matrix, x, out.columns(begin, end), bias, part, self.out.domain))
            begin = end

    def _input(self, w: Tensor) -> Tensor:
        x = self.xq if w.format.quantized_input else self.x
        if x is None:
            raise ShapeError(f"{self.name}: no input for {w.name} of {w.dtype}")
        return x

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """dx += dy W, dW += dyᵀ x, dbias += sum of dy, a part at a time; dresidual += dy."""
        dout, domain, begin = gradients.of(self.out), self.out.domain, 0
        for i, w in enumerate(self.w):
            end = begin + int(w.shape[0])
            x, dy = self._input(w), dout.columns(begin, end)
            if dx := gradients.rows(x):
                run(lb.MatmulInputGradient(values.matrix(w), dy, dx, domain=domain))
            if dw := gradients.matrix(w):
                run(lb.MatmulWeightGradient(values.rows(x), dy, dw, domain=domain))
            if self.bias and (db := gradients.vector(self.bias[i])):
                run(lb.SumRows(dy, db, domain))
            begin = end
        if self.residual is not None:
            for launch in gradients.into(dout, self.residual):
                run(launch)

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """A multiply and an add a weight and row; every weight read once."""
        x = self.x if self.x is not None else self.xq
        k, n = (x.width if x is not None else 0), self.out.width
        read = sum(matrix_bytes(w) for w in self.w) + rows * k * (F32 if self.xq is None else 1)
        return Cost(2 * rows * n * k, read, rows * n * F32)


@dataclass(frozen=True, eq=False, slots=True)
class Gated(Node):
    """out (rows, n) = activation(x[:, :n]) * x[:, n:] (arXiv:2002.05202)."""

    CHEAP: ClassVar[bool] = True

    x: Tensor
    out: Tensor
    activation: Activation
    quantized: Tensor | None = None

    @staticmethod
    def shape(x: Shape) -> Shape:
        """(rows, 2 n) -> (rows, n)."""
        same("width modulo 2", int(x[1]) % 2, 0)
        return x[0], int(x[1]) // 2

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        q = values.quantized(self.quantized) if self.quantized is not None else None
        run(la.Gated(values.rows(self.x), values.rows(self.out), self.activation, q, self.x.domain))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """One launch."""
        if dx := gradients.rows(self.x):
            x, dy = values.rows(self.x), gradients.of(self.out)
            run(lb.GatedGradient(x, dy, dx, self.activation, self.x.domain))

    @property
    def same_gradient(self) -> dict[Tensor, Tensor]:
        """int8 of out stands for out."""
        return {self.quantized: self.out} if self.quantized is not None else {}

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """About 20 operations for the exponential of an element."""
        n = self.out.width
        return Cost(22 * rows * n, 2 * rows * n * F32, rows * n * F32)


@dataclass(frozen=True, eq=False, slots=True)
class Add(Node):
    """out = a + b."""

    a: Tensor
    b: Tensor
    out: Tensor

    @staticmethod
    def shape(a: Shape, b: Shape) -> Shape:
        """Two equal shapes -> the same."""
        same("rows", a[0], b[0])
        same("width", a[1], b[1])
        return a

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        run(la.Add(values.rows(self.a), values.rows(self.b), values.rows(self.out), self.a.domain))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """da += dout, db += dout."""
        for part in (self.a, self.b):
            for launch in gradients.into(gradients.of(self.out), part):
                run(launch)

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """One sum an element."""
        n = self.out.width
        return Cost(rows * n, 2 * rows * n * F32, rows * n * F32)


@dataclass(frozen=True, eq=False, slots=True)
class Select(Node):
    """out = the rows of x whose logits are needed, so that the head is computed for no other."""

    x: Tensor
    out: Tensor

    @staticmethod
    def shape(x: Shape) -> Shape:
        """(rows, n) -> (logit rows, n)."""
        same("rows", x[0], Domain.ROWS)
        return Domain.LOGIT_ROWS, x[1]

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        run(la.Select(values.rows(self.x), values.rows(self.out)))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """One launch."""
        if dx := gradients.rows(self.x):
            run(lb.SelectGradient(gradients.of(self.out), dx))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """A copy."""
        return Cost(0, rows * self.x.width * F32, rows * self.x.width * F32)


@dataclass(frozen=True, eq=False, slots=True)
class Softcap(Node):
    """out = cap tanh(x / cap)."""

    x: Tensor
    out: Tensor
    cap: float

    @staticmethod
    def shape(x: Shape) -> Shape:
        """Any -> the same."""
        return x

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        run(la.Softcap(values.rows(self.x), values.rows(self.out), self.cap, self.x.domain))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """One launch."""
        if dx := gradients.rows(self.x):
            y, dy = values.rows(self.out), gradients.of(self.out)
            run(lb.SoftcapGradient(y, dy, dx, self.cap, self.x.domain))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """About 25 operations for the tanh of an element."""
        n = self.out.width
        return Cost(25 * rows * n, rows * n * F32, rows * n * F32)


__all__ = [
    "Add",
    "Append",
    "Attention",
    "CrossEntropy",
    "Embed",
    "Gated",
    "Linear",
    "LoraDown",
    "LoraUp",
    "Quantize",
    "RmsNorm",
    "Rope",
    "Select",
    "Softcap",
]

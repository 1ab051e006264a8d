"""The operations over images, each on one screen: shape rule, forward, backward, cost. Formulas and
orders of sums: native/rebar_image.h.

A row is an image: height x width x channels values, channels innermost. To reshape or flatten one
is to read the same row by other sizes (graph/image.py): no node, no copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rebar.graph.gradients import Gradients
from rebar.graph.node import Cost, Node, Record, Values
from rebar.graph.tensor import Shape, Tensor, same
from rebar.hal import Domain
from rebar.hal import launches_image as li
from rebar.hal.launches_image import PoolKind, Window

F32 = 4  # bytes
MOST_GROUPS = 32


def groups_of(channels: int) -> int:
    """min(32, channels), or as many fewer as it takes to divide the channels."""
    return max(g for g in range(1, min(MOST_GROUPS, channels) + 1) if channels % g == 0)


@dataclass(frozen=True, eq=False, slots=True)
class Conv2d(Node):
    """out (images, positions * n) = every window of x times w (n, window's inputs) + bias."""

    x: Tensor
    w: Tensor
    out: Tensor
    window: Window
    bias: Tensor | None = None

    @staticmethod
    def shape(x: Shape, w: Shape, window: Window, bias: Shape | None = None) -> Shape:
        """(images, height * width * channels), (n, inputs) -> (images, positions * n)."""
        same("rows", x[0], Domain.ROWS)
        same("values of an image", x[1], window.values)
        same("inputs of a window", w[1], window.inputs)
        same("n of bias", w[0], bias[0] if bias is not None else None)
        return x[0], window.positions * int(w[0])

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        bias = values.vector(self.bias) if self.bias is not None else None
        w, x, y = values.matrix(self.w), values.rows(self.x), values.rows(self.out)
        run(li.Conv(w, x, y, self.window, bias))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """dx += dout back through w, dw += dout times the windows of x, dbias += sum of dout."""
        dy = gradients.of(self.out)
        if dx := gradients.rows(self.x):
            run(li.ConvInputGradient(values.matrix(self.w), dy, dx, self.window))
        if dw := gradients.matrix(self.w):
            run(li.ConvWeightGradient(values.rows(self.x), dy, dw, self.window))
        if self.bias is not None and (db := gradients.vector(self.bias)):
            run(li.ChannelSums(dy, db))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """A multiply and an add a weight and position; weights are read once."""
        n, k = (int(size) for size in self.w.shape)
        read = (n * k + rows * self.window.values) * F32
        return Cost(2 * rows * self.window.positions * n * k, read, rows * self.out.width * F32)


@dataclass(frozen=True, eq=False, slots=True)
class Pool2d(Node):
    """out (images, positions * channels) = the largest value (MAX) or the mean (MEAN) of every
    window, a channel at a time. Padding is never the largest, and counts as zeros in a mean.
    """

    x: Tensor
    out: Tensor
    window: Window
    kind: PoolKind

    @staticmethod
    def shape(x: Shape, window: Window) -> Shape:
        """(images, height * width * channels) -> (images, positions * channels)."""
        same("rows", x[0], Domain.ROWS)
        same("values of an image", x[1], window.values)
        return x[0], window.positions * window.channels

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        run(li.Pool(values.rows(self.x), values.rows(self.out), self.window, self.kind))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """dout goes to the first of the largest, or to all of a window alike."""
        if dx := gradients.rows(self.x):
            dy = gradients.of(self.out)
            if self.kind is PoolKind.MAX:
                x, y = values.rows(self.x), values.rows(self.out)
                run(li.PoolGradient(dy, dx, self.window, self.kind, x, y))
            else:
                run(li.PoolGradient(dy, dx, self.window, self.kind))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """An operation a value under a window."""
        w = self.window
        return Cost(
            rows * w.positions * w.inputs, rows * w.values * F32, rows * self.out.width * F32
        )


@dataclass(frozen=True, eq=False, slots=True)
class GroupNorm(Node):
    """out = (x - mean) / sqrt(variance + eps) * weight + bias over groups of channels and all
    positions of an image. It depends on no other image, so serving and training agree to the bit.
    """

    OUTPUTS: ClassVar[tuple[str, ...]] = ("out", "stats")

    x: Tensor
    weight: Tensor
    bias: Tensor
    out: Tensor
    stats: Tensor
    groups: int
    eps: float

    @staticmethod
    def shape(x: Shape, weight: Shape, bias: Shape, groups: int) -> Shape:
        """(images, positions * channels), (channels,), (channels,) -> the first."""
        channels = int(same("channels", weight[0], bias[0]))
        same("rows", x[0], Domain.ROWS)
        same("width modulo channels", int(x[1]) % channels, 0)
        same("channels modulo groups", channels % groups, 0)
        return x

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        x, y, stats = (values.rows(t) for t in (self.x, self.out, self.stats))
        weight, bias = values.vector(self.weight), values.vector(self.bias)
        run(li.GroupNorm(x, weight, bias, y, stats, self.groups, self.eps))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """From the statistics of the forward: dx, and dweight and dbias together."""
        dy, x, stats = gradients.of(self.out), values.rows(self.x), values.rows(self.stats)
        if dx := gradients.rows(self.x):
            weight = values.vector(self.weight)
            run(li.GroupNormGradient(x, weight, stats, dy, dx, self.groups))
        dweight, dbias = gradients.vector(self.weight), gradients.vector(self.bias)
        if dweight is not None and dbias is not None:
            run(li.GroupNormWeightGradient(x, stats, dy, dweight, dbias, self.groups))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """Three passes: a sum, a square and a sum, two products and two sums an element."""
        n = rows * self.out.width
        return Cost(8 * n, 3 * n * F32, n * F32)


@dataclass(frozen=True, eq=False, slots=True)
class Relu(Node):
    """out = max(x, 0)."""

    x: Tensor
    out: Tensor

    @staticmethod
    def shape(x: Shape) -> Shape:
        """Rows -> the same."""
        same("rows", x[0], Domain.ROWS)
        return x

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        run(li.Relu(values.rows(self.x), values.rows(self.out)))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """dx += dout where out > 0."""
        if dx := gradients.rows(self.x):
            run(li.ReluGradient(values.rows(self.out), gradients.of(self.out), dx))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """One comparison an element."""
        n = rows * self.out.width
        return Cost(n, n * F32, n * F32)


@dataclass(frozen=True, eq=False, slots=True)
class Dropout(Node):
    """out = x / (1 - rate), or 0 for a share `rate` of the elements (Srivastava et al., JMLR 15,
    2014). Which ones is a function of key = (seed, step), salt, the row's position and the element.
    A graph that serves leaves the node out.
    """

    x: Tensor
    key: Tensor
    out: Tensor
    rate: float
    salt: int

    @staticmethod
    def shape(x: Shape, key: Shape) -> Shape:
        """Rows, (2,) -> the former."""
        same("rows", x[0], Domain.ROWS)
        same("numbers of the key", key[0], 2)
        return x

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        key = values.indices(self.key)
        run(li.Dropout(values.rows(self.x), values.rows(self.out), key, self.rate, self.salt))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """dx += dout of what stayed, scaled alike."""
        if dx := gradients.rows(self.x):
            dy, key = gradients.of(self.out), values.indices(self.key)
            run(li.Dropout(dy, dx, key, self.rate, self.salt, add=True))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """About 16 operations for an element's hash."""
        n = rows * self.out.width
        return Cost(16 * n, n * F32, n * F32)

"""Image: a tensor whose rows are images, and how a graph over images is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rebar.errors import ShapeError
from rebar.graph.builder import Builder
from rebar.graph.nodes_image import Conv2d, Dropout, GroupNorm, Pool2d, Relu, groups_of
from rebar.graph.tensor import Tensor
from rebar.hal.launches_image import PoolKind, Window


@dataclass(frozen=True, slots=True)
class Image:
    """tensor (images, height * width * channels), channels innermost."""

    tensor: Tensor
    height: int
    width: int
    channels: int

    def __post_init__(self) -> None:
        size = self.height, self.width, self.channels
        if self.tensor.width != self.height * self.width * self.channels:
            raise ShapeError(f"{self.tensor.name}: {self.tensor.width} values are no {size}")

    def reshaped(self, height: int, width: int, channels: int) -> Image:
        """The same values by other sizes: no copy."""
        return Image(self.tensor, height, width, channels)

    def flat(self) -> Tensor:
        """The values of an image as one row: no copy."""
        return self.tensor


class ImageBuilder(Builder):
    """A Builder that also has the operations over images. key: (seed, step) of dropout."""

    def conv(self, name: str, x: Image, w: Tensor, bias: Tensor | None, window: Window) -> Image:
        """Every window of x times w, plus bias."""
        bias_shape = bias.shape if bias is not None else None
        out = self._out(name, Conv2d.shape(x.tensor.shape, w.shape, window, bias_shape))
        self.nodes.append(Conv2d(out.name, x.tensor, w, out, window, bias))
        return Image(out, window.out_height, window.out_width, int(w.shape[0]))

    def pool(self, name: str, x: Image, window: Window, kind: PoolKind) -> Image:
        """The largest value or the mean of every window."""
        out = self._out(name, Pool2d.shape(x.tensor.shape, window))
        self.nodes.append(Pool2d(out.name, x.tensor, out, window, kind))
        return Image(out, window.out_height, window.out_width, x.channels)

    def global_mean(self, name: str, x: Image) -> Image:
        """The mean of each channel."""
        window = Window(x.height, x.width, x.channels, x.height, x.width)
        return self.pool(name, x, window, PoolKind.MEAN)

    def group_norm(self, name: str, x: Image, weight: Tensor, bias: Tensor, eps: float) -> Image:
        """x normalized over min(32, channels) groups of channels, as many as divide them."""
        groups = groups_of(x.channels)
        out = self._out(name, GroupNorm.shape(x.tensor.shape, weight.shape, bias.shape, groups))
        stats = self._out(f"{name}.stats", (x.tensor.domain, 2 * groups))
        self.nodes.append(GroupNorm(out.name, x.tensor, weight, bias, out, stats, groups, eps))
        return replace(x, tensor=out)

    def relu(self, name: str, x: Image) -> Image:
        """max(x, 0)."""
        out = self._out(name, Relu.shape(x.tensor.shape))
        self.nodes.append(Relu(out.name, x.tensor, out))
        return replace(x, tensor=out)

    def dropout(self, name: str, x: Tensor, key: Tensor, rate: float) -> Tensor:
        """A share `rate` of x becomes 0."""
        out = self._out(name, Dropout.shape(x.shape, key.shape))
        salt = sum(isinstance(node, Dropout) for node in self.nodes)
        self.nodes.append(Dropout(out.name, x, key, out, rate, salt))
        return out

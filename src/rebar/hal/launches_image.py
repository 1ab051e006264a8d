"""Launches over images, a dataclass each with its shape rule. A row of the step is an image: height
* width * channels values, channels innermost; every launch covers all rows.

The law: a launch of the way back adds into the gradients it names and overwrites nothing. Gradients
of weights are summed over images ascending, within one over positions of the output ascending, row
by row; padding reads as zero. Formulas and orders of sums: native/rebar_image.h.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum

from rebar.errors import ShapeError
from rebar.hal.arrays import Indices, Matrix, Rows, Vector, WeightFormat
from rebar.hal.launch_rules import same

MAX_SIDE = 1 << 14
"""Longest side of an image or a window: products of three sizes stay far below 2^63."""


@dataclass(frozen=True, slots=True)
class Window:
    """What slides over an image of height x width x channels. Sizes in pixels. Padding is the same
    on all sides and smaller than the window.
    """

    height: int
    width: int
    channels: int
    kernel_height: int
    kernel_width: int
    stride: int = 1
    padding: int = 0

    def __post_init__(self) -> None:
        sizes = astuple(self)
        if not all(1 <= size <= MAX_SIDE for size in sizes[:-1]) or self.padding < 0:
            raise ShapeError(f"window: sizes {sizes} are not all between 1 and {MAX_SIDE}")
        if self.padding >= min(self.kernel_height, self.kernel_width):
            raise ShapeError(f"window: a padding of {self.padding} is as wide as the window")
        if self.out_height < 1 or self.out_width < 1:
            raise ShapeError(
                f"window: {self.kernel_height} x {self.kernel_width} does not fit into an image of "
                f"{self.height} x {self.width} with a padding of {self.padding}"
            )

    @property
    def out_height(self) -> int:
        """Positions from top to bottom."""
        return (self.height + 2 * self.padding - self.kernel_height) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Positions from left to right."""
        return (self.width + 2 * self.padding - self.kernel_width) // self.stride + 1

    @property
    def positions(self) -> int:
        """Places of the window."""
        return self.out_height * self.out_width

    @property
    def values(self) -> int:
        """Values of an image."""
        return self.height * self.width * self.channels

    @property
    def inputs(self) -> int:
        """Values under the window."""
        return self.kernel_height * self.kernel_width * self.channels


class PoolKind(IntEnum):
    """What a window becomes."""

    MAX = 0
    MEAN = 1


def _float32(launch: str, w: Matrix) -> None:
    if w.format is not WeightFormat.F32:
        raise ShapeError(f"{launch}: weights of images are F32, not {w.format.name}")


@dataclass(frozen=True, slots=True)
class Conv:
    """y (images, positions * n) = the windows of x times w (n, inputs), plus bias."""

    w: Matrix
    x: Rows
    y: Rows
    window: Window
    bias: Vector | None = None

    def check(self) -> None:
        """Shape rule."""
        _float32("conv", self.w)
        same("conv", "inputs", self.w.k, self.window.inputs)
        same("conv", "values of an image", self.x.width, self.window.values)
        same("conv", "width", self.y.width, self.window.positions * self.w.n)
        same("conv", "n", self.w.n, self.bias.n if self.bias else None)


@dataclass(frozen=True, slots=True)
class ConvInputGradient:
    """dx += what each window gave: dy of its position times w."""

    w: Matrix
    dy: Rows
    dx: Rows
    window: Window

    def check(self) -> None:
        """Shape rule."""
        Conv(self.w, self.dx, self.dy, self.window).check()


@dataclass(frozen=True, slots=True)
class ConvWeightGradient:
    """dw (n, inputs) += dy of each position times the window's x. dw is F32, packed."""

    x: Rows
    dy: Rows
    dw: Matrix
    window: Window

    def check(self) -> None:
        """Shape rule."""
        Conv(self.dw, self.x, self.dy, self.window).check()


@dataclass(frozen=True, slots=True)
class ChannelSums:
    """db (n,) += dy (images, positions * n), summed over images and positions."""

    dy: Rows
    db: Vector

    def check(self) -> None:
        """Shape rule."""
        same("channel_sums", "width modulo n", self.dy.width % self.db.n, 0)


@dataclass(frozen=True, slots=True)
class Pool:
    """y (images, positions * channels) = the largest value of each window and channel, or the mean
    over the window's area (padding counts as zeros there).
    """

    x: Rows
    y: Rows
    window: Window
    kind: PoolKind

    def check(self) -> None:
        """Shape rule."""
        same("pool", "values of an image", self.x.width, self.window.values)
        same("pool", "width", self.y.width, self.window.positions * self.window.channels)


@dataclass(frozen=True, slots=True)
class PoolGradient:
    """dx += dy, at the first of the largest values of a window or shared by all of it. x, y: what
    the largest was chosen from, and it; None for the mean.
    """

    dy: Rows
    dx: Rows
    window: Window
    kind: PoolKind
    x: Rows | None = None
    y: Rows | None = None

    def check(self) -> None:
        """Shape rule."""
        Pool(self.dx, self.dy, self.window, self.kind).check()
        same("pool_gradient", "x", self.dx.width, self.x.width if self.x else None)
        same("pool_gradient", "y", self.dy.width, self.y.width if self.y else None)
        if (self.kind is PoolKind.MAX) != (self.x is not None and self.y is not None):
            raise ShapeError("pool_gradient: the largest value needs x and y, the mean neither")


def _grouped(launch: str, values: int, channels: int, groups: int) -> None:
    same(launch, "width modulo channels", values % channels, 0)
    if not 1 <= groups <= channels or channels % groups:
        raise ShapeError(f"{launch}: {channels} channels do not make {groups} groups")


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """y = (x - mean) / sqrt(variance + eps) * weight + bias over groups of channels and all
    positions of an image (Wu & He, arXiv:1803.08494). weight, bias (channels,). stats (images, 2
    groups) = [means | 1 / sqrt(variance + eps)], for the way back.
    """

    x: Rows
    weight: Vector
    bias: Vector
    y: Rows
    stats: Rows
    groups: int
    eps: float

    def check(self) -> None:
        """Shape rule."""
        same("group_norm", "width", self.x.width, self.y.width)
        same("group_norm", "channels", self.weight.n, self.bias.n)
        same("group_norm", "stats", self.stats.width, 2 * self.groups)
        _grouped("group_norm", self.x.width, self.weight.n, self.groups)


@dataclass(frozen=True, slots=True)
class GroupNormGradient:
    """With h = (x - mean) s and g = dy weight: dx += s (g - mean(g) - h mean(g h)), means over the
    group.
    """

    x: Rows
    weight: Vector
    stats: Rows
    dy: Rows
    dx: Rows
    groups: int

    def check(self) -> None:
        """Shape rule."""
        same("group_norm_gradient", "width", self.x.width, self.dy.width, self.dx.width)
        same("group_norm_gradient", "stats", self.stats.width, 2 * self.groups)
        _grouped("group_norm_gradient", self.x.width, self.weight.n, self.groups)


@dataclass(frozen=True, slots=True)
class GroupNormWeightGradient:
    """dweight += dy h, dbias += dy, summed over images and positions."""

    x: Rows
    stats: Rows
    dy: Rows
    dweight: Vector
    dbias: Vector
    groups: int

    def check(self) -> None:
        """Shape rule."""
        same("group_norm_weight_gradient", "width", self.x.width, self.dy.width)
        same("group_norm_weight_gradient", "channels", self.dweight.n, self.dbias.n)
        same("group_norm_weight_gradient", "stats", self.stats.width, 2 * self.groups)
        _grouped("group_norm_weight_gradient", self.x.width, self.dweight.n, self.groups)


@dataclass(frozen=True, slots=True)
class Relu:
    """y = max(x, 0); NaN stays NaN."""

    x: Rows
    y: Rows

    def check(self) -> None:
        """Shape rule."""
        same("relu", "width", self.x.width, self.y.width)


@dataclass(frozen=True, slots=True)
class ReluGradient:
    """dx += dy where y > 0."""

    y: Rows
    dy: Rows
    dx: Rows

    def check(self) -> None:
        """Shape rule."""
        same("relu_gradient", "width", self.y.width, self.dy.width, self.dx.width)


@dataclass(frozen=True, slots=True)
class Dropout:
    """y = x / (1 - rate) or, for a share `rate` of all elements, 0 (Srivastava et al., 2014).

    Which ones is a function of key = [seed, step] (read when the launch runs), salt (a number a
    node), the row's position in the step and the element: no state, and the same bits however the
    rows of a window are cut into steps. add: y += what y would be; the way back.
    """

    x: Rows
    y: Rows
    key: Indices
    rate: float
    salt: int = 0
    add: bool = False

    def check(self) -> None:
        """Shape rule."""
        same("dropout", "width", self.x.width, self.y.width)
        same("dropout", "key", self.key.n, 2)
        if not 0.0 <= self.rate < 1.0 or not 0 <= self.salt < 1 << 31:
            raise ShapeError(f"dropout: a rate of {self.rate} is not in 0..1, 1 left out")

    @property
    def threshold(self) -> int:
        """Hashes of 32 bits from here on stay."""
        return min(round(self.rate * 2.0**32), 2**32 - 1)

    @property
    def scale(self) -> float:
        """Keeps the mean."""
        return 1.0 / (1.0 - self.rate)


ImageLaunch = (
    Conv
    | ConvInputGradient
    | ConvWeightGradient
    | ChannelSums
    | Pool
    | PoolGradient
    | GroupNorm
    | GroupNormGradient
    | GroupNormWeightGradient
    | Relu
    | ReluGradient
    | Dropout
)

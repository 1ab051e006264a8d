"""A small convolutional network that says what is on an image, read top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rebar.errors import ShapeError
from rebar.graph.graph import Graph
from rebar.graph.image import Image, ImageBuilder
from rebar.graph.tensor import Tensor
from rebar.hal import Domain, WeightFormat
from rebar.hal.launches_image import PoolKind, Window

KERNEL = 3  # pixels of a convolution's window on each side
POOL = 2
NORM_EPS = 1e-5
MAX_PIXELS = 1 << 20
"""Of an image: what a request may ask to be laid out."""


@dataclass(frozen=True, slots=True)
class ConvNetConfig:
    """Images of height x width x channels (1 gray, 3 colours), as many answers as `labels`.

    stages: channels of each stage; a stage is two convolutions of 3 x 3, each with GroupNorm and
    ReLU, and halves the sides behind it while they are even, but for the last, whose channels'
    means go to the linear classifier. dropout: share of them that training drops.
    """

    height: int
    width: int
    channels: int
    labels: tuple[str, ...]
    stages: tuple[int, ...] = (32, 64)
    dropout: float = 0.1

    def __post_init__(self) -> None:
        sizes = (self.height, self.width, *self.stages)
        if not self.stages or not all(1 <= size <= 4096 for size in sizes):
            raise ShapeError(f"a network of sizes {sizes} cannot be; give 1 to 4096.")
        if self.channels not in (1, 3) or self.height * self.width > MAX_PIXELS:
            raise ShapeError(
                f"images of {self.height} x {self.width} x {self.channels} cannot be; give 1 or 3 "
                f"channels and at most {MAX_PIXELS:,} pixels."
            )
        if len(self.labels) < 2 or len(set(self.labels)) != len(self.labels):
            raise ShapeError("a classifier needs two or more labels, each with a name of its own.")
        if not 0.0 <= self.dropout < 1.0:
            raise ShapeError(f"a dropout of {self.dropout} is no share below 1.")

    @property
    def values(self) -> int:
        """Values of an image."""
        return self.height * self.width * self.channels


def tensor_shapes(c: ConvNetConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor in the order of its use: matrices (n, inputs), where the inputs of a convolution
    are (ky, kx, channel), and vectors (n,).
    """
    channels = c.channels
    for i, n in enumerate(c.stages):
        for j in range(2):
            yield f"stages.{i}.conv{j}.weight", (n, KERNEL * KERNEL * channels)
            yield f"stages.{i}.norm{j}.weight", (n,)
            yield f"stages.{i}.norm{j}.bias", (n,)
            channels = n
    yield "head.weight", (len(c.labels), channels)
    yield "head.bias", (len(c.labels),)


def weight_tensors(c: ConvNetConfig) -> dict[str, Tensor]:
    """A tensor a weight, for somebody to bind."""
    return {
        name: Tensor(name, shape, WeightFormat.F32 if len(shape) == 2 else "f32")
        for name, shape in tensor_shapes(c)
    }


@dataclass(frozen=True, slots=True)
class ConvNet:
    """The graph, and the tensors its user binds or reads. key: (seed, step) of dropout; None in a
    graph that serves.
    """

    graph: Graph
    images: Tensor
    logits: Tensor
    key: Tensor | None


def build_convnet(c: ConvNetConfig, w: Mapping[str, Tensor], *, training: bool = False) -> ConvNet:
    """The graph over rows that are images, with values near -1 .. 1."""
    g = ImageBuilder()
    images = Tensor("images", (Domain.ROWS, c.values))
    x = Image(images, c.height, c.width, c.channels)
    for i in range(len(c.stages)):
        g.scope = f"stages.{i}."
        x = stage(g, x, {name[len(g.scope) :]: t for name, t in w.items() if name.startswith(g.scope)})
        if i + 1 < len(c.stages) and x.height % POOL == 0 and x.width % POOL == 0:
            window = Window(x.height, x.width, x.channels, POOL, POOL, stride=POOL)
            x = g.pool("pool", x, window, PoolKind.MAX)
    g.scope = ""
    features = g.global_mean("means", x).flat()
    key = Tensor("dropout key", (2,), "i32") if training and c.dropout else None
    if key is not None:
        features = g.dropout("dropout", features, key, c.dropout)
    logits = g.linear("logits", features, (w["head.weight"],), (w["head.bias"],))
    return ConvNet(g.graph(logits), images, logits, key)


def stage(g: ImageBuilder, x: Image, w: Mapping[str, Tensor]) -> Image:
    """Two convolutions, each with GroupNorm, whose bias is theirs too, and ReLU."""
    for j in range(2):
        window = Window(x.height, x.width, x.channels, KERNEL, KERNEL, padding=KERNEL // 2)
        x = g.conv(f"conv{j}", x, w[f"conv{j}.weight"], None, window)
        norm = (w[f"norm{j}.weight"], w[f"norm{j}.bias"], NORM_EPS)
        x = g.relu(f"relu{j}", g.group_norm(f"norm{j}", x, *norm))
    return x

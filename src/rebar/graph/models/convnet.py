"""A small convolutional network that says what is on an image, read top to bottom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rebar.graph.graph import Graph
from rebar.graph.image import Image, ImageBuilder
from rebar.graph.models.image_config import KERNEL, ConvNetConfig, tensor_shapes
from rebar.graph.tensor import Tensor
from rebar.hal import Domain, WeightFormat
from rebar.hal.launches_image import PoolKind, Window

POOL = 2
NORM_EPS = 1e-5


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
        x = stage(
            g, x, {name[len(g.scope) :]: t for name, t in w.items() if name.startswith(g.scope)}
        )
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

"""What an image classifier is. A config is read from a model file and never changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rebar.errors import ShapeError

KERNEL = 3  # pixels of a convolution's window on each side
MAX_PIXELS = 1 << 20
"""Of an image: what a request may ask to be laid out."""


@dataclass(frozen=True, slots=True)
class ConvNetConfig:
    """Images of height x width x channels (1 gray, 3 colours), as many answers as `labels`.

    stages: channels of each stage; a stage is two convolutions of 3 x 3, each with GroupNorm and
    ReLU, and halves the sides behind it while they are even, but for the last, whose channels'
    means go to the linear classifier. dropout: share of them that training drops. low, high: what
    the pixels 0 and 255 become.
    """

    height: int
    width: int
    channels: int
    labels: tuple[str, ...]
    stages: tuple[int, ...] = (32, 64)
    dropout: float = 0.1
    low: float = -1.0
    high: float = 1.0

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
        if not -1000.0 <= self.low < self.high <= 1000.0:
            raise ShapeError(f"pixels of {self.low} to {self.high} cannot be.")

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

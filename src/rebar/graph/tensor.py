"""Tensor: a named value of a graph, with a shape but no memory. Memory comes with a plan
(graph/plan.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rebar.errors import ShapeError
from rebar.hal import Domain, WeightFormat

Size = int | Domain  # Domain: as many as the step has rows (or rows with logits)
Shape = tuple[Size, ...]
# f32: activations, vectors, tables. q8_16, q8_32: int8 activations, a scale per 16 or 32 inputs.
# kv: a layer's cache. order: no bytes, only "comes after". lora: a table of adapters. i32: ids.
DType = WeightFormat | Literal["f32", "q8_16", "q8_32", "kv", "order", "lora", "i32"]
GROUPS: dict[DType, Literal[16, 32]] = {"q8_16": 16, "q8_32": 32}  # inputs a scale


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value: activations (Domain, width), a matrix (n, k), a vector (n,), a table, a cache.

    A slice has a `base` and the columns of it that it shows.
    """

    name: str
    shape: Shape
    dtype: DType = "f32"
    base: Tensor | None = None
    begin: int = 0

    @property
    def width(self) -> int:
        """Columns."""
        size = self.shape[-1]
        if isinstance(size, Domain):
            raise ShapeError(f"{self.name} has no fixed width")
        return size

    @property
    def domain(self) -> Domain:
        """Which rows an activation has."""
        size = self.shape[0]
        if not isinstance(size, Domain):
            raise ShapeError(f"{self.name} {self.shape} has no rows of a step")
        return size

    @property
    def format(self) -> WeightFormat:
        """The format of a matrix."""
        if not isinstance(self.dtype, WeightFormat):
            raise ShapeError(f"{self.name} of {self.dtype} is no matrix")
        return self.dtype

    @property
    def root(self) -> Tensor:
        """The tensor whose memory this one lies in."""
        return self if self.base is None else self.base.root

    def columns(self, begin: int, end: int) -> Tensor:
        """Columns begin..end-1, over the same memory."""
        if not 0 <= begin < end <= self.width:
            raise ShapeError(f"columns {begin}..{end} of {self.name} with {self.width}")
        return Tensor(
            f"{self.name}[{begin}:{end}]", (self.shape[0], end - begin), self.dtype, self, begin
        )


def same(what: str, *sizes: Size | None) -> Size:
    """The one value of all given sizes; ShapeError naming the size otherwise."""
    given = [size for size in sizes if size is not None]
    if any(size is not given[0] and size != given[0] for size in given):
        raise ShapeError(f"{what} differs: {', '.join(map(str, given))}")
    return given[0]

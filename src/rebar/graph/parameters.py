"""Parameters: all values that learn, their gradients and the optimizer's states, in one pool.

The law: four flat float32 arrays of one layout, so that an optimizer is element-wise over flat
memory. A matrix lies in it packed as kernels read it (native/rebar.h, F32); every parameter begins
at a multiple of 16 values, and what fills the gaps is zero in all four and stays so. Those whose
values decay come first. Names are the tensor names of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.errors import ShapeError
from rebar.graph.weights.pack import TILE_ROWS
from rebar.hal import Matrix, Pool, Vector, WeightFormat, aligned

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ParameterShape:
    """A parameter to be: (n, k) or (n,)."""

    name: str
    shape: tuple[int, ...]
    decay: bool

    @property
    def size(self) -> int:
        """Values it takes, packed and rounded up."""
        if len(self.shape) == 2:
            return int(_native.packed_nbytes(int(WeightFormat.F32), *self.shape)) // 4
        return aligned(self.shape[0], TILE_ROWS)


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A value that learns and its gradient, over the memory of `Parameters`."""

    name: str
    value: Matrix | Vector
    gradient: Matrix | Vector
    decay: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, k) or (n,)."""
        return shape_of(self.value)


class Parameters:
    """Built from shapes; values are zero until somebody writes them.

    values, gradients, m, v: float32 (size,); memory that is not written costs none.
    """

    def __init__(self, pool: Pool, shapes: Sequence[ParameterShape]) -> None:
        ordered = sorted(shapes, key=lambda s: not s.decay)
        self.size = sum(s.size for s in ordered)
        whats = ("parameters", "gradients", "first moments", "second moments")
        self.values, self.gradients, self.m, self.v = (self._flat(pool, what) for what in whats)
        self._places: dict[str, tuple[int, ParameterShape]] = {}
        at = 0
        for shape in ordered:
            if shape.name in self._places:
                raise ShapeError(f"two parameters are called {shape.name}")
            self._places[shape.name] = at, shape
            at += shape.size
        self._parameters = {name: self._parameter(name) for name in self._places}

    def _flat(self, pool: Pool, what: str) -> F32:
        block = pool.allocate(4 * self.size, what)
        flat: F32 = block.bytes()[: 4 * self.size].view(np.float32)
        if not block.fresh:  # else it is zero, and to write that would cost the memory already
            flat[:] = 0
        return flat

    def _parameter(self, name: str) -> Parameter:
        shape = self._places[name][1]
        return Parameter(name, *self.joined([name]), shape.decay)

    def joined(self, names: Sequence[str]) -> tuple[Matrix | Vector, Matrix | Vector]:
        """Value and gradient of neighbours as one: matrices of one k whose n are whole tiles but
        for the last, or vectors alike. ShapeError when they are no neighbours.
        """
        begin, end = self._places[names[0]][0], self._places[names[0]][0]
        for name in names:
            at, shape = self._places[name]
            if at != end:
                raise ShapeError(f"{name} does not lie right behind {names[0]}")
            end = at + shape.size
        shapes = [self._places[name][1].shape for name in names]
        n = sum(s[0] for s in shapes)
        whole = (n, *shapes[0][1:])
        return view(self.values, begin, whole), view(self.gradients, begin, whole)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._parameters.values())

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of memory."""
        return tuple(self._parameters)

    @property
    def count(self) -> int:
        """Numbers that learn, gaps left out."""
        return sum(int(np.prod(p.shape)) for p in self)

    def zero_gradients(self) -> None:
        """Begins a window."""
        self.gradients[:] = 0

    @staticmethod
    def nbytes(shapes: Sequence[ParameterShape]) -> int:
        """Bytes of a pool that holds them."""
        return 4 * aligned(4 * sum(s.size for s in shapes))


def view(flat: F32, begin: int, shape: tuple[int, ...]) -> Matrix | Vector:
    """The operand that begins at a place of a flat array."""
    if len(shape) == 1:
        return Vector(flat[begin : begin + shape[0]])
    n, k = shape
    size = int(_native.packed_nbytes(int(WeightFormat.F32), n, k)) // 4
    return Matrix(flat[begin : begin + size].view(np.uint8), WeightFormat.F32, n, k)


def matrix(value: Matrix | Vector) -> Matrix:
    """An operand that is known to be a matrix, as those of adapters are."""
    assert isinstance(value, Matrix)
    return value


def shape_of(value: Matrix | Vector) -> tuple[int, ...]:
    """(n, k) or (n,)."""
    return (value.n, value.k) if isinstance(value, Matrix) else (value.n,)


def dense(value: Matrix | Vector) -> F32:
    """A copy as (n, k) or (n,)."""
    if isinstance(value, Vector):
        return value.data.copy()
    return _native.unpack(int(value.format), value.data, value.n, value.k)


def fill(value: Matrix | Vector, numbers: F32, threads: int = 1) -> None:
    """Writes numbers of its shape."""
    if numbers.shape != shape_of(value):
        raise ShapeError(f"{numbers.shape} numbers for a parameter of {shape_of(value)}")
    numbers = np.ascontiguousarray(numbers, dtype=np.float32)
    if isinstance(value, Vector):
        value.data[:] = numbers
    else:
        stored = numbers.view(np.uint8).reshape(-1)
        _native.pack(int(WeightFormat.F32), stored, value.n, value.k, None, value.data, threads)

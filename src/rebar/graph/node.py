"""Node: an operation with a shape rule, a forward, a backward slot and a cost. One class per
operation in graph/nodes.py.

A node knows tensors by name and shape. It knows nothing of devices, batches, requests or its
neighbours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import ClassVar, Literal, TypeVar

from rebar.errors import ShapeError
from rebar.graph.gradients import Gradients
from rebar.graph.tensor import Tensor
from rebar.hal import (
    Indices,
    KVStorage,
    Launch,
    LoraTable,
    Matrix,
    Operand,
    QuantizedRows,
    Rows,
    Step,
    Vector,
)

Role = Literal["input", "output", "room"]
Kind = TypeVar("Kind", Rows, QuantizedRows, Matrix, Vector, KVStorage, Indices, LoraTable)


@dataclass(frozen=True, slots=True)
class HostCall:
    """Work of Python between launches: what a node written in NumPy records."""

    name: str
    run: Callable[[Step], None]


Record = Callable[[Launch | HostCall], None]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a node has to do for one step: arithmetic operations, bytes read and written."""

    operations: int = 0
    read: int = 0
    written: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.operations + other.operations, self.read + other.read, self.written + other.written
        )


class Values:
    """Memory of tensors: what a plan placed and what the caller bound."""

    def __init__(self, operands: dict[Tensor, Operand]) -> None:
        self._operands = operands

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.root in self._operands

    def _get(self, tensor: Tensor, kind: type[Kind]) -> Kind:
        operand = self._operands.get(tensor)
        if not isinstance(operand, kind):
            found = "nothing" if operand is None else type(operand).__name__
            raise ShapeError(f"{tensor.name} should be bound to {kind.__name__}, it has {found}")
        return operand

    def rows(self, tensor: Tensor) -> Rows:
        """Float activations, or the column slice that the tensor is."""
        if tensor.base is None:
            return self._get(tensor, Rows)
        return self.rows(tensor.base).columns(tensor.begin, tensor.begin + tensor.width)

    def quantized(self, tensor: Tensor) -> QuantizedRows:
        """int8 activations."""
        return self._get(tensor, QuantizedRows)

    def matrix(self, tensor: Tensor) -> Matrix:
        """Packed weights."""
        return self._get(tensor, Matrix)

    def vector(self, tensor: Tensor) -> Vector:
        """A float vector."""
        return self._get(tensor, Vector)

    def indices(self, tensor: Tensor) -> Indices:
        """Target ids."""
        return self._get(tensor, Indices)

    def storage(self, tensor: Tensor) -> KVStorage:
        """A layer's cache."""
        return self._get(tensor, KVStorage)

    def lora(self, tensor: Tensor) -> LoraTable:
        """Adapters of one product."""
        return self._get(tensor, LoraTable)


@dataclass(frozen=True, eq=False, slots=True)
class Node(ABC):
    """An operation in a graph. Fields that are tensors are its inputs, but for those named in
    OUTPUTS and BACK.
    """

    OUTPUTS: ClassVar[tuple[str, ...]] = ("out", "quantized", "work", "stored")
    # Fields with room that the way back alone needs.
    BACK: ClassVar[tuple[str, ...]] = ("parts",)
    # Whether the outputs cost so little that training may compute them a second time instead of
    # keeping them.
    CHEAP: ClassVar[bool] = False

    name: str

    @abstractmethod
    def forward(self, run: Record, values: Values) -> None:
        """Gives the node's launches to `run`, in order."""

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """Gives the launches of the way back to `run`: reads the gradients of the outputs, adds
        into those of the inputs (graph/gradients.py has the law). Called only when the gradient of
        an input is needed.
        """
        raise ShapeError(
            f"{self.name}: {type(self).__name__} has no way back. Freeze what is trained before "
            "it, or write its backward."
        )

    @property
    def same_gradient(self) -> dict[Tensor, Tensor]:
        """Outputs that stand for another tensor: whatever is added to their gradient is added to
        the other's.
        """
        return {}

    @property
    def gradients_together(self) -> tuple[Tensor, ...]:
        """Inputs whose gradients are made at once: all of them or none."""
        return ()

    @abstractmethod
    def cost(self, rows: int, positions: int = 0) -> Cost:
        """For a step of `rows` rows that look back at `positions` positions each."""

    def _tensors(self, role: Role) -> Iterator[Tensor]:
        for name in _fields(type(self), role):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, tuple):
                yield from (t for t in value if isinstance(t, Tensor))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors read, weights included."""
        return tuple(self._tensors("input"))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Tensors written."""
        return tuple(self._tensors("output"))

    @property
    def rooms(self) -> tuple[Tensor, ...]:
        """Tensors that the node's own way back writes and reads, and nobody else."""
        return tuple(self._tensors("room"))


@cache
def _fields(kind: type[Node], role: Role) -> tuple[str, ...]:
    """Fields of a node's class that may hold tensors of a role. Asked thousands of times while a
    graph is made, sorted and fused.
    """
    roles: dict[str, Role] = dict.fromkeys(kind.OUTPUTS, "output")
    roles.update(dict.fromkeys(kind.BACK, "room"))
    return tuple(f.name for f in fields(kind) if roles.get(f.name, "input") == role)

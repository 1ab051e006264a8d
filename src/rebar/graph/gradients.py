"""Gradients: where the gradient of each tensor lies, for those tensors whose gradient somebody
needs.

The law: a node reads the gradients of its outputs (`of`) and adds into those of its inputs (`rows`,
`matrix`, `vector`, `lora`), which are None where nobody needs them. Who owns a gradient zeroes it:
those of activations in the program itself, those of parameters once a window.
"""

from __future__ import annotations

from collections.abc import Mapping

from rebar.errors import ShapeError
from rebar.graph.tensor import Tensor
from rebar.hal import LoraTable, Matrix, Rows, Vector
from rebar.hal.launches_backward import AddInto

Trained = Matrix | Vector | LoraTable


class Gradients:
    """rows: of activations, by the tensor whose memory they lie in; parameters: of weights; same:
    tensors that stand for another (Node.same_gradient).
    """

    def __init__(
        self,
        rows: Mapping[Tensor, Rows],
        parameters: Mapping[Tensor, Trained],
        same: Mapping[Tensor, Tensor],
    ) -> None:
        self._rows = rows
        self._parameters = parameters
        self._same = same

    def rows(self, tensor: Tensor) -> Rows | None:
        """Of an activation, or of the column slice that the tensor is."""
        if tensor in self._same:
            return self.rows(self._same[tensor])
        if tensor.base is None:
            return self._rows.get(tensor)
        whole = self.rows(tensor.base)
        return whole and whole.columns(tensor.begin, tensor.begin + tensor.width)

    def of(self, tensor: Tensor) -> Rows:
        """Of a node's output, to read."""
        found = self.rows(tensor)
        if found is None:
            raise ShapeError(f"{tensor.name} has no gradient; only its readers could have made one")
        return found

    def matrix(self, tensor: Tensor) -> Matrix | None:
        """Of packed weights."""
        found = self._parameters.get(tensor)
        return found if isinstance(found, Matrix) else None

    def vector(self, tensor: Tensor) -> Vector | None:
        """Of a vector."""
        found = self._parameters.get(tensor)
        return found if isinstance(found, Vector) else None

    def lora(self, tensor: Tensor) -> LoraTable | None:
        """Of a table of adapters: a table whose pairs are the gradients."""
        found = self._parameters.get(tensor)
        return found if isinstance(found, LoraTable) else None

    def into(self, dy: Rows, tensor: Tensor) -> list[AddInto]:
        """dy as it is added to the tensor's gradient: one launch, or none where nobody needs it or
        where both are one memory.
        """
        dx = self.rows(tensor)
        if dx is None or (dx.address == dy.address and dx.width == dy.width):
            return []
        return [AddInto(dy, dx, domain=tensor.domain)]

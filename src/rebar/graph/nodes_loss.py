"""What a model is trained by. Formula and order of sums: hal/launches_backward.py."""

from __future__ import annotations

from dataclasses import dataclass

from rebar.graph.gradients import Gradients
from rebar.graph.node import Cost, Node, Record, Values
from rebar.graph.tensor import Shape, Tensor
from rebar.hal import launches_backward as lb

F32 = 4  # bytes


@dataclass(frozen=True, eq=False, slots=True)
class CrossEntropy(Node):
    """out (rows, 1) = -log softmax(logits)[target], in nats; 0 where no target is asked.

    targets: int32 (rows,), bound by the caller, negative for "not asked". The gradient of out is
    the weight of each row's loss.
    """

    logits: Tensor
    targets: Tensor
    out: Tensor

    @staticmethod
    def shape(logits: Shape) -> Shape:
        """(rows, n) -> (rows, 1)."""
        return logits[0], 1

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        v, domain = values, self.logits.domain
        run(lb.CrossEntropy(v.rows(self.logits), v.indices(self.targets), v.rows(self.out), domain))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """dlogits += dout (softmax(logits) - one at the target)."""
        if dx := gradients.rows(self.logits):
            logits, targets = values.rows(self.logits), values.indices(self.targets)
            dy, domain = gradients.of(self.out), self.logits.domain
            run(lb.CrossEntropyGradient(logits, targets, dy, dx, domain))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """About 20 operations for the exponential of an element."""
        n = self.logits.width
        return Cost(22 * rows * n, rows * n * F32, rows * F32)

"""A node of one's own, written in NumPy: the example of the documentation runs as it stands, and
what a wrong one is told.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rebar.errors import InputError, ShapeError
from rebar.graph.graph_learner import GraphBuilder, GraphLearner
from rebar.graph.nodes_numpy import NumPyNode, check_slopes
from rebar.graph.tensor import Tensor

ROOT = Path(__file__).parents[2]
F32 = NDArray[np.float32]


def test_the_documented_example_learns() -> None:
    """Two rings, which no straight line parts."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "class Swish(NumPyNode)" in example
    names: dict[str, object] = {}
    exec(compile(example, "ARCHITECTURE.md", "exec"), names)
    losses = names["losses"]
    assert isinstance(losses, list)
    assert losses[0] > 0.5
    assert losses[-1] < 0.1
    beta = names["learner"].parameters["beta"]  # type: ignore[attr-defined]
    assert beta.value.data[0] != 1.0


class Twice(NumPyNode):
    def compute(self, *inputs: F32) -> F32:
        return 2 * inputs[0]


class Right(Twice):
    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        return (2 * upstream,)


class Wrong(Twice):
    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        return (3 * upstream,)


class Silent(Twice):
    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        return (None,)


class Many(Twice):
    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        return (upstream, upstream)


class Narrow(Twice):
    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        return (upstream[:, :1],)


class Widens(Twice):
    def compute(self, *inputs: F32) -> F32:
        return np.concatenate([inputs[0], inputs[0]], axis=1)


def learner(kind: type[NumPyNode], device: str = "ref") -> GraphLearner:
    """A product, the node, a loss."""
    g, random = GraphBuilder(), np.random.default_rng(0)
    x = g.input("x", 4)
    h = g.linear("h", x, (g.parameter("w", random.standard_normal((6, 4))),))
    loss = g.cross_entropy(g.numpy(kind, "own", h), g.targets())
    return GraphLearner(g, loss, max_rows=8, device=device, threads=1, memory=64 << 20)


INPUTS: dict[str, NDArray[np.generic]] = {"x": np.ones((5, 4), np.float32), "targets": np.arange(5)}


def test_check_slopes_tells_right_from_wrong() -> None:
    x = np.random.default_rng(1).standard_normal((3, 4))
    assert check_slopes(Right, x) < 1e-6
    assert check_slopes(Wrong, x) > 0.1


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Twice, "own: Twice has no gradient. Write it, or freeze"),
        (Silent, "own: no gradient for h, and something before it learns"),
        (Many, "own: 2 gradients for 1 inputs"),
        (Narrow, r"own: the gradient of h is \(5, 1\), it should be \(5, 6\)"),
        (Widens, r"own: own is \(5, 12\), it should be \(5, 6\)"),
    ],
)
def test_a_wrong_node_is_told_at_once(kind: type[NumPyNode], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        learner(kind).run(INPUTS, 1.0)


def test_what_a_node_reads_cannot_be_written() -> None:
    class Writes(Right):
        def compute(self, *inputs: F32) -> F32:
            inputs[0][:] = 0
            return inputs[0]

    with pytest.raises(ValueError, match="read-only"):
        learner(Writes).run(INPUTS, 1.0)


def test_inputs_are_named() -> None:
    with pytest.raises(InputError, match="Give targets, x, equally many rows, 8 at most"):
        learner(Right).run({"x": np.ones((9, 4))}, 1.0)


def test_matrices_learn_too() -> None:
    """A product in NumPy has the gradients of the built-in one."""

    class Product(NumPyNode):
        @staticmethod
        def shape(*reads: tuple[int, ...]) -> tuple[int, ...]:
            return reads[0][0], reads[1][0]

        def compute(self, *inputs: F32) -> F32:
            return inputs[0] @ inputs[1].T

        def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
            return upstream @ inputs[1], upstream.T @ inputs[0]

    def gradients(own: bool) -> F32:
        g, random = GraphBuilder(), np.random.default_rng(0)
        h = g.linear("h", g.input("x", 4), (g.parameter("v", random.standard_normal((6, 4))),))
        w = g.parameter("w", random.standard_normal((20, 6)))
        y: Tensor = g.numpy(Product, "y", h, w) if own else g.linear("y", h, (w,))
        model = GraphLearner(
            g, g.cross_entropy(y, g.targets()), max_rows=8, device="ref", memory=64 << 20
        )
        model.run(INPUTS, 1.0)
        return model.parameters.gradients.copy()

    # float32 sums of at most 20 terms, in another order
    assert np.abs(gradients(True) - gradients(False)).max() < 1e-5

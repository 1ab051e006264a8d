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
from rebar.graph.parameters import dense
from rebar.graph.tensor import Tensor

ROOT = Path(__file__).parents[2]
F32 = NDArray[np.float32]


def test_the_documented_example_learns() -> None:
    """Two rings, which no straight line parts."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
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


class Smoothed(NumPyNode):
    """A loss of one's own: cross entropy that expects a share of every answer."""

    share: float = 0.1

    @staticmethod
    def shape(*reads: tuple[int, ...]) -> tuple[int, ...]:
        return reads[0][0], 1

    def expected(self, x: F32, targets: F32) -> F32:
        due = np.full(x.shape, self.share / x.shape[1])
        due[np.arange(len(x)), targets] += 1 - self.share
        return due.astype(x.dtype)

    def compute(self, *inputs: F32) -> F32:
        x, targets = inputs
        loss: F32 = np.log(np.exp(x).sum(axis=1)) - (self.expected(x, targets) * x).sum(axis=1)
        return loss[:, None]

    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        x, targets = inputs
        chances = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
        return upstream * (chances - self.expected(x, targets)), None


def test_a_loss_of_one_s_own_reads_targets() -> None:
    """Beside the built-in one, which it is without smoothing."""
    x = np.random.default_rng(1).standard_normal((5, 4))
    assert check_slopes(Smoothed, x, np.array([0, 3, 1, 1, 2])) < 1e-6

    def gradients(own: bool) -> F32:
        g, random = GraphBuilder(), np.random.default_rng(0)
        h = g.linear("h", g.input("x", 4), (g.parameter("v", random.standard_normal((6, 4))),))
        h = g.linear("fixed", h, (g.constant("c", random.standard_normal((7, 6))),))
        targets = g.targets()
        loss = g.numpy(Plain, "loss", h, targets) if own else g.cross_entropy(h, targets)
        model = GraphLearner(g, loss, max_rows=8, device="ref", memory=64 << 20)
        assert model.parameters.names == ("v",)
        model.run(INPUTS, 1.0)
        return model.parameters.gradients.copy()

    class Plain(Smoothed):
        share = 0.0

    # float32 sums of 5 rows and 7 columns, in another order
    assert np.abs(gradients(True) - gradients(False)).max() < 1e-5


def test_an_embedding_is_given_its_ids() -> None:
    """They were zeros, whatever the run was about."""
    g, table = GraphBuilder(), np.random.default_rng(0).standard_normal((9, 4))
    loss = g.cross_entropy(g.embed(g.parameter("table", table), 2.0), g.targets())
    model = GraphLearner(g, loss, max_rows=4, device="ref", memory=64 << 20)
    found = model.run({"ids": np.array([8, 0, 8]), "targets": np.array([1, 2, -1])}, 1.0)
    logits = 2.0 * table[[8, 0]]
    due = np.log(np.exp(logits).sum(axis=1)) - logits[[0, 1], [1, 2]]
    assert abs(found.total - due.sum()) < 1e-6
    gradient = dense(model.parameters["table"].gradient)
    assert gradient[[8, 0]].all()
    assert not gradient[1:8].any()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": np.ones((9, 4))}, "Give targets, x, equally many rows, 8 at most"),
        ({"x": np.ones((5, 1)), "targets": np.arange(5)}, r"x is \(5, 1\); give it as \(5, 4\)"),
        ({"x": np.ones((2, 4)), "targets": np.array([0, 6])}, "from 0 to 6; 0 to 5 can be"),
    ],
)
def test_inputs_are_named(inputs: dict[str, NDArray[np.generic]], message: str) -> None:
    """One column was spread over four, and a target too large read what lies behind the logits."""
    with pytest.raises(InputError, match=message):
        learner(Right).run(inputs, 1.0)


def test_a_graph_that_cannot_learn_is_told() -> None:
    g = GraphBuilder()
    x, targets = g.input("x", 4), g.targets()
    with pytest.raises(ShapeError, match="nothing learns here: give the graph a parameter"):
        GraphLearner(g, g.cross_entropy(x, targets), max_rows=8, device="ref", memory=64 << 20)
    y = g.linear("y", x, (g.parameter("w", np.ones((3, 4))),))
    with pytest.raises(ShapeError, match=r"y .* is no loss; give one number a row"):
        GraphLearner(g, y, max_rows=8, device="ref", memory=64 << 20)

"""Nodes of one's own in a decoder that learns: behind a node and in its place."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rebar.errors import ShapeError
from rebar.graph.batch import Batch
from rebar.graph.learner import Learner, LearnerOptions, open_learner
from rebar.graph.lora.spec import LoraSpec
from rebar.graph.node import Node, Values
from rebar.graph.nodes_numpy import NumPyNode
from rebar.graph.own_nodes import OwnNodes
from rebar.graph.training import GradientObserver
from rebar.graph.weights import open_model
from tests.tiny import tiny_gguf

ROOT = Path(__file__).parents[2]
F32 = NDArray[np.float32]
SMALL = LearnerOptions(device="cpu", threads=1, max_rows=32, max_sequences=4, memory=1 << 30)
BATCH = Batch.of([5, 9, 3, 7, 7, 2, 11, 4], [8, 8, 1])


def learner(folder: Path, own: OwnNodes, types: str = "F32", **changes: object) -> Learner:
    model = open_model(tiny_gguf(folder, "llama", types, seed=1))  # type: ignore[arg-type]
    options = dataclasses.replace(SMALL, **changes)  # type: ignore[arg-type]
    return open_learner(model, options, own=own)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Quieter(NumPyNode):
    """y = x; the loss gains weight / 2 times the sum of x^2."""

    weight: float = 0.0

    def compute(self, *inputs: F32) -> F32:
        return inputs[0]

    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        return (upstream + np.float32(self.weight) * inputs[0],)


class Silu(NumPyNode):
    """The gated activation of the model, once more."""

    @staticmethod
    def shape(*reads: tuple[int, ...]) -> tuple[int, ...]:
        return reads[0][0], reads[0][1] // 2

    def compute(self, *inputs: F32) -> F32:
        a, b = np.split(inputs[0], 2, axis=1)
        out: F32 = a / (1 + np.exp(-a)) * b
        return out

    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        a, b = np.split(inputs[0], 2, axis=1)
        s = 1 / (1 + np.exp(-a))
        da = upstream * b * (s + a * s * (1 - s))
        return (np.concatenate([da, upstream * a * s], axis=1),)


class Norm(NumPyNode):
    """The model's norm, whose weight learns."""

    def unit(self, x: F32) -> tuple[F32, F32]:
        s: F32 = 1 / np.sqrt((x**2).mean(axis=1, keepdims=True) + np.float32(1e-5))
        return x * s, s

    def compute(self, *inputs: F32) -> F32:
        return self.unit(inputs[0])[0] * inputs[1]

    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        unit, s = self.unit(inputs[0])
        g = upstream * inputs[1]
        dx = s * (g - unit * (g * unit).mean(axis=1, keepdims=True))
        return dx, (upstream * unit).sum(axis=0)


class Keeps:
    """What a node makes, as an observer sees it."""

    def __init__(self, name: str) -> None:
        self.name, self.seen = name, np.zeros((0, 0), np.float32)

    def after_forward(self, node: Node, values: Values) -> None:
        if node.name == self.name:
            self.seen = values.rows(node.outputs[0]).data[: BATCH.rows].copy()

    def after_backward(self, node: Node, gradients: object) -> None:
        pass


def gradients(model: Learner, *observers: GradientObserver) -> F32:
    model.parameters.zero_gradients()
    model.run(BATCH, 1.0, list(observers))
    return model.parameters.gradients.copy()


@pytest.mark.parametrize(
    "name", ["layers.0.after_mlp", "layers.1.attention", "layers.0.qkv", "logits"]
)
def test_a_node_that_changes_nothing_changes_no_bit(tmp_path: Path, name: str) -> None:
    """Behind the state between layers, where only the rows with a loss go on, where columns are
    read, and before the loss; of quantized weights what reads it is rounded anew.
    """
    own, none = OwnNodes(after={name: Quieter}), OwnNodes()
    lora = {"mode": "lora", "lora": LoraSpec(2, 4.0, ("all-linear",))}
    for types, changes in (("F32", {}), ("Q8_0", lora)):
        models = [learner(tmp_path, each, types, **changes) for each in (own, none)]
        assert f"{name}.own" in [node.name for node in models[0].graph.order]
        assert models[0].run(BATCH, 1.0) == models[1].run(BATCH, 1.0)
        assert (models[0].parameters.gradients == models[1].parameters.gradients).all()


def test_a_node_that_regularizes_adds_its_slope(tmp_path: Path) -> None:
    """What it adds to the gradient is what a hook adds that was given the state."""
    name, weight = "layers.0.after_mlp", 0.25
    quiet = learner(tmp_path, OwnNodes(after={name: partial(Quieter, weight=weight)}))
    plain, state = learner(tmp_path, OwnNodes(), fused=False), Keeps(name)
    before = gradients(plain, state)
    plain.on_gradient(name, lambda gradient: gradient + np.float32(weight) * state.seen)
    assert (gradients(quiet) == gradients(plain)).all()
    assert (gradients(quiet) != before).any()
    assert "own node after layers.0.after_mlp" in quiet.settings


@pytest.mark.parametrize(("name", "own"), [("layers.1.gated", Silu), ("layers.0.mlp_norm", Norm)])
def test_a_node_instead_of_the_model_s_learns_as_it(
    tmp_path: Path, name: str, own: type[NumPyNode]
) -> None:
    """The same function in NumPy, its weights included: float32 sums in another order, some 100
    roundings of the largest element.
    """
    ours = learner(tmp_path, OwnNodes(instead={name: own}))
    theirs = learner(tmp_path, OwnNodes())
    got, want = gradients(ours), gradients(theirs)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    assert abs(ours.run(BATCH, 1.0).mean - theirs.run(BATCH, 1.0).mean) < 1e-5


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (OwnNodes(after={"layers.9.gated": Quieter}), r"no node layers\.9\.gated in the graph"),
        (
            OwnNodes(instead={"layers.0.gated": Quieter}),
            "makes rows x 256; it should make rows x 128",
        ),
        (OwnNodes(after={"layers.0.append": Quieter}), "layers.0.append makes nothing that a node"),
        (OwnNodes(instead={"layers.0.attention": Quieter}), "reads layers.0.cache of kv, which"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, own: OwnNodes, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        learner(tmp_path, own)


def test_the_documented_example_learns(tmp_path: Path) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert "OwnNodes(" in example
    names: dict[str, object] = {"path": tiny_gguf(tmp_path, "llama", "Q8_0", seed=1)}
    exec(compile(example, "ARCHITECTURE.md", "exec"), names)
    opened = names["learner"]
    assert isinstance(opened, Learner)
    assert opened.run(BATCH, 1.0).tokens == BATCH.tokens
    assert "layers.0.after_mlp.own" in [node.name for node in opened.graph.order]

"""Gradients looked at, changed and stopped on their way back: what a hook is called for, and how
often; and how what went wrong is named.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rebar.errors import InputError, ShapeError
from rebar.graph.backward import Scheduler
from rebar.graph.batch import Batch
from rebar.graph.builder import Builder
from rebar.graph.graph_learner import GraphBuilder, GraphLearner
from rebar.graph.learner import Learner, LearnerOptions, open_learner
from rebar.graph.lora.spec import LoraSpec
from rebar.graph.nodes_numpy import NumPyNode
from rebar.graph.tensor import Tensor
from rebar.graph.weights import open_model
from rebar.hal import Operand, Vector, WeightFormat
from tests.graph.harness import Call, matrix, storage
from tests.tiny import tiny_gguf

F32 = NDArray[np.float32]
SMALL = LearnerOptions(device="ref", max_rows=32, max_sequences=4, memory=1 << 30)
BATCH = Batch.of([5, 9, 3, 7, 7, 2])


def learner(folder: Path, types: str = "F32", **changes: object) -> Learner:
    model = open_model(tiny_gguf(folder, "llama", types, seed=1))  # type: ignore[arg-type]
    return open_learner(model, dataclasses.replace(SMALL, **changes))  # type: ignore[arg-type]


class Square(NumPyNode):
    def compute(self, *inputs: F32) -> F32:
        with np.errstate(over="ignore"):
            return inputs[0] ** 2

    def gradient(self, upstream: F32, out: F32, *inputs: F32) -> tuple[F32 | None, ...]:
        return (2 * inputs[0] * upstream,)


INPUTS: dict[str, NDArray[np.generic]] = {
    "x": np.random.default_rng(1).standard_normal((5, 4)),
    "targets": np.arange(5),
}


def two_ways() -> GraphLearner:
    """A product that reaches the loss by itself and squared."""
    g, random = GraphBuilder(), np.random.default_rng(0)
    h = g.linear("h", g.input("x", 4), (g.parameter("w", random.standard_normal((6, 4))),))
    loss = g.cross_entropy(g.add("sum", h, g.numpy(Square, "squared", h)), g.targets())
    return GraphLearner(g, loss, max_rows=8, device="ref", threads=1, memory=64 << 20)


def gradients(model: GraphLearner) -> F32:
    model.parameters.zero_gradients()
    model.run(INPUTS, 1.0)
    return model.parameters.gradients.copy()


def test_a_stop_cuts_one_way_and_leaves_the_other() -> None:
    """A gradient that is stopped is one that is zero; taken back, all is as it was."""
    model, other = two_ways(), two_ways()
    whole = gradients(model)
    model.stop("squared")
    other.on_gradient("squared", np.zeros_like)
    assert (gradients(model) == gradients(other)).all()
    assert (gradients(model) != whole).any()
    model.release("squared")
    assert (gradients(model) == whole).all()


def test_a_hook_gives_a_gradient_of_the_same_shape() -> None:
    """One number was spread over all rows, without a word."""
    model = two_ways()
    model.on_gradient("h", lambda gradient: gradient.sum(axis=0))
    with pytest.raises(ShapeError, match=r"hook of h gave \(6,\), its gradient is \(5, 6\)"):
        model.run(INPUTS, 1.0)
    with pytest.raises(InputError, match="within -1; give 0 or more"):
        model.clamp("h", -1.0)


def test_a_hook_that_a_stop_would_silence_is_told() -> None:
    """The stop was made, and the hook never called again."""
    model = two_ways()
    model.on_gradient("squared", lambda gradient: None)
    with pytest.raises(ShapeError, match=r"nobody needs the gradient of squared: .* release"):
        model.stop("squared")
    seen: list[F32] = []
    model.on_gradient("squared", lambda gradient: seen.append(gradient.copy()))
    model.run(INPUTS, 1.0)
    assert len(seen) == 1


@pytest.mark.parametrize("fused", [True, False])
def test_every_hook_of_a_gradient_is_called_once(tmp_path: Path, fused: bool) -> None:
    """Int8 rows stand for the float rows they were made of, so both names mean one gradient. Of two
    hooks by the two names one was forgotten; where the rounding is a node of its own, the other was
    called twice: before the gradient was whole, and after.
    """
    model = learner(tmp_path, "Q8_0", mode="lora", lora=LoraSpec(2, 4.0), fused=fused)
    called: list[str] = []
    for name in ("layers.1.mlp_norm", "layers.1.mlp_norm.q8_32"):
        model.on_gradient(name, lambda gradient, name=name: called.append(name))  # type: ignore[misc]
    model.run(BATCH, 1.0)
    assert sorted(called) == ["layers.1.mlp_norm", "layers.1.mlp_norm.q8_32"]


def test_a_gradient_that_nobody_goes_on_from_cannot_be_watched() -> None:
    """Where only the queries learn, attention makes the gradient of keys and values as well, and
    nobody reads it: a hook there was taken and never called.
    """
    g, call = Builder(), Call([(0, 4, [0])])
    learns, frozen = (Tensor(n, (8, 16), WeightFormat.F32) for n in ("learns", "frozen"))
    cache = Tensor("cache", (16, 1, 16), "kv")
    k = g.embed(frozen, 1.0)
    after = g.append(k, k, cache)
    out = g.attention(
        g.embed(learns, 1.0),
        cache,
        after,
        heads=1,
        max_positions=64,
        scale=1.0,
        window=None,
        softcap=None,
    )
    values = np.ones((8, 16), np.float32)
    bound: dict[Tensor, Operand] = {learns: matrix(values), frozen: matrix(values)}
    bound[cache] = storage(16, 1, 16)
    s = Scheduler(g.graph(out), out, call.limits(), bound, {learns: matrix(values)})
    assert after in s.needed
    assert after not in s.watched
    assert out in s.watched


def test_keys_beyond_f16_are_found_where_they_are_stored(tmp_path: Path) -> None:
    """The cache made infinity of them, and attention, which only read it, was blamed."""
    found = {}
    for kv in ("f16", "f32"):
        model = learner(tmp_path, kv=kv)
        norm = model.parameters["model.layers.1.input_layernorm.weight"].value
        assert isinstance(norm, Vector)
        norm.data[:] = 1e6
        found[kv] = model.find_explosion([BATCH], 1.0, step=3)
    assert found["f16"].node == "layers.1.q_rope_append"
    assert not np.isfinite(found["f16"].magnitude)
    assert "what it stores" in str(found["f16"])
    assert "--kv f32" in str(found["f16"])
    assert np.isfinite(found["f32"].magnitude)


def test_what_was_no_number_before_is_told() -> None:
    """A node is named; what it reads is, too, when no node made it. A learner for any graph had no
    search at all.
    """
    model, inputs = two_ways(), dict(INPUTS)
    inputs["x"] = np.full((5, 4), np.nan)
    found = model.find_explosion([inputs], 1.0, step=2)
    assert (found.node, found.step) == ("h", 2)
    assert "its output at node h has the norm nan" in str(found)
    assert "It reads x, which is no number already." in str(found)
    inputs["x"] = np.full((5, 4), 1e30)
    found = model.find_explosion([inputs], 1.0, step=2)
    assert found.node == "squared"
    assert "its output at node squared has the norm inf" in str(found)
    assert not model.parameters.gradients.any()

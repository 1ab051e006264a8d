"""Gradients against torch's autograd: single operations on random shapes, and the loss of a whole
real model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar import _native
from rebar.graph.batch import Batch
from rebar.graph.builder import Builder
from rebar.graph.learner import LearnerOptions, open_learner
from rebar.graph.parameters import dense
from rebar.graph.tensor import Tensor
from rebar.graph.weights import open_model
from rebar.hal import Activation, KVFormat, Operand, Rows, WeightFormat
from tests.goldens import golden, reference
from tests.graph import slopes
from tests.graph.harness import F32, Call, storage

pytestmark = pytest.mark.parity

EPS = float(np.finfo(np.float32).eps)
counts, widths = st.integers(1, 9), st.integers(1, 80)
some = settings(max_examples=25, deadline=None)


def draw(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def compare(
    build: Callable[[Builder, Mapping[str, Tensor]], Tensor],
    torch_build: Callable[[Any, Mapping[str, Any]], Any],
    values: Mapping[str, F32],
    rows: int,
    frozen: Mapping[Tensor, Operand] | None = None,
    call: Call | None = None,
    g: Builder | None = None,
) -> None:
    """Gradients of sum(out * weights) of every value, ours on the best kernels beside torch's in
    float64. "x" is the matrix that an Embed makes activations of.

    Each of ours is a chain of sums of at most rows * width products, which errs by as many eps of
    the sum of their magnitudes; 300 eps of the largest element is far below a wrong term.
    """
    import torch

    g = g or Builder()
    tensors = {
        name: Tensor(name, v.shape, WeightFormat.F32 if v.ndim == 2 else "f32")
        for name, v in values.items()
    }
    named = dict(tensors) | {"x": g.embed(tensors["x"], 1.0)}
    out = build(g, named)
    trained = {tensors[name]: v for name, v in values.items()}
    call = call or Call([(0, rows, [0])])
    model = slopes.opened(
        g.graph(out), out, trained, frozen or {}, call, f"cpu:{_native.best_isa()}:2"
    )
    weights = draw(99, rows, out.width)
    model.run(weights)
    theirs = {
        n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in values.items()
    }
    (torch_build(torch, theirs) * torch.tensor(weights)).sum().backward()
    for name, tensor in tensors.items():
        want = theirs[name].grad.numpy()
        got = dense(model.parameters[tensor.name].gradient)
        assert np.abs(got - want).max() <= 300 * EPS * max(np.abs(want).max(), 1e-2), name


@given(counts, widths, widths)
@some
def test_linear(rows: int, k: int, n: int) -> None:
    values = {"x": draw(1, rows, k), "w": draw(2, n, k), "b": draw(3, n)}
    compare(
        lambda g, t: g.linear("y", t["x"], (t["w"],), (t["b"],)),
        lambda torch, v: torch.nn.functional.linear(v["x"], v["w"], v["b"]),
        values,
        rows,
    )


@given(counts, st.integers(8, 80))
@some
def test_rms_norm(rows: int, n: int) -> None:
    """A norm of few values hardly bends: of one it is 1 or -1, and what is left of the gradient is
    the rounding of terms a thousand times as large (both in our case and in torch's float32).
    """
    values = {"x": draw(1, rows, n), "w": draw(2, n)}
    compare(
        lambda g, t: g.rms_norm("y", t["x"], t["w"], 1e-5),
        lambda torch, v: torch.nn.functional.rms_norm(v["x"], (n,), v["w"], 1e-5),
        values,
        rows,
    )


@given(counts, widths, st.sampled_from(list(Activation)))
@some
def test_gated(rows: int, n: int, activation: Activation) -> None:
    def theirs(torch: Any, v: Mapping[str, Any]) -> Any:
        f = torch.nn.functional
        gate, up = v["x"][:, :n], v["x"][:, n:]
        silu = activation is Activation.SILU
        return (f.silu(gate) if silu else f.gelu(gate, approximate="tanh")) * up

    values = {"x": draw(1, rows, 2 * n)}
    compare(lambda g, t: g.gated(t["x"], activation), theirs, values, rows)


@given(counts, widths)
@some
def test_softcap_and_add(rows: int, n: int) -> None:
    values = {"x": draw(1, rows, n)}
    compare(
        lambda g, t: g.softcap(g.add("sum", t["x"], t["x"]), 2.0),
        lambda torch, v: 2.0 * torch.tanh(v["x"]),
        values,
        rows,
    )


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.sampled_from([16, 32, 64]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from([0, 1, 5]),
)
@some
def test_attention(lengths: list[int], dim: int, kv_heads: int, shared: int, window: int) -> None:
    """Causal, within windows, several sequences; the cache in f32."""
    rows, heads = sum(lengths), kv_heads * shared
    q_width, kv = heads * dim, kv_heads * dim
    cache = Tensor("cache", (16, kv_heads, dim), "kv")

    def ours(g: Builder, t: Mapping[str, Tensor]) -> Tensor:
        q, k = t["x"].columns(0, q_width), t["x"].columns(q_width, q_width + kv)
        after = g.append(k, t["x"].columns(q_width + kv, q_width + 2 * kv), cache)
        limits = {"heads": heads, "max_positions": 64, "scale": dim**-0.5}
        return g.attention(q, cache, after, **limits, window=window or None, softcap=None)

    def theirs(torch: Any, v: Mapping[str, Any]) -> Any:
        found = []
        for part in torch.split(v["x"], lengths):
            n = len(part)
            q, k, w = torch.split(part, [q_width, kv, kv], dim=1)
            q = q.view(n, heads, dim).transpose(0, 1)
            k, w = (m.view(n, kv_heads, dim).transpose(0, 1) for m in (k, w))
            k, w = (m.repeat_interleave(shared, 0) for m in (k, w))
            back = torch.arange(n)[:, None] - torch.arange(n)[None, :]
            seen = (back >= 0) & ((back < window) if window else True)
            f = torch.nn.functional.scaled_dot_product_attention
            found.append(f(q, k, w, attn_mask=seen).transpose(0, 1).reshape(n, -1))
        return torch.cat(found)

    values = {"x": draw(1, rows, q_width + 2 * kv)}
    frozen = {cache: storage(16, kv_heads, dim, KVFormat.F32)}
    blocks, call = 0, []
    for n in lengths:
        used = -(-n // 16)
        call.append((0, n, list(range(blocks, blocks + used))))
        blocks += used
    compare(ours, theirs, values, rows, frozen, Call(call))


def test_rope() -> None:
    angles = draw(5, 64, 8).astype(np.float32)
    table = Tensor("table", (64, 16))
    values = {"x": draw(1, 7, 40)}
    frozen = {table: Rows(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))}

    def theirs(torch: Any, v: Mapping[str, Any]) -> Any:
        x = v["x"].view(7, 2, 20)
        turn = torch.tensor(angles[:7], dtype=torch.float64)[:, None]
        a, b = x[..., :8], x[..., 8:16]
        turned = [a * turn.cos() - b * turn.sin(), b * turn.cos() + a * turn.sin(), x[..., 16:]]
        return torch.cat(turned, dim=-1).reshape(7, 40)

    compare(lambda g, t: g.rope("y", t["x"], table, 2), theirs, values, 7, frozen)


@pytest.mark.parametrize("device", ["ref", "cpu"])
def test_the_loss_of_a_whole_model(smollm2_path: Path, device: str) -> None:
    """SmolLM2 with all its weights in float32, and a cache in float32, relative to the norm of
    torch's gradient: 5.4e-5 for the reference, 3.1e-6 for the kernels. As long as their products
    were single float32 chains, over up to 49,152 outputs, they were 2.7e-4 off. A parameter whose
    gradient is a small rest of large terms (norms) may be ten times further off.
    """
    bound = 1e-4
    import torch

    ids = golden.load("smollm2").ids[0]
    batch = Batch.of(ids[:48], ids[48:96])
    learner = open_learner(
        open_model(smollm2_path),
        LearnerOptions(kv="f32", max_rows=96, max_sequences=2, device=device),
    )
    loss = learner.run(batch, 1 / batch.tokens)
    theirs = reference.transformers_model(smollm2_path)
    their_ids = torch.tensor(ids[:96].reshape(2, 48).astype(np.int64))
    their_loss = theirs(their_ids, labels=their_ids).loss
    their_loss.backward()
    assert abs(loss.mean - their_loss.item()) < 1e-5 * their_loss.item()
    named = dict(theirs.named_parameters())
    assert set(learner.parameters.names) == set(named)
    squares, wrong = 0.0, 0.0
    for parameter in learner.parameters:
        want = named[parameter.name].grad.numpy()
        off = float(np.linalg.norm(dense(parameter.gradient) - want))
        assert off <= 10 * bound * float(np.linalg.norm(want)), parameter.name
        squares, wrong = squares + float(np.square(want).sum()), wrong + off * off
    error = float(np.sqrt(wrong / squares))
    print(f"relative error of the whole gradient: {error:.2e}")
    assert error <= bound

"""Gradients against torch's autograd: single operations on random shapes, and the loss of a whole
real model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar import _native
from rebar.graph.batch import Batch
from rebar.graph.builder import Builder
from rebar.graph.learner import LearnerOptions, open_learner
from rebar.graph.nodes_lora import adapters_shape
from rebar.graph.parameters import dense
from rebar.graph.tensor import Tensor
from rebar.graph.weights import WeightType, open_model
from rebar.hal import Activation, Domain, Indices, KVFormat, Rows, WeightFormat
from tests.goldens import golden, reference
from tests.graph import slopes
from tests.graph.harness import Call, matrix, packed, storage
from tests.parity.beside_torch import Named, Values, compare, draw
from tests.tiny.quantize import quantize

pytestmark = pytest.mark.parity

counts, widths = st.integers(1, 9), st.integers(1, 80)
some = settings(max_examples=25, deadline=None)


@given(st.lists(st.integers(0, 5), min_size=6, max_size=12), widths, widths)
@some
def test_embedding_and_a_tied_head(ids: list[int], k: int, others: int) -> None:
    """Ids that come twice add up, in the order of rows; the head adds to the same matrix."""
    rows = len(ids)
    values = {"x": draw(1, 6, k), "w": draw(2, others, k)}

    def ours(g: Builder, t: Named) -> Tensor:
        h = g.add("sum", t["x"], g.embed(t["x matrix"], -1.5))
        return g.linear("logits", h, (t["x matrix"], t["w"]))

    def theirs(torch: Any, v: Values) -> Any:
        h = v["x"][ids] * (1 - 1.5)
        return h @ torch.cat([v["x"], v["w"]]).T

    compare(ours, theirs, values, rows, call=Call([(0, rows, [0])], ids=ids))


@pytest.mark.parametrize("fused", [False, True])
@given(counts, widths, widths)
@some
def test_linear_and_a_residual(fused: bool, rows: int, k: int, n: int) -> None:
    values = {"x": draw(1, rows, k), "w": draw(2, n, k), "b": draw(3, n), "z": draw(4, n, k)}

    def ours(g: Builder, t: Named) -> Tensor:
        kept = g.linear("kept", t["x"], (t["z"],))
        return g.add("sum", kept, g.linear("y", t["x"], (t["w"],), (t["b"],)))

    def theirs(torch: Any, v: Values) -> Any:
        return torch.nn.functional.linear(v["x"], v["w"], v["b"]) + v["x"] @ v["z"].T

    compare(ours, theirs, values, rows, fused=fused)


@given(counts, st.sampled_from(get_args(WeightType)), widths, st.booleans())
@some
def test_linear_on_packed_weights(rows: int, kind: WeightType, n: int, fused: bool) -> None:
    """Of every type, read as the values they stand for, behind a norm and beside what learns."""
    k = 256
    stored = np.frombuffer(quantize(kind, draw(5, n, k)), np.uint8)
    frozen = packed(stored, WeightFormat[kind], n, k)
    weights = _native.unpack(int(frozen.format), frozen.data, n, k)
    w = Tensor("frozen", (n, k), WeightFormat[kind])
    values = {"x": draw(1, rows, k), "norm": draw(2, k), "w": draw(3, 7, k)}

    def ours(g: Builder, t: Named) -> Tensor:
        return g.linear("y", g.rms_norm("h", t["x"], t["norm"], 1e-5), (w, t["w"]))

    def theirs(torch: Any, v: Values) -> Any:
        h = torch.nn.functional.rms_norm(v["x"], (k,), v["norm"], 1e-5)
        return h @ torch.cat([torch.tensor(weights, dtype=torch.float64), v["w"]]).T

    compare(ours, theirs, values, rows, {w: frozen}, fused=fused)


@given(counts, widths, st.integers(1, 8), st.lists(widths, min_size=1, max_size=3))
@some
def test_adapters(rows: int, k: int, rank: int, parts: list[int]) -> None:
    """y + scale B A x, part by part; the last part has an A and B only where it is the first."""
    frozen = draw(9, sum(parts), k)
    w, own = Tensor("w", frozen.shape, WeightFormat.F32), range(max(1, len(parts) - 1))
    table = Tensor("adapters", adapters_shape(1, rank, k, tuple(parts)), "lora")
    values = {"x": draw(1, rows, k)}
    values |= {f"A{i}": draw(10 + i, rank, k) for i in own}
    values |= {f"B{i}": draw(20 + i, parts[i], rank) for i in own}
    names = {i: (f"A{i}", f"B{i}") for i in own}

    def ours(g: Builder, t: Named) -> Tensor:
        return g.adapted("y", t["x"], g.linear("y", t["x"], (w,)), table)

    def theirs(torch: Any, v: Values) -> Any:
        y = list(torch.split(v["x"] @ torch.tensor(frozen, dtype=torch.float64).T, parts, dim=1))
        for i in own:
            y[i] = y[i] + 0.5 * v["x"] @ v[f"A{i}"].T @ v[f"B{i}"].T
        return torch.cat(y, dim=1)

    call = Call([(0, rows, [0])], adapters=[0] * rows)
    tables = slopes.one_adapter(table, names, 0.5)
    compare(ours, theirs, values, rows, {w: matrix(frozen)}, call, tables=tables)


@given(counts, st.integers(8, 80), st.integers(1, 4))
@some
def test_rms_norm(rows: int, n: int, groups: int) -> None:
    """A norm of few values hardly bends: of one it is 1 or -1, and what is left of the gradient is
    the rounding of terms a thousand times as large (both in our case and in torch's float32).
    """

    def theirs(torch: Any, v: Values) -> Any:
        x = v["x"].view(rows, groups, n)
        return torch.nn.functional.rms_norm(x, (n,), v["w"], 1e-5).view(rows, groups * n)

    values = {"x": draw(1, rows, groups * n), "w": draw(2, n)}
    compare(lambda g, t: g.rms_norm("y", t["x"], t["w"], 1e-5, groups), theirs, values, rows)


@given(counts, widths, st.sampled_from(list(Activation)))
@some
def test_gated(rows: int, n: int, activation: Activation) -> None:
    def theirs(torch: Any, v: Values) -> Any:
        f = torch.nn.functional
        gate, up = v["x"][:, :n], v["x"][:, n:]
        silu = activation is Activation.SILU
        return (f.silu(gate) if silu else f.gelu(gate, approximate="tanh")) * up

    compare(lambda g, t: g.gated(t["x"], activation), theirs, {"x": draw(1, rows, 2 * n)}, rows)


@given(counts, widths)
@some
def test_softcap_and_add(rows: int, n: int) -> None:
    compare(
        lambda g, t: g.softcap(g.add("sum", t["x"], t["x"]), 2.0),
        lambda torch, v: 2.0 * torch.tanh(v["x"]),
        {"x": draw(1, rows, n)},
        rows,
    )


@given(widths, st.permutations(range(7)), st.integers(1, 7))
@some
def test_select(n: int, order: list[int], chosen: int) -> None:
    index = order[:chosen]
    compare(
        lambda g, t: g.select("chosen", t["x"]),
        lambda torch, v: v["x"][index],
        {"x": draw(1, 7, n)},
        7,
        call=Call([(0, 7, [0])], logit_index=index),
    )


@given(counts, st.integers(2, 80), st.integers(0, 2**32))
@some
def test_cross_entropy(rows: int, n: int, seed: int) -> None:
    """Of some rows no target is asked."""
    asked = np.random.default_rng(seed).integers(-1, n, rows).astype(np.int32)
    targets = Tensor("targets", (Domain.ROWS,), "i32")

    def theirs(torch: Any, v: Values) -> Any:
        due = torch.tensor(asked, dtype=torch.long)
        return torch.nn.functional.cross_entropy(
            v["x"], due, ignore_index=-1, reduction="none"
        ).view(rows, 1)

    values = {"x": 3 * draw(1, rows, n)}
    frozen = {targets: Indices(asked)}
    compare(lambda g, t: g.cross_entropy(t["x"], targets), theirs, values, rows, frozen)


def attention(
    lengths: list[int], dim: int, kv_heads: int, shared: int, window: int, cap: float
) -> None:
    """Causal, several sequences; the cache in f32."""
    rows, heads, longest = sum(lengths), kv_heads * shared, max(64, -(-max(lengths) // 16) * 16)
    q_width, kv = heads * dim, kv_heads * dim
    call, used = [], 0
    for n in lengths:
        blocks = -(-n // 16)
        call.append((0, n, list(range(used, used + blocks))))
        used += blocks
    cache = Tensor("cache", (used, kv_heads, dim), "kv")

    def ours(g: Builder, t: Named) -> Tensor:
        q, k = t["x"].columns(0, q_width), t["x"].columns(q_width, q_width + kv)
        after = g.append(k, t["x"].columns(q_width + kv, q_width + 2 * kv), cache)
        sizes: dict[str, Any] = {"heads": heads, "max_positions": longest, "scale": dim**-0.5}
        return g.attention(q, cache, after, **sizes, window=window or None, softcap=cap or None)

    def theirs(torch: Any, v: Values) -> Any:
        found = []
        for part in torch.split(v["x"], lengths):
            n = len(part)
            q, k, w = torch.split(part, [q_width, kv, kv], dim=1)
            q = q.view(n, heads, dim).transpose(0, 1)
            k, w = (m.view(n, kv_heads, dim).transpose(0, 1) for m in (k, w))
            k, w = (m.repeat_interleave(shared, 0) for m in (k, w))
            back = torch.arange(n)[:, None] - torch.arange(n)[None, :]
            seen = (back >= 0) & ((back < window) if window else True)
            scores = q @ k.transpose(1, 2) * dim**-0.5
            scores = cap * torch.tanh(scores / cap) if cap else scores
            weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
            found.append((weights @ w).transpose(0, 1).reshape(n, -1))
        return torch.cat(found)

    values = {"x": draw(1, rows, q_width + 2 * kv)}
    frozen = {cache: storage(used, kv_heads, dim, KVFormat.F32)}
    compare(ours, theirs, values, rows, frozen, Call(call))


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.sampled_from([16, 32, 48, 64]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from([0, 1, 5]),
    st.sampled_from([0.0, 1.5]),
)
@some
def test_attention(
    lengths: list[int], dim: int, kv_heads: int, shared: int, window: int, cap: float
) -> None:
    """Grouped, causal, within windows, with capped scores."""
    attention(lengths, dim, kv_heads, shared, window, cap)


@pytest.mark.parametrize("window", [0, 200])
def test_attention_over_long_sequences(window: int) -> None:
    """Of two parts and of three (native/rebar_training.h)."""
    attention([530, 780], 16, 1, 2, window, 0.0)


@given(counts, st.integers(1, 4), st.integers(1, 20), st.integers(0, 20))
@some
def test_rope(rows: int, heads: int, half: int, rest: int) -> None:
    dim = 2 * half + rest
    angles, table = draw(5, 64, half), Tensor("table", (64, 2 * half))
    turns = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)

    def theirs(torch: Any, v: Values) -> Any:
        x = v["x"].view(rows, heads, dim)
        turn = torch.tensor(turns[:rows, None], dtype=torch.float64)
        cos, sin = turn[..., :half], turn[..., half:]
        a, b = x[..., :half], x[..., half : 2 * half]
        turned = [a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]]
        return torch.cat(turned, dim=-1).reshape(rows, heads * dim)

    values = {"x": draw(1, rows, heads * dim)}
    compare(
        lambda g, t: g.rope("y", t["x"], table, heads), theirs, values, rows, {table: Rows(turns)}
    )


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

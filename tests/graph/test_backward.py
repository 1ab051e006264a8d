"""Every node's way back is the slope of its way forward, whatever the shapes."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.graph.builder import Builder
from rebar.graph.fuse import fuse
from rebar.graph.nodes_lora import adapters_shape
from rebar.graph.tensor import Tensor
from rebar.graph.weights import WeightType
from rebar.hal import Activation, Domain, Indices, Operand, Rows, WeightFormat
from tests.graph import slopes
from tests.graph.harness import F32, Call, matrix, packed, storage
from tests.tiny.quantize import quantize

widths = st.integers(1, 40)
counts = st.integers(1, 7)
shapes = settings(max_examples=15, deadline=None)


class Case:
    """A graph being written, with its parameters."""

    def __init__(self, seed: int = 0) -> None:
        self.g = Builder()
        self.random = np.random.default_rng(seed)
        self.trained: dict[Tensor, F32] = {}
        self.frozen: dict[Tensor, Operand] = {}

    def draw(self, *shape: int) -> F32:
        return self.random.standard_normal(shape, dtype=np.float32)

    def input(self, rows: int, width: int, name: str = "x") -> Tensor:
        """Activations that have a gradient."""
        w = self.matrix(name, rows, width)
        self.g.scope = f"{name}."
        x = self.g.embed(w, 1.0)
        self.g.scope = ""
        return x

    def matrix(self, name: str, n: int, k: int) -> Tensor:
        w = Tensor(name, (n, k), WeightFormat.F32)
        self.trained[w] = self.draw(n, k)
        return w

    def vector(self, name: str, n: int) -> Tensor:
        v = Tensor(name, (n,))
        self.trained[v] = self.draw(n)
        return v

    def quantized(self, name: str, n: int, k: int, kind: WeightType = "Q8_0") -> Tensor:
        w = Tensor(name, (n, k), WeightFormat[kind])
        stored = np.frombuffer(quantize(kind, self.draw(n, k)), np.uint8)
        self.frozen[w] = packed(stored, WeightFormat[kind], n, k)
        return w

    def check(
        self, out: Tensor, call: Call, *, fused: bool = False, tables: slopes.Tables | None = None
    ) -> None:
        graph = self.g.graph(out)
        graph = fuse(graph) if fused else graph
        slopes.check(graph, out, self.trained, self.frozen, call, tables=tables)


@given(counts, widths)
@shapes
def test_embed(rows: int, width: int) -> None:
    """Ids that come twice add up."""
    case = Case()
    out = case.g.embed(case.matrix("w", 20, width), 3.0)
    ids = [7, 0, 19, 7, 7, 3, 0][:rows]
    case.check(out, Call([(0, rows, [0])], ids=ids))


@given(counts, widths, st.integers(1, 4))
@shapes
def test_rms_norm(rows: int, width: int, groups: int) -> None:
    """A large eps: the norm of one small value bends within its root."""
    case = Case()
    x = case.input(rows, groups * width)
    out = case.g.rms_norm("y", x, case.vector("weight", width), 0.1, groups)
    case.check(out, Call([(0, rows, [0])]))


@given(counts, widths, st.lists(widths, min_size=1, max_size=3), st.booleans())
@shapes
def test_linear_of_stacked_parts(rows: int, k: int, parts: list[int], biased: bool) -> None:
    case = Case()
    x = case.input(rows, k)
    w = tuple(case.matrix(f"w{i}", n, k) for i, n in enumerate(parts))
    bias = tuple(case.vector(f"b{i}", n) for i, n in enumerate(parts)) if biased else ()
    case.check(case.g.linear("y", x, w, bias), Call([(0, rows, [0])]))


@pytest.mark.parametrize("fused", [False, True])
def test_frozen_quantized_weights_pass_the_gradient_on(fused: bool) -> None:
    """Beside a part that learns, behind a norm that also writes int8, before a residual."""
    case = Case()
    x = case.input(5, 64)
    h = case.g.rms_norm("h", x, case.vector("weight", 64), 1e-5)
    y = case.g.linear("y", h, (case.quantized("q", 32, 64), case.matrix("w", 32, 64)))
    out = case.g.add("sum", x, y)
    case.check(out, Call([(0, 5, [0])]), fused=fused)


@pytest.mark.parametrize("kind", get_args(WeightType))
def test_frozen_weights_of_every_type_pass_the_gradient_on(kind: WeightType) -> None:
    """Rows of 256 values: whole blocks of every type."""
    case = Case()
    x = case.input(3, 256)
    case.check(case.g.linear("y", x, (case.quantized("w", 21, 256, kind),)), Call([(0, 3, [0])]))


@given(counts, widths, widths)
@shapes
def test_a_tied_head(rows: int, vocabulary: int, k: int) -> None:
    """One matrix looked up and multiplied by: both gradients add up in it."""
    case = Case()
    w = case.matrix("w", vocabulary, k)
    out = case.g.linear("logits", case.g.embed(w, 2.0), (w,))
    ids = [i % vocabulary for i in (7, 0, 19, 7, 7, 3, 0)][:rows]
    case.check(out, Call([(0, rows, [0])], ids=ids))


@pytest.mark.parametrize("fused", [False, True])
@given(counts, st.integers(2, 40), st.integers(1, 5), st.lists(widths, min_size=1, max_size=3))
@settings(max_examples=8, deadline=None)
def test_adapters(fused: bool, rows: int, k: int, rank: int, parts: list[int]) -> None:
    """Beside a frozen product, with a residual behind; the last part has none of its own."""
    case, n = Case(), sum(parts)
    x, residual = case.input(rows, k), case.input(rows, n, "z")
    w = Tensor("w", (n, k), WeightFormat.F32)
    case.frozen[w] = matrix(case.draw(n, k))
    table = Tensor("adapters", adapters_shape(1, rank, k, tuple(parts)), "lora")
    named = {i: (f"A{i}", f"B{i}") for i in range(max(1, len(parts) - 1))}
    for i, (a, b) in named.items():
        case.matrix(a, rank, k)
        case.matrix(b, parts[i], rank)
    out = case.g.adapted("y", x, case.g.linear("y", x, (w,)), table)
    out = case.g.add("sum", out, residual)
    call = Call([(0, rows, [0])], adapters=[0] * rows)
    case.check(out, call, fused=fused, tables=slopes.one_adapter(table, named, -0.75))


def test_a_product_that_adds_its_residual() -> None:
    case = Case()
    x, z = case.input(5, 24), case.input(5, 16, "z")
    out = case.g.add("sum", z, case.g.linear("y", x, (case.matrix("w", 16, 24),)))
    case.check(out, Call([(0, 5, [0])]), fused=True)


@given(counts, st.integers(1, 4), st.integers(1, 9), st.integers(0, 9))
@shapes
def test_rope(rows: int, heads: int, half: int, rest: int) -> None:
    case = Case()
    x, table = case.input(rows, heads * (2 * half + rest)), Tensor("table", (64, 2 * half))
    angles = case.draw(64, half)
    case.frozen[table] = Rows(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))
    case.check(case.g.rope("y", x, table, heads), Call([(0, rows, [0])]))


@given(
    st.sampled_from([16, 32, 48]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, 2.0]),
    st.booleans(),
)
@shapes
def test_attention(
    dim: int,
    kv_heads: int,
    shared: int,
    lengths: list[int],
    window: int | None,
    softcap: float | None,
    fused: bool,
) -> None:
    """Queries, keys and values out of one product, rotated; several sequences in one step."""
    case, rows = Case(), sum(lengths)
    heads, kv = kv_heads * shared, kv_heads * dim
    x = case.input(rows, heads * dim + 2 * kv)
    table, cache = Tensor("table", (64, dim)), Tensor("cache", (16, kv_heads, dim), "kv")
    angles = case.draw(64, dim // 2)
    case.frozen[table] = Rows(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))
    case.frozen[cache] = storage(16, kv_heads, dim)
    q, k = x.columns(0, heads * dim), x.columns(heads * dim, heads * dim + kv)
    v = x.columns(heads * dim + kv, heads * dim + 2 * kv)
    q, k = case.g.rope("q", q, table, heads), case.g.rope("k", k, table, kv_heads)
    out = case.g.attention(
        q,
        cache,
        case.g.append(k, v, cache),
        heads=heads,
        max_positions=64,
        scale=dim**-0.5,
        window=window,
        softcap=softcap,
    )
    call = Call([(0, n, [i]) for i, n in enumerate(lengths)])
    case.check(out, call, fused=fused)


@given(counts, widths, st.sampled_from(list(Activation)))
@shapes
def test_gated(rows: int, width: int, activation: Activation) -> None:
    case = Case()
    out = case.g.gated(case.input(rows, 2 * width), activation)
    case.check(out, Call([(0, rows, [0])]))


@given(counts, widths)
@shapes
def test_add_of_a_tensor_with_itself_and_another(rows: int, width: int) -> None:
    case = Case()
    x, z = case.input(rows, width), case.input(rows, width, "z")
    twice = case.g.add("twice", x, x)
    case.check(case.g.add("y", case.g.add("sum", twice, z), x), Call([(0, rows, [0])]))


@given(widths, st.permutations(range(5)), st.integers(1, 5))
@shapes
def test_select_and_softcap(width: int, order: list[int], chosen: int) -> None:
    case = Case()
    out = case.g.softcap(case.g.select("chosen", case.input(5, width)), 1.5)
    case.check(out, Call([(0, 5, [0])], logit_index=order[:chosen]))


@given(counts, st.integers(2, 60), st.integers(0, 2**32))
@shapes
def test_cross_entropy(rows: int, width: int, seed: int) -> None:
    """Of some rows no target is asked."""
    case, targets = Case(), Tensor("targets", (Domain.ROWS,), "i32")
    asked = np.random.default_rng(seed).integers(-1, width, rows).astype(np.int32)
    asked[0] = width - 1
    x = case.input(rows, width)
    case.frozen[targets] = Indices(asked)
    case.check(case.g.cross_entropy(x, targets), Call([(0, rows, [0])]))

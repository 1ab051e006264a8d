"""Graphs: order, the memory plan, fusions, watching and compiling: the same bits whichever way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar import _native
from rebar.errors import DeviceError, ShapeError
from rebar.graph.builder import Builder
from rebar.graph.fuse import fuse
from rebar.graph.graph import Graph
from rebar.graph.node import Node, Values
from rebar.graph.nodes import Add, Attention, Gated, Linear, Quantize, RmsNorm
from rebar.graph.plan import lowest_gap, make_plan, nbytes_of
from rebar.graph.tensor import Tensor
from rebar.hal import (
    Activation,
    DeviceManager,
    Domain,
    Limits,
    Matrix,
    Operand,
    QuantizedRows,
    Vector,
    WeightFormat,
)
from tests.graph.harness import F32, Call, matrix, open_device, packed, run, storage, vector
from tests.tiny.quantize import quantize


def activation(name: str, width: int) -> Tensor:
    return Tensor(name, (Domain.ROWS, width))


def block() -> tuple[Builder, Tensor, dict[Tensor, Operand], dict[Tensor, F32]]:
    """A small transformer layer with quantized weights, and all it needs."""
    random = np.random.default_rng(0)
    g, x = Builder(), activation("x", 64)
    bound: dict[Tensor, Operand] = {}

    def weights(name: str, n: int, k: int) -> tuple[Tensor]:
        t = Tensor(name, (n, k), WeightFormat.Q4_1)
        stored = quantize("Q4_1", random.standard_normal((n, k), dtype=np.float32) / np.float32(8))
        bound[t] = packed(np.frombuffer(stored, np.uint8), WeightFormat.Q4_1, n, k)
        return (t,)

    norm = Tensor("norm", (64,))
    bound[norm] = vector(np.ones(64, np.float32))
    cache = Tensor("cache", (16, 2, 32), "kv")
    bound[cache] = storage(16, 2, 32)
    h = g.rms_norm("h", x, norm, 1e-5)
    qkv = g.linear("qkv", h, weights("qkv", 128 + 64, 64))
    q, k, v = qkv.columns(0, 64), qkv.columns(64, 128), qkv.columns(128, 192)
    a = g.attention(
        q,
        cache,
        g.append(k, v, cache),
        heads=2,
        max_positions=64,
        scale=0.2,
        window=None,
        softcap=None,
    )
    x1 = g.add("x1", x, g.linear("o", a, weights("o", 64, 64)))
    m = g.gated(
        g.linear("gu", g.rms_norm("h2", x1, norm, 1e-5), weights("gu", 192, 64)), Activation.SILU
    )
    x2 = g.add("x2", g.linear("d", m, weights("d", 64, 96)), x1)
    return g, x2, bound, {x: random.standard_normal((4, 64), dtype=np.float32)}


def test_graph_run_program_and_fused_program_give_the_same_bits() -> None:
    g, out, bound, inputs = block()
    plain = g.graph(out)
    results = []
    for graph, compiled in (
        (plain, False),
        (plain, True),
        (fuse(plain), False),
        (fuse(plain), True),
    ):
        for isa in _native.isas():
            values = run(
                graph, open_device(f"cpu:{isa}:2"), Call(), bound, inputs, compiled=compiled
            )
            results.append(values.rows(out).data.tobytes())
    assert set(results) == {results[0]}


def test_the_reference_agrees_to_rounding() -> None:
    g, out, bound, inputs = block()
    fast = run(g.graph(out), open_device(f"cpu:{_native.best_isa()}:1"), Call(), bound, inputs)
    slow = run(g.graph(out), open_device("ref"), Call(), bound, inputs)
    # rounding before a quantization may move an int8 by one: a step of 1/127 of the largest of 32,
    # through three products
    assert (
        np.abs(fast.rows(out).data - slow.rows(out).data).max()
        < 0.05 * np.abs(slow.rows(out).data).max()
    )


def test_fusion_leaves_what_it_says() -> None:
    g, out, *_ = block()
    kinds = [type(n) for n in fuse(g.graph(out)).order]
    assert Quantize not in kinds
    assert Add not in kinds
    fused = fuse(g.graph(out)).order
    assert all(n.quantized is not None for n in fused if isinstance(n, RmsNorm | Gated | Attention))
    assert [n.residual is not None for n in fused if isinstance(n, Linear)] == [
        False,
        True,
        False,
        True,
    ]


def test_a_product_that_somebody_else_reads_keeps_its_place() -> None:
    g, x = Builder(), activation("x", 64)
    y = g.linear("y", x, (Tensor("w", (64, 64), WeightFormat.F32),))
    total = g.add("total", x, y)
    kept = fuse(g.graph(total, y))
    assert [type(n) for n in kept.order] == [Linear, Add]
    assert [type(n) for n in fuse(g.graph(total)).order] == [Linear]


def test_norms_of_heads_do_not_quantize() -> None:
    g, x = Builder(), activation("x", 64)
    q = g.quantize(g.rms_norm("n", x, Tensor("w", (16,)), 1e-5, groups=4))
    assert [type(n) for n in fuse(g.graph(q)).order] == [RmsNorm, Quantize]


def test_order_drops_what_nobody_needs_and_names_a_cycle() -> None:
    g, x = Builder(), activation("x", 8)
    a = g.add("a", x, x)
    g.add("unused", a, a)
    b = g.add("b", a, x)
    backwards = Graph(list(reversed(g.nodes)), (b,))
    assert [n.name for n in backwards.order] == ["a", "b"]
    p, q = activation("p", 8), activation("q", 8)
    with pytest.raises(ShapeError, match="a cycle through one, two"):
        Graph([Add("one", q, x, p), Add("two", p, x, q)], (q,))
    with pytest.raises(ShapeError, match="p is written by one and three"):
        Graph([Add("one", x, x, p), Add("three", x, x, p)], (p,))


class Watcher:
    """Records what passes."""

    def __init__(self) -> None:
        self.seen: dict[str, F32] = {}

    def after_forward(self, node: Node, values: Values) -> None:
        out = node.outputs[0]
        if out in values and out.dtype == "f32":
            self.seen[node.name] = values.rows(out).data.copy()


def test_observers_see_every_node_and_reuse_does_not_disturb_them() -> None:
    g, out, bound, inputs = block()
    graph = g.graph(out)
    watched = []
    for reuse in (True, False):
        watcher = Watcher()
        run(
            graph,
            open_device("cpu:scalar:1"),
            Call(),
            bound,
            inputs,
            compiled=False,
            observers=[watcher],
            reuse=reuse,
        )
        watched.append(watcher.seen)
    assert list(watched[0]) == [n.name for n in graph.order if n.outputs[0].dtype == "f32"]
    assert all((watched[0][name] == watched[1][name]).all() for name in watched[0])


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40)),
        min_size=1,
        max_size=30,
    )
)
@settings(deadline=None)
def test_tensors_alive_together_never_share_memory(edges: list[tuple[int, int, int]]) -> None:
    g = Builder()
    made = [activation("x", 8)]
    for a, b, _ in edges:
        left, right = made[a % len(made)], made[b % len(made)]
        made.append(g.add(f"n{len(made)}", left, right))
    graph = g.graph(made[-1])
    plan = make_plan(graph.order, graph.outputs, Limits(rows=edges[0][2]))
    places = list(plan.placements.values())
    for i, p in enumerate(places):
        for q in places[:i]:
            apart = p.offset + p.nbytes <= q.offset or q.offset + q.nbytes <= p.offset
            assert apart or p.dies < q.born or q.dies < p.born
    most = max(
        (sum(p.nbytes for p in places if p.born <= i <= p.dies) for i in range(len(graph.order))),
        default=0,
    )
    assert most <= plan.nbytes <= sum(p.nbytes for p in places)


def test_plan_of_a_layer_is_near_the_most_alive_at_once() -> None:
    g, out, *_ = block()
    graph, limits = g.graph(out), Limits(rows=32)
    plan = graph.plan(limits)
    places = plan.placements.values()
    most = max(
        sum(p.nbytes for p in places if p.born <= i <= p.dies) for i in range(len(graph.order))
    )
    assert plan.nbytes == most
    assert nbytes_of(
        Tensor("q", (Domain.ROWS, 64), "q8_16"), limits
    ) == 32 * _native.quantized_stride(64)
    assert lowest_gap([], 10) == 0


def test_unbound_and_misbound_tensors_are_named() -> None:
    g, x = Builder(), activation("x", 8)
    w = Tensor("missing", (8,))
    out = g.rms_norm("n", x, w, 1e-5)
    rows = {x: np.zeros((4, 8), np.float32)}
    with pytest.raises(ShapeError, match="missing should be bound to Vector, it has nothing"):
        run(g.graph(out), open_device("ref"), Call(), {}, rows)
    wrong = matrix(np.zeros((8, 8), np.float32))
    with pytest.raises(ShapeError, match="missing should be bound to Vector, it has Matrix"):
        run(g.graph(out), open_device("ref"), Call(), {w: wrong}, rows)
    t = Tensor("w", (8, 8), WeightFormat.F32)
    node = Linear("y", (t,), activation("y", 8), None, x)
    with pytest.raises(ShapeError, match="no input for w"):
        run(Graph([node], (node.out,)), open_device("ref"), Call(), {t: wrong}, rows)


def test_buffers_too_small_for_the_limits_are_refused_at_the_door() -> None:
    g, x = Builder(), activation("x", 8)
    out = g.add("a", x, x)
    with pytest.raises(ShapeError, match="Add: a has room for 3 rows, the program needs 4"):
        run(g.graph(out), open_device("ref"), Call(), {}, {x: np.zeros((3, 8), np.float32)})


def test_slices_and_domains() -> None:
    x = activation("x", 8)
    assert x.columns(2, 8).columns(1, 3).root is x
    assert x.columns(2, 8).columns(1, 3).name == "x[2:8][1:3]"
    with pytest.raises(ShapeError, match=r"columns 4\.\.9 of x with 8"):
        x.columns(4, 9)
    with pytest.raises(ShapeError, match="no rows of a step"):
        _ = Tensor("w", (8, 8)).domain
    with pytest.raises(ShapeError, match="no fixed width"):
        _ = Tensor("w", (Domain.ROWS,)).width
    nested = x.columns(2, 8).columns(1, 3)
    g = Builder()
    out = g.add("a", nested, nested)
    data = np.arange(32, dtype=np.float32).reshape(4, 8)
    got = run(g.graph(out), open_device("cpu:scalar:1"), Call(), {}, {x: data}).rows(out).data
    assert (got == 2 * data[:, 3:5]).all()


def test_a_device_without_a_kernel_says_so() -> None:
    program = DeviceManager("cpu", memory=1 << 20).program(Limits(rows=1))

    class Strange:
        __slots__ = ()

        def check(self) -> None:
            """Nothing to check."""

    with pytest.raises(DeviceError, match="no kernel for Strange"):
        program.add(Strange())  # type: ignore[arg-type]
    strange = open_device("ref").program(Limits(rows=1))
    strange.add(Strange())  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="no rule for Strange"):
        strange.run(Call([(0, 1, [0])]).step())


def test_operands_refuse_what_kernels_could_not_read() -> None:
    with pytest.raises(ShapeError, match="adjacent float32"):
        Vector(np.zeros(8, np.float32)[::2])
    with pytest.raises(ShapeError, match="packs into"):
        Matrix(np.zeros(64, np.uint8), WeightFormat.Q4_0, 1, 32)
    with pytest.raises(ShapeError, match="need a multiple of 32"):
        QuantizedRows(np.zeros((1, 64), np.uint8), 33)

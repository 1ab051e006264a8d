"""Every node on every device, against formulas written out here in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from rebar import _native
from rebar.errors import ShapeError
from rebar.graph.builder import Builder
from rebar.graph.node import Node
from rebar.graph.nodes import Embed, Linear
from rebar.graph.tensor import Tensor
from rebar.graph.weights.model_file import WeightType
from rebar.hal import Activation, DeviceManager, Domain, Matrix, WeightFormat
from rebar.hal.ref_formats import unpack
from rebar.hal.ref_memory import load
from tests.graph.harness import (
    DEVICES,
    F32,
    Call,
    matrix,
    open_device,
    packed,
    run,
    vector,
)
from tests.tiny.quantize import quantize

EPS = float(np.finfo(np.float32).eps)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> DeviceManager:
    return open_device(request.param)


def random(*shape: int, seed: int = 1) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def activation(name: str, width: int) -> Tensor:
    return Tensor(name, (Domain.ROWS, width))


def close(
    got: NDArray[np.floating], want: NDArray[np.floating], bound: NDArray[np.floating] | float
) -> None:
    """|got - want| <= bound everywhere."""
    worst = np.max(np.abs(got.astype(np.float64) - want) - bound)
    assert worst <= 0, f"past the bound by {worst}"


def test_embed_gathers_the_rows_of_the_ids(device: DeviceManager) -> None:
    table = random(50, 48)
    g, w = Builder(), Tensor("w", (50, 48), WeightFormat.F32)
    out = g.embed(w, 3.0)
    call = Call([(0, 5, [0])], ids=[49, 0, 7, 7, 16])
    values = run(g.graph(out), device, call, {w: matrix(table)})
    assert (values.rows(out).data == table[[49, 0, 7, 7, 16]] * np.float32(3)).all()


@pytest.mark.parametrize("groups", [1, 4])
def test_rms_norm(device: DeviceManager, groups: int) -> None:
    x, weight = random(6, 96), random(96 // groups, seed=2)
    g, tx, tw = Builder(), activation("x", 96), Tensor("w", (96 // groups,))
    out = g.rms_norm("norm", tx, tw, 1e-5, groups)
    got = run(g.graph(out), device, Call([(0, 6, [0])]), {tw: vector(weight)}, {tx: x}).rows(out)
    wide = x.astype(np.float64).reshape(6, groups, -1)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    # sum of n squares: n/16 + 4 roundings of the sum (relative), then root, division and product
    bound = (96 / 16 + 8) * EPS * np.abs(want)
    close(got.data, want.reshape(6, 96), bound.reshape(6, 96))


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("kind", [k for k in WeightFormat if k.quantized_input])
def test_quantized_linear_is_exact_but_for_the_last_roundings(
    device: DeviceManager, kind: WeightFormat, group: Literal[16, 32]
) -> None:
    """Integer parts are exact, so only the float sum over groups rounds: one or two roundings a
    group of 32 (16) inputs.
    """
    n, k = 40, 512
    w = quantize(weight_type(kind), random(n, k, seed=3) * np.float32(k**-0.5))
    m = packed_matrix(w, kind, n, k)
    x, bias = random(9, k), random(n, seed=4)
    g, tx = Builder(), activation("x", k)
    tw, tb = Tensor("w", (n, k), kind), Tensor("b", (n,))
    out = g.linear("y", tx, (tw,), (tb,), group)
    graph = g.graph(out, g.quantize(tx, group))
    values = run(graph, device, Call([(0, 9, [0])]), {tw: m, tb: vector(bias)}, {tx: x})
    xq = load(values.quantized(g.quantize(tx, group)), 9)
    dense = unpack(m).astype(np.float64)
    want = xq @ dense.T + bias
    # each of up to 3 k/16 float steps rounds a partial sum that is at most sum |x w|; min terms
    # included by |x||w|
    bound = 3 * (k / 16 + 2) * EPS * (np.abs(xq) @ dense_bound(m).T + np.abs(bias))
    close(values.rows(out).data, want, bound)


def weight_type(kind: WeightFormat) -> WeightType:
    """The name files use."""
    return cast(WeightType, kind.name)


def packed_matrix(stored: bytes, kind: WeightFormat, n: int, k: int) -> Matrix:
    return packed(np.frombuffer(stored, dtype=np.uint8), kind, n, k)


def dense_bound(m: Matrix) -> NDArray[np.float64]:
    """An upper bound of |d q| + |minimum| of each weight: 2 |w| does not do where both cancel, the
    row's largest does.
    """
    dense = np.abs(unpack(m).astype(np.float64))
    return np.broadcast_to(4 * dense.max(axis=1, keepdims=True), dense.shape)


@pytest.mark.parametrize("kind", [WeightFormat.F32, WeightFormat.F16])
def test_float_linear_of_stacked_parts(device: DeviceManager, kind: WeightFormat) -> None:
    k, x = 40, random(5, 40)
    w1, w2 = random(24, k, seed=5), random(7, k, seed=6)
    g, tx = Builder(), activation("x", k)
    t1, t2 = Tensor("w1", (24, k), kind), Tensor("w2", (7, k), kind)
    out = g.linear("y", tx, (t1, t2))
    m1, m2 = matrix(w1, kind), matrix(w2, kind)
    values = run(g.graph(out), device, Call([(0, 5, [0])]), {t1: m1, t2: m2}, {tx: x})
    dense = np.concatenate([unpack(m1), unpack(m2)]).astype(np.float64)
    close(
        values.rows(out).data,
        x @ dense.T,
        k * EPS * (np.abs(x.astype(np.float64)) @ np.abs(dense).T),
    )


def test_linear_of_mixed_formats(device: DeviceManager) -> None:
    """q and k quantized, v in float: each part takes the input it wants."""
    k, x = 64, random(3, 64)
    q8 = quantize("Q8_0", random(16, k, seed=7))
    g, tx = Builder(), activation("x", k)
    t1, t2 = Tensor("w1", (16, k), WeightFormat.Q8_0), Tensor("w2", (5, k), WeightFormat.F32)
    out = g.linear("y", tx, (t1, t2))
    m1, m2 = packed_matrix(q8, WeightFormat.Q8_0, 16, k), matrix(random(5, k, seed=8))
    got = run(g.graph(out), device, Call([(0, 3, [0])]), {t1: m1, t2: m2}, {tx: x}).rows(out).data
    exact = x.astype(np.float64) @ unpack(m2).astype(np.float64).T
    close(got[:, 16:], exact, k * EPS * np.abs(x).sum(-1, keepdims=True) * np.abs(unpack(m2)).max())
    # int8 of x errs by at most half a step of max|x|/127 an input
    half_step = np.abs(x).max(-1, keepdims=True) / 254
    dense = unpack(m1).astype(np.float64)
    close(got[:, :16], x.astype(np.float64) @ dense.T, 1.01 * half_step * np.abs(dense).sum(-1))


def test_rope_rotates_pairs_half_a_head_apart(device: DeviceManager) -> None:
    x = random(3, 2 * 8)
    angles = random(16, 3, seed=9)
    # dim 6 of 8
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    g, tx, tt = Builder(), activation("x", 16), Tensor("table", (16, 6))
    out = g.rope("rope", tx, tt, 2)
    call = Call([(4, 2, [0]), (9, 1, [1])])
    got = run(g.graph(out), device, call, {}, {tx: x, tt: table}).rows(out).data
    for r, position in enumerate([4, 5, 9]):
        c, s = table[position, :3], table[position, 3:]
        for head in (0, 8):
            a, b, rest = x[r, head : head + 3], x[r, head + 3 : head + 6], x[r, head + 6 : head + 8]
            want = np.concatenate([a * c - b * s, b * c + a * s, rest])
            close(got[r, head : head + 8], want, 4 * EPS * (np.abs(x[r]).max() * 2))


@pytest.mark.parametrize("kind", list(Activation))
def test_gated(device: DeviceManager, kind: Activation) -> None:
    x = np.concatenate(
        [
            random(3, 32) * np.float32(4),
            np.full((1, 32), -100, np.float32),
            np.full((1, 32), 90, np.float32),
        ]
    )
    g, tx = Builder(), activation("x", 32)
    out = g.gated(tx, kind)
    got = run(g.graph(out), device, Call([(0, 5, [0])]), {}, {tx: x}).rows(out).data
    gate, up = x[:, :16].astype(np.float64), x[:, 16:].astype(np.float64)
    if kind is Activation.SILU:
        act = gate / (1 + np.exp(-gate))
    else:
        act = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    # 1 + tanh cancels where tanh is near -1: an absolute error of a few eps of the gate
    close(got, act * up, 16 * EPS * (np.abs(act) + np.abs(gate)) * np.abs(up) + 1e-30)


def test_add_select_and_softcap(device: DeviceManager) -> None:
    a, b = random(4, 20), random(4, 20, seed=2)
    g, ta, tb = Builder(), activation("a", 20), activation("b", 20)
    total = g.add("sum", ta, tb)
    chosen = g.select("chosen", total)
    capped = g.softcap(chosen, 1.5)
    call = Call([(0, 4, [0])], logit_index=[3, 1])
    values = run(g.graph(total, chosen, capped), device, call, {}, {ta: a, tb: b})
    assert (values.rows(total).data == a + b).all()
    assert (values.rows(chosen).data == (a + b)[[3, 1]]).all()
    want = 1.5 * np.tanh((a + b)[[3, 1]].astype(np.float64) / 1.5)
    close(values.rows(capped).data, want, 8 * EPS * np.abs(want) + 4 * EPS)


SHAPES: list[tuple[str, Callable[[Builder], object]]] = [
    ("width differs", lambda g: g.rms_norm("n", activation("x", 8), Tensor("w", (7,)), 1e-5)),
    ("k modulo 32 differs", lambda g: g.quantize(activation("x", 33))),
    (
        "k differs",
        lambda g: g.linear("y", activation("x", 8), (Tensor("w", (4, 9), WeightFormat.F32),)),
    ),
    (
        "n of bias differs",
        lambda g: g.linear(
            "y", activation("x", 8), (Tensor("w", (4, 8), WeightFormat.F32),), (Tensor("b", (5,)),)
        ),
    ),
    ("width modulo heads", lambda g: g.rope("r", activation("x", 9), Tensor("t", (4, 2)), 2)),
    ("does not fit heads of 4", lambda g: g.rope("r", activation("x", 8), Tensor("t", (4, 6)), 2)),
    (
        "width differs",
        lambda g: g.append(activation("k", 8), activation("v", 8), Tensor("c", (4, 1, 4), "kv")),
    ),
    (
        "heads modulo kv heads",
        lambda g: g.attention(
            activation("q", 12),
            Tensor("c", (4, 2, 4), "kv"),
            activation("o", 0),
            heads=3,
            max_positions=8,
            scale=1.0,
            window=None,
            softcap=None,
        ),
    ),
    ("width modulo 2", lambda g: g.gated(activation("x", 9), Activation.SILU)),
    ("width differs", lambda g: g.add("a", activation("a", 4), activation("b", 5))),
    ("rows differs", lambda g: g.add("a", activation("a", 4), Tensor("b", (Domain.LOGIT_ROWS, 4)))),
    ("rows differs", lambda g: g.select("chosen", Tensor("b", (Domain.LOGIT_ROWS, 4)))),
]


@pytest.mark.parametrize(("message", "build"), SHAPES)
def test_shape_rules_name_the_size(message: str, build: Callable[[Builder], object]) -> None:
    with pytest.raises(ShapeError, match=message):
        build(Builder())


def test_a_residual_of_another_width_is_refused() -> None:
    with pytest.raises(ShapeError, match="n of residual differs: 4, 5"):
        Linear.shape((Domain.ROWS, 8), (4, 8), residual=(Domain.ROWS, 5))


def test_costs_count_operations_and_bytes() -> None:
    """The figures that speed is later judged against."""
    g, x = Builder(), activation("x", 64)
    w = Tensor("w", (32, 64), WeightFormat.Q4_1)
    cache = Tensor("c", (8, 2, 16), "kv")
    y = g.linear("y", x, (w,))
    a = g.attention(
        y,
        cache,
        g.append(y, y, cache),
        heads=2,
        max_positions=64,
        scale=1.0,
        window=8,
        softcap=None,
    )
    costs: dict[str, Node] = {n.name: n for n in g.nodes}
    linear = costs["y"].cost(3)
    assert (linear.operations, linear.written) == (2 * 3 * 32 * 64, 3 * 32 * 4)
    assert linear.read == _native.packed_nbytes(int(WeightFormat.Q4_1), 32, 64) + 3 * 64
    attention = costs["attention"].cost(1, positions=100)
    assert attention.operations == 4 * 8 * 32  # the window bounds what is seen
    assert attention.read == 32 * 4 + 2 * 8 * 32 * 2
    graph = g.graph(a)
    assert graph.cost(3, 0, 5).operations == sum(n.cost(3, 5).operations for n in graph.order)
    assert (
        Embed("e", w, x).cost(2).read
        == 2 * _native.packed_nbytes(int(WeightFormat.Q4_1), 32, 64) // 32
    )
    for node in [*g.nodes, *every_other_node()]:
        cost = node.cost(2, 4)
        assert cost.read >= 0
        assert cost.written > 0


def every_other_node() -> list[Node]:
    g, x, norm = Builder(), activation("x", 32), Tensor("n", (32,))
    h = g.rms_norm("h", x, norm, 1e-5)
    g.rope("r", h, Tensor("t", (4, 8)), 4)
    g.softcap(
        g.select(
            "chosen", g.add("a", g.gated(g.add("b", h, h), Activation.SILU), activation("z", 16))
        ),
        1.0,
    )
    g.quantize(h)
    return g.nodes
